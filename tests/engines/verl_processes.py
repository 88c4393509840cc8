# SPDX-License-Identifier: Apache-2.0
"""rdtd.verl in plain processes, in the order of verl's CheckpointEngineManager, with verl where it is installed and the few
classes of fake_verl elsewhere. Every tensor of a version is full of its number, so that a mixture is seen. $ROUNDS: how often a
daemon is killed (3)."""
from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Iterator, Optional

import fake_verl
import torch
from nodes import KEY, LONG, Killed, Node, main, raises, until
from processes import Process, calls

REAL = fake_verl.install()
import rdtd  # noqa: E402
import rdtd.verl  # noqa: E402

ROUNDS = int(os.environ.get("ROUNDS", 3))
NAME = "policy"
SHAPES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    **{f"layers.{i}.weight": ((700, 500 + i), torch.bfloat16) for i in range(10)},
    **{f"layers.{i}.bias": ((500 + i,), torch.float32) for i in range(10)},
    "scale": ((), torch.float32), "nothing": ((0, 7), torch.float16), "steps": ((3,), torch.int64)}


class Part:
    """A process of the trainer or of a rollout."""

    def __init__(self, end: Any, socket: str, options: dict[str, Any]) -> None:
        from verl.checkpoint_engine.base import CheckpointEngineRegistry
        self.end = end
        self.engine = CheckpointEngineRegistry.new("rdtd", bucket_size=64 << 20, socket=socket,
                                                   **{"name": NAME, "timeout": LONG, **options})

    def execute(self, method: str, kwargs: dict[str, Any]) -> Any:
        return getattr(self.engine, method)(**kwargs)

    def _stop(self, at: Optional[str], key: str) -> None:
        """Reports that this tensor is next, and waits for what the test does then."""
        if at == key:
            self.end.send((None, key))
            self.end.recv()


class Trainer(Part):
    def send(self, number: int, stop: Optional[str] = None) -> Any:
        def generate() -> Iterator[tuple[str, torch.Tensor]]:
            for key, (shape, dtype) in SHAPES.items():
                self._stop(stop, key)
                tensor = torch.full(shape, number, dtype=dtype)
                yield key, tensor
                tensor.fill_(-1)  # its memory may be used again
        return asyncio.run(self.engine.send_weights(generate(), global_steps=number))


class Rollout(Part):
    async def _load(self, weights: Any, stop: Optional[str]) -> float:
        seen: set[float] = set()
        got = {}
        async for key, tensor in weights:
            self._stop(stop, key)
            got[key] = (tuple(tensor.shape), tensor.dtype)
            if tensor.numel():
                seen |= {float(tensor.min()), float(tensor.max())}
        assert got == SHAPES, f"other tensors came: {got}"
        assert len(seen) == 1, f"a mixture of versions: {seen}"
        return seen.pop()

    def receive(self, number: int, stop: Optional[str] = None) -> float:
        return asyncio.run(self._load(self.engine.receive_weights(global_steps=number), stop))

    def cached(self) -> float:
        return asyncio.run(self._load(self.engine.get_weights(), None))


class Job:
    """Does what verl's manager does."""

    def __init__(self, trainers: list[str], rollouts: list[str]) -> None:
        """Lists of sockets, one for each process."""
        self.trainers = [Process(Trainer, socket, {}) for socket in trainers]
        self.rollouts = [Process(Rollout, socket, {}) for socket in rollouts]

    def connect(self) -> None:
        metadata = calls(self.trainers + self.rollouts, "execute", "prepare", {})
        both = rdtd.verl.RdtdCheckpointEngine.build_topology(len(self.trainers), len(self.rollouts), metadata)
        for processes, kwargs in zip((self.trainers, self.rollouts), both):
            assert all(len(values) == len(processes) for values in kwargs.values())
            for i, process in enumerate(processes):
                process.call("execute", "init_process_group", {key: values[i] for key, values in kwargs.items()})

    def start(self, number: int) -> None:
        self.connect()
        for process in self.trainers:
            process.start("send", number)
        for process in self.rollouts:
            process.start("receive", number)

    def finish(self, number: int) -> None:
        sent = [process.result() for process in self.trainers]
        assert sent[0]["rdtd/bytes"] > 0 and not any(sent[1:]), sent
        received = [process.result() for process in self.rollouts]
        assert received == [number] * len(received), f"{received} came for {number}"
        calls(self.trainers + self.rollouts, "execute", "finalize", {})

    def update(self, number: int) -> None:
        self.start(number)
        self.finish(number)

    def close(self, *killed: Process) -> None:
        for process in self.trainers + self.rollouts:
            if process not in killed:
                process.close()


