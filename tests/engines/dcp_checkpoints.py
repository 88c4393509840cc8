# SPDX-License-Identifier: Apache-2.0
"""rdtd.dcp with real processes of torch.distributed (gloo): what torch's own suites of DTensor resharding and of the
file-system storage test, and what is rdtd's: two nodes, one version for all ranks, processes that are killed in a save and in a
load."""
from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, Callable, Iterator

import rdtd
from nodes import LONG, SLOWER, Node, end, main, raises, required

torch = required("torch")
dist = required("torch.distributed")
dcp = required("torch.distributed.checkpoint")
import torch.distributed._shard.sharded_tensor as sharded_tensor
import torch.distributed.tensor as dtensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, _EmptyStateDictLoadPlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from rdtd.dcp import Reader, Writer

Rank = Callable[..., None]


def start(world: int, function: Rank, sockets: list[str], *args: Any) -> list[int]:
    """Ranks of torch.distributed, each a child of this process: importing torch takes seconds of a processor. Returns their
    process ids. function: called with rank, connection and args."""
    store = os.path.abspath(tempfile.mktemp(prefix="store"))
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(int(150 * SLOWER))
                dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
                with rdtd.connect(sockets[rank % len(sockets)]) as c:
                    function(rank, c, *args)
                dist.destroy_process_group()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        pids.append(pid)
    return pids


def run(world: int, function: Rank, sockets: list[str], *args: Any) -> None:
    pids = start(world, function, sockets, *args)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    assert not any(statuses), f"the ranks have ended with {statuses}"


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Node, Node, rdtd.Ref]]:
    """And a name that lives on the first."""
    with Node(listen=True) as a, Node(listen=True) as b:
        with rdtd.connect(a.socket) as c:
            address = c.node["address"]
        yield a, b, rdtd.Ref.from_name("run", address=address)
        with rdtd.connect(a.socket) as c:
            c.unpublish("run")
        end(a, b)


def save(state: Any, name: Any, c: rdtd.Connection, **options: Any) -> None:
    dcp.save(state, storage_writer=Writer(name, connection=c), **options)


def load(state: Any, name: Any, c: rdtd.Connection, **options: Any) -> int:
    planner = options.pop("planner", None)
    no_dist = options.pop("no_dist", False)
    reader = Reader(name, connection=c, **options)
    dcp.load(state, storage_reader=reader, planner=planner, no_dist=no_dist)
    return reader.version


# ---- what torch's suites test ----

ONE = [[Shard(0)], [Shard(1)], [Replicate()]]
TWO = [[Replicate(), Replicate()], [Replicate(), Shard(0)], [Shard(0), Replicate()], [Shard(0), Shard(0)], [Shard(0), Shard(1)],
       [Shard(1), Shard(0)]]


def reshard(rank: int, c: rdtd.Connection, shape: tuple[int, ...], name: Any) -> None:
    meshes = {1: init_device_mesh("cpu", (4,)), 2: init_device_mesh("cpu", (2, 2))}
    layouts = [(1, placements) for placements in ONE] + [(2, placements) for placements in TWO]
    number = 0
    for mesh, placements in layouts:
        number += 1
        whole = torch.arange(float(shape[0] * shape[1])).reshape(shape) + 1000 * number
        save({"w": distribute_tensor(whole, meshes[mesh], placements)}, name, c)
        for other, others in layouts:
            state = {"w": dtensor.zeros(*shape, device_mesh=meshes[other], placements=others)}
            version = load(state, name, c)
            assert version == number, (version, number)
            wanted = distribute_tensor(whole, meshes[other], others).to_local()
            assert torch.equal(state["w"].to_local(), wanted), (placements, others)


def test_every_sharding_is_loaded_into_every_other() -> None:
    with Node() as node:
        run(4, reshard, [node.socket], (8, 6), "run")
        with rdtd.connect(node.socket) as c:
            c.unpublish("run")


def test_shards_that_are_empty() -> None:
    with Node() as node:
        run(4, reshard, [node.socket], (3, 2), "run")
        with rdtd.connect(node.socket) as c:
            c.unpublish("run")


