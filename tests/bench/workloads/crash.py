# SPDX-License-Identifier: Apache-2.0
"""Crash: a reader or a writer is killed by SIGKILL, in turns, 100 times, in the middle of its work; 10 times where a pair takes a second to
start (Ray, gloo, NIXL, DataLoader). The work is that of the other workloads, in small.

    stalled     survivors that did not notice within five seconds
    bystander, ms   the longest single put and get, or hand-over, of two processes that work on beside, while others die
    left        entries in /dev/shm, and objects of the daemon, after all have ended
    left, MB    the bytes of those entries

Reader and writer are forked from a process that has imported everything, so that a kill takes milliseconds."""
import json
import os
import random
import resource
import signal
import threading
import time
import traceback

from harness import CannotRun, Side, memory_available, now, shm_left

KILLS, SLOW_KILLS, PATIENCE = 100, 10, 5
ELEMENTS = 1 << 18  # of f32: 1 MiB


class Pairs:
    """A process that forks readers and writers and kills one of each pair. A subclass has writer(end) and reader(end), loops that end with an
    exception; end is a connection of multiprocessing."""

    expected = ()  # of a survivor, beyond the end of its pipe

    def kill(self, times):
        """Returns the number of survivors that stalled. Each pair is handing over when one of it dies."""
        stalled = 0
        for number in range(times):
            ours, pids = self.pair()
            self.await_start(ours)
            time.sleep(random.Random(number).uniform(0, 0.01))
            killed, survivor = pids if number % 2 else pids[::-1]
            os.kill(killed, signal.SIGKILL)
            self.reap(killed)
            stalled += not self.ends(survivor)
            ours.close()
        return stalled

    def pair(self):
        from multiprocessing import Pipe
        ours, started = Pipe()
        write_end, read_end = Pipe()
        pids = []
        for main, own, other in ((self.writer, write_end, read_end), (self.reader, read_end, write_end)):
            pid = os.fork()
            if not pid:
                ours.close()
                other.close()
                try:
                    main(own, started)
                except (EOFError, ConnectionError, *self.expected):
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                os._exit(1)
            pids.append(pid)
        for end in (started, write_end, read_end):
            end.close()
        return ours, pids

    @staticmethod
    def await_start(ours):
        if not ours.poll(20):
            raise TimeoutError("a pair did not start")
        try:
            ours.recv()
        except EOFError:
            raise RuntimeError("a pair ended before anybody killed it") from None

    @staticmethod
    def reap(pid):
        os.waitpid(pid, 0)

    @staticmethod
    def is_gone(pid):
        return os.waitpid(pid, os.WNOHANG)[0] != 0

    def ends(self, pid):
        deadline = now() + PATIENCE
        while now() < deadline:
            if self.is_gone(pid):
                return True
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        self.reap(pid)
        return False

    def bystand(self):
        """Starts a pair that works on. Its reader's longest wait is asked for with `longest`."""
        from multiprocessing import Pipe
        self.bystander, self.bystander_pids = self.pair()
        self.longest, self.stopping = 0.0, False

        def watch():
            last = now()
            while not self.stopping:
                if self.bystander.poll(0.1):
                    self.bystander.recv()
                    self.longest, last = max(self.longest, now() - last), now()
        self.await_start(self.bystander)
        self.watcher = threading.Thread(target=watch, daemon=True)
        self.watcher.start()

    def stood(self):
        self.stopping = True
        self.watcher.join()
        os.kill(self.bystander_pids[0], signal.SIGTERM)
        for pid in self.bystander_pids:
            self.ends(pid)
        return self.longest * 1e3


def fresh():
    import numpy as np
    return np.ones(ELEMENTS, "f4")


