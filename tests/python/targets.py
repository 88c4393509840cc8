# SPDX-License-Identifier: Apache-2.0
"""Targets of fetches, plans and followers: no memory is written twice or after it was freed, and errors name the target.
shards_torch.py does the same with torch."""
from __future__ import annotations

import asyncio
import ctypes
import mmap
import threading
from typing import Any

import rdtd
from nodes import LONG, Node, main, need, optional, raises, until
from values import Step, same

np = optional("numpy")


def test_targets_that_share_memory_are_named_and_not_written() -> None:
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        a, b = np.arange(1, 9000.), -np.arange(1, 9000.)
        named, listed, lone = c.put({"a": a, "b": b}), c.put([a, b]), c.put(a)
        for memory in np.zeros(9999), reader.empty(9999, "f64"):  # librdt writes to one, and the daemon to the other
            x, y, z = memory[:8999], memory[5:9004], memory[:8999]
            for call, said in ((lambda: reader.get(named, into={"a": x, "b": y}), "into['b'] shares memory with into['a']"),
                               (lambda: reader.get(listed, into=[x, y]), "into[1] shares memory with into[0]"),
                               (lambda: reader.get(listed, into=[x, y], as_="list"), "into[1] shares memory with into[0]"),
                               (lambda: reader.get([lone, lone], into=[x, x]), "into[1] shares memory with into[0]"),
                               (lambda: reader.get([named, lone], into=[{"a": x, "b": b.copy()}, z]),
                                "into[1] shares memory with into[0]['a']"),
                               (lambda: reader.get([named, named], into=[{"a": a.copy(), "b": x}, {"a": x, "b": b.copy()}]),
                                "into[1]['a'] shares memory with into[0]['b']"),
                               (lambda: rdtd.DeltaFollower(reader, "w", {"a": x, "b": y}),
                                "tensors['b'] shares memory with tensors['a']")):
                with raises(rdtd.Invalid, said):
                    call()
            with raises(rdtd.Invalid, 'want 1 ("b") shares memory with want 0 ("a")'):
                reader.plan("w", {"a": x, "b": y})
            with raises(rdtd.Mismatch, "into['a'] and into['b'] have the same memory, but the object has different tensors"):
                reader.get(named, into={"a": x, "b": z})
            with raises(rdtd.Mismatch, "into[0] and into[1] have the same memory"):
                reader.get(listed, into=[x, x], as_="list")
            # the same memory as numbers of another kind, or not as an array
            for other in z.view("i8"), memoryview(memory)[:8999]:
                with raises(rdtd.Invalid, "memory"):
                    reader.get(named, into={"a": x, "b": other})
            columns = np.zeros((8999, 2))
            with raises(rdtd.Mismatch, "into['a'] is not contiguous"):
                reader.get(named, into={"a": columns[:, 0], "b": columns[:, 1]})
            del x, y, z


def test_tied_targets_get_what_both_names_have() -> None:
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        a = np.arange(1, 9000.)
        for value in ({"a": a, "b": a, "c": a[:9]}, {"a": a, "b": a.copy(), "c": a[:9]}, {"a": a, "b": a[:], "c": a[:9]}):
            ref = c.put(value)
            for memory in np.zeros(8999), reader.empty(8999, "f64"):
                mine = {"a": memory, "b": memory[:], "c": np.zeros(9)}
                assert reader.get(ref, into=mine) is mine and (memory == a).all() and (mine["c"] == a[:9]).all()
                other = {"a": memory, "b": memory[:], "c": memory[:9]}
                with raises(rdtd.Invalid, "into['c'] shares memory with into['a']"):
                    reader.get(ref, into=other)
                memory[:] = 0
                reader.get(c.put(list(value.values())), into=[memory, memory, np.zeros(9)])
                assert (memory == a).all()
                del mine, other