def specs(world: int) -> list[Any]:
    def of(*shards: tuple[list[int], list[int], int]) -> Any:
        return EnumerableShardingSpec([ShardMetadata(start, size, f"rank:{rank}/cpu") for start, size, rank in shards])

    return [ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu"]), ChunkShardingSpec(1, ["rank:0/cpu", "rank:1/cpu"]),
            ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu", "rank:1/cpu", "rank:0/cpu"]),
            of(([0, 0], [2, 20], 0), ([2, 0], [1, 20], 1), ([3, 0], [3, 20], 0), ([6, 0], [3, 20], 1), ([9, 0], [1, 20], 0)),
            of(([0, 0], [8, 20], 1), ([8, 0], [2, 20], 0))]


def shards_of(spec: Any, whole: Any, fill: bool) -> Any:
    made = sharded_tensor.zeros(spec, *whole.shape)
    for shard in made.local_shards() if fill else ():
        box = tuple(slice(a, a + n) for a, n in zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes))
        shard.tensor.copy_(whole[box])
    return made


def reshard_st(rank: int, c: rdtd.Connection) -> None:
    """Several shards of a tensor on one rank, and tensors that are sharded on one side only."""
    for number, (one, other) in enumerate(itertools.permutations(specs(2), 2)):
        whole = torch.arange(200.).reshape(10, 20) + number
        save({"w": shards_of(one, whole, True)}, "run", c)
        state = {"w": shards_of(other, whole, False)}
        load(state, "run", c)
        for got, wanted in zip(state["w"].local_shards(), shards_of(other, whole, True).local_shards()):
            assert torch.equal(got.tensor, wanted.tensor), number
        state = {"w": torch.zeros(10, 20)}
        load(state, "run", c)
        assert torch.equal(state["w"], whole)
        save({"w": whole}, "run", c)
        state = {"w": shards_of(other, whole, False)}
        load(state, "run", c)
        for got, wanted in zip(state["w"].local_shards(), shards_of(other, whole, True).local_shards()):
            assert torch.equal(got.tensor, wanted.tensor), number


def test_sharded_tensors_are_loaded_in_other_shards() -> None:
    with Node() as node:
        run(2, reshard_st, [node.socket])
        with rdtd.connect(node.socket) as c:
            c.unpublish("run")


def everything(rank: int, c: rdtd.Connection) -> None:
    mesh = init_device_mesh("cpu", (2,))
    dtypes = [torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn]
    state = {"bytes": [1], "text": "string", "step": 5, "nested": {"list": [torch.ones(3) * 2, {"lr": 0.5}], "none": None},
             "scalar": torch.tensor(7), "nothing": torch.zeros(0, 4),
             "kinds": {str(dtype): torch.arange(6).to(dtype) for dtype in dtypes},
             "strided": torch.arange(12.).reshape(3, 4).t(), "w": distribute_tensor(torch.arange(6.), mesh, [Shard(0)])}
    save(state, "run", c)
    empty = {"bytes": [2], "text": "", "step": 0, "nested": {"list": [torch.zeros(3), {"lr": 0.}], "none": 1},
             "scalar": torch.tensor(0), "nothing": torch.ones(0, 4),
             "kinds": {str(dtype): torch.zeros(6, dtype=dtype) for dtype in dtypes},
             "strided": torch.zeros(3, 4).t(), "w": dtensor.zeros(6, device_mesh=mesh, placements=[Replicate()])}
    load(empty, "run", c)
    assert empty["bytes"] == [1] and empty["text"] == "string" and empty["step"] == 5 and empty["nested"]["none"] is None
    assert empty["nested"]["list"][1]["lr"] == 0.5 and (empty["nested"]["list"][0] == 2).all() and int(empty["scalar"]) == 7
    for key, value in state["kinds"].items():
        assert torch.equal(empty["kinds"][key].view(torch.uint8), value.view(torch.uint8)), key
    assert torch.equal(empty["strided"], state["strided"]) and torch.equal(empty["w"].to_local(), torch.arange(6.))
    # into other dtypes: by the plan, and by torch
    others = {"w": torch.zeros(6, dtype=torch.bfloat16), "scalar": torch.tensor(0.)}
    load(others, "run", c)
    assert torch.equal(others["w"], torch.arange(6, dtype=torch.bfloat16)) and float(others["scalar"]) == 7