@contextmanager
def unpublished(*nodes: Node) -> Iterator[None]:
    """At the end nothing is left of the name."""
    yield
    with rdtd.connect(nodes[0].socket) as c:
        c.unpublish(NAME)
    gc.collect()
    for node in nodes:
        node.fds = node.open_fds()  # the transports between the nodes stay connected


def test_updates() -> None:
    with Node(listen=True) as a, Node(listen=True) as b, unpublished(a, b):
        job = Job([a.socket, a.socket], [a.socket, b.socket, b.socket])
        for number in 1, 2, 3:
            job.update(number)
        assert job.rollouts[1].call("cached") == 3
        with rdtd.connect(b.socket) as c:
            until(lambda: all(row["committed"] == 3 for row in json.loads(b.ctl("followers", "--json"))["followers"]),
                  "all have it")
            moved = c.status()["bytes_in"]
        one = sum(torch.empty(shape, dtype=dtype).nbytes for shape, dtype in SHAPES.values())
        assert 3 * one <= moved < 3.5 * one, f"each version came once for both rollouts of the node: {moved} of {one}"
        job.close()


def test_replicas_come_and_go() -> None:
    with Node(listen=True) as a, Node(listen=True) as b, unpublished(a, b):
        job = Job([a.socket], [b.socket])
        job.update(1)
        late = Process(Rollout, b.socket, {})
        job.rollouts.append(late)
        job.update(2)
        job.rollouts.pop(0).close()
        job.update(3)
        with rdtd.connect(a.socket) as c:
            address = c.node["address"]
        alone = Process(Rollout, b.socket, {"address": address})  # verl's manager does not know it
        assert alone.call("cached") == 3
        job.rollouts += [alone, Process(Rollout, a.socket, {})]
        job.update(4)
        job.close()


def test_trainer_killed_in_a_send() -> None:
    with Node(listen=True) as a, Node(listen=True) as b, unpublished(a, b):
        job = Job([a.socket], [a.socket, b.socket])
        job.update(1)
        for number in 2, 3:
            job.connect()
            job.trainers[0].start("send", 99, f"layers.{3 * number}.weight")
            for process in job.rollouts:
                process.start("receive", number)
            job.trainers[0].step()
            until(lambda: a.waiters() + b.waiters() >= 2, "the rollouts wait")
            job.trainers.pop().kill()
            other = [Process(Rollout, node.socket, {}) for node in (a, b)]
            with rdtd.connect(a.socket) as c:
                address = c.node["address"]
            for process in other:  # what the node has is still the version before
                process.call("execute", "init_process_group",
                             {"role": "receiver", "name": NAME, "address": address, "version": 0})
                assert process.call("cached") == number - 1
                process.close()
            job.trainers.append(Process(Trainer, a.socket, {}))
            metadata = job.trainers[0].call("execute", "prepare", {})
            job.trainers[0].call("execute", "init_process_group", {"role": "sender", **metadata})
            job.trainers[0].start("send", number)
            job.finish(number)  # of the receive that began before
        job.update(4)
        job.close()


def test_receivers_that_wait_in_vain_are_no_obstacle() -> None:
    """verl gives up an update whose trainer has died, and begins another, while a rollout still waits in the first."""
    with Node() as node, unpublished(node):
        rollout = rdtd.verl.RdtdCheckpointEngine(name=NAME, socket=node.socket, timeout=LONG)
        trainer = rdtd.verl.RdtdCheckpointEngine(name=NAME, socket=node.socket)

        async def load(weights: Any) -> set[float]:
            return {float(tensor.max()) async for _, tensor in weights}

        async def run() -> None:
            for engine, role in (trainer, "sender"), (rollout, "receiver"):
                engine.init_process_group(role, NAME, None, 0)
            first = asyncio.create_task(load(rollout.receive_weights()))
            while not node.waiters():
                await asyncio.sleep(0.01)
            second = asyncio.create_task(load(rollout.receive_weights()))
            while node.waiters() < 2:
                await asyncio.sleep(0.01)
            await trainer.send_weights({"w": torch.full((5,), 7.0)}.items())
            assert await first == {7.0} and await second == {7.0}
            assert await load(rollout.receive_weights()) == {7.0}, "once more"
            rollout.init_process_group("receiver", **trainer.prepare())
            third = asyncio.create_task(load(rollout.receive_weights()))

            async def generate() -> Any:
                yield "w", torch.full((5,), 8.0)
            assert (await trainer.send_weights(generate()))["rdtd/version"] == 2
            elsewhere = rdtd.verl.RdtdCheckpointEngine(name=NAME, socket=node.socket, device="meta")
            assert [tensor.device.type async for _, tensor in elsewhere.get_weights()] == ["meta"]
            assert await third == {8.0} and await load(rollout.get_weights()) == {8.0}

            def fails() -> Iterator[Any]:
                yield "w", torch.full((5,), 9.0)
                raise ZeroDivisionError
            with raises(ZeroDivisionError):
                await trainer.send_weights(fails())
            seen = []

            def twice() -> Iterator[Any]:
                for number in range(3):
                    seen.append(number)  # a collective of the trainer's ranks
                    yield "w", torch.full((5,), 9.0)
            with raises(ValueError, "'w' was added to step 3 already"):
                await trainer.send_weights(twice())
            assert seen == [0, 1, 2], "no rank waits in a collective"
            assert await load(rollout.get_weights()) == {8.0}
            await trainer.send_weights(iter([("w", torch.full((5,), 9.0))]))
            assert await load(rollout.get_weights()) == {9.0}
        asyncio.run(run())
        del rollout, trainer
        rdtd.verl.connection_at(node.socket).close()