def test_a_live_object_is_not_fetched_into_its_own_memory() -> None:
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        for n in 8, 3000:
            square = c.empty((n, n))
            square[...] = np.arange(n * n).reshape(n, n)
            before = square.copy()
            with raises(rdtd.Invalid, "into shares memory with tensor 0 of the object"):
                c.get(c.put(square.T), into=square)
            with raises(rdtd.Invalid, "into['a'] shares memory with tensor 1 of the object"):
                c.get(c.put({"a": square[0], "b": square[1]}), into={"a": square[1], "b": square[0]})
            assert c.get(c.put(square), into=square) is square and (square == before).all()
            got = c.get(c.put(square.T, snapshot=True), into=square)
            assert (got == before.T).all()
            del square, got


def test_plan_of_tied_targets_is_checked_before_anything_is_written() -> None:
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        w = np.arange(48, dtype="f4").reshape(6, 8)

        def publish(step: int, head: Any) -> None:
            c.publish_part("policy", step, 0, 1, {"embed": w * step, "head": head, "bias": w[0]}, timeout=LONG)

        publish(1, w)
        mine, bias = np.zeros((6, 8), "f4"), np.zeros(8, "f4")
        plan = c.plan("policy", {"embed": mine, "head": mine[:], "bias": bias})
        assert plan.run(timeout=LONG).version == 1 and (mine == w).all()
        wrong = w * 2
        wrong[5, 7] += 1
        publish(2, wrong)
        with raises(rdtd.Mismatch, 'version 2 of "policy": tensors "embed" and "head" differ'):
            plan.run(timeout=LONG)
        assert (mine == w).all()
        fused = np.zeros((6, 16), "f2")  # with a cast, as columns of one matrix, and parts that are equal
        plan = c.plan("policy", {"embed": fused[:, :8], "head": fused[:, 8:]})
        assert plan.run(timeout=LONG).version == 2 and (fused[:, :8] == w * 2).all() and (fused[:, 8:] == wrong).all()
        rows = rdtd.Box(mine[:5], (6, 8), (0, 0))
        assert c.plan("policy", {"embed": rows, "head": rows}).run(timeout=LONG).version == 2
        assert (mine[:5] == w[:5] * 2).all() and (mine[5] == w[5]).all()
        c.unpublish("policy")
        del plan


def test_arrays_are_not_resized_while_something_will_write_to_them() -> None:
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        w = np.arange(100_000.)
        c.publish_part("policy", 1, 0, 1, {"w": w}, timeout=LONG)
        for make in (lambda mine: c.plan("policy", {"w": mine}), lambda mine: c.fetch(rdtd.Ref("never"), into=mine),
                     lambda mine: c.plan("policy", {"w": mine[:]}), lambda mine: c.plan("policy", {"w": memoryview(mine)})):
            mine = np.zeros(100_000)
            kept = make(mine)
            with raises(ValueError, "cannot resize"):
                mine.resize(9, refcheck=False)
            if isinstance(kept, rdtd.Plan):
                kept.run(timeout=LONG)
                assert (mine == w).all()
            del kept
            mine.resize(9, refcheck=False)
        mine = np.zeros(100_000)
        plan = c.plan("policy", {"w": mine})
        mine.shape = (100, 1000)
        with raises(ValueError, "plan: tensor 'w': its memory has been freed or moved, or it has another shape"):
            plan.run(timeout=LONG)
        assert not mine.any()
        c.unpublish("policy")
        del plan


