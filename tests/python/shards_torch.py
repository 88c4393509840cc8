# SPDX-License-Identifier: Apache-2.0
"""rdtd.torch with real torch.distributed processes (gloo): trainers with tensor parallelism, FSDP2 and Megatron-style
layouts on two nodes feed samplers with tensor parallelism of 2, whose bytes are checked against the whole model. And the
casts against torch's own."""
from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from typing import Any

import rdtd
from nodes import LONG, SLOWER, Node, main, need, raises, until

try:
    import torch
    import rdtd.torch
except ImportError:
    torch = None  # type: ignore[assignment]

STEPS = 3
WIDTH, HIDDEN, OUT = 64, 256, 100


def model_of(step: int, hidden: int = HIDDEN) -> Any:
    """The whole model: the same in every process."""
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, hidden), torch.nn.LayerNorm(hidden), torch.nn.Linear(hidden, OUT))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def learned_model(step: int) -> Any:
    """The weights in bf16 after so many steps of AdamW on masters in f32: the same in every process."""
    model = model_of(0, 4 * HIDDEN)  # parts that do not travel in an answer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for number in range(1, step + 1):
        inputs = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return model.to(torch.bfloat16)


def state_of(kind: str, step: int) -> Any:
    return (learned_model if kind == "learned" else model_of)(step).state_dict()


# ---- a rank of a trainer ----

def tensor_parallel(step: int, world: int, mesh: Any, kind: str = "") -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    dims = {"0.weight": Shard(0), "0.bias": Shard(0), "2.weight": Shard(1)}
    return {key: distribute_tensor(value, mesh, [dims.get(key, Replicate())]) for key, value in state_of(kind, step).items()}


def learned(step: int, world: int, mesh: Any) -> Any:
    return tensor_parallel(step, world, mesh, "learned")


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


def megatron(step: int, rank: int, world: int, kind: str = "") -> Any:
    return {key: value.chunk(world, MEGATRON[key])[rank].clone() if key in MEGATRON else value
            for key, value in state_of(kind, step).items()}


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
                version = rdtd.torch.publish(globals()[kind](step, world, mesh), name, connection=c, timeout=LONG,
                                             delta=kind == "learned")
            assert version == step, (version, step)
            os.write(1, b"%d\n" % version)  # at once: the ranks have one pipe
            os.read(0, 1)  # the samplers have read it
    torch.distributed.destroy_process_group()


def train_all(kind: str, world: int, home: str, store: str, *sockets: str) -> int:
    """All ranks, each in a child of this process: importing torch takes seconds of a processor. Returns how many fail."""
    if kind != "megatron":
        import torch.distributed.device_mesh
        import torch.distributed.fsdp
        import torch.distributed.tensor  # noqa: F401
    for rank in range(world):
        if os.fork() == 0:
            try:
                train(kind, rank, world, home, store, sockets[rank % 2])
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
    return sum(os.wait()[1] != 0 for _ in range(world))


# ---- the test: the samplers ----

def feed(kind: str, world: int) -> None:
    need(torch, "torch")
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as first, rdtd.connect(b.socket) as c:
        home = first.node["address"]
        store = tempfile.mktemp(prefix="store")
        ranks = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--train", kind, str(world), home,
                                  os.path.abspath(store), a.socket, b.socket],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert ranks.stdout is not None and ranks.stdin is not None
        try:
            name = rdtd.Ref.from_name("policy", address=home)
            samplers = [(megatron(0, rank, 2, kind), split(rank, 2)) for rank in range(2)]
            half = {key: torch.zeros_like(value, dtype=torch.bfloat16) for key, value in state_of(kind, 0).items()}
            move = "whole" if kind == "learned" else "auto"
            for step in range(1, STEPS + 1):
                for rank, (state, layout) in enumerate(samplers):
                    assert rdtd.torch.update(state, name, layout=layout, connection=c, timeout=LONG * SLOWER, move=move) == step
                    for key, value in megatron(step, rank, 2, kind).items():
                        assert torch.equal(state[key], value), (kind, step, rank, key)
                assert rdtd.torch.update(half, name, connection=c, timeout=LONG) == step
                for key, value in state_of(kind, step).items():
                    assert torch.equal(half[key], value.to(torch.bfloat16)), (kind, step, key)
                # half of the ranks are at the readers' own node
                made = world // 2 * (step - 1) if kind == "learned" else 0
                assert c.status()["replicas_by_delta"] == made and c.status()["deltas_failed"] == 0
                for _ in range(world):
                    line = ranks.stdout.readline()
                    assert line == f"{step}\n", (step, line)
                ranks.stdin.write("\n" * world)  # each rank reads one
                ranks.stdin.flush()
            assert ranks.wait(LONG) == 0
            first.unpublish(name)
            for node in (a, b):
                until(lambda: '"generation"' not in node.ctl("objects", "--json"), "parts and manifests are gone")
            a.kill()  # what the transports keep open for the link, which differs, is not looked at
            b.kill()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
            ranks.stdin.close()
            ranks.stdout.close()
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