def test_no_daemon_leaves_no_rank_in_a_collective() -> None:
    seen = []

    def weights() -> Iterator[Any]:
        for number in range(3):
            seen.append(number)  # a collective of the trainer's ranks
            yield str(number), torch.ones(5)

    trainer = rdtd.verl.RdtdCheckpointEngine(name=NAME, socket="/nonexistent/socket")
    trainer.init_process_group("sender", NAME, None, 0)
    with raises(rdtd.Disconnected):
        asyncio.run(trainer.send_weights(weights()))
    assert seen == [0, 1, 2]


def test_rollout_killed_in_a_receive() -> None:
    with Node(listen=True) as a, Node(listen=True) as b, unpublished(a, b):
        job = Job([a.socket, a.socket], [b.socket, b.socket])
        job.update(1)
        for number in 2, 3:
            job.connect()
            for process in job.trainers:
                process.start("send", number)
            job.rollouts[0].start("receive", number, "layers.5.weight")
            job.rollouts[1].start("receive", number)
            job.rollouts[0].step()
            job.rollouts.pop(0).kill()
            job.finish(number)
            job.rollouts.append(Process(Rollout, b.socket, {}))
        job.update(4)
        job.close()


@contextmanager
def killed_node(directory: Path) -> Iterator[Killed]:
    """With a keeper, at a port that stays."""
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (directory / "key").write_text(KEY)
    (directory / "key").chmod(0o600)
    with Killed("--listen", f"127.0.0.1:{port}", "--key-file", str(directory / "key"), "--trusted-network", "yes",
                "--interfaces", "lo") as killed:
        yield killed


def test_daemons_killed_at_random() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        both = [stack.enter_context(killed_node(directory)) for _ in range(2)]
        a, b = (killed.node for killed in both)
        stack.enter_context(unpublished(a, b))
        job = Job([a.socket, a.socket], [a.socket, b.socket, b.socket])
        job.update(1)
        slowest = 0.0
        for number in range(2, ROUNDS + 2):
            victim = random.choice(both)
            timer = threading.Timer(random.uniform(0, 0.12), victim.kill)
            timer.start()
            started = time.monotonic()
            job.update(number % 200)
            slowest = max(slowest, time.monotonic() - started)
            timer.join()
        kills = sum(killed.kills for killed in both)
        assert kills == ROUNDS, f"{kills} of {ROUNDS} daemons were killed and came back"
        print(f"{kills} kills, the slowest update {slowest:.2f} s")
        job.close()


def test_wrong_arguments() -> None:
    with raises(TypeError, "name must be text"):
        rdtd.verl.RdtdCheckpointEngine(name=5)  # type: ignore[arg-type]
    with raises(ValueError, "timeout must be"):
        rdtd.verl.RdtdCheckpointEngine(name="n", timeout=-1)
    rdtd.verl.RdtdCheckpointEngine(name="n", timeout=None)  # "null" of the configuration
    with raises(RuntimeError, "nix"):
        rdtd.verl.RdtdCheckpointEngine(name="n", device="nix")
    with Node() as node, rdtd.connect(node.socket) as c:
        engine = rdtd.verl.RdtdCheckpointEngine(name="n", socket=node.socket, timeout=LONG)
        c.publish("n", [torch.ones(3)])
        with raises(rdtd.Invalid, "engine_kwargs.rdtd.name"):
            engine.prepare()

        async def first() -> None:
            async for _ in engine.get_weights():
                pass
        with raises(rdtd.Invalid, "not a dict of tensors"):
            asyncio.run(first())
        c.unpublish("n")
        engine = rdtd.verl.RdtdCheckpointEngine(name="n", socket=node.socket, timeout=0)
        engine.init_process_group("receiver", "m", None, 0)
        with raises(rdtd.TimedOut, "no newer version is whole"):
            asyncio.run(first())
        del engine
        rdtd.verl.connection_at(node.socket).close()


if __name__ == "__main__":
    print(f"{'real' if REAL else 'fake'} verl")
    main(globals())