def test_follower_of_arrays_that_were_replaced_or_tied() -> None:
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        weights = rdtd.DeltaPublisher(c, "policy")
        a, b = np.zeros(9000), np.zeros(9000)
        mine = np.zeros(9000)
        follower = rdtd.DeltaFollower(c, "policy", {"a": mine, "b": mine[:]})

        def publish(*values: float) -> None:
            a[0], b[0] = values
            weights.publish({"a": a, "b": b})

        publish(1, 1)
        assert follower.update(LONG) == 1 and mine[0] == 1
        publish(2, 2)
        assert follower.update(LONG) == 2 and follower.by_delta and mine[0] == 2
        publish(3, 4)
        with raises(rdtd.Mismatch, "into['a'] and into['b'] have the same memory"):
            follower.update(LONG)
        publish(5, 5)
        assert follower.update(LONG) == 4 and mine[0] == 5
        with raises(rdtd.Mismatch, "into['b'] is f64 in the object, but f32 in the target"):
            rdtd.DeltaFollower(c, "policy", {"a": mine, "b": np.zeros(9000, "f4")}).update(LONG)
        weights.unpublish()


def test_nothing_is_fetched_of_what_is_not_wanted() -> None:
    need(np, "numpy")
    with Node(listen=True) as node, Node(listen=True) as far, rdtd.connect(node.socket) as c, rdtd.connect(far.socket) as reader:
        big = np.arange(1 << 18, dtype="f4").reshape(512, 512)
        value = {"w": np.arange(20_000.0), "optim": {"m": big, "v": [big + 1, np.array(3, "f4")]}, "step": np.array(7)}
        shared = {"a": big, "b": big}  # one tensor under two names
        for get in c.get_fetched, reader.get_fetched:
            ref = c.put(value)
            mine = {"w": np.zeros(20_000), "optim": None, "step": None}
            got = get(ref, into=mine)
            assert got.value is mine and (mine["w"] == value["w"]).all()
            if get == reader.get_fetched:
                assert got.bytes_moved < 200_000, got
            mine = {"w": None, "optim": {"m": None, "v": [np.zeros((512, 512), "f4"), None]}, "step": np.array(0)}
            got = get(ref, into=mine)
            assert (mine["optim"]["v"][0] == big + 1).all() and mine["step"] == 7
            flat = [None, np.zeros((512, 512), "f4"), None, None]
            get(c.put([value["w"], big, big + 1, np.zeros((0, 3))]), into=flat, as_="list")
            assert (flat[1] == big).all()
            mine = {"a": None, "b": np.zeros((512, 512), "f4")}
            get(c.put(shared), into=mine)
            assert (mine["b"] == big).all()
            part = get(ref, as_="list", slices=[np.s_[5:7], np.s_[0:0], np.s_[3:5], None] + [None] * 1).value
            assert part[0].shape == (2,) and part[1].shape == (0, 512) and (part[2] == big[3:5] + 1).all()
            mixed = [np.zeros(2), None, np.zeros((2, 512), "f4"), None, None]
            get(ref, into=mixed, as_="list", slices=[np.s_[5:7], None, np.s_[3:5], None, None])
            assert (mixed[0] == [5, 6]).all() and (mixed[2] == big[3:5] + 1).all()
            both = get(ref, into=None).value
            assert (both["w"] == value["w"]).all()
            del got, part, both
        far.kill()
        with raises(ValueError, "into wants nothing of any tensor"):
            c.get(ref, into={"w": None})
        with raises(ValueError, "only a whole object can be verified, and into"):
            c.get(ref, into={"w": mine["b"], "optim": None}, verify=True)
        with raises(rdtd.Mismatch, "into has no target for the object's key 'step'"):
            c.get(ref, into={"w": np.zeros(20_000), "optim": None})
        with raises(rdtd.Mismatch, "into['w'], dimension 0: has 20000 elements in the object, but 20"):
            c.get(ref, into={"w": np.zeros(20), "optim": None, "step": None})
        with raises(TypeError, "tensors in dicts"):
            c.empty_like({"a": None})
        names = c.put({"a": np.zeros(3)}), c.put(np.ones(3))
        two = [{"a": np.ones(3)}, None]
        assert c.get(list(names), into=two)[1][0] == 1 and two[0]["a"][0] == 0