def test_what_a_state_dict_may_have() -> None:
    with Node() as node:
        run(2, everything, [node.socket])
        with rdtd.connect(node.socket) as c:
            found: dict[str, Any] = {}  # as torch converts checkpoints: the structure comes from the metadata
            from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
            _load_state_dict(found, storage_reader=Reader("run", connection=c), planner=_EmptyStateDictLoadPlanner(),
                             no_dist=True)
            assert found["step"] == 5 and found["nested"]["list"][1] == {"lr": 0.5}
            assert torch.equal(found["w"], torch.arange(6.)) and found["strided"].shape == (4, 3)
            c.unpublish("run")


# ---- what is rdtd's ----

def other_ranks(rank: int, c: rdtd.Connection, name: Any, writes: bool) -> None:
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    whole = {key: torch.arange(60.).reshape(12, 5) + i for i, key in enumerate("abc")}
    if writes:
        save({"model": {key: distribute_tensor(value, mesh, [Shard(0)]) for key, value in whole.items()}, "step": 9}, name, c)
        return
    for move in "auto", "whole", "slices":
        state = {"model": {key: dtensor.zeros(12, 5, device_mesh=mesh, placements=[Shard(1)]) for key in whole}, "step": 0}
        load(state, name, c, move=move, allow_pickle=True, verify=move != "slices")
        assert state["step"] == 9
        for key, value in whole.items():
            assert torch.equal(state["model"][key].to_local(), distribute_tensor(value, mesh, [Shard(1)]).to_local()), key
    state = {"model": {"a": torch.zeros(12, 5)}, "step": 0}
    try:
        load(state, name, c)
    except CheckpointException as error:
        refused = {r: str(why) for r, (why, _) in error.failures.items()}
        assert all("'step'" in why and "allow_pickle=True" in why for why in refused.values()), refused
        # the ranks of the node that has not written it
        assert set(refused) in ({r for r in range(world) if r % 2}, {r for r in range(world) if not r % 2}), refused
        assert rank in refused or (state["model"]["a"] == whole["a"]).all()
    else:
        raise AssertionError("a pickle of another node was loaded")


def test_other_numbers_of_ranks_on_two_nodes() -> None:
    with two_nodes() as (a, b, name):
        run(4, other_ranks, [a.socket, b.socket], name, True)
        for world in 3, 2:
            run(world, other_ranks, [a.socket, b.socket], name, False)


class Counting(rdtd.Connection):
    """Counts what came from other nodes."""

    moved = 0

    def plan(self, *args: Any, **options: Any) -> Any:
        plan = super().plan(*args, **options)
        run = plan.run

        def counted(*args: Any, **options: Any) -> Any:
            done = run(*args, **options)
            self.moved += done.bytes_moved
            return done

        plan.run = counted  # type: ignore[method-assign]
        return plan


def test_only_the_wanted_pieces_travel() -> None:
    with two_nodes() as (a, b, name):
        with rdtd.connect(a.socket) as c, Counting(b.socket) as far:
            save({"big": torch.arange(1 << 20, dtype=torch.float32), "small": torch.ones(1 << 18)}, name, c, no_dist=True)
            state = {"small": torch.zeros(1 << 18)}
            load(state, name, far, no_dist=True, move="slices")
            assert (state["small"] == 1).all() and 1 << 20 <= far.moved < 3 << 19, far.moved


def test_a_save_in_the_background() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        state = {"w": torch.ones(1000), "step": 1}
        future = dcp.async_save(state, storage_writer=Writer("run", connection=c), no_dist=True)
        state["w"].zero_()
        future.result(LONG)
        mine = {"w": torch.zeros(1000), "step": 0}
        assert load(mine, "run", c, no_dist=True) == 1 and (mine["w"] == 1).all() and mine["step"] == 1
        c.unpublish("run")


def background(rank: int, c: rdtd.Connection) -> None:
    for step in 1, 2, 3:
        state = {"w": torch.full((8,), float(step)), "step": step}
        dcp.async_save(state, storage_writer=Writer("run", connection=c)).result()
        mine = {"w": torch.zeros(8), "step": 0}
        assert load(mine, "run", c) == step and mine["step"] == step and (mine["w"] == step).all()