def test_optimizer_steps_come_by_delta() -> None:
    feed("learned", 4)


def test_rank_whose_publish_failed_joins_the_others_again() -> None:
    need(torch, "torch")
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
                with raises(rdtd.OwnerDied, "ValueError: the layout of tensor 'w' is (dim 7"):
                    waiting.result()
                waiting = pool.submit(publish, 1, other)
                assert publish(0, c) == version and waiting.result() == version
            with raises(rdtd.TimedOut):
                publish(0, c, timeout=0.1)  # nobody else publishes
        c.unpublish("policy")
    rdtd.torch._plans.clear()


def a_node_with(state: Any, name: str = "policy") -> Any:
    """A node on which a version of these tensors is published, and a connection to it."""
    @contextlib.contextmanager
    def both() -> Any:
        need(torch, "torch")
        with Node() as node, rdtd.connect(node.socket) as c:
            rdtd.torch.publish(state, name, connection=c, rank=0, world_size=1, timeout=LONG)
            yield node, c
            c.unpublish(name)
        rdtd.torch._plans.clear()
    return both()


def test_a_model_of_another_shape_is_refused() -> None:
    need(torch, "torch")
    whole = torch.arange(8.).reshape(8, 1)
    with a_node_with({"w": whole}) as (node, c):
        def update(rows: int, columns: int = 1, **options: Any) -> Any:
            mine = {"w": torch.full((rows, columns), -1.)}
            try:
                rdtd.torch.update(mine, "policy", after=0, connection=c, timeout=LONG, **options)
            except rdtd.Error:
                assert (mine["w"] == -1).all()
                raise
            return mine["w"]

        for rank in range(2):
            with raises(rdtd.Mismatch, 'tensor "w" has the shape [8, 1], but the reader wants a tensor of the shape [4, 1]'):
                update(4)  # the layout was forgotten
            assert torch.equal(update(4, layout={"w": (0, rank, 2)}), whole.chunk(2)[rank])
        for wrong in ({"rows": 2, "layout": {"w": (0, 1, 2)}}, {"rows": 4, "layout": {"w": (0, 0, 4)}}, {"rows": 9},
                      {"rows": 8, "columns": 2}):
            with raises(rdtd.Mismatch, 'tensor "w" has the shape [8, 1]'):
                update(**wrong)
        with raises(rdtd.Mismatch, "wants a tensor of the shape [8]"):
            rdtd.torch.update({"w": torch.zeros(8)}, "policy", connection=c, timeout=LONG)
        # the same tensors, of which one layout fits and the other does not
        mine = {"w": torch.zeros(4, 1)}
        assert rdtd.torch.update(mine, "policy", connection=c, layout={"w": (0, 0, 2)}, timeout=LONG) == 1
        with raises(rdtd.Mismatch):
            rdtd.torch.update(mine, "policy", after=0, connection=c, timeout=LONG)
        # a plan that was made for an earlier shape
        mine = {"w": torch.zeros(8, 1)}
        prepared = rdtd.torch.plan(mine, "policy", connection=c)
        prepared.update(timeout=LONG)
        rdtd.torch.publish({"w": torch.ones(9, 1)}, "policy", connection=c, rank=0, world_size=1, timeout=LONG)
        with raises(rdtd.Mismatch, 'version 2 of "policy": tensor "w" has the shape [9, 1]'):
            prepared.update(timeout=LONG)
        assert torch.equal(mine["w"], whole)


