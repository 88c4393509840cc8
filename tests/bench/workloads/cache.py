# SPDX-License-Identifier: Apache-2.0
"""A cache of KV blocks on one node: 64 blocks of 128 KiB, 64 of 4 MiB, 4,096 of 64 KiB, stored, looked up and loaded by one
engine, and by four at once.

    store, lookup, lookup of others, load: ms    from the call until all blocks are done, those of the slowest of four engines
    load beside memcpy                           the time of a copy of as many bytes by the same processes, right after the
                                                 load, divided by the load's

An engine is a process with its blocks in one memory, and another memory into which it loads; all pages were touched before. Each
of four engines stores blocks of its own and looks them up, and all load those of the first one. Every byte that was loaded is
compared, on nobody's clock. The first turn warms up, and the middle one of the others counts. What was stored is deleted after
each turn.

LMCache's L2 adapters are called as its controllers call them: one task of all blocks, and the eventfd that says when it is
done."""
import importlib.util
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

from harness import CannotRun, Side, call_all, now, percentile, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
FIGURES = {"store": "store, ms", "lookup": "lookup, ms", "miss": "lookup of others, ms", "load": "load, ms"}
ENGINES = ((1, "one engine"), (4, "four engines at once"))
LEAD = 0.02  # seconds between an order and the moment at which all engines begin
OTHERS = 1 << 40  # added to the numbers of blocks: those that nobody stores
REDIS_PORT, MOONCAKE_PORT = 7400, 7401


def shapes(bench):
    if bench.quick:
        return [(8, 16 << 10)]
    return [(bench.size(count, 1), size << 10) for count, size in ((64, 128), (64, 4096), (4096, 64))]


