# SPDX-License-Identifier: Apache-2.0
"""Calls for many objects and names at once."""
import os
import resource
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import rdtd

from nodes import LONG, Killed, Node, end, main, raises, until

try:
    import numpy as np
except ImportError:
    print("no numpy here")
    sys.exit(77)


def test_exists_of_names_and_refs():
    with Node() as node, rdtd.connect(node.socket) as c:
        c.publish("a", np.arange(3))
        ref = c.put(np.arange(3))
        gone = c.put(np.arange(3), id="gone")
        gone.free()
        assert c.exists("a") is True and c.exists("b") is False
        assert c.exists(["b", "a", ref, gone, rdtd.Ref.from_id("x"), c.name("a", 1)]) == [False, True, True, False, False, False]
        assert c.exists([]) == [] and c.exists(name for name in ("a",)) == [True]
        assert c.exists(["name %d" % i for i in range(20000)] + ["a"]) == [False] * 20000 + [True]
        with raises(TypeError, "names[1]"):
            c.exists(["a", 5])
        with raises(TypeError, "must be a list"):
            c.exists(b"a")
        for null in ("a\0b", "\0", "a\0"):
            with raises(ValueError, "names[1]"):
                c.exists(["a", null])
        with raises(rdtd.Invalid, "item 0"):
            c.exists(["x" * 200])
        assert node.ctl("exists", "a") == "yes a\n"
        c.unpublish("a")


def test_put_many_of_one_kind():
    with Node() as node, rdtd.connect(node.socket) as c:
        values = [np.full(100, i, dtype=np.int32) for i in range(3000)]
        refs = c.put_many(values, ids=[None, "one", b"two"] + [None] * 2997)
        assert [ref.id for ref in refs[1:3]] == [b"one", b"two"] and len({ref.id for ref in refs}) == 3000
        for got, value in zip(c.get(refs[::97]), values[::97]):
            assert (got == value).all() and got.dtype == value.dtype
        assert refs[5].holds and refs[5].copied == 1
        with raises(rdtd.Exists, "value 1"):
            c.put_many(values, ids=["new", "one"] + [None] * 2998)
        assert not c.exists(rdtd.Ref.from_id("new"))
        made = c.put_many(values[:20], ids=["one"] + [None] * 19, errors="return")
        assert isinstance(made[0], rdtd.Exists) and (c.get(made[19]) == values[19]).all()
        del refs, made
        refs = c.put_many(values, detached=True, ttl=LONG, snapshot=True, visible="all", checksum=True)
        assert not refs[0].holds and c.stat(refs[0])["snapshot"] and c.stat(refs[0])["detached"]
        assert (c.get(refs[7], verify=True) == values[7]).all()
        for ref in refs:
            c.free(ref)
        for ref in (rdtd.Ref.from_id("one"), rdtd.Ref.from_id("two")):
            c.free(ref)


def test_values_that_have_replaced_others_stay_when_one_fails():
    ids = [f"id{i}" for i in range(8)]
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        c.put_many([b"old"] * 8, ids=ids, detached=True)
        other.put(b"theirs", id="theirs")
        with raises(rdtd.Exists):
            c.put_many([b"new"] * 9, ids=ids + ["theirs"], detached=True, replace=True)
        for id in ids:
            assert c.get(rdtd.Ref.from_id(id), timeout=0) in (b"old", b"new"), id
            c.free(rdtd.Ref.from_id(id))


def test_put_many_of_any_kind():
    with Node() as node, rdtd.connect(node.socket) as c:
        ours = c.empty(10, "i64")
        values = [np.arange(3), 5, {"a": np.arange(4)}, [np.arange(2), "text"], np.zeros(100000), ours, b"bytes",
                  np.array("odd", dtype=object), np.arange(24).reshape(4, 6)[::2, ::-1], np.float32(1.5)] * 3
        refs = c.put_many(values)
        ours[0] = 9
        got = c.get(refs)
        assert (got[0] == np.arange(3)).all() and got[1] == 5 and (got[2]["a"] == np.arange(4)).all()
        assert (got[13][0] == np.arange(2)).all() and got[13][1] == "text" and got[14].shape == (100000,)
        assert got[5][0] == 9 and got[6] == b"bytes" and got[7] == "odd" and (got[28] == values[8]).all()
        assert got[9] == np.float32(1.5) and type(got[9]) is type(c.get(c.put(np.float32(1.5))))
        assert c.put_many([]) == [] and c.put_many(iter(values[:2]))[1].id
        with raises(TypeError, "must be a list"):
            c.put_many({"a": 1})
        with raises(ValueError, "2 values and 1 ids"):
            c.put_many([1, 2], ids=["a"])
        with raises(TypeError, "put_many got an unexpected option 'id'"):
            c.put_many([1], id="a")
        with raises(TypeError, "publish_many got an unexpected option 'stored'"):
            c.publish_many({"name": 1}, stored=True)
        a_dict = {"a": np.arange(2)}
        both = [a_dict, np.arange(2), np.arange(2), a_dict, np.arange(2), a_dict]
        with raises(rdtd.Exists, "value 2: object \"same\" exists already"):
            c.put_many(both, ids=[None, "same", "same", None, None, None])
        made = c.put_many(both, ids=[None, "same", "same", "same", "", "x" * 129], errors="return")
        said = ["value 2: object \"same\" exists", "value 3: object \"same\" exists", "value 4 was not put: Invalid",
                "value 5: the id has 129 bytes, not 1 to 128"]
        assert all(str(one).startswith(text) for one, text in zip(made[2:], said)), made
        c.free(made[1])
        with raises(ValueError, "ttl needs"):
            c.put_many([1], ttl=5)
        del ours, got


