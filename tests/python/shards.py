# SPDX-License-Identifier: Apache-2.0
"""Versions of many parts from Python, with numpy arrays and between two nodes. shards_torch.py uses torch."""
from __future__ import annotations

import array
import asyncio
import ctypes
import mmap
import os
import signal
import tempfile
import threading
from typing import Any

import rdtd
from nodes import LONG, Node, Skipped, change_a_byte_of, main, raises, times_out, until

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


def test_parts_and_plans() -> None:
    if numpy is None:
        raise Skipped("numpy is not installed")
    w = numpy.arange(64 * 96, dtype="f4").reshape(64, 96)
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as trainer, \
            rdtd.connect(b.socket) as other, rdtd.connect(b.socket) as reader:
        home = rdtd.Ref.from_name("policy", address=trainer.node["address"])
        for step in (1, 2):
            value = w * step
            first = trainer.put_part({"w": rdtd.Box(value[:32], (64, 96)), "bias": value[0].copy()})
            request = trainer.start_part(home, step, 0, 2, first, timeout=LONG)
            version = other.publish_part(home, step, 1, 2, {"w": rdtd.Box(value[32:], (64, 96), (32, 0))}, timeout=LONG)
            request.result()
            assert version == step
            manifest = reader.manifest(home, timeout=LONG)
            assert (manifest.version, manifest.step, len(manifest.parts)) == (version, step, 2)
            assert manifest.parts[1].shards == [rdtd.Shard("w", "f32", (64, 96), (32, 0), (32, 96))]
            columns, bias = numpy.zeros((64, 10), "f4"), numpy.zeros(96, "f2")
            plan = reader.plan(home, {"w": rdtd.Box(columns, start=(0, 7)), "bias": bias})
            ran = plan.run(timeout=LONG)
            assert ran.version == version and ran.planned and ran.bytes == columns.nbytes + bias.nbytes
            assert (columns == value[:, 7:17]).all() and (bias == value[0].astype("f2")).all()
            with raises(rdtd.TimedOut):
                plan.run(timeout=0.05)
        said = b.ctl("shards", "policy", "--node", trainer.node["address"])
        assert "version 2, step 2: complete, 2 parts" in said and "[32:64, 0:96]" in said, said
        waiting = trainer.start_part(home, 9, 1, 3, first, timeout=LONG)
        until(lambda: "step 9: 1 of 3 parts" in a.ctl("shards", "policy"), "the step is listed")
        assert "missing: 0 2" in a.ctl("shards", "policy")
        waiting.cancel()
        until(lambda: "last failure" in a.ctl("shards", "policy"), "the failure is listed")
        assert "stopped waiting" in a.ctl("shards", "policy", "--json")
        with raises(rdtd.Invalid, 'tensor "w": no rank has published the box [32:64, 0:96]'):
            trainer.publish_part(home, 3, 0, 1, {"w": rdtd.Box(w[:32], (64, 96))}, timeout=LONG)
        with raises(rdtd.NotFound, 'no tensor "v"'):
            reader.plan(home, {"v": numpy.zeros(3, "f4")}).run(timeout=LONG)
        with raises(rdtd.Unsupported, "no cast"):
            reader.plan(home, {"bias": numpy.zeros(96, "i4")}).run(timeout=LONG)
        with raises(ValueError, "tensor 'bias' has 1 dimensions"):
            reader.plan(home, {"bias": rdtd.Box(bias, start=(0, 0))})
        with raises(ValueError, "at least one target"):
            reader.plan(home, {})
        half, whole = numpy.zeros((32, 96), "f4"), numpy.zeros((64, 96), "f4")
        with raises(rdtd.Mismatch, 'tensor "w" has the shape [64, 96], but the reader wants a tensor of the shape [32, 96]'):
            reader.plan(home, {"w": half}).run(timeout=LONG)
        with raises(rdtd.Mismatch, "wants a tensor of the shape [32, 96]"):
            reader.plan(home, {"w": rdtd.Box(half[:16], (32, 96), (16, 0))}).run(timeout=LONG)
        reader.plan(home, {"w": rdtd.Box(half, (64, 96), (32, 0))}).run(timeout=LONG)
        assert (half == value[32:]).all()
        with raises(rdtd.Mismatch, 'the version has the tensor "bias", which the reader does not have'):
            reader.plan(home, {"w": whole}, strict=True).run(timeout=LONG)
        more = numpy.full((70, 96), -1, "f4")
        reader.plan(home, {"w": more}, padded={"w": 0}).run(timeout=LONG)
        assert (more[:64] == value).all() and (more[64:] == -1).all()
        trainer.unpublish(home)
        del request, plan, first, waiting