def test_saves_of_many_ranks_in_the_background() -> None:
    with Node() as node:
        run(2, background, [node.socket])
        with rdtd.connect(node.socket) as c:
            c.unpublish("run")


def in_a_process(rank: int, c: rdtd.Connection) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK=str(rank), WORLD_SIZE="1", LOCAL_RANK="0")
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    dcp.async_save({"w": torch.ones(8), "step": 4}, storage_writer=Writer("run", connection=c),
                   async_checkpointer_type=AsyncCheckpointerType.PROCESS).result()
    mine = {"w": torch.zeros(8), "step": 0}
    assert load(mine, "run", c) == 1 and mine["step"] == 4 and (mine["w"] == 1).all()


def test_a_save_in_a_process_of_its_own() -> None:
    with Node() as node:
        run(1, in_a_process, [node.socket])
        with rdtd.connect(node.socket) as c:
            c.unpublish("run")


def cached(rank: int, c: rdtd.Connection) -> None:
    writer = Writer("run", connection=c)
    for step in range(1, 5):
        dcp.save({"w": torch.full((8,), float(step)), "step": step}, storage_writer=writer,
                 planner=DefaultSavePlanner(enable_plan_caching=True))
        mine = {"w": torch.zeros(8), "step": 0}
        assert load(mine, "run", c) == step and mine["step"] == step and (mine["w"] == step).all()


def test_a_reader_in_a_process_of_its_own() -> None:
    program = """
import pickle, sys, torch, torch.distributed.checkpoint as dcp
state = {"w": torch.zeros(3)}
dcp.load(state, storage_reader=pickle.loads(bytes.fromhex(sys.argv[1])), no_dist=True)
assert state["w"].tolist() == [1] * 3
"""
    with Node() as node, rdtd.connect(node.socket) as c:
        save({"w": torch.ones(3)}, "run", c, no_dist=True)
        pickled = pickle.dumps(Reader("run", connection=c)).hex()
        subprocess.run([sys.executable, "-W", "ignore", "-c", program, pickled], check=True, timeout=5 * LONG)
        c.unpublish("run")


def test_planners_that_keep_their_plans() -> None:
    with Node() as node:
        run(2, cached, [node.socket])
        with rdtd.connect(node.socket) as c:
            c.unpublish("run")


class OwnPlanner(DefaultSavePlanner):
    def create_global_plan(self, plans: Any) -> Any:
        import dataclasses
        made, metadata = super().create_global_plan(plans)
        return made, dataclasses.replace(metadata, planner_data=[{"of": len(plans)}, 5.5])


def test_planner_data_of_any_kind() -> None:
    with two_nodes() as (a, b, name):
        with rdtd.connect(a.socket) as c, rdtd.connect(b.socket) as far:
            save({"w": torch.ones(3)}, name, c, no_dist=True, planner=OwnPlanner())
            assert Reader(name, connection=c).read_metadata().planner_data == [{"of": 1}, 5.5]
            with raises(rdtd.PickleRefused, "allow_pickle=True"):
                Reader(name, connection=far).read_metadata()
            assert Reader(name, connection=far, allow_pickle=True).read_metadata().planner_data == [{"of": 1}, 5.5]


def test_published_weights_are_a_checkpoint_and_the_other_way_round() -> None:
    import rdtd.torch
    with Node() as node, rdtd.connect(node.socket) as c:
        model = torch.nn.Linear(4, 3)
        rdtd.torch.publish(model, "policy", connection=c, rank=0, world_size=1, timeout=LONG)
        mine = torch.nn.Linear(4, 3).state_dict()
        assert load(mine, "policy", c, no_dist=True) == 1 and torch.equal(mine["weight"], model.weight)
        save({"weight": model.weight * 2, "bias": model.bias, "step": 5}, "policy", c, no_dist=True)
        other = torch.nn.Linear(4, 3)
        assert rdtd.torch.update(other, "policy", connection=c, strict=False, timeout=LONG) == 2
        assert torch.equal(other.weight, model.weight * 2)
        c.unpublish("policy")
    rdtd.torch._plans.clear()


