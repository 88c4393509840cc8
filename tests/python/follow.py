# SPDX-License-Identifier: Apache-2.0
"""Followers from Python, with numpy arrays and between two nodes; with torch where it is installed."""
from __future__ import annotations

import asyncio
import collections
import threading
from typing import Any, Callable

import rdtd
from nodes import LONG, Node, Skipped, change_a_byte_of, main, raises, until

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]
try:
    import torch
    import rdtd.torch
except ImportError:
    torch = None  # type: ignore[assignment]


def need_numpy() -> None:
    if numpy is None:
        raise Skipped("numpy is not installed")


def weights(step: int) -> dict[str, Any]:
    return {"w": numpy.full((64, 100), step, "f4"), "layers": [numpy.full(7, step, "i8")], "step": step}


def test_single_objects() -> None:
    need_numpy()
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as trainer, rdtd.connect(b.socket) as engine:
        home = trainer.publish("policy", weights(1)).ref
        follower = engine.follow(home)
        got = follower.prepare(timeout=LONG)
        assert (got.version, got.objects, got.in_parts, got.skipped) == (1, 1, False, 0), got
        assert got.bytes == got.bytes_moved == 64 * 100 * 4 + 56, got
        assert (follower.prepared, follower.committed) == (1, 0)
        done = follower.commit()
        assert done.value["step"] == 1 and (done.value["w"] == 1).all() and not done.value["w"].flags.writeable
        assert (done.version, done.bytes) == (1, 0) and (follower.prepared, follower.committed) == (0, 1)
        with raises(rdtd.Invalid, "no version of"):
            follower.commit()
        with raises(rdtd.TimedOut, "no newer version is whole on this node"):
            follower.prepare(timeout=0)
        into = {"w": numpy.zeros((64, 100), "f4"), "layers": [numpy.zeros(7, "i8")]}
        for step in 2, 3:
            trainer.publish("policy", weights(step))
            assert follower.prepare(timeout=LONG).version == step
            done = follower.commit(into)
            assert done.value is into and (into["w"] == step).all() and (into["layers"][0] == step).all()
            assert done.bytes == 64 * 100 * 4 + 56
        trainer.publish("policy", weights(4))
        until(lambda: follower.lag == 1, "the daemon knows version 4")
        follower.prepare(timeout=LONG)
        with raises(rdtd.Mismatch, "into['w']"):
            follower.commit({"w": numpy.zeros((64, 99), "f4"), "layers": [numpy.zeros(7, "i8")]})
        with raises(TypeError, "into['w'] is a NoneType"):
            follower.commit({"w": None, "layers": into["layers"]})
        with raises(rdtd.Mismatch, "has the key 'v'"):
            follower.commit({"v": numpy.zeros(3)})
        assert (follower.commit(into).value["w"] == 4).all()
        shown = b.ctl("followers")
        assert "policy" in shown and " 4 " in shown, shown
        assert 'rdtd_follower_committed_version{name="policy"' in b.ctl("metrics")
        with trainer.follow("policy") as here:
            assert here.prepare(timeout=LONG).bytes_moved == 0, "small tensors of this node come within the answer"
        trainer.publish("policy", 5)  # has no tensors
        follower.prepare(timeout=LONG)
        assert follower.commit().value == 5
        follower.close()
        with raises(ValueError, "the follower was closed"):
            follower.prepare(timeout=0)
        trainer.unpublish(home)


def test_parts() -> None:
    need_numpy()
    w = numpy.arange(64 * 96, dtype="f4").reshape(64, 96)
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as trainer, rdtd.connect(b.socket) as engine:
        home = rdtd.Ref.from_name("policy", address=trainer.node["address"])
        columns = numpy.zeros((64, 10), "f2")
        plan = engine.plan(home, {"w": rdtd.Box(columns, start=(0, 7))})
        with engine.follow(home) as follower:
            for step in 1, 2:
                first = trainer.start_part(home, step, 0, 2, trainer.put_part({"w": rdtd.Box(w[:32] * step, (64, 96))}),
                                           timeout=LONG)
                trainer.publish_part(home, step, 1, 2, {"w": rdtd.Box(w[32:] * step, (64, 96), (32, 0)), "b": w[0]},
                                     timeout=LONG)
                first.result()
                got = follower.prepare(timeout=LONG)
                assert (got.version, got.step, got.objects, got.in_parts) == (step, step, 2, True), got
                if step == 1:
                    with raises(rdtd.Unsupported, "tensor 'w' of version 1 is split over several parts"):
                        follower.commit()
                    with raises(rdtd.NotFound, "\"v\""):
                        follower.commit({"v": numpy.zeros(3, "f4")})
                    bias = numpy.zeros(96, "f4")
                    follower.commit({"b": bias})
                    assert (bias == w[0]).all()
                else:
                    done = follower.commit(plan)
                    assert done.bytes == columns.nbytes and (columns == (w * step)[:, 7:17].astype("f2")).all()
                    assert plan.version == step
            trainer.publish_part(home, 3, 0, 1, {"w": w, "b": w[0]}, timeout=LONG)
            follower.prepare(timeout=LONG)
            value = follower.commit().value
            assert sorted(value) == ["b", "w"] and (value["w"] == w).all()
        trainer.unpublish(home)
        del first, plan, value, done