class Engine:
    """A subclass has store(numbers), lookup(numbers) -> [whether it is there] and load(numbers), of blocks that lie in `sources`
    and go to `targets`, and delete(numbers). A number names a block for ever."""
    shared = True  # an engine finds what another one has stored
    descriptors = 0  # that the daemon opens for each block

    def empty(self, size):
        import numpy as np
        return np.zeros(size, dtype=np.uint8)

    def prepare(self, engine, count, size):
        import numpy as np
        self.engine, self.count = engine, count
        self.source, self.target = self.empty(count * size), self.empty(count * size)
        self.sources, self.targets = ([memory[at:at + size] for at in range(0, count * size, size)]
                                      for memory in (self.source, self.target))
        self.ramp = np.arange(size // 8, dtype=np.uint64)

    def numbers(self, turn, engine):
        first = (turn * 8 + engine + 1) * self.count
        return range(first, first + self.count)

    def fill(self, turn):
        import numpy as np
        for number, part in zip(self.numbers(turn, self.engine), self.sources):
            np.add(self.ramp, np.uint64(number << 24), out=part.view(np.uint64))
        self.target[:] = 0

    def do(self, step, turn, at):
        """Does this step from the time `at` on; returns when it began and ended."""
        numbers = list(self.numbers(turn, 0 if step == "load" and self.shared else self.engine))
        time.sleep(max(0.0, at - now()))
        began = now()
        if step == "miss":
            found = self.lookup([OTHERS + number for number in numbers])
        else:
            found = getattr(self, step)(numbers)
        ended = now()
        if step in ("lookup", "miss") and list(map(bool, found)) != [step == "lookup"] * self.count:
            raise RuntimeError(f"{sum(map(bool, found))} of {self.count} blocks were found ({step})")
        return began, ended

    def copy(self, _):
        import numpy as np
        np.copyto(self.target, self.source)

    def check(self, turn):
        import numpy as np
        for number, part in zip(self.numbers(turn, 0 if self.shared else self.engine), self.targets):
            if not np.array_equal(part.view(np.uint64) - np.uint64(number << 24), self.ramp):
                raise RuntimeError(f"block {number} was loaded with other bytes")

    def end(self, turn):
        self.delete(list(self.numbers(turn, self.engine)))


def measure(bench, engines, count, size):
    """Middle seconds of each step, and how the load stands to a copy."""
    for number, engine in enumerate(engines):
        engine.call("prepare", number, count, size)
    took = {}
    for turn in range(2 if bench.quick else 4):
        call_all(engines, "fill", turn)
        for step in (*FIGURES, "copy"):
            if step == "copy":
                call_all(engines, "check", turn)
            began, ended = zip(*call_all(engines, "do", step, turn, now() + LEAD))
            took.setdefault(step, []).append(max(ended) - min(began))
        call_all(engines, "end", turn)
    ratios = [copy / load for copy, load in zip(took["copy"][1:], took["load"][1:])]
    return {step: percentile(values[1:], 0.5) for step, values in took.items()}, percentile(ratios, 0.5)


def by(cls, start=lambda bench: (), steps=tuple(FIGURES)):
    """start(bench) -> the arguments of cls: starts what the engines share."""
    def side(bench):
        found = {}
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        for count, size in shapes(bench):
            for many, who in ENGINES:
                case, wanted = f"{count} x {size >> 10} KiB, {who}", cls.descriptors * count * many
                if wanted > most:
                    found[case, "failed"] = f"not run: its daemon may open {most} files, and would need {wanted:.0f}"
                    continue
                with bench.inner() as inner:
                    arguments = start(inner)
                    took, ratio = measure(inner, inner.actors([(cls, *arguments)] * many), count, size)
                found.update({(case, FIGURES[step]): took[step] * 1e3 for step in steps})
                found[case, "load beside memcpy"] = ratio
        return found
    return side


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise CannotRun(f"{module} is not installed")


# ---- rdtd ----

class Registered(Engine):
    """Blocks in memory of `empty`."""
    descriptors = 2.2  # it takes one, and the daemon keeps up to half of all for connections and other users

    def __init__(self, path):
        import rdtd
        self.c, self.leased = rdtd.connect(path), []

    def empty(self, size):
        return self.c.empty(size, "u8", as_="numpy")

    def ids(self, numbers):
        return [f"{number // self.count}/{number}" for number in numbers]

    def store(self, numbers):
        self.c.put_many(self.sources, ids=self.ids(numbers), evictable=True, replace=True)

    def lookup(self, numbers):
        found = self.c.lookup(self.ids(numbers), lease_for=60)
        self.leased += found
        return found

    def load(self, numbers):
        refs = self.c.lookup(self.ids(numbers), lease_for=60)
        self.c.load_many(refs, self.targets)
        self.c.end_lease(refs)

    def delete(self, numbers):
        self.c.end_lease(self.leased)
        self.leased.clear()
        self.c.free(prefix=f"{numbers[0] // self.count}/", force=True)


# ---- LMCache's L2 adapters ----

class Adapter(Engine):
    """Blocks of ordinary memory through an L2 adapter, which make(...) returns."""

    def __init__(self, *arguments):
        sys.path[:0] = [os.path.join(HERE, "../..", folder) for folder in ("python", "engines")]
        import lmcache_adapter
        self.calls = lmcache_adapter
        self.l2 = self.make(*arguments)

    def prepare(self, *arguments):
        super().prepare(*arguments)
        self.sources_of, self.targets_of = ([self.calls.page(part) for part in parts] for parts in (self.sources, self.targets))

    def keys(self, numbers):
        return [self.calls.key(number) for number in numbers]

    def store(self, numbers):
        done = self.calls.store(self.l2, self.keys(numbers), self.sources_of)
        if not done.is_successful():
            raise RuntimeError("not all blocks were stored")

    def lookup(self, numbers):
        return self.calls.lookup(self.l2, self.keys(numbers))

    def load(self, numbers):
        if not all(self.calls.load(self.l2, self.keys(numbers), self.targets_of)):
            raise RuntimeError("not all blocks were loaded")

    def delete(self, numbers):
        self.l2.submit_unlock(self.keys(numbers))
        self.l2.delete(self.keys(numbers))


class Rdtd(Adapter):
    descriptors = Registered.descriptors

    def make(self, path):
        self.open = self.calls.adapter(SimpleNamespace(socket=path))
        return self.open.__enter__()


class Files(Adapter):
    def make(self, folder):
        from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig
        return FSL2Adapter(FSL2AdapterConfig(base_path=folder))


class Redis(Adapter):
    def make(self):
        from lmcache.v1.distributed.l2_adapters import resp_l2_adapter as resp
        return resp._create_resp_l2_adapter(resp.RESPL2AdapterConfig("127.0.0.1", REDIS_PORT))


def rdtd_socket(bench):
    return (bench.daemon().socket,)


def rdtd_adapter(bench):
    if not bench.quick:  # which takes the test's fake of LMCache's interface
        needs("lmcache")
    return rdtd_socket(bench)


def files_folder(bench):
    needs("lmcache")
    folder = os.path.join("/dev/shm", os.path.basename(bench.dir))
    os.mkdir(folder)
    bench.stack.callback(shutil.rmtree, folder, True)
    return (folder,)


def program(bench, what, port, *command):
    """Starts a server, and waits until it listens."""
    log = os.path.join(bench.dir, f"{what}.log")
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=bench.dir)
    bench.stack.callback(process.wait)
    bench.stack.callback(process.terminate)

    def listens():
        if process.poll() is not None:
            raise RuntimeError(f"{what} ended: {open(log).read()[-300:]}")
        with socket.socket() as end:
            return end.connect_ex(("127.0.0.1", port)) == 0
    wait_until(listens, 30, what)


