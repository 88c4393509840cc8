# SPDX-License-Identifier: Apache-2.0
"""Signal handlers run while calls wait, and every call ends: Ctrl-C, alarms, and daemons that do not answer."""
from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import os
import pickle
import signal
import threading
import time
from typing import Any, Callable, Iterator, Optional

import rdtd
from nodes import LONG, Node, main, raises, until

SOON = 30.0  # half of the minute that a call takes by default
PROMPT = 3.0  # far below the time-outs of the calls, and far above the tenth of a second that a handler may wait


@contextlib.contextmanager
def stopped(node: Node) -> Iterator[None]:
    node.process.send_signal(signal.SIGSTOP)
    until(lambda: "\nState:\tT" in open(f"/proc/{node.process.pid}/status").read(), "the daemon is stopped")
    try:
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)


class Alarmed(Exception):
    pass


@contextlib.contextmanager
def handler(action: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, action)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupted(call: Callable[[], object]) -> float:
    """Makes the call, during which a handler raises Alarmed. Returns how long the call took after that."""
    at: list[float] = []

    def on_alarm(*ignored: object) -> None:
        at.append(time.monotonic())
        raise Alarmed

    with handler(on_alarm):
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            call()
        except Alarmed:
            took = time.monotonic() - start
            assert at and took < PROMPT, f"the handler's exception came after {took:.1f} s"
            return took
    raise AssertionError("the call ended by itself")


def bytes_of(node: Node) -> dict[str, int]:
    """What the daemon charges its clients."""
    clients = json.loads(node.ctl("limits", "--all", "--json"))["clients"]
    return {what: sum(usage["used"] for client in clients for usage in client["usage"] if usage["what"] == what)
            for what in ("bytes", "objects", "regions", "waiters")}


def test_a_handler_ends_waits_for_room_and_nothing_stays_charged() -> None:
    with Node("--set", "daemon.memory_limit=64M") as node, rdtd.connect(node.socket) as c:
        full = c.empty(60 << 20, "u1")
        before = bytes_of(node)
        interrupted(lambda: c.put(bytearray(16 << 20), timeout=LONG))
        interrupted(lambda: c.put(bytearray(16 << 20), timeout=LONG, snapshot=True))
        interrupted(lambda: c.empty(16 << 20, "u1", timeout=LONG))
        interrupted(lambda: c.publish("n", bytearray(16 << 20), timeout=LONG))
        until(lambda: bytes_of(node) == before, f"nothing else is charged: {before}")
        del full
        gc.collect()
        with c.put(bytearray(16 << 20), timeout=LONG):  # the connection is usable, and there is room
            pass


def test_a_handler_that_returns_lets_the_call_go_on_with_its_deadline() -> None:
    with Node("--set", "daemon.memory_limit=64M") as node, rdtd.connect(node.socket) as c:
        full = c.empty(60 << 20, "u1")
        ran: list[float] = []
        with handler(lambda *ignored: ran.append(time.monotonic())):
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            for call in (lambda: c.put(bytearray(16 << 20), timeout=1), lambda: c.empty(16 << 20, "u1", timeout=1),
                         lambda: c.fetch(rdtd.Ref("never"), timeout=1).result()):
                n, begun = len(ran), time.monotonic()
                with raises(rdtd.TimedOut):
                    call()
                assert 0.9 < time.monotonic() - begun < PROMPT + 1
                assert len(ran) > n + 2, "the handler ran while the call waited"
        # A call within a handler, on the same connection, and the call goes on.
        with handler(lambda *ignored: c.ping(LONG)), raises(rdtd.TimedOut):
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            c.put(bytearray(16 << 20), timeout=1)
        # What the call waits for happens meanwhile.
        with handler(lambda *ignored: ran.append(0)):
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            lists = [full]
            full = None
            threading.Timer(0.3, lists.clear).start()
            with c.put(bytearray(16 << 20), timeout=LONG):
                pass