def test_ctypes_arrays_and_mmaps_are_targets() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        floats, page = (ctypes.c_float * 10_000)(*range(10_000)), mmap.mmap(-1, 40_960)
        page[:] = bytes(range(256)) * 160
        for ref, target in ((c.put(floats), (ctypes.c_float * 10_000)()), (c.put(page), mmap.mmap(-1, 40_960)),
                            (c.put(bytes(page)), mmap.mmap(-1, 40_960)), (c.put(page), bytearray(40_960)),
                            (c.put(page), (ctypes.c_ubyte * 40_960)())):
            assert c.get(ref, into=target) is target
            assert bytes(target) == bytes(floats if isinstance(target[0], float) else page)
            pair = [target, bytearray(4)]
            c.get(c.put([target, b"abcd"]), into=pair)
            assert pair[1] == b"abcd"
            with raises(rdtd.Mismatch, "into"):
                c.get(c.put(bytes(8)), into=target)
        request = c.fetch(rdtd.Ref.from_id("later"), into=page)
        with raises((BufferError, ValueError), "exported"):  # its memory stays
            page.close()
        request.cancel()


def test_errors_name_the_target() -> None:
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        a, b = np.arange(9000.), np.arange(9000.)
        frozen = np.zeros(9000)
        frozen.flags.writeable = False
        odd = c.put({"a": a, "b": [b, a]}, id="tensor 7: tensor 8")
        for ref, into in ((odd, {"b": [None, np.zeros(9000)], "a": np.zeros(9000)}),
                          (c.put([a, b, a]), [np.zeros(9000), None, np.zeros(9000)])):
            where = "into['b'][0]" if isinstance(into, dict) else "into[1]"
            for wrong, said in ((np.zeros(9000, "f4"), " is f64 in the object, but f32 in the target"),
                                (np.zeros((9000, 1)), " has 1 dimensions in the object, but 2 in the target"),
                                (np.zeros(8999), ", dimension 0: has 9000 elements in the object, but 8999 in the target"),
                                (frozen, ": it is read-only"), (np.zeros(18000)[::2], " is not contiguous"),
                                (b"bytes", ": "), (reader.empty(9000, "f4"), "f32 in the target")):
                if isinstance(into, dict):
                    into["b"][0] = wrong
                else:
                    into[1] = wrong
                first = into["a"] if isinstance(into, dict) else into[0]
                for call in (lambda: reader.get(ref, into=into, timeout=LONG),
                             lambda: reader.fetch(ref, into=into).result(LONG),
                             lambda: reader.get([ref, ref], into=[None, into], timeout=LONG),
                             lambda: reader.wait([reader.fetch(ref, into=into)], timeout=LONG)):
                    try:
                        call()
                    except (ValueError, TypeError) as error:
                        text = str(error).replace("into[1]['b']", "into['b']").replace("into[1][1]", "into[1]")
                    else:
                        raise AssertionError("no error")
                    assert where + said in text or (wrong is frozen and where + ": " in text) or \
                        (where in text and text.endswith(said)), text
                    assert not first.any()
            with raises(TypeError, where + " is a int, and tensors in dicts, lists and tuples are wanted"):
                if isinstance(into, dict):
                    into["b"][0] = 5
                else:
                    into[1] = 5
                reader.get(ref, into=into)
        with raises(rdtd.Mismatch, "into is f64 in the object"):
            reader.get(c.put(a), into=np.zeros(9000, "f4"))
        nested: list[Any] = []
        nested.append(nested)
        with raises(ValueError, "into is nested more deeply"):
            reader.get(c.put([a]), into=nested)
        with raises(TypeError, "put: tensor 1, value['w'][1]: its element format is '>i'"):
            c.put({"w": [a, (ctypes.c_int32.__ctype_be__ * 3)()]})
        crooked = np.lib.stride_tricks.as_strided(np.zeros(24, "f4"), (3,), (5,))
        with raises(ValueError, "its stride of 5 bytes"):
            c.get(c.put(np.ones(3, "f4")), into=crooked)
        try:
            deep = np.ones((1,) * 33)
        except ValueError:
            return  # this numpy has no more dimensions than rdtd
        with raises(ValueError, "put: tensor 1, value['w'][1]: it has 33 dimensions; 0 to 32 are supported"):
            c.put({"w": [a, deep]})