def test_version_to_which_tensors_were_added() -> None:
    need_numpy()
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as trainer, rdtd.connect(b.socket) as engine:
        home = rdtd.Ref.from_name("policy", address=trainer.node["address"])
        into = {f"layer.{i}": numpy.zeros((700, 300), "f4") for i in range(9)}
        plan = engine.plan(home, into)
        with engine.follow(home) as follower:
            for step in 1, 2:
                with trainer.publishing("policy") as version:
                    for i in range(9):
                        version.add(f"layer.{i}", numpy.full((700, 300), step * 100 + i, "f4"))
                got = follower.prepare(timeout=LONG)
                assert (got.version, got.objects, got.in_parts) == (step, version.pieces, True) and got.objects > 1, got
                follower.commit(plan)
                assert all((into[f"layer.{i}"] == step * 100 + i).all() for i in range(9))
                a.fds, b.fds = a.open_fds(), b.open_fds()  # the transports between the nodes stay connected
        trainer.unpublish("policy")


def test_plan_that_verifies() -> None:
    need_numpy()
    w = (numpy.arange(200_000, dtype="f4") % 997).reshape(400, 500)
    with Node() as node, rdtd.connect(node.socket) as trainer, rdtd.connect(node.socket) as engine:
        target = numpy.zeros((400, 500), "f4")
        plan = engine.plan("policy", {"w": target}, verify=True)
        with engine.follow("policy") as follower:
            for step in 1, 2:
                w += 1
                trainer.publish_part("policy", step, 0, 1, {"w": w}, timeout=LONG, checksum=True)
                follower.prepare(timeout=LONG)
                if step == 1:
                    follower.commit(plan)
                    assert (target == w).all()
            change_a_byte_of(w.tobytes())
            with raises(rdtd.Damaged, "are not those that were put"):
                follower.commit(plan)
            assert (target == w - 1).all() and (follower.prepared, follower.committed) == (2, 1), "nothing was written"
        trainer.unpublish("policy")


def test_error_of_a_commit_keeps_the_version() -> None:
    need_numpy()
    with Node() as node, rdtd.connect(node.socket) as trainer, rdtd.connect(node.socket) as engine:
        with engine.follow("policy", after=7) as follower:
            assert follower.committed == 7
        with engine.follow("policy") as follower:
            trainer.publish("policy", {"deque": collections.deque([1])})
            follower.prepare(timeout=LONG)
            with raises(rdtd.PickleRefused):
                follower.commit(allow_pickle=False)
            assert (follower.prepared, follower.committed) == (1, 0)
            assert follower.commit(allow_pickle=True).value == {"deque": collections.deque([1])}
            trainer.publish_part("policy", 2, 0, 1, {"w": numpy.ones(5)}, timeout=LONG)
            follower.prepare(timeout=LONG)
            with raises(ValueError, "as_"):
                follower.commit(as_="nothing")
            assert (follower.prepared, follower.committed) == (2, 1)
            value = follower.commit().value
            trainer.publish("policy", {"w": numpy.full(5, 3)})
            follower.prepare(timeout=LONG)
            assert (value["w"] == 1).all() and (follower.commit().value["w"] == 3).all(), "each stays what it was"
        trainer.unpublish("policy")


def test_waits_and_ends() -> None:
    with Node() as node, rdtd.connect(node.socket) as trainer:
        engine = rdtd.connect(node.socket)
        follower = engine.follow("policy")
        later = threading.Timer(0.05, lambda: trainer.publish("policy", b"x"))
        later.start()
        assert asyncio.run(follower.prepare_async(LONG)).version == 1
        later.join()
        assert follower.commit().value == b"x"
        ended: list[BaseException] = []

        def wait() -> None:
            try:
                follower.prepare()
            except rdtd.Error as error:
                ended.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: "PREPARE" in node.ctl("metrics") and follower._follower is not None, "it waits")
        engine.close()
        waiting.join()
        assert len(ended) == 1, ended
        with raises(ValueError, "is not the Ref of a name"):
            trainer.follow(trainer.put(b"y").keep())
        trainer.unpublish("policy")


