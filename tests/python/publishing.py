# SPDX-License-Identifier: Apache-2.0
"""Versions to which a publisher adds one tensor after the other (Connection.publishing)."""
from __future__ import annotations

import array
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any, Iterator

import rdtd
from nodes import LONG, Killed, Node, Skipped, main, raises, until

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


def model(step: int) -> Iterator[tuple[str, Any]]:
    """Yields each tensor in the same memory, as a trainer's collectives may."""
    if numpy is None:
        raise Skipped("numpy is not installed")
    room = numpy.empty(600_000, "f4")
    for i in range(14):
        count = 500_000 + i if i % 5 == 0 else 1000 + i
        room[:count] = numpy.arange(count, dtype="f4") + step * 100 + i
        yield f"layer.{i}.weight", room[:count]
        room[:] = -1
    yield "half", numpy.arange(24, dtype="f2").reshape(4, 6)[:, ::2] + numpy.float16(step)
    yield "scalar", numpy.array(step, "i8")
    yield "empty", numpy.zeros((0, 7), "f8")


def whole(step: int) -> dict[str, Any]:
    return {key: numpy.array(value) for key, value in model(step)}


def check(value: Any, step: int) -> None:
    expected = whole(step)
    assert sorted(value) == sorted(expected)
    for key in expected:
        assert value[key].dtype == expected[key].dtype and value[key].shape == expected[key].shape, key
        assert (value[key] == expected[key]).all(), key


def objects(node: Node) -> int:
    return node.ctl("objects", "--json").count('"generation"')


def test_generator() -> None:
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as trainer, rdtd.connect(b.socket) as far:
        home = rdtd.Ref.from_name("policy", address=trainer.node["address"])
        for step in range(1, 6):
            with trainer.publishing("policy") as version:
                for key, tensor in model(step):
                    version.add(key, tensor)
                assert version.step == step and version.version == 0 and version.tensors == len(whole(step))
                assert version.bytes == sum(value.nbytes for value in whole(step).values())
            assert version.version == step and version.pieces == 4
            check(trainer.get(trainer.name("policy"), timeout=LONG), step)
            check(far.get(rdtd.Ref.from_name("policy", step - 1, address=trainer.node["address"]), timeout=LONG), step)
        targets = {key: numpy.zeros_like(value) for key, value in whole(5).items()}
        run = far.plan(home, targets, strict=True).run(timeout=LONG)
        assert run.version == 5 and not run.bytes_moved
        check(targets, 5)
        manifest = far.manifest(home, timeout=LONG)
        assert manifest.step == 5 and len(manifest.parts) == 4, manifest
        a.fds, b.fds = a.open_fds(), b.open_fds()  # the transports between the nodes stay connected
        trainer.publish("policy", whole(9))  # an ordinary version, and back
        check(far.get(home, timeout=LONG), 9)
        with trainer.publishing("policy") as version:
            version.add("w", array.array("d", [1, 2]))
        assert far.get(home, timeout=LONG)["w"].tolist() == [1.0, 2.0]
        trainer.unpublish("policy")


def test_memory_is_used_again() -> None:
    with Node() as node, rdtd.connect(node.socket) as trainer:
        seen: list[Any] = []
        for step in range(1, 7):
            with trainer.publishing("policy") as version:
                for key, tensor in model(step):
                    version.add(key, tensor)
            seen.append(json.loads(node.ctl("status", "--json"))["memory_bytes"])
        assert seen[2:] == [seen[2]] * 4, seen
        with trainer.publishing("shown", visible="all") as version:
            version.add("w", array.array("d", [3]))
        assert trainer.get(trainer.name("shown"), timeout=LONG)["w"].tolist() == [3.0]
        trainer.unpublish("shown")
        trainer.unpublish("policy")


