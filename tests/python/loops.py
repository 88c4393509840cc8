# SPDX-License-Identifier: Apache-2.0
"""Threads and event loops that share connections."""
import asyncio
import gc
import os
import select
import threading

import rdtd

from nodes import LONG, Node, main, raises, required, until

np = required("numpy")


def test_threads_share_a_connection():
    with Node() as node, rdtd.connect(node.socket) as c:
        failures = []

        def work(number):
            try:
                for i in range(100):
                    ref = c.put({"a": np.full(50, number * 1000 + i), "b": c.empty(2000, "u8")})
                    assert c.get(ref)["a"][49] == number * 1000 + i
                    assert len(c.get([ref] * 3)) == 3
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert not failures, failures


def test_close_in_one_thread_ends_waits_in_others():
    with Node() as node:
        c = rdtd.connect(node.socket)
        ends = []

        def wait(what):
            try:
                what()
            except rdtd.Error as error:
                ends.append(type(error))

        threads = [threading.Thread(target=wait, args=(what,)) for what in
                   (lambda: c.get(rdtd.Ref("never")), lambda: c.wait_put(rdtd.Ref("never")),
                    lambda: asyncio.run(one(c)))]

        async def one(c):
            await c.fetch(rdtd.Ref("never"))

        for thread in threads:
            thread.start()
        until(lambda: '"waiters": 3' in node.ctl("objects", "--json"), "three wait")
        c.close()
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
        assert len(ends) == 3, ends


def test_await_everything():
    async def run(c, ref):
        got = await asyncio.gather(*[c.fetch(ref) for _ in range(50)])
        assert all((value == got[0]).all() for value in got)
        late = c.fetch(rdtd.Ref("late"))
        there = c.when_put(rdtd.Ref("late"))
        other = asyncio.ensure_future(c.put_async({"x": np.ones(3)}, id="late"))
        assert (await late)["x"].sum() == 3 and await there is None
        held = await other
        gone = c.when_freed(held)
        held.free()
        del late
        gc.collect()
        await gone
        try:
            await asyncio.wait_for(c.fetch(rdtd.Ref("never")), 0.05)
        except asyncio.TimeoutError:
            pass
        with raises(rdtd.TimedOut):
            await c.fetch(rdtd.Ref("never"), timeout=0.05)
        never, again = c.fetch(rdtd.Ref("never")), c.fetch(ref)
        assert await c.wait_async([never, again], "any") == ([again], [never])
        assert await c.wait_async([never, again], timeout=0.05) == ([again], [never])
        assert await c.wait_async([never, again], 0, timeout=0) == ([again], [never])
        assert await c.wait_async([]) == ([], [])
        waits = asyncio.ensure_future(c.wait_async([never]))
        await asyncio.sleep(0)
        waits.cancel()
        assert await c.wait_async([never], timeout=0) == ([], [never])  # a time-out does not end it
        never.cancel()
        with raises(rdtd.Cancelled):
            await c.wait_async([again, never])
        with raises(ValueError, "how_many"):
            await c.wait_async([again], 2)
        memory = await c.empty_async(10, "u8")
        assert len(memory) == 10
        number = c.publish("n", np.arange(2))
        async for version, value in c.versions("n"):
            assert version == number
            break

    with Node() as node, rdtd.connect(node.socket) as c:
        asyncio.run(run(c, c.put(np.arange(100000))))
        c.unpublish("n")
        asyncio.run(run(c, c.put(np.arange(100000))), debug=True)
        c.unpublish("n")
        until(lambda: '"waiters": 1' not in node.ctl("objects", "--json"), "nobody waits")


def test_next_connection_of_a_loop_is_listened_to():
    async def run(node, other):
        loop = asyncio.get_running_loop()
        with rdtd.connect(node.socket) as c:
            waits = asyncio.ensure_future(c.when_put(rdtd.Ref("never"))._result())
            await asyncio.sleep(0)
        with rdtd.connect(node.socket) as c:  # it gets the descriptor numbers that were just closed
            late = loop.call_later(LONG, c.close)
            # Now the waiter knows that its connection was closed.
            loop.call_soon(lambda: other.put(np.ones(3), id="late"))
            assert (await c.fetch(rdtd.Ref("late"))).sum() == 3
            late.cancel()
        with raises(rdtd.Error):
            await waits

    with Node() as node, rdtd.connect(node.socket) as other:
        asyncio.run(run(node, other))


def ends_under(lock, end):
    """The garbage collector may end an object in a thread that holds one of the package's locks."""
    class Ends:
        def __del__(self):
            end()

    ends = [Ends()]

    def hold():
        with lock:
            ends.clear()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    thread.join(LONG)
    return not thread.is_alive()