def test_a_ref_of_a_name_asks_for_what_is_above_its_version() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        for value in 1, 2:
            c.publish("policy", value)
        for after, given in (2, 0), (0, 2), (2, 1):
            at = rdtd.Ref.from_name("policy", after)
            with c.follow(at, given) as follower, raises(rdtd.TimedOut):
                assert follower.committed == 2
                follower.prepare(0)
            with raises(rdtd.NotPut):
                next(c.versions(at, given, timeout=0))
        assert next(c.versions(rdtd.Ref.from_name("policy", 1))) == (2, 2)
        c.unpublish("policy")


def test_tied_targets_that_cannot_be_equal_are_not_written() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        c.publish("policy", {"a": numpy.ones(3000), "b": numpy.zeros(3000)})
        follower = c.follow("policy")
        follower.prepare(LONG)
        mine = numpy.full(3000, 5.0)
        with raises(rdtd.Mismatch, "into['a'] and into['b'] have the same memory"):
            follower.commit({"a": mine, "b": mine})
        assert (mine == 5).all() and (follower.committed, follower.prepared) == (0, 1)
        assert follower.commit().value["a"][0] == 1
        c.publish("policy", {"a": numpy.ones(3000), "b": numpy.ones(3000)})
        follower.prepare(LONG)
        assert follower.commit({"a": mine, "b": mine[:]}).version == 2 and (mine == 1).all()
        follower.close()
        c.unpublish("policy")


def test_a_follower_ends_with_its_connection() -> None:
    with Node() as node, rdtd.connect(node.socket) as trainer:
        trainer.publish("policy", numpy.zeros(9))
        c = rdtd.connect(node.socket)
        follower = c.follow("policy")
        follower.prepare(LONG)
        c.close()
        calls: list[Callable[[], object]] = [lambda: follower.prepare(0), follower.commit, follower.info, lambda: follower.lag]
        for call in calls:
            with raises(rdtd.Disconnected, "this connection was closed"):
                call()
        follower.close()
        trainer.unpublish("policy")


def test_the_error_of_too_many_says_what_to_do() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        followers = [c.follow(f"n{i}") for i in range(256)]
        with raises(rdtd.LimitReached, "close some, or follow from another connection"):
            c.follow("one more")
        followers.pop().close()
        c.follow("one more").close()


def test_a_wait_of_an_event_loop_can_be_given_up() -> None:
    with Node() as node, rdtd.connect(node.socket) as c, c.follow("policy") as follower:
        async def give_up() -> None:
            with raises(asyncio.TimeoutError):
                await asyncio.wait_for(follower.prepare_async(), 0.1)
            c.publish("policy", b"x")
            assert (await follower.prepare_async(LONG)).version == 1  # no thread uses the follower any more

        asyncio.run(give_up())  # which waits for the threads
        assert follower.commit().value == b"x"
        c.unpublish("policy")


def test_torch_models() -> None:
    if torch is None:
        raise Skipped("torch is not installed")

    def model(step: int) -> Any:
        torch.manual_seed(step)
        return torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.LayerNorm(30), torch.nn.Linear(30, 20))

    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as trainer, rdtd.connect(b.socket) as engine:
        home = rdtd.Ref.from_name("policy", address=trainer.node["address"])
        mine = model(0)
        with rdtd.torch.follow(mine, home, connection=engine) as follower:
            for step in 1, 2, 3:
                rdtd.torch.publish(model(step), home, connection=trainer, timeout=LONG)
                assert follower.prepare(timeout=LONG).version == step
                before = mine[0].weight.data_ptr()
                assert follower.commit().version == step == follower.committed
                assert mine[0].weight.data_ptr() == before
                for key, value in model(step).state_dict().items():
                    assert torch.equal(mine.state_dict()[key], value), key
            until(lambda: follower.lag == 0, "the daemon knows of the commit")
        other = torch.nn.Linear(3, 3)
        with rdtd.torch.follow(other, home, connection=engine) as follower:
            follower.prepare(timeout=LONG)
            with raises(rdtd.NotFound, 'no tensor "weight"'):
                follower.commit()
        trainer.unpublish(home)


if __name__ == "__main__":
    main(globals())