def test_nothing_is_left_of_a_version_that_fails() -> None:
    with Node() as node, rdtd.connect(node.socket) as trainer, rdtd.connect(node.socket) as reader:
        with trainer.publishing("policy") as version:
            for key, tensor in model(1):
                version.add(key, tensor)
        before = objects(node)
        with raises(ZeroDivisionError):
            with trainer.publishing("policy") as version:
                for key, tensor in model(2):
                    version.add(key, tensor)
                until(lambda: "step 2: 0 of 1 parts" in node.ctl("shards", "policy", may_fail=True), "the version is shown")
                said = node.ctl("shards", "policy")
                assert "missing: 0; still adding tensors: 0" in said and "tensors in 3 pieces are there" in said, said
                1 / 0
        until(lambda: "step 2" not in node.ctl("shards", "policy").split("last failure")[0], "the version has failed")
        assert "ZeroDivisionError: division by zero" in node.ctl("shards", "policy")
        until(lambda: objects(node) == before, "its objects are gone")
        check(reader.get(reader.name("policy"), timeout=LONG), 1)
        with raises(rdtd.NotPut):
            reader.wait_put(reader.name("policy", 1), timeout=0)

        version = trainer.publishing("policy", step=3)
        version.add("w", array.array("d", [1]))
        with raises(ValueError, "'w' was added to step 3 already"):
            version.add("w", array.array("d", [1]))
        with raises(TypeError):
            version.add("v", "text")
        with raises(TypeError):
            version.add(7, array.array("d", [1]))  # type: ignore[arg-type]
        with raises(rdtd.Invalid, 'tensor "v"'):
            version.add("v", rdtd.Box(array.array("d", [1, 2]), (3,), (2,)))
        version.add("v", rdtd.Box(array.array("d", [1, 2]), (4,), (0,)))
        version.add("v", rdtd.Box(array.array("d", [3, 4]), (4,), (2,)))
        assert version.end() == 2
        with raises(rdtd.Invalid, "step 3 of \"policy\" is complete already"):
            version.add("u", array.array("d", [1]))
        assert reader.get(reader.name("policy"), timeout=LONG)["v"].tolist() == [1.0, 2.0, 3.0, 4.0]
        with trainer.publishing("policy") as version:
            version.give_up("no more data")
        assert version.version == 0 and "no more data" in node.ctl("shards", "policy")
        del version
        left = trainer.publishing("policy", step=9)
        left.add("w", array.array("d", [1]))
        del left
        gc.collect()
        until(lambda: "its publisher gave it up" in node.ctl("shards", "policy"), "it was given up when it was deleted")
        closed = rdtd.connect(node.socket)
        late = closed.publishing("policy", step=9)
        late.add("w", array.array("d", [1]))
        view = closed.get(closed.put(array.array("d", [1])))  # keeps the session
        closed.close()
        with raises(rdtd.Disconnected, "closed"):
            late.add("v", array.array("d", [1]))
        del late, view
        trainer.unpublish("policy")


def test_limit_in_the_middle() -> None:
    with Node("--set", "limits.client_max_bytes=8MiB") as node, rdtd.connect(node.socket) as trainer:
        with raises(rdtd.LimitReached, "tensor \"w4\": "):
            with trainer.publishing("policy") as version:
                for i in range(9):
                    version.add(f"w{i}", bytearray(2 << 20))
        until(lambda: objects(node) == 0, "nothing is left")
        with trainer.publishing("policy") as version:  # the loop may go on after a tensor that does not fit
            version.add("v", bytearray(2 << 20))
            with raises(rdtd.LimitReached, "tensor \"w\": "):
                version.add("w", bytearray(9 << 20))
        assert set(trainer.get(trainer.name("policy"), timeout=LONG)) == {"v"}
        trainer.unpublish("policy")


def test_it_is_shown_while_a_thread_adds() -> None:
    with Node("--set", "limits.client_max_bytes=8MiB") as node, rdtd.connect(node.socket) as trainer:
        room = trainer.put(bytearray(6 << 20))
        version = trainer.publishing("policy", step=1, timeout=LONG)
        version.add("v", array.array("d", [1]))
        thread = threading.Thread(target=version.add, args=("w", bytearray(4 << 20)))
        thread.start()  # waits for room

        def runs() -> bool:
            try:
                version.leave("w")
            except RuntimeError:
                return True
            return False

        until(runs, "the thread adds")
        assert "step 1: 1 tensors, 8 bytes" in repr(version) and version.pieces == 0
        del room
        thread.join()
        assert "step 1: 2 tensors" in repr(version) and version.tensors == 2
        version.give_up("it was only shown")
        trainer.close()
        assert "step 1: 2 tensors" in repr(version)