def calls_of(c: rdtd.Connection, ref: rdtd.Ref, part: rdtd.Ref) -> dict[str, Callable[[], object]]:
    return {
        "connect": lambda: rdtd.connect(c._where, timeout=LONG),
        "ping": lambda: c.ping(LONG),
        "put": lambda: c.put(bytearray(100000)),
        "put of little": lambda: c.put(b"x"),
        "put of a snapshot": lambda: c.put(bytearray(8 << 20), snapshot=True),
        "put_many": lambda: c.put_many([bytearray(8)] * 10),
        "publish_many": lambda: c.publish_many({"n": ref}),
        "lookup": lambda: c.lookup(["x"]),
        "exists": lambda: c.exists("n"),
        "follow": lambda: c.follow("n"),
        "put_many, of which one fails": lambda: c.put_many([bytearray(8)] * 10, ids=[b""] + [None] * 9, errors="return"),
        "empty": lambda: c.empty(1 << 20, "u1"),
        "get": lambda: c.get(ref),
        "load_many": lambda: c.load_many([ref] * 2, [bytearray(1 << 20) for _ in range(2)], errors="return"),
        "fetch": lambda: c.fetch(ref).result(),
        "hold": lambda: c.hold(ref),
        "wait_put": lambda: c.wait_put(rdtd.Ref("never")),
        "wait_freed": lambda: c.wait_freed(ref),
        "publish": lambda: c.publish("n", ref),
        "publish of a value": lambda: c.publish("n", bytearray(100000)),
        "unpublish": lambda: c.unpublish("n"),
        "free": lambda: c.free(rdtd.Ref(str(ref)), force=True),
        "stat": lambda: c.stat(ref),
        "objects": c.objects,
        "names": c.names,
        "status": c.status,
        "groups": c.groups,
        "store": lambda: c.store(ref),
        "put_part": lambda: c.put_part({"w": rdtd.Box(bytearray(100000), (100000,))}),
        "publish_part": lambda: c.publish_part("p", 1, 0, 2, part),
        "publish_part of boxes": lambda: c.publish_part("p", 1, 0, 2, {"w": rdtd.Box(bytearray(100000), (100000,))}),
        "manifest": lambda: c.manifest("p"),
        "plan": lambda: c.plan("p", {"w": bytearray(8)}).run(),
        "pickle": lambda: pickle.dumps(ref),
        "verify": lambda: c.get(ref, verify=True),
        "group": lambda: c.create_group("g", "gloo", [("a", None)]),
        "free of a Ref": ref.free,
    }


def test_a_handler_ends_every_call_beside_a_stopped_daemon() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put(bytearray(1 << 20))
        part = c.put_part({"w": rdtd.Box(bytearray(8), (8,))})
        for name, call in calls_of(c, ref, part).items():
            with stopped(node):
                try:
                    interrupted(call)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}") from error
            c.ping(LONG)
        del ref, part, call
        gc.collect()
        assert not [row for row in c.objects() if row["bytes"]], c.objects()  # the daemon was told before this request


def test_what_an_interrupted_put_made_ends_although_nobody_reads_the_answer() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        before = bytes_of(node)
        with stopped(node):
            interrupted(lambda: c.put(bytearray(100000), id="mine"))
            interrupted(lambda: c.put(bytearray(8 << 20), snapshot=True))
            interrupted(lambda: c.empty(1 << 20, "u1"))
        until(lambda: bytes_of(node) == before, f"nothing else is charged: {before}")
        c.put(b"y", id="mine").free()


def test_an_interrupted_follow_follows_nothing() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        c.publish("n", bytearray(100000))
        with stopped(node):
            interrupted(lambda: c.follow("n"))
        until(lambda: c.status()["followers"] == c.status()["followed_bytes"] == 0, "there is no follower")
        assert c.follow("n").prepare(LONG).version == 1
        c.unpublish("n")


def test_an_interrupted_lookup_leases_nothing() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        refs = [c.put(b"x", id=id, evictable=True) for id in ("k0", "k1")]
        with stopped(node):
            interrupted(lambda: c.lookup(["k0", "none", "k1"], lease_for=LONG))
        for ref in refs:
            until(lambda: c.stat(ref)["holds"] == 1, "the lease has ended")
        c.free(prefix="k")