def test_padded_vocabulary_is_asked_for() -> None:
    need(torch, "torch")
    words = torch.arange(10.).reshape(5, 2)
    with a_node_with({"embed": words, "bias": torch.ones(3)}) as (node, c):
        def update(rank: int, rows: int, size: int, padded: Any) -> Any:
            mine = {"embed": torch.full((rows, 2), -1.), "bias": torch.zeros(3)}
            rdtd.torch.update(mine, "policy", after=0, connection=c, layout={"embed": (0, rank, size)}, padded=padded,
                              timeout=LONG)
            return mine["embed"]

        with raises(rdtd.Mismatch, 'tensor "embed" has the shape [5, 2], but the reader wants a tensor of the shape [8, 2]'):
            update(1, 4, 2, None)
        with raises(rdtd.Mismatch, 'tensor "embed"'):
            update(1, 4, 2, {"embed": 1})
        assert torch.equal(update(0, 4, 2, {"embed": 0}), words[:4])
        last = update(1, 4, 2, {"embed": 0})
        assert torch.equal(last[:1], words[4:]) and (last[1:] == -1).all()
        assert (update(2, 4, 3, {"embed": 0}) == -1).all()  # nothing but padding
        assert torch.equal(update(0, 3, 1, {"embed": 0}), words[:3])  # the trainer's is the padded one


def test_update_is_as_strict_as_load_state_dict() -> None:
    need(torch, "torch")
    state = {"w": torch.ones(4), "bias": torch.ones(()), "steps": torch.tensor(7)}
    with a_node_with(state) as (node, c):
        def update(mine: Any, **options: Any) -> int:
            return rdtd.torch.update(mine, "policy", after=0, connection=c, timeout=LONG, **options)

        mine = {key: torch.zeros_like(value) for key, value in state.items()}
        assert update(mine) == 1 and float(mine["bias"]) == 1 and int(mine["steps"]) == 7
        some = {"w": torch.zeros(4)}
        with raises(rdtd.Mismatch, 'the version has the tensor "bias" and others, which the reader does not have'):
            update(some)
        assert update(some, strict=False) == 1 and (some["w"] == 1).all()
        with raises(rdtd.NotFound, 'no tensor "more"'):
            update(dict(mine, more=torch.zeros(1)))
        for nothing in ({}, torch.nn.Identity()):
            with raises(ValueError, "no tensors"):
                update(nothing, strict=False)
        with raises(ValueError, "no tensors"):
            rdtd.torch.publish({}, "other", connection=c, rank=0, world_size=1, timeout=LONG)
        with raises(TypeError, "'model' is a dict, not a tensor"):
            update({"model": mine})
        with raises(TypeError, "'model' is a dict, not a tensor"):
            rdtd.torch.publish({"model": state}, "other", connection=c, rank=0, world_size=1, timeout=LONG)


def test_tensors_without_memory_are_named() -> None:
    need(torch, "torch")
    with a_node_with({"w": torch.ones(4)}) as (node, c):
        meta = {"w": torch.zeros(4, device="meta")}
        with raises(ValueError, "tensor 'w' is on the meta device"):
            rdtd.torch.update(meta, "policy", connection=c, timeout=LONG)
        with raises(ValueError, "tensor 'w' is on the meta device"):
            rdtd.torch.publish(meta, "other", connection=c, rank=0, world_size=1, timeout=LONG)
        with raises(TypeError, "plan: tensor 'w': it is neither in host memory"):
            c.plan("policy", meta)
        with raises(TypeError, "value['w']: it is neither in host memory"):
            c.put(meta)
        with raises(TypeError, "'w' is on meta"):
            rdtd.DeltaFollower(c, "policy", meta)
        with raises(TypeError, "tensor 'w' has the layout torch.sparse_coo"):
            rdtd.torch.update({"w": torch.eye(4).to_sparse()}, "policy", connection=c, timeout=LONG)


