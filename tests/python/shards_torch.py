# SPDX-License-Identifier: Apache-2.0
"""rdtd.torch with real torch.distributed processes (gloo): trainers with tensor parallelism, FSDP2 and Megatron-style
layouts on two nodes feed samplers with tensor parallelism of 2, whose bytes are checked against the whole model. And the
casts against torch's own."""
from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import tempfile
from typing import Any

import rdtd
from nodes import LONG, SLOWER, Node, Skipped, main, raises, until

try:
    import torch
    import rdtd.torch
except ImportError:
    torch = None  # type: ignore[assignment]

STEPS = 3
WIDTH, HIDDEN, OUT = 64, 256, 100


def model_of(step: int) -> Any:
    """The whole model: the same in every process."""
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.LayerNorm(HIDDEN), torch.nn.Linear(HIDDEN, OUT))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


# ---- a rank of a trainer ----

def tensor_parallel(step: int, world: int, mesh: Any) -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    dims = {"0.weight": Shard(0), "0.bias": Shard(0), "2.weight": Shard(1)}
    return {key: distribute_tensor(value, mesh, [dims.get(key, Replicate())])
            for key, value in model_of(step).state_dict().items()}


def two_dimensions(step: int, world: int, mesh: Any) -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    dims = {"0.weight": [Shard(1), Shard(0)], "2.weight": [Replicate(), Shard(1)]}
    return {key: distribute_tensor(value, mesh, dims.get(key, [Shard(0), Replicate()]))
            for key, value in model_of(step).state_dict().items()}