def redis_server(bench):
    needs("lmcache")
    if shutil.which("redis-server") is None:
        raise CannotRun("redis-server is not installed: run .ci/deps redis-server")  # a namespace has no network to do it
    program(bench, "redis-server", REDIS_PORT, "redis-server", "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "no", "--io-threads", "1")
    return ()


# ---- LMCache's own memory ----

class Memory(Engine):
    """The L1 of each engine's process: its memory objects are what an engine copies its blocks into and out of."""
    shared = False

    def prepare(self, engine, count, size):
        import torch
        from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
        from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
        from lmcache.v1.distributed.error import L1Error
        from lmcache.v1.distributed.l1_manager import L1Manager
        super().prepare(engine, count, size)
        self.l1 = L1Manager(L1ManagerConfig(memory_config=L1MemoryManagerConfig(
            size_in_bytes=2 * count * size + (64 << 20), use_lazy=False, shm_name="")))
        self.layout = MemoryLayoutDesc([torch.Size([size])], [torch.uint8])
        self.key, self.fine = ObjectKey, L1Error.SUCCESS
        self.torch_sources, self.torch_targets = ([torch.from_numpy(part) for part in parts]
                                                  for parts in (self.sources, self.targets))

    def keys(self, numbers):
        return [self.key(chunk_hash=number.to_bytes(32, "big"), model_name="org/model", kv_rank=1) for number in numbers]

    def reserved(self, results):
        objects = [found for status, found in results.values() if status is self.fine]
        if len(objects) != self.count:
            raise RuntimeError(f"{len(objects)} of {self.count} blocks were reserved")
        return objects

    def store(self, numbers):
        keys = self.keys(numbers)
        for made, part in zip(self.reserved(self.l1.reserve_write(keys, [False] * len(keys), self.layout)), self.torch_sources):
            made.tensor.copy_(part)
        self.l1.finish_write(keys)

    def lookup(self, numbers):
        keys = self.keys(numbers)
        found = self.l1.reserve_read(keys)
        there = [key for key, (status, _) in found.items() if status is self.fine]
        self.l1.finish_read(there)
        return [found[key][0] is self.fine for key in keys]

    def load(self, numbers):
        keys = self.keys(numbers)
        for found, part in zip(self.reserved(self.l1.reserve_read(keys)), self.torch_targets):
            part.copy_(found.tensor)
        self.l1.finish_read(keys)

    def delete(self, numbers):
        self.l1.delete(self.keys(numbers))


def in_process(bench):
    needs("lmcache")
    return ()


# ---- Mooncake Store ----

class Mooncake(Engine):
    """Blocks of registered memory. Each engine gives the store a segment, in which the blocks lie."""

    def __init__(self, segment):
        from mooncake.store import MooncakeDistributedStore
        self.mooncake = MooncakeDistributedStore()
        status = self.mooncake.setup("127.0.0.1", "P2PHANDSHAKE", segment, 256 << 20, "tcp", "", f"127.0.0.1:{MOONCAKE_PORT}")
        if status:
            raise RuntimeError(f"Mooncake's setup returned {status}")

    def prepare(self, engine, count, size):
        super().prepare(engine, count, size)
        self.sizes = [size] * count
        for memory in (self.source, self.target):
            if self.mooncake.register_buffer(memory.ctypes.data, memory.nbytes):
                raise RuntimeError("Mooncake could not register the memory")

    @staticmethod
    def at(parts):
        return [part.ctypes.data for part in parts]

    def store(self, numbers):
        done = self.mooncake.batch_put_from([str(number) for number in numbers], self.at(self.sources), self.sizes)
        if any(status < 0 for status in done):
            raise RuntimeError(f"Mooncake has not stored all: {min(done)}")

    def lookup(self, numbers):
        return [found == 1 for found in self.mooncake.batch_is_exist([str(number) for number in numbers])]

    def load(self, numbers):
        done = self.mooncake.batch_get_into([str(number) for number in numbers], self.at(self.targets), self.sizes)
        if list(done) != self.sizes:
            raise RuntimeError(f"Mooncake has not loaded all: {min(done)}")

    def delete(self, numbers):
        done = self.mooncake.batch_remove([str(number) for number in numbers], True)  # although its lease of a look-up lasts
        if any(done):
            raise RuntimeError(f"Mooncake has not deleted all: {min(done)}")


def mooncake_master(bench):
    master = os.path.join(os.path.dirname(sys.executable), "mooncake_master")
    if not os.path.exists(master):
        raise CannotRun("mooncake-transfer-engine is not installed")
    program(bench, "mooncake_master", MOONCAKE_PORT, master, f"--rpc_port={MOONCAKE_PORT}", f"--metrics_port={MOONCAKE_PORT + 1}")
    return (max(count * size for count, size in shapes(bench)) * 6,)


# ---- a copy ----

class Copy(Engine):
    """Both ways, into memory of the process and out of it."""
    shared = False

    def prepare(self, *arguments):
        super().prepare(*arguments)
        self.between = self.empty(self.source.nbytes)

    def store(self, _):
        self.between[:] = self.source

    def lookup(self, numbers):
        return [number < OTHERS for number in numbers]

    def load(self, _):
        self.target[:] = self.between

    def delete(self, _):
        pass


def sides():
    return [
        Side("rdtd, rdtd.lmcache", by(Rdtd, rdtd_adapter), "LMCache's plug-in, ordinary memory"),
        Side("rdtd, memory of empty()", by(Registered, rdtd_socket),
             "put_many, lookup, load_many; a load also looks up, and ends its leases"),
        Side("LMCache, its memory", by(Memory, in_process),
             "L1Manager in each engine's process; nothing is shared: each loads its own"),
        Side("LMCache, files in tmpfs", by(Files, files_folder), "its FSL2Adapter, base_path in /dev/shm"),
        Side("LMCache, Redis", by(Redis, redis_server),
             "its RESP adapter in C++ with 8 workers, TCP, a key for each block; nothing is saved"),
        Side("Mooncake Store, TCP", by(Mooncake, mooncake_master), "registered memory, a segment in each engine's process"),
        Side("memcpy", by(Copy, steps=("store", "load")), "into memory of the process, and out of it"),
    ]