def test_targets_that_overlap_themselves_are_named() -> None:
    need(torch, "torch")
    whole = torch.arange(12.).reshape(3, 4)
    with a_node_with({"w": whole}) as (node, c):
        for target in (torch.zeros(4).expand(3, 4), torch.zeros(8).as_strided((3, 4), (2, 1))):
            with raises(ValueError, "tensor 'w' overlaps itself"):
                rdtd.torch.update({"w": target}, "policy", connection=c, timeout=LONG)
            with raises(rdtd.Invalid, "want 0 (\"w\") overlaps itself"):
                c.plan("policy", {"w": target})
            with raises(ValueError, "'w' is not contiguous"):
                rdtd.DeltaFollower(c, "policy", {"w": target})
            assert torch.count_nonzero(target) == 0
        for target in (torch.zeros(4, 3).t(), torch.zeros(3, 2, 4)[:, 1], torch.zeros(3, 8)[:, ::2]):
            assert rdtd.torch.update({"w": target}, "policy", connection=c, timeout=LONG) == 1 and torch.equal(target, whole)
            assert c.plan("policy", {"w": target}).run(timeout=LONG).version == 1


def test_tied_tensors_must_be_tied_in_the_version() -> None:
    need(torch, "torch")
    embed = torch.randn(6, 2)
    with a_node_with({"embed": embed, "head": embed}) as (node, c):
        mine = torch.zeros(6, 2)
        tied = {"embed": mine, "head": mine}
        assert rdtd.torch.update(tied, "policy", connection=c, timeout=LONG) == 1 and torch.equal(mine, embed)
        rdtd.torch.publish({"embed": embed, "head": embed + 1}, "policy", connection=c, rank=0, world_size=1, timeout=LONG)
        with raises(rdtd.Mismatch, 'version 2 of "policy": tensors "embed" and "head" differ, but the reader has both in the same'):
            rdtd.torch.update(tied, "policy", connection=c, timeout=LONG)
        assert torch.equal(mine, embed)


def test_overlapping_tensors_must_be_equal_where_they_overlap() -> None:
    need(torch, "torch")
    square = torch.randn(4, 4)
    with a_node_with({"w": square, "rows": square[:2], "t": square.t()}) as (node, c):
        mine = torch.zeros(4, 4)
        state = {"w": mine, "rows": mine[:2], "t": mine.t()}
        assert rdtd.torch.update(state, "policy", connection=c, timeout=LONG) == 1 and torch.equal(mine, square)
        for other in ({"rows": square[1:3]}, {"t": square}):
            rdtd.torch.publish({"w": square, "rows": square[:2], "t": square.t(), **other}, "policy", connection=c, rank=0,
                               world_size=1, timeout=LONG)
            with raises(rdtd.Mismatch, f"tensors 'w' and '{next(iter(other))}' differ where they share memory"):
                rdtd.torch.update(state, "policy", connection=c, timeout=LONG)
        columns = torch.zeros(4, 8)
        state = {"w": columns[:, :4], "t": columns[:, 4:], "rows": torch.zeros(2, 4)}
        rdtd.torch.update(state, "policy", after=0, connection=c, timeout=LONG)
        assert torch.equal(columns, torch.cat([square, square], 1))


def test_tensors_that_overlap_in_part_are_written_whole() -> None:
    need(torch, "torch")
    rows = torch.randn(4, 2)
    with a_node_with({"up": rows[:3], "down": rows[1:]}) as (node, c):
        mine = torch.zeros(4, 2)
        state = {"up": mine[:3], "down": mine[1:]}
        assert rdtd.torch.update(state, "policy", connection=c, timeout=LONG) == 1 and torch.equal(mine, rows)
        rdtd.torch.publish({"up": rows[:3], "down": rows[:3]}, "policy", connection=c, rank=0, world_size=1, timeout=LONG)
        with raises(rdtd.Mismatch, "tensors 'up' and 'down' differ where they share memory"):
            rdtd.torch.update(state, "policy", connection=c, timeout=LONG)
        assert torch.equal(mine, rows)