def test_put_many_leaves_nothing_after_a_dict_that_cannot_be_put():
    class Stopped(rdtd.Connection):
        def put(self, value, **options):
            raise KeyboardInterrupt

    with Node() as node, Stopped(node.socket) as c:
        for options in {}, {"detached": True, "ttl": LONG}, {"ids": ["a", "b", "c"]}, {"ids": ["a", "b", "c"], "detached": True}:
            with raises(KeyboardInterrupt):
                c.put_many([np.arange(3), {"x": np.arange(3)}, np.arange(3)], errors="return", **options)
            until(lambda: c.status()["objects"] == 0, f"nothing stays: {options}")


def test_put_many_of_torch():
    try:
        import torch
    except ImportError:
        return
    with Node() as node, rdtd.connect(node.socket) as c:
        values = [torch.full((7,), i) for i in range(50)]
        got = c.get(c.put_many(values))
        assert all(torch.equal(a, b) for a, b in zip(values, got))
        mixed = c.get(c.put_many([torch.nn.Parameter(torch.ones(2)), torch.ones(2), np.ones(2)]))
        assert isinstance(mixed[0], torch.nn.Parameter) and type(mixed[1]) is torch.Tensor and type(mixed[2]) is np.ndarray


def test_put_many_while_the_daemon_is_killed():
    with Killed() as killed, rdtd.connect(killed.node.socket) as c:
        values = [np.full(500, i, dtype=np.int32) for i in range(2000)]
        with killed.kill_every(0.3):
            while killed.kills < 6:
                refs = c.put_many(values)
                got = c.get(refs)
                assert all((a == b).all() for a, b in zip(values, got))
                assert c.exists(refs) == [True] * len(refs)
                del refs, got
        until(lambda: c.status()["objects"] == 0, "every object is gone")


def test_many_while_the_daemon_restarts():
    with Killed() as killed, rdtd.connect(killed.node.socket) as c:
        values = [np.full(50, i, dtype=np.int32) for i in range(2000)]
        with killed.kill_every(0.3, signal.SIGTERM):
            while killed.kills < 6:
                refs = c.put_many(values)
                step = c.publish_many({f"layer {i}": ref for i, ref in enumerate(refs[:40])})
                assert len(set(step.values())) == 1, step
                del refs
        assert c.unpublish(prefix="layer") == 40
        until(lambda: c.status()["objects"] == 0, "every object is gone")


def test_publish_many():
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put(np.arange(9))
        versions = c.publish_many({"step 1/a": np.arange(3), "step 1/b": {"x": np.arange(4)}, "step 1/c": ref})
        assert versions == {"step 1/a": 1, "step 1/b": 1, "step 1/c": 1} and versions["step 1/a"].ref.is_name
        assert (c.get(versions["step 1/a"].ref) == np.arange(3)).all()
        assert c.publish_many({"step 1/a": np.arange(5), "new": np.arange(5)}) == {"step 1/a": 2, "new": 1}
        assert (c.get(c.name("step 1/b"))["x"] == np.arange(4)).all() and len(c.names(prefix="step 1/")) == 3
        with raises(rdtd.Invalid, 'name 1, "new"'):
            c.publish_many({"other": np.arange(2), "new": np.arange(2)}, visible="all")  # "new" is the owner's alone
        assert not c.exists("other")
        gone = c.put(np.arange(3))
        gone.free()
        with raises(rdtd.Freed, 'name 1, "gone"'):
            c.publish_many({"other": np.arange(2), "gone": gone})
        assert not c.exists("other") and c.publish_many({}) == {}
        with raises(rdtd.Invalid, "1024"):
            c.publish_many({f"n{i}": ref for i in range(1025)})
        assert len(c.publish_many({f"n{i}": ref for i in range(1024)}, lease=True)) == 1024
        with raises(TypeError, "no errors"):
            c.publish_many({"a": 1}, errors="return")
        assert c.unpublish(prefix="n") == 1025
        assert c.unpublish(prefix="step 1/") == 3 and c.unpublish(prefix="step") == 0
        with raises(TypeError, "a name or a prefix"):
            c.unpublish()
        ref.free()