def test_what_is_collected_waits_for_no_lock_of_its_own_thread():
    with Node() as node:
        c = rdtd.connect(node.socket)
        assert ends_under(c._hub()._lock, c.close) and c.closed
        os.environ["RDT_SOCKET"] = node.socket
        assert ends_under(rdtd._lock, lambda: rdtd.default().ping())
        rdtd.default().close()


def test_whoever_reads_the_answers_wakes_the_loops():
    async def fetch(c, name):
        return await c.fetch(rdtd.Ref(name))

    async def run(c, other):
        for i in range(4):
            task = asyncio.get_running_loop().create_task(fetch(c, f"x{i}"))
            await asyncio.sleep(0)  # it waits
            ref = other.put(np.arange(3), id=f"x{i}")
            assert select.select([c.fileno()], [], [], LONG)[0]
            if i % 2:
                thread = threading.Thread(target=c.dispatch)
                thread.start()
                thread.join()
            else:
                c.dispatch()
            assert (await asyncio.wait_for(task, LONG))[2] == 2
            ref.free()

    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        asyncio.run(run(c, other))


def test_loops_of_several_threads_share_a_connection():
    with Node() as node, rdtd.connect(node.socket) as c:
        failures = []

        async def run(number):
            for i in range(100):
                name = f"{number}.{i}"
                wait = c.fetch(rdtd.Ref(name), timeout=LONG)
                ref = c.put(np.full(3, i), id=name)
                assert (await wait)[0] == i
                del ref

        def loop(number):
            try:
                asyncio.run(run(number))
            except BaseException as error:
                failures.append(error)

        def block():
            try:
                for i in range(200):
                    c.get(c.put(np.zeros(3)))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=loop, args=(n,))
                   for n in range(4)] + [threading.Thread(target=block)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
        assert not failures, failures


def test_wait_async_takes_requests_of_other_connections():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        async def run():
            wait = other.fetch(rdtd.Ref("late"), timeout=LONG)
            asyncio.get_running_loop().call_later(0.1, lambda: refs.append(c.put(np.ones(3), id="late")))
            ended, running = await asyncio.wait_for(c.wait_async([wait]), LONG)
            assert ended == [wait] and running == [] and wait.result()[0] == 1

        refs = []
        asyncio.run(run())
        c.free(refs.pop())


class GetsMore:
    """What fetches while it is unpickled."""

    def __init__(self, connection, ref):
        self.state = connection._where, ref

    def __getstate__(self):
        return self.state

    def __setstate__(self, state):
        inner_connection.dispatch()  # as rdtd.get does
        self.got = inner_connection.get(state[1])[0]


def test_a_structure_may_fetch_while_it_is_unpickled():
    global inner_connection
    with Node() as node, rdtd.connect(node.socket) as c:
        inner_connection = c
        inner = c.put(np.full(3, 7))
        outer = c.put({"w": np.arange(4.0), "more": GetsMore(c, inner)})
        target = np.zeros(4)

        async def run():
            return await asyncio.wait_for(c.fetch(outer, into={"w": target}, timeout=LONG), LONG)

        assert asyncio.run(run())["w"] is target and target[3] == 3
        del inner_connection


class Unwilling(asyncio.SelectorEventLoop):
    refuses = True

    def add_reader(self, *arguments):
        if self.refuses:
            raise OSError("no more descriptors may be watched")
        super().add_reader(*arguments)


def test_a_loop_that_cannot_watch_once_may_wait_later():
    with Node() as node, rdtd.connect(node.socket) as c:
        loop = Unwilling()

        async def run():
            with raises(OSError, "no more"):
                await c.fetch(rdtd.Ref("late"), timeout=LONG)
            loop.refuses = False
            wait = asyncio.ensure_future(c.fetch(rdtd.Ref("late"), timeout=LONG)._result())
            await asyncio.sleep(0.1)
            ref = c.put(np.ones(3), id="late")
            assert (await asyncio.wait_for(wait, LONG))[0] == 1
            c.free(ref)

        loop.run_until_complete(run())
        loop.close()


def test_a_failed_get_cancels_the_rest():
    with Node() as node, rdtd.connect(node.socket) as c:
        for targets in ([np.zeros(3), np.zeros(3)], [{"w": np.zeros(3)}, {"w": np.zeros(3)}]):
            bad = c.put({"w": np.ones(4)} if isinstance(targets[0], dict) else np.ones(4))
            kept = None
            try:
                c.get([bad, rdtd.Ref("never")], into=targets)
            except rdtd.Mismatch as error:
                kept = error  # and with it the frames
            assert kept is not None
            until(lambda: node.waiters() == 0, "nobody waits for what never comes")
            first = c.fetch(bad, into=targets[0])
            until(first.done, "it has failed")
            with raises(rdtd.Mismatch):
                c.wait([first, c.fetch(rdtd.Ref("never"), into=targets[1])], timeout=LONG)


if __name__ == "__main__":
    main(globals())