def test_a_follower_writes_nothing_of_tensors_that_differ_in_shared_memory() -> None:
    need(torch, "torch")
    square = torch.randn(4, 4)
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        def publish(t: Any, head: Any, number: float) -> Any:
            """Each rank has a half of each, of w the rows and of t the columns."""
            def half(rank: int, connection: Any) -> int:
                part = {"bias": torch.full((3,), float(number)), "w": square.chunk(2)[rank], "t": t.chunk(2, 1)[rank],
                        "embed": square.chunk(2)[rank], "head": head.chunk(2)[rank]}
                return rdtd.torch.publish(part, "policy", rank=rank, world_size=2, connection=connection, timeout=LONG,
                                          layout={key: (int(key == "t"), rank, 2) for key in part})
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(half, 1, other)
                return half(0, c) == waiting.result()

        mine, tied = torch.zeros(4, 4), torch.zeros(4, 4)
        state = {"bias": torch.zeros(6), "w": mine, "t": mine.t(), "embed": tied, "head": tied}
        with rdtd.torch.follow(state, "policy", connection=c) as follower:
            publish(square.t(), square, 1)
            assert follower.prepare(LONG).version == 1 and follower.commit().version == 1
            for number, (t, head, said) in enumerate((
                    (square, square, "version 2: tensors 'w' and 't' differ where they share memory"),
                    (square.t(), square + 1, 'tensors "embed" and "head" differ')), 2):
                publish(t, head, number)
                until(lambda: follower.prepare(LONG).version == number, "the version takes the place of the one before")
                with raises(rdtd.Mismatch, said):
                    follower.commit()
                assert (state["bias"] == 1).all() and torch.equal(mine, square) and torch.equal(tied, square)
                assert (follower.committed, follower.prepared) == (1, number)
            publish(square.t(), square, 4)
            until(lambda: follower.prepare(LONG).version == 4, "the version takes the place of the one before")
            assert follower.commit().version == 4 and (state["bias"] == 4).all()
        c.unpublish("policy")


def test_update_sees_that_a_tensor_was_transposed() -> None:
    need(torch, "torch")
    square = torch.randn(3, 3)
    with a_node_with({"w": square}) as (node, c):
        mine = torch.zeros(3, 3)
        for target in (mine, mine.t()):
            rdtd.torch.update({"w": target}, "policy", after=0, connection=c, timeout=LONG)
            assert torch.equal(target, square)


def test_a_plan_sees_that_the_memory_of_a_tensor_was_freed() -> None:
    need(torch, "torch")
    with a_node_with({"rows": torch.arange(240_000.0)}) as (_, c):
        mine = {"rows": torch.zeros(240_000)}
        plan = rdtd.torch.plan(mine, "policy", connection=c)
        plan.update(0, timeout=LONG)
        mine["rows"].untyped_storage().resize_(0)  # as FSDP does between its steps
        with raises(ValueError, "the memory of tensor 'rows' has been freed or moved"):
            plan.update(0, timeout=LONG)


def test_no_call_writes_to_memory_that_was_freed() -> None:
    need(torch, "torch")
    rows = torch.arange(240_000.0)
    with a_node_with({"rows": rows}) as (_, c):
        ref = c.put({"rows": rows})

        calls = (lambda: c.plan("policy", {"rows": mine}), lambda: c.get(ref, into={"rows": mine}, timeout=LONG),
                 lambda: c.get(ref, into=[mine], as_="list"), lambda: rdtd.DeltaFollower(c, "policy", {"rows": mine}))
        for size in (0, 400, 959_996):
            mine = torch.zeros(240_000)
            plan = c.plan("policy", {"rows": mine})
            plan.run(0, timeout=LONG)
            waiting = [c.fetch(rdtd.Ref(f"later{size}"), timeout=LONG, **options) for options in (
                {"into": {"rows": mine}}, {"into": [mine], "as_": "list"}, {"into": mine})]  # when the object is there
            mine.untyped_storage().resize_(size)
            with raises(ValueError, "plan: tensor 'rows': its storage has been resized or freed"):
                plan.run(0, timeout=LONG)
            later = c.put({"rows": rows}, id=f"later{size}")
            for request, where in zip(waiting, ("into['rows']", "into[0]", "into")):
                with raises(ValueError, f"{where}: its storage has been resized or freed"):
                    request.result(LONG)
            for call in calls:
                with raises(ValueError, "its storage has been resized or freed"):
                    call()
            if size == 0:
                with raises(ValueError, "value['rows']: it has 960000 bytes but no data"):
                    c.put({"rows": mine})
            mine.untyped_storage().resize_(960_000)
            for call in calls:
                call()
            del plan, waiting, later, request
        mine = torch.zeros(240_000)
        plan = c.plan("policy", {"rows": mine})
        mine.data = torch.zeros(240_000)
        with raises(ValueError, "plan: tensor 'rows': its memory has been freed or moved"):
            plan.run(0, timeout=LONG)
        assert not mine.any()