def test_refs_of_names_that_were_published_together_are_for_other_nodes():
    with Node(listen=True) as node, Node(listen=True) as far, rdtd.connect(node.socket) as c, rdtd.connect(far.socket) as reader:
        ref = c.put(np.arange(9), id="mine")
        bare = rdtd.Ref.from_id("mine")
        many = c.publish_many({"bare": bare, "whole": ref, "value": np.arange(9)})
        for name, what in ("bare", bare), ("whole", ref), ("value", ref):
            published = c.publish(name, what).ref
            assert many[name].ref == published and str(many[name].ref) == str(published)
            assert (reader.get(many[name].ref, timeout=LONG) == np.arange(9)).all()
            c.unpublish(name)
        ref.free()
    end(node, far)


def test_publish_many_names_the_first_that_does_not_fit():
    with Node("--set", "limits.owner_max_names=3") as node, rdtd.connect(node.socket) as c:
        c.publish_many({"a": np.arange(2), "b": np.arange(2)})
        with raises(rdtd.LimitReached, '"d"'):
            c.publish_many({"b": np.arange(2), "c": np.arange(2), "d": np.arange(2), "e": np.arange(2)})
        assert c.exists(["a", "b", "c", "d"]) == [True, True, False, False]
        c.unpublish(prefix="a"), c.unpublish(prefix="b")


def test_a_publish_that_fails_leaves_no_object():
    with Node("--set", "limits.owner_max_names=1") as node, rdtd.connect(node.socket) as c:
        c.publish("a", np.arange(2))
        for options in {}, {"detached": True}, {"evictable": True}, {"id": "mine"}:
            with raises(rdtd.LimitReached):
                c.publish("b", np.arange(2), **options)
            if "id" not in options:
                with raises(rdtd.LimitReached):
                    c.publish_many({"b": np.arange(2), "c": np.arange(2)}, **options)
            until(lambda: c.status()["objects"] == 1, f"that of the name is left: {options}")
        c.unpublish("a")


def test_publish_many_while_the_daemon_is_killed():
    with Killed() as killed, rdtd.connect(killed.node.socket) as c:
        with killed.kill_every(0.3):
            step = 0
            while killed.kills < 6:
                step += 1
                values = {f"layer {i}": np.full(50, step * 100 + i) for i in range(40)}
                versions = c.publish_many(values)
                assert set(versions.values()) == {step}, versions
                got = c.get([c.name(name) for name in values])
                assert all((a == b).all() for a, b in zip(values.values(), got))
        assert c.unpublish(prefix="layer") == 40
        del got
        until(lambda: c.status()["objects"] == 0, "every object is gone")


def test_free_by_prefix():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        refs = c.put_many([np.arange(3)] * 3000, ids=[f"epoch 1/{i}" for i in range(3000)])
        theirs = other.put(np.arange(3), id="epoch 1/theirs")
        detached = other.put(np.arange(3), id="epoch 1/detached", detached=True)
        stays = c.put(np.arange(3), id="epoch 2")
        assert c.free(prefix="epoch 1/") == 3001
        assert c.exists([refs[0], refs[2999], theirs, detached, stays]) == [False, False, True, False, True]
        assert c.free(prefix="epoch 1/") == 0 and c.free(prefix="epoch 1/", force=True) == 1 and not c.exists(theirs)
        with raises(rdtd.Invalid, "empty"):
            c.free(prefix="")
        with raises(TypeError, "a Ref or a prefix"):
            c.free(stays, prefix="a")
        assert "1 object is" in node.ctl("free", "--prefix", "epoch", "--force")
        c.publish("a b%", np.arange(3))
        assert "1 name is" in node.ctl("unpublish", "--prefix", "a b")