def test_ranks_learn_why_a_step_does_not_become_a_version() -> None:
    half = bytearray(16 << 20)
    with Node("--set", "daemon.memory_limit=64M") as node, rdtd.connect(node.socket) as one, \
            rdtd.connect(node.socket) as other:
        small = other.put_part({"w": rdtd.Box(bytearray(4), (4,))})
        # A rank that cannot put its part tells those that wait, and those that come later, once each.
        full = one.empty(60 << 20, "u1")
        waiting = other.start_part("p", 1, 1, 3, small, timeout=LONG)
        until(lambda: "step 1: 1 of 3 parts" in node.ctl("shards", "p", may_fail=True), "rank 1 waits")
        with raises(rdtd.NoMemory):
            one.publish_part("p", 1, 0, 3, {"w": rdtd.Box(half, (len(half),))})
        with raises(rdtd.OwnerDied, 'rank 0 could not put its part of step 1 of "p": NoMemory: '):
            waiting.result(LONG)
        with raises(rdtd.OwnerDied, 'rank 0 could not put its part of step 1 of "p": NoMemory: '):
            other.publish_part("p", 1, 2, 3, small, timeout=LONG)
        times_out("but not those of ranks 0 1",  # it was told: this is another try
                  lambda: other.publish_part("p", 1, 2, 3, small, timeout=0.3))
        # The put waits for room, too.
        lists = [full]
        full = None
        threading.Timer(0.2, lists.clear).start()
        version = one.publish_part("p", 2, 0, 1, {"w": rdtd.Box(half, (len(half),))}, timeout=LONG)
        assert version == 1
        one.unpublish("p")
        # Ranks at other steps are named.
        ahead = other.start_part("p", 9, 1, 3, small, timeout=LONG)
        until(lambda: "step 9: 1 of 3 parts" in node.ctl("shards", "p", may_fail=True), "rank 1 waits at step 9")
        times_out("but not those of ranks 1 2; rank 1 is at step 9",
                  lambda: other.publish_part("p", 8, 0, 3, small, timeout=0.3))
        del small, ahead, waiting


def test_buffers_without_a_shape_are_boxes_of_a_shape_that_is_given() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        part = c.put_part({"text": rdtd.Box(bytearray(b"plain bytes"), (11,))})
        c.publish_part("text", 1, 0, 1, part, timeout=LONG)
        (shard,) = c.manifest("text").parts[0].shards
        assert (shard.key, shard.global_shape, shard.start) == ("text", (11,), (0,))
        for what, publishes in (("boxes", c.put_part), ("targets", lambda targets: c.plan("text", targets))):
            with raises(ValueError, rf"a key of {what} contains a zero byte: 'a\x00b'"):
                publishes({"a\0b": rdtd.Box(bytearray(8), (8,))})
            with raises(TypeError, f"a key of {what} must be text, not 5"):
                publishes({5: rdtd.Box(bytearray(8), (8,))})
        c.unpublish("text")