def test_targets_of_an_object_with_much_beside_its_tensors_are_refused() -> None:
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put({"a": np.arange(8), "long": {str(i): i for i in range(50000)}})
        assert c.get(ref)["long"]["7"] == 7
        for into in {"a": np.zeros(8, "i8")}, {"a": np.zeros(8, "i8"), "long": None}:
            with raises(rdtd.Unsupported, "more than 256 KiB"):
                c.get(ref, into=into)


def test_targets_and_slices():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        a = np.arange(20000, dtype="f8").reshape(100, 200)
        ref = c.put({"a": a, "b": np.arange(7)})
        part = c.get(ref, slices=[np.s_[10:20, 5:7], None])
        same(part["a"], a[10:20, 5:7].copy())
        into = {"a": np.zeros((100, 200)), "b": np.zeros(7, "i8")}
        assert c.get(ref, into=into) is into
        same(into["a"], a)
        with raises(rdtd.Mismatch, "into[1], dimension 0: has 7"):
            c.get(ref, into=[into["a"], np.zeros(8, "i8")], as_="list")
        frozen = np.zeros((100, 200))
        frozen.flags.writeable = False
        with raises(ValueError, "into[0]"):
            c.get(ref, into=[frozen, into["b"]], as_="list")
        with raises(ValueError, "start and stop"):
            c.get(ref, slices=[np.s_[10:], None])
        with raises(TypeError, "a box or None for each tensor of the object, not a dict"):
            c.get(ref, slices={"a": np.s_[0:2, 0:2]})
        with raises(TypeError, "refs must be a Ref or a list of Refs, not a int"):
            c.get(5)
        with raises(ValueError, "grace must be"):
            c.put(a, grace=-1)
        with raises(TypeError, "put without pickle: value['x'] is a numpy.ndarray"):
            c.put({"x": np.zeros(3, ">f4")}, allow_pickle=False)
        with raises(rdtd.Invalid):
            c.get(ref, slices=[np.s_[0:101, 0:1], None])


def test_targets_match_by_name():
    need(np, "numpy")
    a, b = Node(listen=True), Node(listen=True)
    with a, b, rdtd.connect(a.socket) as c, rdtd.connect(b.socket) as other:
        ones, twos = np.ones(9000), np.full(9000, 2.0)
        flat = c.put({"a": ones, "b": twos})
        nested = c.put({"m": {"a": ones, "l": [twos, (ones * 3, 7)]}, "step": 7})
        pickled = c.put({"a": ones, "b": twos, "what": Step(None, 1)})
        loop = {"a": ones, "l": []}
        for _ in range(60):
            loop["l"] = [loop["l"], loop["l"]]
        loop["l"].append(loop["l"])
        looped = c.put(loop)
        for reader in (c, other):
            def zeros(reader=reader):
                return reader.empty(9000, "f8")

            for make in (zeros, lambda: np.zeros(9000)):  # the daemon writes; librdt writes
                for ref in (flat, pickled):
                    into = {"b": make(), "a": make()}
                    assert reader.get(ref, into=into) is into
                    same({"b": twos, "a": ones}, {name: np.array(array) for name, array in into.items()})
                into = {"m": {"l": [make(), [make()]], "a": make()}}
                assert reader.get(looped, into={"a": make()})["a"][0] == 1
                assert reader.get(nested, into=into) is into
                assert into["m"]["a"][0] == 1 and into["m"]["l"][0][8999] == 2
                assert into["m"]["l"][1][0][0] == 3
                first, second = make(), make()
                got = reader.get([flat, flat, c.put(twos)],
                                 into=[{"b": first, "a": make()}, None, second], timeout=LONG)
                assert first[0] == 2 and second[0] == 2 and got[1]["a"][0] == 1
                one, two = make(), make()
                assert reader.get(flat, into=[one, two], as_="list")[1] is two and two[0] == 2
            for into, why in (({"a": 0, "c": 0}, "key 'c', but the object has a dict with the keys 'a', 'b'"),
                              ({"a": 0}, "no target for the object's key 'b'"),
                              ({"a": {"x": 0}, "b": 0}, "into['a'] is a dict, but the object has a tensor"),
                              ([0, 0], "into is a list"), ({"a": [0], "b": 0}, "into['a'] is a list")):
                def fill(part):
                    if isinstance(part, dict):
                        return {key: fill(item) for key, item in part.items()}
                    return [fill(item) for item in part] if isinstance(part, list) else np.zeros(9000)

                into = fill(into)
                with raises(rdtd.Mismatch, why):
                    reader.get(flat, into=into)
                assert not any(array.any() for array in rdtd._targets.flatten(into, "into")), "it was written"
            with raises(TypeError, "a list of targets"):
                reader.get(flat, into={"a": np.zeros(9000), "b": np.zeros(9000)}, as_="list")
    for node in (a, b):  # their link stays open while they live
        node.process.terminate()
        assert node.process.wait(LONG) == 0, node.log()