def test_get_of_many_comes_together():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        values = [np.full(100, i) for i in range(2000)]
        refs = c.put_many(values)
        before = c.status()["transfers_done"]
        got = reader.get(refs)
        assert c.status()["transfers_done"] - before < 200
        assert all([(one == value).all() and one.dtype == value.dtype for one, value in zip(got, values)])
        assert not got[0].flags.writeable and reader.get(refs, mode="cow")[0].flags.writeable
        ours = c.empty((50, 10), "i64")
        shared = []
        for i in range(50):
            ours[i] = i
            shared.append(c.put(ours[i]))
        seen = reader.get(shared)
        ours[7, 3] = 700
        assert seen[7][3] == 700 and not seen[7].flags.writeable
        assert c.get(shared)[7][3] == 700 and (reader.get(shared, mode="copy")[8] == 8).all()
        assert c.stat(shared[9])["holds"] == 2
        del seen
        until(lambda: all(c.stat(ref)["holds"] == 1 for ref in shared), "the arrays are let go of")
        mixed = refs[:40] + shared[:5] + [rdtd.Ref.from_id("later"), c.put({"a": np.arange(3)})]
        mixed[3] = gone = c.put(np.arange(3), id="gone")
        gone.free()
        with raises(rdtd.Freed, "gone"):
            reader.get(mixed)
        got = reader.get(mixed, errors="return", timeout=0)
        assert isinstance(got[3], rdtd.Freed) and "gone" in str(got[3]) and isinstance(got[45], rdtd.NotPut)
        assert (got[39] == values[39]).all() and (got[44] == 4).all() and (got[46]["a"] == np.arange(3)).all()
        mixed[3] = refs[3]
        with raises(rdtd.TimedOut):
            reader.get(mixed, timeout=0.05)
        later = c.put(np.arange(6), id="later")
        assert (reader.get(mixed, timeout=LONG)[45] == np.arange(6)).all()
        with raises(TypeError, "not a str"):
            reader.get(refs[:20] + ["later"])
        with raises(TypeError, ""):
            reader.get(refs, timeout="soon")
        later.drop()


def test_get_of_many_needs_few_descriptors():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        refs = [c.put(np.full(300_000, i)) for i in range(80)]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 5, limit[1]))
        try:
            got = reader.get(refs)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert all([one[0] == i and one[-1] == i for i, one in enumerate(got)])


def test_get_of_many_ends_soon_where_the_daemon_stands_still():
    with Node() as node, rdtd.connect(node.socket) as c, ThreadPoolExecutor(1) as pool:
        refs = [c.put(np.arange(3))] * 40000  # a millisecond for each would take longer than the test waits
        os.kill(node.process.pid, signal.SIGSTOP)
        try:
            got = pool.submit(c.get, refs, timeout=0.1)
            until(got.done, "a get with a time-out ends", 30)
        finally:
            os.kill(node.process.pid, signal.SIGCONT)
        with raises(rdtd.TimedOut):
            got.result()


def test_get_returns_an_error_for_each():
    with Node() as node, rdtd.connect(node.socket) as c:
        refs = [c.put(np.arange(3)), c.put(np.arange(4), id="gone"), c.name("nothing"), c.put(np.arange(5))]
        refs[1].free()
        values = c.get(refs, errors="return", timeout=0)
        assert (values[0] == np.arange(3)).all() and (values[3] == np.arange(5)).all()
        assert isinstance(values[1], rdtd.Freed) and isinstance(values[2], rdtd.NotPut)
        assert isinstance(c.get(refs[1], errors="return"), rdtd.Freed)
        assert c.get([], errors="return") == []
        with raises(ValueError, "errors must be"):
            c.get(refs, errors="ignore")


def test_wait_goes_on_after_a_failure():
    with Node() as node, rdtd.connect(node.socket) as c:
        gone = c.put(np.arange(4), id="gone")
        gone.free()
        here = c.put(np.arange(3))
        target = np.zeros(3, dtype=np.int64)
        requests = [c.fetch(gone), c.fetch(rdtd.Ref.from_id("later")), c.fetch(here, into=[target], as_="list"),
                    c.fetch(here, into=np.zeros(3, dtype=np.int64))]
        ended, running = c.wait(requests, 3, timeout=LONG, errors="return")
        assert ended == [requests[0], requests[2], requests[3]] and running == [requests[1]]
        with raises(rdtd.Freed):
            requests[0].result()
        assert (target == np.arange(3)).all()
        assert c.wait(requests, timeout=0.01, errors="return")[1] == [requests[1]]
        requests[1].cancel()
        assert c.wait(requests, timeout=LONG, errors="return")[1] == []



def test_put_many_beside_a_stopped_daemon_waits_once():
    """Not for each value: once one has timed out, and the daemon gives no sign of life, the others are not sent."""
    large = np.zeros(100_000)
    kinds = {"small": ([bytearray(8)] * 3000, {}), "one by one": ([large] * 300, {"immutable": True}),
             "evictable": ([large] * 300, {"evictable": True}), "dicts": ([{"a": large}] * 300, {})}
    for kind, (values, options) in kinds.items():
        with Node() as node, rdtd.connect(node.socket) as c, ThreadPoolExecutor(1) as pool:
            os.kill(node.process.pid, signal.SIGSTOP)
            try:
                put = pool.submit(c.put_many, values, timeout=0.3, errors="return", **options)
                until(put.done, f"a put with a time-out ends: {kind}", 30)
            finally:
                os.kill(node.process.pid, signal.SIGCONT)
            assert all(isinstance(one, rdtd.TimedOut) for one in put.result()), kind
            assert c.get(c.put(large)).shape == large.shape


if __name__ == "__main__":
    main(globals())