def test_errors_name_what_is_wrong() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        with raises(CheckpointException, "nothing is published under 'nix'"):
            load({"w": torch.zeros(3)}, "nix", c, no_dist=True)
        c.publish("plain", memoryview(b"x"))
        with raises(CheckpointException, "'plain' is no checkpoint"):
            load({"w": torch.zeros(3)}, "plain", c, no_dist=True)
        with raises(CheckpointException, "Writer has no name"):
            save({"w": torch.zeros(3)}, None, c, no_dist=True)
        dcp.save({"w": torch.ones(3)}, storage_writer=Writer(connection=c), checkpoint_id="rdtd://run", no_dist=True)
        mine = {"w": torch.zeros(3)}
        dcp.load(mine, storage_reader=Reader(connection=c), checkpoint_id="run", no_dist=True)
        assert (mine["w"] == 1).all()
        with raises(CheckpointException, "Size mismatch"):
            load({"w": torch.zeros(4)}, "run", c, no_dist=True)
        with raises(CheckpointException, "'torch.distributed.checkpoint'"):
            save({"torch.distributed.checkpoint": torch.ones(1)}, "run", c, no_dist=True)
        with raises(CheckpointException, "tensor 'w' is on the meta device"):
            save({"w": torch.ones(1, device="meta")}, "run", c, no_dist=True)
        dcp.save({"w": torch.ones(3)}, storage_writer=Writer("run", connection=c, timeout=None), no_dist=True)
        with raises(ValueError, "use_collectives must be True"):
            save({"w": torch.ones(3)}, "run", c, no_dist=True, use_collectives=False)
        with raises(TypeError, "connection must be a Connection"):
            Writer("run", connection=5)
        for wrong in 5, b"run", "zero\0":
            with raises((TypeError, ValueError), "name"):  # type: ignore[arg-type]
                Reader(wrong, connection=c)
        c.unpublish("plain")
        c.unpublish("run")


# ---- killed ----