def test_targets_of_every_kind_of_wait():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as producer:
        into = {"b": np.zeros(9000), "a": np.zeros(9000)}
        value = {"a": np.ones(9000), "b": np.full(9000, 2.0)}
        late = c.fetch(rdtd.Ref("late"), into=into, timeout=LONG)
        assert not late.done() and c.wait([late], timeout=0)[1] == [late]
        producer.put(value, id="late")
        until(late.done, "the fetch has ended")
        assert into["b"][0] == 2 and into["a"][0] == 1 and late.result() is into
        bad = c.fetch(rdtd.Ref("late"), into={"x": into["a"], "a": into["b"]})
        with raises(rdtd.Mismatch, "the key 'x'"):
            c.wait([bad])
        cancelled = c.fetch(rdtd.Ref("never"), into=into)
        cancelled.cancel()
        with raises(rdtd.Cancelled):
            cancelled.result()
        with raises(rdtd.TimedOut):
            c.get(rdtd.Ref("never"), into=into, timeout=0.05)
        with raises(rdtd.TimedOut, "still running"):
            c.fetch(rdtd.Ref("never"), into=into).result(0.05)

        async def awaited():
            request = c.fetch(rdtd.Ref("later"), into=into)
            other = c.fetch(rdtd.Ref("later"), into={"a": np.zeros(9000), "b": np.zeros(9000)})
            producer.put({"a": value["b"], "b": value["a"]}, id="later")
            assert (await c.wait_async([request, other], timeout=LONG))[1] == []
            assert await request is into and into["b"][0] == 1 and (await other)["a"][0] == 2

        asyncio.run(awaited())
        for step in (1, 2):  # the number of the version is the name's
            producer.publish("w", {"a": value["a"] * step, "b": value["b"] * step})
        for version, got in c.versions("w", into=into):
            assert version == 2 and got is into and into["b"][0] == 4 and into["a"][0] == 2
            break
        request = c.fetch(c.name("w"), into=into)
        c._wait([request], 1, LONG)  # its first step: now another version takes the place of that one
        producer.publish("w", {"a": value["b"], "b": value["b"]})
        assert request.fetched(LONG).version == 3 and into["a"][0] == 2
        c.unpublish("w")
        again = [c.fetch(rdtd.Ref("late"), into={"b": np.zeros(9000), "a": np.zeros(9000)})
                 for _ in range(50)]
        threads = [threading.Thread(target=c.wait, args=([request],)) for request in again for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(request.result()["b"][0] == 2 for request in again)


if __name__ == "__main__":
    main(globals())