class RdtdPairs(Pairs):
    """Refs through a pipe."""

    def __init__(self, path, other=None):
        import numpy  # noqa: F401  before the forks, which would import it each
        import rdtd
        from weights import torch_or_none
        torch_or_none()
        self.rdtd, self.paths = rdtd, (path, other or path)
        self.expected = (rdtd.Error,)

    def value(self):
        return fresh()

    def writer(self, end, started):
        c = self.rdtd.connect(self.paths[0])
        while True:
            end.send(c.put(self.value(), grace=2))
            end.recv_bytes()

    def reader(self, end, started):
        os.environ["RDT_SOCKET"] = self.paths[1]  # where the Ref takes its hold when it is unpickled
        while True:
            value = self.rdtd.get(end.recv(), timeout=2)
            del value
            started.send(True)
            end.send_bytes(b"y")


class LoaderPairs(RdtdPairs):
    def value(self):
        return {f"feature.{i}": fresh()[:ELEMENTS // 8] for i in range(8)}


class WeightPairs(RdtdPairs):
    """Versions of a name: a dead trainer ends it, a dead sampler does not."""

    def writer(self, end, started):
        c = self.rdtd.connect(self.paths[0])
        name = f"weights.{os.getpid()}"
        end.send(name)
        while True:
            c.publish(name, {"w": fresh()}, lease=True)
            end.recv_bytes()

    def reader(self, end, started):
        for _, value in self.rdtd.connect(self.paths[1]).versions(end.recv(), timeout=2):
            started.send(True)
            end.send_bytes(b"y")


class TorchPairs(Pairs):
    def __init__(self, strategy):
        import torch.multiprocessing
        torch.set_num_threads(1)
        torch.multiprocessing.set_sharing_strategy(strategy)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    def writer(self, end, started):
        from multiprocessing.reduction import ForkingPickler
        import torch
        while True:
            end.send_bytes(ForkingPickler.dumps(torch.ones(ELEMENTS)))
            end.recv_bytes()

    def reader(self, end, started):
        while True:
            value = end.recv()
            del value
            started.send(True)
            end.send_bytes(b"y")


class NamedPairs(Pairs):
    def writer(self, end, started):
        from multiprocessing import shared_memory
        while True:
            block = shared_memory.SharedMemory(create=True, size=4 * ELEMENTS)
            block.buf[:] = bytes(4 * ELEMENTS)
            end.send(block.name)
            block.close()
            end.recv_bytes()

    def reader(self, end, started):
        from multiprocessing import shared_memory
        while True:
            block = shared_memory.SharedMemory(end.recv())
            block.close()
            block.unlink()
            started.send(True)
            end.send_bytes(b"y")


class FilePairs(Pairs):
    """safetensors files in /dev/shm, as the weights are handed over."""

    def __init__(self):
        import safetensors.torch  # noqa: F401
        import torch
        torch.set_num_threads(1)

    def writer(self, end, started):
        from safetensors.torch import save_file
        import torch
        path = f"/dev/shm/weights.{os.getpid()}"
        while True:
            save_file({"w": torch.ones(ELEMENTS)}, path + ".new")
            os.rename(path + ".new", path)
            end.send(path)
            end.recv_bytes()
            os.unlink(path)

    def reader(self, end, started):
        from safetensors.torch import load_file
        while True:
            value = load_file(end.recv())
            del value
            started.send(True)
            end.send_bytes(b"y")


class GlooPairs(Pairs):
    """A broadcast of the weights, again and again."""

    expected = (RuntimeError,)

    def __init__(self, folder):
        import torch.distributed  # noqa: F401
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self.folder, self.number = folder, 0

    def pair(self):
        self.number += 1
        return super().pair()

    def broadcast(self, rank):
        import torch.distributed
        torch.distributed.init_process_group("gloo", init_method=f"file://{self.folder}/group.{self.number}", rank=rank, world_size=2)
        weights = torch.ones(ELEMENTS)
        while True:
            torch.distributed.broadcast(weights, 0)
            yield

    def writer(self, end, started):
        for _ in self.broadcast(0):
            end.recv_bytes()

    def reader(self, end, started):
        for _ in self.broadcast(1):
            started.send(True)
            end.send_bytes(b"y")


class NixlPairs(Pairs):
    """READ of a block, again and again; the reader knows nothing of the writer but what NIXL tells it."""

    expected = (RuntimeError,)

    def __init__(self):
        import nixl._api  # noqa: F401
        os.environ.update(UCX_TLS="tcp", UCX_NET_DEVICES="lo")

    @staticmethod
    def agent(name):
        from blocks import nixl_agent
        agent, memory = nixl_agent(name, progress=name == "owner"), fresh()
        agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
        return agent, memory, agent.get_xfer_descs([(memory.ctypes.data, memory.nbytes, 0)], "DRAM")

    def writer(self, end, started):
        agent, memory, blocks = self.agent("owner")
        end.send((agent.get_agent_metadata(), agent.get_serialized_descs(blocks)))
        while True:
            end.recv_bytes()

    def reader(self, end, started):
        from blocks import nixl_wait
        import nixl._bindings
        agent, memory, blocks = self.agent("reader")
        metadata, theirs = end.recv()
        agent.add_remote_agent(metadata)
        handle = agent.initialize_xfer("READ", blocks, agent.deserialize_descs(theirs), "owner")
        try:
            while True:
                nixl_wait(agent, handle)
                started.send(True)
        except (nixl._bindings.nixlRemoteDisconnectError, nixl._bindings.nixlBackendError) as error:
            raise RuntimeError from error


class DataLoaderPairs(Pairs):
    """A trainer and the worker of its DataLoader, which is its child."""

    def __init__(self):
        import torch.utils.data  # noqa: F401
        torch.set_num_threads(1)

    def pair(self):
        from multiprocessing import Pipe
        ours, started = Pipe()
        trainer = os.fork()
        if not trainer:
            ours.close()
            try:
                self.train(started)
            finally:  # with whatever DataLoader raises, in this code or in that which handles it
                os._exit(0)
        started.close()
        if not ours.poll(20):
            raise TimeoutError("a trainer did not start")
        return ours, [ours.recv(), trainer]

    @staticmethod
    def train(started):
        import torch.utils.data

        class Batches(torch.utils.data.IterableDataset):
            def __iter__(self):
                while True:
                    yield {f"feature.{i}": torch.ones(ELEMENTS // 8) for i in range(8)}

        batches = iter(torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=1, multiprocessing_context="fork"))
        started.send(batches._workers[0].pid)
        for _ in batches:
            started.send(True)

    @staticmethod
    def reap(pid):
        while not DataLoaderPairs.is_gone(pid):
            time.sleep(0.001)

    @staticmethod
    def is_gone(pid):
        """A worker is the child of somebody else, who may not have reaped it yet."""
        try:
            return os.waitpid(pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            pass
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True


def killing(bench, pairs, case, daemons=(), most=KILLS):
    times = 6 if bench.quick else bench.size(most, 10)
    before = shm_left()
    pairs.call("bystand")
    stalled = pairs.call("kill", times, seconds=600)
    found = {(case, "stalled"): stalled, (case, "bystander, ms"): pairs.call("stood")}
    pairs.close()
    left = shm_left()
    found[case, "left"] = left[0] - before[0] + sum(map(objects_left, daemons))
    found[case, "left, MB"] = (left[1] - before[1]) / 1e6
    return found


def objects_left(daemon):
    deadline = now() + 15  # a grace period after the last kill
    while True:
        left = len(json.loads(daemon.ctl("objects", "--json"))["objects"])
        if not left or now() > deadline:
            return left
        time.sleep(0.1)


def by_rdtd(bench):
    found = {}
    for case, cls in (("queue", RdtdPairs), ("loader", LoaderPairs), ("weights", WeightPairs)):
        with bench.inner() as inner:
            daemon = inner.daemon()
            found.update(killing(inner, inner.actor(cls, daemon.socket), case, [daemon]))
    return found


def by_rdtd_between_nodes(bench):
    nodes = bench.network(2)
    daemons = [bench.daemon("a", nodes[0]), bench.daemon("b", nodes[1])]
    return killing(bench, bench.actor(RdtdPairs, daemons[0].socket, daemons[1].socket), "blocks, two nodes", daemons)


def by_pairs(cls, *args, case="queue", most=KILLS):
    return lambda bench: killing(bench, bench.actor(cls, *args), case, most=most)


def by_gloo(bench):
    return killing(bench, bench.actor(GlooPairs, bench.dir), "weights", most=SLOW_KILLS)


# ---- Ray ----

class RayActor:
    def pid(self):
        return os.getpid()

    def make(self):
        import torch
        return {"w": torch.ones(ELEMENTS)}

    def use(self, value):
        return float(value["w"].sum())


def by_ray(transport):
    def side(bench):
        from rl import with_transport
        if memory_available() < 4 << 30:
            raise CannotRun("Ray needs 4 GiB")
        if transport == "rdtd":
            daemon = bench.daemon()
            os.environ["RDT_SOCKET"] = daemon.socket
        ray = bench.ray(1 << 30)
        before, stalled, longest = shm_left(), 0, 0.0
        Actors = with_transport(ray, RayActor, "make", transport)
        bystanders = [Actors.remote() for _ in range(2)]
        for number in range(2 if bench.quick else SLOW_KILLS):
            writer, reader = Actors.remote(), Actors.remote()
            pids = ray.get([writer.pid.remote(), reader.pid.remote()], timeout=60)
            ray.get(reader.use.remote(writer.make.remote()), timeout=60)
            going = reader.use.remote(writer.make.remote())
            os.kill(pids[number % 2], signal.SIGKILL)
            start = now()
            try:
                ray.get(going, timeout=PATIENCE)
            except ray.exceptions.GetTimeoutError:
                stalled += 1
            except ray.exceptions.RayError:
                pass
            start = now()
            ray.get(bystanders[1].use.remote(bystanders[0].make.remote()), timeout=60)
            longest = max(longest, now() - start)
            for actor in (writer, reader):
                ray.kill(actor)
            del going, writer, reader
        found = {("rl", "stalled"): stalled, ("rl", "bystander, ms"): longest * 1e3}
        del bystanders, Actors
        ray.shutdown()
        left = shm_left()
        found["rl", "left"] = left[0] - before[0] + (objects_left(daemon) if transport == "rdtd" else 0)
        found["rl", "left, MB"] = (left[1] - before[1]) / 1e6
        return found
    return side


def sides():
    return [
        Side("rdtd", by_rdtd, "refs with a grace of 2 s through a pipe; versions of a name with a lease"),
        Side("rdtd, two nodes", by_rdtd_between_nodes, "the writer at one daemon, the reader at another"),
        Side("torch.multiprocessing, file_descriptor", by_pairs(TorchPairs, "file_descriptor")),
        Side("torch.multiprocessing, file_system", by_pairs(TorchPairs, "file_system")),
        Side("shared_memory by name", by_pairs(NamedPairs), "the reader unlinks"),
        Side("safetensors in /dev/shm", by_pairs(FilePairs, case="weights"), "save_file, rename, load_file"),
        Side("gloo broadcast", by_gloo, "two processes, 10 kills"),
        Side("nixl READ", by_pairs(NixlPairs, case="blocks, two nodes", most=SLOW_KILLS), "UCX over TCP on lo, 10 kills"),
        Side("torch DataLoader", by_pairs(DataLoaderPairs, case="loader", most=SLOW_KILLS), "one worker, file_descriptor, 10 kills"),
        Side("rdtd, Ray RDT", by_ray("rdtd"), "tensor_transport='rdtd', 10 kills"),
        Side("Ray object store", by_ray("store"), "10 kills"),
        Side("Ray RDT over nixl", by_ray("nixl"), "10 kills"),
    ]