def test_an_interrupted_wait_leaves_no_request_although_its_exception_is_kept() -> None:
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as producer:
        target, wanted, name = bytearray(100000), rdtd.Ref.from_id("later"), rdtd.Ref.from_name("n")
        calls: list[Callable[[], object]] = [
            lambda: c.get_fetched(wanted, into=target), lambda: next(c.versions("n", into=target)), lambda: c.hold(wanted),
            lambda: c.wait_put(wanted), lambda: c.wait_put(name)]
        kept = []

        def keeping(call: Callable[[], object]) -> None:
            try:
                call()
            except Alarmed as error:
                kept.append(error)
                raise

        for call in calls:
            interrupted(lambda: keeping(call))
            until(lambda: node.waiters() == 0, "nobody waits")
        ref = producer.put(b"x" * 100000, id="later")
        producer.publish("n", b"x" * 100000)
        until(lambda: c.stat(wanted)["holds"] == 1, "the producer alone holds it")
        assert c.wait([c.when_put(wanted)], timeout=LONG)[0] and not any(target), "nothing was written"
        del kept
        producer.unpublish("n")
        ref.free()


def test_an_interrupted_put_that_stores_leaves_no_object() -> None:
    class Interrupted(rdtd.Connection):
        def _store(self, ref: Any, timeout: Optional[float], /) -> str:
            assert timeout == 600, "the default"
            raise KeyboardInterrupt

    with Node() as node, Interrupted(node.socket) as c:
        for options in {}, {"id": "mine"}, {"detached": True}:
            with raises(KeyboardInterrupt):
                c.put(bytearray(1 << 20), stored=True, **options)
            assert not c.objects(), options


def test_what_follows_an_interruption_waits_for_no_answer() -> None:
    class Stopping(rdtd.Connection):
        """The daemon stops after each put, and the user presses Ctrl-C then."""

        def _end(self, *ignored: object) -> Any:
            node.process.send_signal(signal.SIGSTOP)
            raise Alarmed

        _store = _publish = _publish_many = _end

    with Node() as node, Stopping(node.socket) as c, rdtd.connect(node.socket) as other:
        for options in {}, {"id": "mine"}, {"detached": True}, {"evictable": True}:
            calls = {"publish": lambda: c.publish("n", bytearray(100000), **options),
                     "publish_many": lambda: c.publish_many({"n": bytearray(8), "m": bytearray(8)}, **options)}
            if "evictable" not in options:
                calls["put"] = lambda: c.put(bytearray(100000), stored=True, **options)
            if "id" in options:
                del calls["publish_many"]
            for name, call in calls.items():
                start = time.monotonic()
                with raises(Alarmed):
                    call()
                assert time.monotonic() - start < SOON, (name, options)
                node.process.send_signal(signal.SIGCONT)
                assert not c.objects(), (name, options)
        weights = rdtd.DeltaPublisher(other, "d")
        for end in lambda: weights.publish({"w": memoryview(bytearray(100000))}), weights.unpublish:
            weights.publish({"w": memoryview(bytearray(100000))})
            with stopped(node):
                interrupted(end)
        with raises(rdtd.NotFound):  # the daemon has done what it was asked for
            weights.unpublish()
        assert not other.names()