def test_a_follower_sees_that_a_tensor_has_other_memory() -> None:
    need(torch, "torch")
    with Node() as node, rdtd.connect(node.socket) as c:
        weights = rdtd.DeltaPublisher(c, "policy")
        model = torch.nn.Linear(90, 90)
        model.tied = model.weight
        mine = torch.nn.Linear(90, 90)
        mine.tied = mine.weight
        follower = rdtd.DeltaFollower(c, "policy", mine.state_dict())
        for step in range(1, 6):
            with torch.no_grad():
                model.weight[0, 0] = step
            weights.publish(model.state_dict())
            if step == 3:
                follower._tensors["weight"].data = follower._tensors["tied"].data = torch.zeros(90, 90)
            assert follower.update(LONG) == step
            assert torch.equal(follower._tensors["weight"], model.weight) and follower.by_delta == (step not in (1, 3))
        weights.unpublish()
    rdtd.torch._plans.clear()


def test_tensors_on_a_gpu_are_copied_behind_one_another() -> None:
    """There is no GPU here: tensors in host memory are said to be on one, and its stream counts who waits for it."""
    need(torch, "torch")
    waits: list[Any] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            self.device = device

        def synchronize(self) -> None:
            waits.append(self.device)

    module = rdtd.torch
    before, uses = (module._on_gpu, module._in_host_memory, torch.cuda.current_stream), module._uses_gpus
    mine, names = model_of(2), {"a": torch.randn(4, 3).t(), "b": torch.randn(5)}
    with a_node_with(model_of(1).state_dict()) as (node, c):
        module._on_gpu, module._in_host_memory, torch.cuda.current_stream = lambda t: True, lambda t: False, Stream
        try:
            plan = rdtd.torch.plan(mine, "policy", connection=c)
            assert plan.update(timeout=LONG).version == 1 and len(waits) == 1, waits
            for one, two in zip(mine.parameters(), model_of(1).parameters()):
                assert torch.equal(one, two)
            rdtd.torch.publish(model_of(3), "policy", connection=c, rank=0, world_size=1, timeout=LONG)
            assert len(waits) == 2, waits
            assert plan.update(timeout=LONG).version == 2 and len(waits) == 3, waits
            for one, two in zip(mine.parameters(), model_of(3).parameters()):
                assert torch.equal(one, two)
            rdtd.torch.publish(names, "policy", connection=c, rank=0, world_size=1, timeout=LONG)
            got = {"a": torch.zeros(4, 3).t(), "b": torch.zeros(5)}
            rdtd.torch.update(got, "policy", connection=c, timeout=LONG)
            assert all(torch.equal(got[key], names[key]) for key in names) and len(waits) == 5, waits
            module._uses_gpus = lambda connection: True  # then the connection copies them, and nothing here waits
            rdtd.torch.publish({"a": names["b"], "b": names["a"]}, "policy", connection=c, rank=0, world_size=1, timeout=LONG)
            assert len(waits) == 5, waits
            module._uses_gpus = uses
            got = {"a": torch.zeros(5), "b": torch.zeros(3, 4)}
            rdtd.torch.update(got, "policy", connection=c, timeout=LONG)
            assert torch.equal(got["a"], names["b"]) and torch.equal(got["b"], names["a"])
        finally:
            module._on_gpu, module._in_host_memory, torch.cuda.current_stream = before
            module._uses_gpus = uses