class Dying(DefaultSavePlanner):
    """Kills its process when it is asked for the item after `left` others."""

    left = 1

    def resolve_data(self, item: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().resolve_data(item)


def killed_in_a_save(rank: int, c: rdtd.Connection, victim: int, reports: str) -> None:
    mesh = init_device_mesh("cpu", (4,))

    def state(value: float) -> Any:
        return {key: distribute_tensor(torch.full((16, 4), value), mesh, [Shard(0)]) for key in "abc"}

    save(state(1), "run", c)
    dist.barrier()
    began = time.monotonic()
    try:
        with Writer("run", connection=c) as writer:
            dcp.save(state(2), storage_writer=writer, planner=Dying() if rank == victim else None)
        said = "no error"
    except rdtd.OwnerDied as error:
        said = f"OwnerDied {error}"
    except BaseException as error:
        said = f"{type(error).__name__} {error}"
    with open(f"{reports}/{rank}", "w") as file:
        file.write(f"{time.monotonic() - began:.1f} {said}")
    os._exit(0)  # as a program whose save has failed


def test_a_checkpoint_that_is_unpublished_meanwhile_is_not_waited_for() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        hold, ends = c.hold, [False]

        def held(ref: Any, **options: Any) -> Any:
            if ends.pop():
                c.unpublish("run")
            return hold(ref, **options)
        c.hold = held  # type: ignore[method-assign]
        waiting = c.fetch(c.name("run", after=1))  # somebody waits for versions
        mine = {"w": torch.zeros(3)}
        with raises(CheckpointException, "nothing is published under 'run'"):
            load(mine, "run", c, no_dist=True, timeout=1)
        save({"w": torch.ones(3)}, "run", c, no_dist=True)
        assert load(mine, "run", c, no_dist=True, timeout=1) == 1 and (mine["w"] == 1).all()
        ends += [True]
        with raises(CheckpointException, "nothing is published under 'run'"):
            load(mine, "run", c, no_dist=True, timeout=1)
        waiting.cancel()


def test_a_killed_rank_is_named_and_the_checkpoint_before_stays() -> None:
    for victim in 2, 3, 0:
        with Node() as node, rdtd.connect(node.socket) as c, tempfile.TemporaryDirectory() as reports:
            pids = start(4, killed_in_a_save, [node.socket], victim, reports)
            statuses = [os.waitpid(pid, 0)[1] for pid in pids]
            assert statuses[victim] == signal.SIGKILL and sum(statuses) == signal.SIGKILL, statuses
            for rank in {0, 1, 2, 3} - {victim}:
                said = open(f"{reports}/{rank}").read()
                assert "OwnerDied" in said and f"rank {victim}" in said and float(said.split()[0]) < LONG, (victim, rank, said)
            mine = {key: torch.zeros(16, 4) for key in "abc"}
            assert load(mine, "run", c, no_dist=True) == 1 and all((value == 1).all() for value in mine.values())
            save({key: torch.full((16, 4), 3.) for key in "abc"}, "run", c, no_dist=True)  # the next one succeeds
            assert load(mine, "run", c, no_dist=True) == 2 and all((value == 3).all() for value in mine.values())
            c.unpublish("run")


def fails_in_a_save(rank: int, c: rdtd.Connection) -> None:
    class Failing(DefaultSavePlanner):
        def resolve_data(self, item: Any) -> Any:
            raise OSError("no such disk")

    save({"w": torch.ones(4)}, "run", c)
    mesh = init_device_mesh("cpu", (3,))
    state = {"w": distribute_tensor(torch.zeros(6), mesh, [Shard(0)])}
    with raises(CheckpointException, "no such disk"):
        with Writer("run", connection=c) as writer:
            dcp.save(state, storage_writer=writer, planner=Failing() if rank == 1 else None)
    mine = {"w": torch.zeros(4)}
    assert load(mine, "run", c) == 1 and (mine["w"] == 1).all()
    save(state, "run", c)  # the same step, again
    assert load({"w": torch.ones(6)}, "run", c) == 2


def test_a_rank_that_fails_fails_the_save_of_all() -> None:
    with Node() as node:
        run(3, fails_in_a_save, [node.socket])
        with rdtd.connect(node.socket) as c:
            c.unpublish("run")


def reader(rank: int, c: rdtd.Connection, ready: int) -> None:
    class Stops(dcp.DefaultLoadPlanner):
        def resolve_tensor(self, item: Any) -> Any:
            os.write(ready, b"1")
            time.sleep(LONG)

    load({"w": torch.zeros(1000)}, "run", c, planner=Stops())


def test_a_killed_reader_leaves_nothing() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        save({"w": torch.ones(1000)}, "run", c, no_dist=True)
        ready, write = os.pipe()
        (pid,) = start(1, reader, [node.socket], write)
        assert os.read(ready, 1) == b"1"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        mine = {"w": torch.zeros(1000)}
        assert load(mine, "run", c, no_dist=True) == 1 and (mine["w"] == 1).all()
        os.close(ready)
        os.close(write)
        c.unpublish("run")  # the node ends only when nothing is held


def reads_while_saved(rank: int, c: rdtd.Connection, go: Any) -> None:
    mesh = init_device_mesh("cpu", (2,))
    seen = 0
    for _ in range(15):
        state = {"w": dtensor.zeros(64, device_mesh=mesh, placements=[Shard(0)]), "step": 0}
        load(state, "run", c)
        values = [torch.zeros(32) for _ in range(2)]
        dist.all_gather(values, state["w"].to_local())
        assert torch.cat(values).unique().tolist() == [state["step"]], (torch.cat(values).unique(), state["step"])
        assert state["step"] >= seen
        seen = state["step"]


def test_all_ranks_load_one_version_while_others_are_saved() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        save({"w": torch.ones(64), "step": 1}, "run", c, no_dist=True)
        pids = start(2, reads_while_saved, [node.socket], None)
        over = threading.Event()

        def saves() -> None:
            step = 1
            while not over.is_set():
                step += 1
                save({"w": torch.full((64,), float(step)), "step": step}, "run", c, no_dist=True)

        thread = threading.Thread(target=saves)
        thread.start()
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        over.set()
        thread.join()
        assert not any(statuses), statuses
        c.unpublish("run")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main(globals())