def test_ranks() -> None:
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as first, rdtd.connect(b.socket) as second:
        home = rdtd.Ref.from_name("policy", address=first.node["address"])

        def run(connection: rdtd.Connection, rank: int) -> None:
            with connection.publishing(home, step=1, rank=rank, of=2, timeout=LONG) as version:
                half = numpy.arange(12, dtype="f4").reshape(4, 3)[2 * rank:2 * rank + 2]
                version.add("w", rdtd.Box(half, (4, 3), (2 * rank, 0)))
                if rank == 0:
                    version.add("bias", half[0])
                else:
                    version.leave("bias")

        thread = threading.Thread(target=run, args=(second, 1))
        thread.start()
        run(first, 0)
        thread.join()
        got = second.get(home, timeout=LONG)
        assert (got["w"] == numpy.arange(12, dtype="f4").reshape(4, 3)).all() and got["bias"].tolist() == [0.0, 1.0, 2.0]
        with raises(rdtd.OwnerDied, "RuntimeError: it has failed"):
            with first.publishing(home, step=2, rank=0, of=2, timeout=LONG) as version:
                version.add("w", got["bias"])
                with raises(RuntimeError):
                    with second.publishing(home, step=2, rank=1, of=2) as other:
                        other.add("v", got["bias"])
                        raise RuntimeError("it has failed")
        first.unpublish(home)


PUBLISHER = """
import sys
import rdtd
c = rdtd.connect(sys.argv[1])
step = int(sys.argv[2])
while True:
    with c.publishing("policy", step=step) as version:
        for i in range(8):
            version.add(f"w{i}", bytes([step % 251]) * (300000 if i % 2 else 1000))
            print(step, i, flush=True)
    step += 1
"""


def read(connection: rdtd.Connection, after: int) -> int:
    """Reads the newest version, which must be of one step. Returns its number."""
    got = connection.get_fetched(connection.name("policy", after), timeout=LONG)
    assert sorted(got.value) == [f"w{i}" for i in range(8)], sorted(got.value)
    seen = {byte for value in got.value.values() for byte in set(bytes(value))}
    assert len(seen) == 1, f"version {got.version} has tensors of steps {seen}"
    return int(got.version)


def test_publisher_is_killed_anywhere() -> None:
    with Node() as node, rdtd.connect(node.socket) as reader:
        step = 1
        seen = False
        for round_ in range(12):
            process = subprocess.Popen([sys.executable, "-c", PUBLISHER, node.socket, str(step)], stdout=subprocess.PIPE)
            assert process.stdout
            for _ in range(1 + (round_ * 5) % 21):
                step = int(process.stdout.readline().split()[0])
            process.kill()
            for line in process.stdout.read().splitlines():
                step = int(line.split()[0])
            process.wait()
            process.stdout.close()
            until(lambda: json.loads(node.ctl("status", "--json"))["clients"] == 2, "the daemon has noticed")  # and rdtctl
            until(lambda: "still adding" not in node.ctl("shards", "policy"), "its version has failed")
            try:
                reader.wait_put(reader.name("policy"), timeout=0)
                seen = True
            except rdtd.NotPut:
                assert not seen
            if seen:
                read(reader, 0)
            step += 2
        assert seen and objects(node) <= 6, node.ctl("objects")  # the manifest and the pieces of the version that is there
        reader.unpublish("policy")
        until(lambda: objects(node) == 0, "nothing is left")


def test_daemon_is_killed_under_its_keeper() -> None:
    with Killed() as killed, rdtd.connect(killed.node.socket) as trainer, rdtd.connect(killed.node.socket) as reader:
        for step in range(1, 9):
            with trainer.publishing("policy", step=step, timeout=LONG) as version:
                for i in range(8):
                    version.add(f"w{i}", bytes([step]) * (300000 if i % 2 else 1000))
                    if i == step - 1:
                        killed.kill()
            assert read(reader, step - 1) == step
        with killed.kill_every(0.15):
            goal = killed.kills + 8
            while killed.kills < goal:
                step += 1
                with trainer.publishing("policy", step=step, timeout=LONG) as version:
                    for i in range(8):
                        version.add(f"w{i}", bytes([step]) * (300000 if i % 2 else 1000))
                assert read(reader, 0) == version.version
        trainer.unpublish("policy")


if __name__ == "__main__":
    main(globals())