def test_tied_and_overlapping_targets_of_torch() -> None:
    need(torch, "torch")
    w = torch.randn(6, 2, dtype=torch.bfloat16)
    with Node() as node, rdtd.connect(node.socket) as c:
        mine = torch.zeros(6, 2, dtype=torch.bfloat16)
        for value in ({"a": w, "b": w}, {"a": w, "b": w.clone()}):
            mine.zero_()
            c.get(c.put(value), into={"a": mine, "b": mine.view(6, 2)})
            assert torch.equal(mine, w)
        with raises(rdtd.Mismatch, "into['a'] and into['b'] have the same memory"):
            c.get(c.put({"a": w, "b": -w}), into={"a": mine, "b": mine})
        with raises(rdtd.Invalid, "into['b'] shares memory with into['a']"):
            c.get(c.put({"a": w, "b": w[:3]}), into={"a": mine, "b": mine[:3]})


def test_targets_of_one_element_are_contiguous_whatever_their_stride() -> None:
    need(torch, "torch")
    with Node() as node, rdtd.connect(node.socket) as c:
        memory = torch.zeros(4)
        tied = {"a": memory[:2][::2], "b": memory[:2][::2]}
        assert tied["a"].stride() == (2,)
        c.get(c.put({"a": torch.ones(1), "b": torch.ones(1)}), into=tied)
        assert memory[0] == 1
        with raises(rdtd.Mismatch, "different tensors"):
            c.get(c.put({"a": torch.ones(1), "b": torch.zeros(1)}), into=tied)
        rdtd.torch.publish({"whole": torch.ones(4) * 3, "one": torch.ones(1) * 3}, "policy", connection=c)
        rdtd.torch.update({"whole": memory, "one": memory[1:3][::2]}, "policy", connection=c, timeout=LONG)
        assert memory.tolist() == [3] * 4
        c.unpublish("policy")


def test_tensor_of_a_later_rank_needs_a_layout() -> None:
    need(torch, "torch")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        states = ({"embed": torch.ones(2), "0.w": torch.ones(3)}, {"embed": torch.ones(2), "1.w": torch.ones(3)})

        def publish(rank: int, connection: Any, layout: Any) -> Any:
            return rdtd.torch.publish(states[rank], "policy", rank=rank, world_size=2, layout=layout, connection=connection,
                                      timeout=LONG)

        for layout in (None, {"1.w": (0, 0, 1)}):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(publish, 0, other, None)
                if layout is None:
                    with raises(rdtd.Invalid, 'tensor "1.w": rank 1 has it, but no rank has published it'):
                        publish(1, c, layout)
                    with raises(rdtd.Invalid, 'tensor "1.w": rank 1 has it'):
                        waiting.result()
                else:
                    assert publish(1, c, layout) == waiting.result() == 1
        mine = {key: torch.zeros_like(value) for state in states for key, value in state.items()}
        assert rdtd.torch.update(mine, "policy", connection=c, timeout=LONG) == 1
        assert all((value == 1).all() for value in mine.values())
        c.unpublish("policy")
    rdtd.torch._plans.clear()


def test_a_rank_whose_tensors_cannot_be_copied_fails_the_others() -> None:
    need(torch, "torch")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        def publish(rank: int, connection: Any, device: str) -> Any:
            return rdtd.torch.publish({"w": torch.zeros(2, device=device)}, "policy", rank=rank, world_size=2,
                                      layout={"w": (0, rank, 2)}, connection=connection, timeout=LONG)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for later in False, True:
                waiting = None if later else pool.submit(publish, 0, other, "cpu")
                with raises(ValueError, "tensor 'w' is on the meta device"):
                    publish(1, c, "meta")
                with raises(rdtd.OwnerDied, "ValueError: tensor 'w' is on the meta device"):
                    waiting.result() if waiting else publish(0, other, "cpu")
            on_gpu, uses_gpus = rdtd.torch._on_gpu, rdtd.torch._uses_gpus

            def fails(connection: Any) -> bool:
                raise rdtd.NoMemory("no GPU can be opened")
            rdtd.torch._on_gpu, rdtd.torch._uses_gpus = lambda tensor: True, fails
            try:
                with raises(rdtd.NoMemory):
                    publish(1, c, "cpu")
            finally:
                rdtd.torch._on_gpu, rdtd.torch._uses_gpus = on_gpu, uses_gpus
            with raises(rdtd.OwnerDied, "NoMemory: no GPU can be opened"):
                publish(0, other, "cpu")
            waiting = pool.submit(publish, 0, other, "cpu")
            assert publish(1, c, "cpu") == waiting.result() == 1, "all join again"
        c.unpublish("policy")