def test_cancelled_coroutines_end_their_threads_calls() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        before = bytes_of(node)
        calls = {"put": lambda: c.put_async(bytearray(100000), id="mine"), "empty": lambda: c.empty_async(1 << 20, "u1"),
                 "group": lambda: c.create_group_async("g", "gloo", ["a"])}
        for name, call in calls.items():
            with stopped(node):
                start = time.monotonic()
                with raises(asyncio.TimeoutError):
                    asyncio.run(asyncio.wait_for(call(), 0.2))
                assert time.monotonic() - start < SOON, name
        until(lambda: bytes_of(node) == before, f"nothing else is charged: {before}")

        class Late(rdtd.Connection):
            def put(self, *values: Any, **options: Any) -> Any:
                made = super().put(*values, **options)
                until(cancelled.is_set, "the coroutine is cancelled")
                return made

        def is_there() -> bool:
            return any(c.get(rdtd.Ref.from_id(one["id"]), timeout=0) == b"x" for one in c.objects())

        async def cancel(late: Late, **options: Any) -> None:
            putting = asyncio.ensure_future(late.put_async(b"x", **options))
            await asyncio.get_running_loop().run_in_executor(None, until, is_there, "the object is there")
            putting.cancel()
            asyncio.get_running_loop().call_later(0.1, cancelled.set)
            await putting

        with Late(node.socket) as late:
            for options in {}, {"id": "mine"}, {"detached": True}:
                cancelled = threading.Event()
                with raises(asyncio.CancelledError):
                    asyncio.run(cancel(late, **options))
                until(lambda: not c.objects(), f"what was put too late has ended: {options}")
            c.put(b"old", id="mine", detached=True)
            cancelled = threading.Event()
            with raises(asyncio.CancelledError):
                asyncio.run(cancel(late, id="mine", detached=True, replace=True))
            late.ping()
            assert c.get(rdtd.Ref.from_id("mine"), timeout=0) == b"x", "the earlier one has gone"
            c.free(rdtd.Ref.from_id("mine"))


def test_what_ended_a_with_block_is_raised_beside_a_daemon_that_has_ended() -> None:
    with Node() as node, rdtd.connect(node.socket) as c, raises(KeyboardInterrupt):
        with c.put(b"x"):
            node.process.kill()
            node.process.wait()
            with raises(rdtd.Error):
                c.ping(LONG)
            raise KeyboardInterrupt


def test_deleting_an_array_beside_a_stopped_daemon_does_not_block_ctrl_c() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        arrays = [c.empty(1 << 20, "u1")]
        with stopped(node):
            def delete() -> None:
                arrays.clear()
                gc.collect()
                for _ in range(1000):  # the exception comes after the destructor
                    pass
            interrupted(delete)
        c.ping(LONG)


def test_ctrl_c() -> None:
    with Node() as node, rdtd.connect(node.socket) as c, stopped(node):
        start = time.monotonic()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with raises(KeyboardInterrupt):
            c.put(bytearray(100000))
        assert time.monotonic() - start < PROMPT


def test_close_ends_every_call_of_other_threads() -> None:
    with Node("--set", "daemon.memory_limit=64M") as node:
        c = rdtd.connect(node.socket)
        full = c.empty(60 << 20, "u1")
        ends: list[rdtd.Error] = []

        def run(call: Callable[[], object]) -> None:
            try:
                call()
            except rdtd.Error as error:
                ends.append(error)

        threads = [threading.Thread(target=run, args=(call,)) for call in (
            lambda: c.put(bytearray(16 << 20), timeout=LONG), lambda: c.empty(16 << 20, "u1", timeout=LONG),
            lambda: c.get(rdtd.Ref("never")), lambda: c.manifest("never"))]
        for thread in threads:
            thread.start()
        until(lambda: node.waiters() == 3 and '"waiters": 1' in node.ctl("objects", "--json"), "all four wait")
        c.close()
        for thread in threads:
            thread.join(PROMPT)
            assert not thread.is_alive()
        assert len(ends) == 4, ends
        for error in ends:
            assert type(error) is rdtd.Cancelled and "connection was closed" in str(error), repr(error)
        del full


def test_a_thread_of_a_call_that_could_be_cancelled_is_as_before() -> None:
    """The flag of a cancelled call is for that call only: the thread serves others later."""
    async def wait_after_put(c: rdtd.Connection) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        for _ in range(3):
            await c.put_async(b"x")
            others = [bytearray(b"\xff") for _ in range(3000)]  # where the flag was, among other places
            with raises(rdtd.TimedOut):
                await loop.run_in_executor(None, lambda: c.get(rdtd.Ref("never"), timeout=1))
            del others

    with Node() as node, rdtd.connect(node.socket) as c:
        asyncio.run(wait_after_put(c))


if __name__ == "__main__":
    main(globals())