class Foreign:
    """A tensor of another library: all that it has is DLPack's protocol."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_parts_take_every_tensor_that_put_takes() -> None:
    room = mmap.mmap(-1, 4096)
    boxes: dict[str, Any] = {"ctypes": (ctypes.c_int * 3 * 2)((1, 2, 3), (4, 5, 6)), "mmap": room, "bytes": b"abc",
                             "array": array.array("f", [1.0, 2.0]), "number": ctypes.c_double(5)}
    if numpy is not None:
        boxes["dlpack"] = Foreign(numpy.arange(12, dtype="f4").reshape(3, 4))
        boxes["rows"] = rdtd.Box(Foreign(numpy.ones((1, 4), "f4")), (1, 4))
    with Node() as node, rdtd.connect(node.socket) as c:
        c.publish_part("every", 1, 0, 1, boxes, timeout=LONG)
        shapes = {shard.key: (shard.dtype, shard.global_shape, shard.shape) for shard in c.manifest("every").parts[0].shards}
        assert shapes == {"ctypes": ("i32", (2, 3), (2, 3)), "mmap": ("u8", (4096,), (4096,)), "bytes": ("u8", (3,), (3,)),
                          "array": ("f32", (2,), (2,)), "number": ("f64", (), ()),
                          **({"dlpack": ("f32", (3, 4), (3, 4)), "rows": ("f32", (1, 4), (1, 4))} if numpy is not None else {})}
        with raises(TypeError, "part: tensor 'w': a int has neither a buffer nor __dlpack__"):
            c.put_part({"v": b"x", "w": 5})
        c.unpublish("every")
    room.close()


def test_a_part_and_a_plan_may_have_several_boxes_of_a_tensor() -> None:
    if numpy is None:
        raise Skipped("numpy is not installed")
    w = numpy.arange(64 * 96, dtype="f4").reshape(64, 96)
    quarters = [(0, 0), (0, 48), (32, 0), (32, 48)]

    def box(at: tuple[int, int], value: Any = w) -> rdtd.Box:
        return rdtd.Box(numpy.ascontiguousarray(value[at[0]:at[0] + 32, at[1]:at[1] + 48]), (64, 96), at)

    with Node() as node, rdtd.connect(node.socket) as c:
        part = c.put_part({"w": [box(quarters[0]), box(quarters[3])], "b": w[0]})
        first = c.start_part("policy", 1, 0, 2, part, timeout=LONG)
        version = c.publish_part("policy", 1, 1, 2, {"w": [box(quarters[1]), box(quarters[2])]}, timeout=LONG)
        first.result()
        rows = [shard.start for part in c.manifest("policy").parts for shard in part.shards if shard.key == "w"]
        assert sorted(rows) == quarters
        whole = c.get(c.name("policy"))
        assert (whole["w"] == w).all() and (whole["b"] == w[0]).all()
        wanted = [rdtd.Box(numpy.zeros((10, 96), "f4"), (64, 96), (27, 0)),
                  rdtd.Box(numpy.zeros((64, 3), "f2"), (64, 96), (0, 46))]
        assert c.plan("policy", {"w": wanted, "b": numpy.zeros(96, "f4")}, strict=True).run(timeout=LONG).version == version
        assert (wanted[0].tensor == w[27:37]).all() and (wanted[1].tensor == w[:, 46:49].astype("f2")).all()
        with raises(rdtd.Invalid, 'tensor "w": the box [0:32, 0:48] of rank 0 overlaps the box'):
            c.publish_part("policy", 2, 0, 1, {"w": [box(at) for at in quarters] + [box(quarters[0])]}, timeout=LONG)
        for wrong, said in (([box(quarters[0]), w], "'w'"), ([], "'w'"), ([box(quarters[0]), rdtd.Box(w, (64, 96), (1.5, 0))],
                                                                          "start of boxes['w'][1]")):
            with raises((TypeError, ValueError), said):
                c.put_part({"w": wrong})
        c.unpublish("policy")


def test_a_plan_that_verifies_writes_nothing_of_damaged_parts() -> None:
    if numpy is None:
        raise Skipped("numpy is not installed")
    w = (numpy.arange(200_000, dtype="f4") % 997).reshape(400, 500)
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        def publish(step: int, **options: Any) -> int:
            first = c.start_part("policy", step, 0, 2, c.put_part({"w": rdtd.Box(w[:200], (400, 500))}, **options), timeout=LONG)
            version = c.publish_part("policy", step, 1, 2, {"w": rdtd.Box(w[200:], (400, 500), (200, 0))}, **options)
            first.result()
            return version

        target, casts = numpy.zeros((400, 500), "f4"), numpy.zeros((10, 500), "f2")
        plan = reader.plan("policy", {"w": target}, verify=True)
        other = reader.plan("policy", {"w": rdtd.Box(casts, (400, 500), (150, 0))}, verify=True)
        for step, options in enumerate(({}, {"checksum": True}), 1):
            version = publish(step, **options)
            assert plan.run(timeout=LONG).version == version and (target == w).all()
            assert other.run(timeout=LONG).version == version and (casts == w[150:160].astype("f2")).all()
            assert (reader.get(reader.name("policy"), verify=True)["w"] == w).all()
        node.ctl("fetch", "--name", "policy", "--verify", "-o", str(node.dir / "whole.safetensors"))
        with raises(rdtd.Invalid, "verify needs another move than slices"):
            reader.plan("policy", {"w": target}, verify=True, move="slices")
        w += 1
        version = publish(3, checksum=True)
        change_a_byte_of(w[200:].tobytes())
        for call in (lambda: plan.run(timeout=LONG), lambda: reader.get(reader.name("policy"), verify=True)):
            with raises(rdtd.Damaged, "are not those that were put"):
                call()
        assert (target == w - 1).all(), "nothing was written"
        assert other.run(timeout=LONG).version == version and (casts == w[150:160].astype("f2")).all(), "its part is whole"
        c.unpublish("policy")


def test_a_version_of_parts_is_fetched_as_its_whole_tensors() -> None:
    if numpy is None:
        raise Skipped("numpy is not installed")
    w = numpy.arange(64 * 96, dtype="f4").reshape(64, 96)
    with Node(listen=True) as a, Node(f"--storage-dir={tempfile.mkdtemp()}", listen=True) as b, \
            rdtd.connect(a.socket) as trainer, rdtd.connect(b.socket) as reader:
        home = rdtd.Ref.from_name("policy", address=trainer.node["address"])

        def publish(step: int) -> dict[str, Any]:
            waiting = trainer.start_part(home, step, 0, 2, trainer.put_part(
                {"w": rdtd.Box(w[:, :40] * step, (64, 96)), "scalar": numpy.array(step)}), timeout=LONG)
            reader.publish_part(home, step, 1, 2, {"w": rdtd.Box(w[:, 40:] * step, (64, 96), (0, 40)),
                                                   "none": numpy.zeros((0, 3), "f8")}, timeout=LONG)
            waiting.result()
            return {"w": w * step, "scalar": numpy.array(step), "none": numpy.zeros((0, 3))}

        def check(got: Any, wanted: dict[str, Any]) -> None:
            assert list(got) == list(wanted)
            for key, value in wanted.items():
                assert got[key].shape == value.shape and (got[key] == value).all(), key

        first = publish(1)
        for connection in (trainer, reader):
            check(connection.get(home), first)
            check(connection.get([home], timeout=LONG)[0], first)
            fetched = connection.get_fetched(home, timeout=LONG)
            assert (fetched.version, fetched.path, fetched.writable, len(fetched.tensors)) == (1, "plan", True, 3)
            check(fetched.value, first)
            check(connection.get(fetched.ref), first)
            check(asyncio.run(fetching(connection, home)), first)
            check(dict(zip(first, connection.get(home, as_="list"))), first)
            assert connection.get(home, as_="tensor")["w"].shape == (64, 96)
        versions = reader.versions(home)
        check(next(versions)[1], first)
        second = publish(2)
        version, got = next(versions)
        assert version == 2
        check(got, second)
        got["w"][0, 0] = -1  # a copy of its own
        check(trainer.get(home), second)
        part = reader.manifest(home).parts[1].ref
        assert (reader.get(part)[0] == w[:, 40:] * 2).all()  # a part is an object like any other
        mine = {"w": numpy.zeros((64, 96), "f4")}
        for connection, option in ((reader, {"into": mine}), (trainer, {"mode": "share"}), (reader, {"slices": []}),
                                   (reader, {"transport": "stream"})):
            with raises(rdtd.Unsupported, "has a version of many parts, which cannot be fetched with"):
                connection.get(home, timeout=LONG, **option)
        with raises(rdtd.Unsupported, "Connection.plan reads"):
            rdtd.DeltaFollower(reader, home, mine).update(timeout=LONG)
        with raises(rdtd.Mismatch, "if it is a version of many parts, a plan reads it into targets"):
            reader.get(home, into=mine["w"], timeout=LONG)
        reader.publish_part("here", 1, 0, 1, {"w": w}, timeout=LONG)
        with raises(rdtd.Unsupported, "a version of many parts cannot be stored"):
            reader.store(reader.name("here"))
        reader.unpublish("here")
        trainer.unpublish(home)
        del fetched, got, versions


def test_one_process_publishes_as_many_tensors_as_deepseek_v3_has() -> None:
    if numpy is None:
        raise Skipped("numpy is not installed")
    names = [f"model.layers.{i % 61}.mlp.experts.{i // 61}.down_proj.weight_scale_inv" for i in range(89271)]
    one = numpy.arange(4, dtype="f4")
    with Node() as node, rdtd.connect(node.socket) as c:
        c.publish("whole", dict.fromkeys(names, one))  # in linear time, although it is one tensor
        assert c.publish_part("parts", 1, 0, 1, {name: one[:1 + i % 4] for i, name in enumerate(names)}, timeout=LONG) == 1
        got = c.get(c.name("whole"), timeout=LONG)
        assert list(got) == names and all((tensor == one).all() for tensor in got.values())
        got = c.get(c.name("parts"), timeout=LONG)
        assert list(got) == names and all((got[name] == one[:1 + i % 4]).all() for i, name in enumerate(names))
        assert f"  {names[-1]} " in node.ctl("shards", "parts")
        del got
        for name in ("whole", "parts"):
            c.unpublish(name)


async def fetching(connection: rdtd.Connection, ref: rdtd.Ref) -> Any:
    return await connection.fetch(ref, timeout=LONG)


def test_a_plan_runs_in_one_thread_at_a_time() -> None:
    if numpy is None:
        raise Skipped("numpy is not installed")
    with Node(listen=True) as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as trainer:
        w = numpy.arange(12, dtype="f4")
        assert trainer.publish_part("policy", 1, 0, 1, {"w": w}, timeout=LONG) == 1
        plan = c.plan("policy", {"w": numpy.zeros(12, "f4")})._plan
        ran = []

        def wait_for_the_second() -> None:
            while not ran:
                try:
                    ran.append(plan.run(1, LONG)["version"])
                except RuntimeError:  # the other thread was quicker
                    pass

        def is_refused() -> bool:
            try:
                plan.run(0, LONG)
                return False
            except RuntimeError as error:
                return "another thread" in str(error)

        thread = threading.Thread(target=wait_for_the_second)
        thread.start()
        until(is_refused, "the thread runs the plan")
        assert trainer.publish_part("policy", 2, 0, 1, {"w": w}, timeout=LONG) == 2
        thread.join(LONG)
        assert ran == [2]
        trainer.unpublish("policy")


def test_ctrl_c_and_close_end_what_waits_for_other_ranks() -> None:
    if numpy is None:
        raise Skipped("numpy is not installed")
    w = numpy.arange(12, dtype="f4")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        part = c.put_part({"w": rdtd.Box(w[:6], (12,))})
        kept = None
        interrupt = threading.Thread(target=lambda: (
            until(lambda: "step 1: 1 of 2 parts" in node.ctl("shards", "policy", may_fail=True), "it waits"),
            os.kill(os.getpid(), signal.SIGINT)))
        interrupt.start()
        try:
            c.publish_part("policy", 1, 0, 2, part, timeout=LONG)
        except KeyboardInterrupt as error:
            kept = error  # and with it the frames
        assert kept is not None
        interrupt.join(LONG)
        until(lambda: "last failure" in node.ctl("shards", "policy"), "the part is withdrawn")
        again = c.start_part("policy", 1, 0, 2, part, timeout=LONG)
        other.publish_part("policy", 1, 1, 2, {"w": rdtd.Box(w[6:], (12,), (6,))}, timeout=LONG)
        again.result()
        c.unpublish("policy")
        ends = []

        def wait() -> None:
            try:
                c.manifest("never")
            except rdtd.Error as error:
                ends.append(type(error))

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: node.waiters() == 1, "it waits for the first version")
        c.close()
        thread.join(LONG)
        assert ends and ends[0] in (rdtd.Cancelled, rdtd.Disconnected), ends


if __name__ == "__main__":
    main(globals())