def test_the_first_tensors_of_a_process_may_be_parameters() -> None:
    """Nor need they be what DLPack can describe."""
    need(torch, "torch")
    program = """
import os, sys, torch, rdtd
for call in "put", "plan", "add":  # each in a process of its own
    if os.fork():
        if os.wait()[1]:
            sys.exit(f"{call} failed")
        continue
    state = {"w": torch.nn.Parameter(torch.ones(3)), "z": torch.tensor([1 + 2j]).conj()}
    with rdtd.connect(sys.argv[1]) as c:
        if call == "put":
            c.publish_part("parts", 1, 0, 1, state)
        elif call == "plan":
            c.plan("parts", {"w": state["w"]}).run(0)
            assert state["w"].tolist() == [1] * 3
        else:
            with c.publishing("grown") as version:
                for key, tensor in state.items():
                    version.add(key, tensor)
    break
"""
    with Node() as node, rdtd.connect(node.socket) as c:
        subprocess.run([sys.executable, "-c", program, node.socket], check=True, timeout=5 * LONG)
        for name in "parts", "grown":
            value = c.get(c.name(name), as_="torch")
            assert value["w"].tolist() == [1] * 3 and value["z"].tolist() == [1 - 2j]
            c.unpublish(name)


def test_plans_are_of_a_connection() -> None:
    need(torch, "torch")
    with Node() as one, Node() as two, rdtd.connect(one.socket) as c, rdtd.connect(two.socket) as d:
        state = {"w": torch.zeros(8, 8)}
        for number, connection in enumerate((c, d), 1):
            given = {"w": torch.full((8, 8), float(number))}
            assert rdtd.torch.publish(given, "policy", rank=0, world_size=1, connection=connection, timeout=LONG) == 1
        for number, connection in enumerate((c, d), 1):
            assert rdtd.torch.update(state, "policy", connection=connection, timeout=LONG) == 1
            assert float(state["w"].sum()) == 64 * number
        for connection in (c, d):
            connection.unpublish("policy")
    assert not rdtd.torch._plans, "those of closed connections are gone"
    with Node() as node, rdtd.connect(node.socket) as c:
        rdtd.torch.publish(given, "policy", rank=0, world_size=1, connection=c, timeout=LONG)
        rdtd.torch.update(state, "policy", connection=c, timeout=LONG)
        assert len(rdtd.torch._plans) == 1
        c.unpublish("policy")


def test_update_keeps_no_model_alive() -> None:
    need(torch, "torch")
    from torch.multiprocessing.reductions import StorageWeakRef
    with Node() as node, rdtd.connect(node.socket) as c:
        rdtd.torch.publish({"w": torch.ones(500, 500), "v": torch.ones(3)}, "policy", rank=0, world_size=1, connection=c,
                           timeout=LONG)
        for _ in range(20):  # the allocator gives a new model the memory of the last one
            mine = {"w": torch.zeros(500, 500), "v": torch.zeros(6).expand(2, 6)[0, ::2]}
            assert rdtd.torch.update(mine, "policy", connection=c, timeout=LONG) == 1
            assert float(mine["w"].sum()) == 250000 and float(mine["v"].sum()) == 3
            storage = StorageWeakRef(mine["w"].untyped_storage())
            assert len(rdtd.torch._plans) == 1
            del mine
            assert storage.expired()
        c.unpublish("policy")


def test_casts_are_those_of_torch() -> None:
    need(torch, "torch")
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
        sys.exit(train_all(sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
    else:
        main(globals())
