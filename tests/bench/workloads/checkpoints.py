# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: four ranks of torch.distributed (gloo) save and load a state dict of 512 MB by torch.distributed.checkpoint. Its 32 tensors are
DTensors, sharded by rows when they are saved and by columns when they are loaded.

    save, load   milliseconds of dcp.save and dcp.load, from the barrier before until the slowest rank has returned

Every rank checks its loaded columns. The first save and load warm up, and the fastest of the others counts."""
import importlib.util
import os
import shutil

from harness import CannotRun, Side, call_all, now

RANKS, TENSORS, ROWS = 4, 32, 1024


class Rank:
    def __init__(self, rank, store, kind, where, size):
        import warnings

        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
        self.rank, self.kind, self.where, self.step = rank, kind, where, 0
        self.columns = max(size // TENSORS // ROWS // 4 // RANKS, 1) * RANKS
        self.mesh = init_device_mesh("cpu", (RANKS,))

    def state(self, dim, value):
        import torch
        from torch.distributed.tensor import DTensor, Shard
        shape = [ROWS, self.columns]
        shape[dim] //= RANKS
        return {f"layer.{i}": DTensor.from_local(torch.full(shape, value), self.mesh, [Shard(dim)], run_check=False) for i in range(TENSORS)}

    def storage(self, end):
        if self.kind == "rdtd":
            import rdtd.dcp
            return getattr(rdtd.dcp, end)("run")
        import torch.distributed.checkpoint as dcp
        return getattr(dcp, "FileSystem" + end)(os.path.join(self.where, str(self.step)))

    def prepare(self, step):
        self.saved, self.loaded, self.step = self.state(0, float(step)), self.state(1, 0.0), step
        if self.kind != "rdtd" and self.rank == 0:
            shutil.rmtree(os.path.join(self.where, str(step - 1)), ignore_errors=True)

    def save(self):
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        dist.barrier()
        start = now()
        dcp.save(self.saved, storage_writer=self.storage("Writer"))
        return now() - start

    def load(self):
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        dist.barrier()
        start = now()
        dcp.load(self.loaded, storage_reader=self.storage("Reader"))
        took = now() - start
        if any(float(end) != self.step for tensor in self.loaded.values() for end in (tensor.to_local().min(), tensor.to_local().max())):
            raise RuntimeError(f"step {self.step} was loaded as another")
        return took


def by(kind, where):
    def side(bench):
        if importlib.util.find_spec("torch") is None:
            raise CannotRun("torch is not installed")
        size = bench.size(512 << 20, 1 << 20)
        folder = ""
        if kind == "rdtd":
            os.environ["RDT_SOCKET"] = bench.daemon().socket
        else:
            folder = os.path.join(where, f"checkpoints.{os.getpid()}")
            bench.stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ranks = bench.actors([(Rank, rank, os.path.join(bench.dir, "store"), kind, folder, size) for rank in range(RANKS)])
        saves, loads = [], []
        for step in range(1, 3 if bench.quick else 5):
            call_all(ranks, "prepare", step)
            saves.append(max(call_all(ranks, "save")))
            loads.append(max(call_all(ranks, "load")))
        case = f"{RANKS} ranks, {size / 1e6:.0f} MB"
        return {(case, "save, ms"): min(saves[1:]) * 1e3, (case, "load, ms"): min(loads[1:]) * 1e3}
    return side


def sides():
    build = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../build")
    return [Side("rdtd", by("rdtd", ""), "rdtd.dcp"),
            Side("torch, tmpfs", by("torch", "/dev/shm"), "FileSystemWriter and -Reader as they come"),
            Side("torch, disk", by("torch", os.path.abspath(build)), "as they come: the writer syncs its files, the reader finds them cached")]