def fully_sharded(step: int, world: int, mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard
    model = model_of(step)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


MEGATRON = {"0.weight": 0, "0.bias": 0, "2.weight": 1}


def megatron(step: int, rank: int, world: int) -> Any:
    return {key: value.chunk(world, MEGATRON[key])[rank].clone() if key in MEGATRON else value
            for key, value in model_of(step).state_dict().items()}


def split(rank: int, world: int) -> dict[str, tuple[int, int, int]]:
    return {key: (dim, rank, world) for key, dim in MEGATRON.items()}


def train(kind: str, rank: int, world: int, home: str, store: str, socket: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    name = rdtd.Ref.from_name("policy", address=home)
    mesh = None
    if kind != "megatron":
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, world // 2) if kind == "two_dimensions" else (world,))
    with rdtd.connect(socket) as c:
        for step in range(1, STEPS + 1):
            if kind == "megatron":
                version = rdtd.torch.publish(megatron(step, rank, world), name, layout=split(rank, world), connection=c,
                                             timeout=LONG)
            else:
                version = rdtd.torch.publish(globals()[kind](step, world, mesh), name, connection=c, timeout=LONG)
            assert version == step, (version, step)
            print(version, flush=True)
            sys.stdin.readline()  # the samplers have read it
    torch.distributed.destroy_process_group()


# ---- the test: the samplers ----

def feed(kind: str, world: int) -> None:
    if torch is None:
        raise Skipped("torch is not installed")
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as first, rdtd.connect(b.socket) as c:
        home = first.node["address"]
        store = tempfile.mktemp(prefix="store")
        command = [sys.executable, os.path.abspath(__file__), "--train", kind]
        ranks = [subprocess.Popen([*command, str(rank), str(world), home, os.path.abspath(store), (a, b)[rank % 2].socket],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for rank in range(world)]
        try:
            name = rdtd.Ref.from_name("policy", address=home)
            samplers = [(megatron(0, rank, 2), split(rank, 2)) for rank in range(2)]
            half = {key: torch.zeros_like(value, dtype=torch.bfloat16) for key, value in model_of(0).state_dict().items()}
            for step in range(1, STEPS + 1):
                for rank, (state, layout) in enumerate(samplers):
                    assert rdtd.torch.update(state, name, layout=layout, connection=c, timeout=LONG * SLOWER) == step
                    for key, value in megatron(step, rank, 2).items():
                        assert torch.equal(state[key], value), (kind, step, rank, key)
                assert rdtd.torch.update(half, name, connection=c, timeout=LONG) == step
                for key, value in model_of(step).state_dict().items():
                    assert torch.equal(half[key], value.to(torch.bfloat16)), (kind, step, key)
                for rank in ranks:
                    assert rank.stdout is not None and rank.stdin is not None
                    assert rank.stdout.readline() == f"{step}\n"
                for rank in ranks:
                    rank.stdin.write("\n")  # type: ignore[union-attr]
                    rank.stdin.flush()  # type: ignore[union-attr]
            for rank in ranks:
                assert rank.wait(LONG) == 0
            first.unpublish(name)
            for node in (a, b):
                until(lambda: '"generation"' not in node.ctl("objects", "--json"), "parts and manifests are gone")
            a.kill()  # what the transports keep open for the link, which differs, is not looked at
            b.kill()
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
                rank.stdin.close()  # type: ignore[union-attr]
                rank.stdout.close()  # type: ignore[union-attr]
        rdtd.torch._plans.clear()


def test_tensor_parallel_4_feeds_2() -> None:
    feed("tensor_parallel", 4)


def test_tensor_parallel_8_feeds_2() -> None:
    feed("tensor_parallel", 8)


def test_two_dimensions_feed_2() -> None:
    feed("two_dimensions", 4)


def test_fully_sharded_4_feeds_2() -> None:
    feed("fully_sharded", 4)


def test_megatron_4_feeds_2() -> None:
    feed("megatron", 4)


def test_rank_whose_publish_failed_joins_the_others_again() -> None:
    if torch is None:
        raise Skipped("torch is not installed")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        state = {"w": torch.ones(8, 8), "bias": torch.zeros(3)}

        def publish(rank: int, connection: Any, timeout: float = LONG, layout: Any = None) -> int:
            return rdtd.torch.publish(state, "policy", rank=rank, world_size=2, layout=layout, connection=connection,
                                      timeout=timeout)

        for version in (1, 2):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(publish, 1, other)
                with raises(ValueError, "the layout of tensor"):
                    publish(0, c, layout={"w": (7, 0, 2)})
                assert publish(0, c) == version and waiting.result() == version
            with raises(rdtd.TimedOut):
                publish(0, c, timeout=0.1)  # nobody else publishes
        c.unpublish("policy")
    rdtd.torch._plans.clear()


def test_plans_are_of_a_connection() -> None:
    if torch is None:
        raise Skipped("torch is not installed")
    with Node() as one, Node() as two, rdtd.connect(one.socket) as c, rdtd.connect(two.socket) as d:
        assert c.node["session"] == d.node["session"]
        state = {"w": torch.zeros(8, 8)}
        for number, connection in enumerate((c, d), 1):
            given = {"w": torch.full((8, 8), float(number))}
            assert rdtd.torch.publish(given, "policy", rank=0, world_size=1, connection=connection, timeout=LONG) == 1
        for number, connection in enumerate((c, d), 1):
            assert rdtd.torch.update(state, "policy", connection=connection, timeout=LONG) == 1
            assert float(state["w"].sum()) == 64 * number
        for connection in (c, d):
            connection.unpublish("policy")
    assert len(rdtd.torch._plans) == 2
    with Node() as node, rdtd.connect(node.socket) as c:
        rdtd.torch.publish(given, "policy", rank=0, world_size=1, connection=c, timeout=LONG)
        rdtd.torch.update(state, "policy", connection=c, timeout=LONG)
        assert len(rdtd.torch._plans) == 1, "those of closed connections are gone"
        c.unpublish("policy")
    rdtd.torch._plans.clear()


def test_casts_are_those_of_torch() -> None:
    if torch is None:
        raise Skipped("torch is not installed")
    bits = torch.randint(-2**31, 2**31 - 1, (1 << 20,), dtype=torch.int64).to(torch.int32)
    halves = torch.arange(-2**15, 2**15, dtype=torch.int32).to(torch.int16)
    sources = {"f32": bits.view(torch.float32), "bf16": halves.view(torch.bfloat16), "f16": halves.view(torch.float16),
               "small": torch.randn(1 << 20)}
    with Node() as a, rdtd.connect(a.socket) as c:
        for number, (key, source) in enumerate(sources.items()):
            for to in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
                got = torch.zeros(source.shape, dtype=to)
                step = 1 + 10 * number + [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn,
                                          torch.float8_e5m2].index(to)
                c.publish_part("casts", step, 0, 1, {key: source}, timeout=LONG)
                c.plan("casts", {key: got}).run(timeout=LONG)
                want = source.to(to)
                if to == torch.float8_e4m3fn:  # too large numbers: versions of torch differ
                    large = source.float().abs() > 464
                    assert (got.float()[large].abs() == 448).all()
                    want, got = want.float()[~large], got.float()[~large]
                numbers = ~want.float().isnan()
                assert torch.equal(got.float().isnan(), ~numbers), (key, to)
                assert torch.equal(got.float()[numbers], want.float()[numbers]), (key, to)
        c.unpublish("casts")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
    else:
        main(globals())
