# SPDX-License-Identifier: Apache-2.0
"""ray_bench.py SOCKET [SHAPE ...]: the cost of an object from one Ray actor to another: by Ray's object store, by RDT over
gloo, nixl (where it is installed) and rdtd, and by rdtd alone between two processes with a socket. Prints a row for
each round and rival. RDT over a transport that moves nothing (ray_nothing.py) shows the lower bound of every transport.
Where $ECHO_SOCKET names the socket of echo (echo.c), RDT over the simplest possible daemon (ray_plain.py) runs too, for
objects of one tensor of up to 1 MB.

The shapes are those of Ray's own microbenchmark: latency (one object after the other), new (a new object for each
receive, all submitted at once), same (one object, received again and again). Tensors exist before the measurement, so
that creating them is not counted. Receivers do not read them.

Each rival has two actors of its own. Actors that are not measured are stopped meanwhile (SIGSTOP), because the threads
that a transport runs in its actors would otherwise slow down all others."""
import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time

os.environ["RDT_SOCKET"] = sys.argv[1]
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
import torch
from ray.experimental.collective import create_collective_group

import rdtd
import rdtd.ray
import ray_nothing
import ray_plain

ROUND_SECONDS = 2  # of one rival: who is slow is asked less often
FRAME_BYTES = 8192  # more than a ref takes
AFTERWARDS = 0.05  # seconds in which what was received is freed
BYTES = {"4B": 4, "150K": 150_000, "1M": 1_000_000, "100M": 100_000_000}
LISTS = (100, 1000, 10000)
SHAPES = [f"{size}_{how}" for size in BYTES for how in ("latency", "new", "same")] + [f"list{n}_latency" for n in LISTS]


def value_of(size):
    return [torch.ones(250) for _ in range(int(size[4:]))] if size.startswith("list") else torch.ones(BYTES[size], dtype=torch.int8)


def has_plain(size):
    return not size.startswith("list") and BYTES[size] <= BYTES["1M"]


def count_of(size):
    """How many objects in a round, and how many rounds: small ones take milliseconds, and Ray's own threads come in between."""
    return (4, 3) if size == "100M" or size == "list10000" else (40, 9)


class Actor:
    def make(self, size):
        self.value = value_of(size)

    def recv(self, value):
        return None

    def pid(self):
        return os.getpid()


def sender(transport):
    def send(self):
        return self.value

    return send if transport == "store" else ray.method(tensor_transport=transport)(send)


class Pair:
    """Two actors that send and receive by one transport, stopped unless somebody is `awake`."""

    def __init__(self, transport):
        cls = ray.remote(num_cpus=0, enable_tensor_transport=True)(type("Actor", (Actor,), {"send": sender(transport)}))
        self.source, self.target = cls.remote(), cls.remote()
        if transport == "gloo":
            create_collective_group([self.source, self.target], backend="gloo")
        self.pids = ray.get([self.source.pid.remote(), self.target.pid.remote()])
        self.signal(signal.SIGSTOP)

    def signal(self, number):
        for pid in self.pids:
            os.kill(pid, number)

    @contextlib.contextmanager
    def awake(self):
        self.signal(signal.SIGCONT)
        try:
            yield self
            time.sleep(AFTERWARDS)
        finally:
            self.signal(signal.SIGSTOP)


@contextlib.contextmanager
def named(what):
    try:
        yield
    except Exception as error:
        raise RuntimeError(what) from error


def by_ray(pair, how, count):
    send, recv = pair.source.send, pair.target.recv
    if how == "same":
        ref = send.remote()
        ray.get(recv.remote(ref))
    start = time.perf_counter()
    if how == "latency":
        for _ in range(count):
            ray.get(recv.remote(send.remote()))
    elif how == "new":
        ray.get([recv.remote(send.remote()) for _ in range(count)])
    else:
        for _ in range(count):
            ray.get(recv.remote(ref))
    return (time.perf_counter() - start) / count


class Channel:
    """One end of what refs travel by between two processes. multiprocessing's own takes 16 us of processor time for each
    ref, this 8."""

    def __init__(self, end):
        self.end = end

    def send(self, value):
        self.end.send(pickle.dumps(value))

    def recv(self):
        return pickle.loads(self.end.recv(FRAME_BYTES))

    def recv_all(self):
        """All that has come, and at least one: a call of the daemon is the same for one or many."""
        values = [self.recv()]
        with contextlib.suppress(BlockingIOError):
            while True:
                values.append(pickle.loads(self.end.recv(FRAME_BYTES, socket.MSG_DONTWAIT)))
        return values


def channel():
    return [Channel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]


def receiver(channel):
    with rdtd.connect() as c:
        while None not in (refs := channel.recv_all()):
            values = c.get(refs, mode="share", as_="torch")
            channel.send(len(refs))
            del values


def by_rdtd(c, channel, value, how, count):
    if how == "same":
        ref = c.put(value)
    start = time.perf_counter()
    if how == "new":
        refs = []
        for _ in range(count):
            refs.append(c.put(value))
            channel.send(refs[-1])
        answered = 0
        while answered < count:
            answered += channel.recv()
    else:
        for _ in range(count):
            channel.send(ref if how == "same" else (ref := c.put(value)))
            channel.recv()
    return (time.perf_counter() - start) / count


def main():
    wanted = [shape for shape in SHAPES if not sys.argv[2:] or shape in sys.argv[2:]]
    ray_nothing.register()
    ray_plain.register()
    rdtd.ray.register(hooked=True)
    ray.init(num_cpus=2, object_store_memory=1500 << 20, include_dashboard=False, log_to_driver=False,
             runtime_env={"worker_process_setup_hook": "rdtd.ray.register"})
    rivals = ["store", "gloo"]
    try:
        import nixl._api  # noqa: F401
        rivals.append("nixl")
    except ImportError:
        print("nixl is not installed", file=sys.stderr)
    plain = ["plain"] if "ECHO_SOCKET" in os.environ and any(has_plain(shape.partition("_")[0]) for shape in wanted) else []
    pairs = {name: Pair(name) for name in [*rivals, "rdtd", "nothing", *plain]}
    ours, theirs = channel()
    child = multiprocessing.get_context("spawn").Process(target=receiver, args=(theirs,), daemon=True)
    child.start()
    c = rdtd.connect()
    for shape in wanted:
        size, _, how = shape.partition("_")
        value, (count, rounds) = value_of(size), count_of(size)
        transports = [name for name in pairs if name != "plain" or has_plain(size)]
        mine = c.empty_like(value)  # the tensor is made there: nothing is copied
        for pair in pairs.values():
            with pair.awake():
                ray.get(pair.source.make.remote(size))
        counts = dict.fromkeys(transports, 2)
        for i in range(rounds + 1):
            seconds = {}
            for name in transports[i % len(transports):] + transports[:i % len(transports)]:
                with pairs[name].awake() as pair, named(f"{shape} by {name}"):
                    seconds[name] = by_ray(pair, how, counts[name])
            if i == 0:
                counts = {name: max(2, min(count, int(ROUND_SECONDS / each))) for name, each in seconds.items()}
            alone = by_rdtd(c, ours, mine, how, count)
            if i == 0:
                continue  # to warm up
            for name in [name for name in ("nothing", "plain") if name in seconds]:
                print(f"ray_{shape}_by_{name}_beside_store", "ms", "lower", "null", f"{seconds[name] * 1e3:.4f}", f"{seconds['store'] * 1e3:.4f}", sep="\t")
            print(f"ray_{shape}_beside_nothing", "ms", "lower", "null", f"{seconds['rdtd'] * 1e3:.4f}", f"{seconds['nothing'] * 1e3:.4f}", sep="\t")
            for name in rivals:
                much = 0.2 if shape == "100M_same" or size == "list10000" and name != "store" else 1
                print(f"ray_{shape}_beside_{name}", "ms", "lower", much, f"{seconds['rdtd'] * 1e3:.4f}", f"{seconds[name] * 1e3:.4f}", sep="\t")
                print(f"alone_{shape}_beside_{name}", "ms", "lower", 0.1, f"{alone * 1e3:.4f}", f"{seconds[name] * 1e3:.4f}", sep="\t")
        sys.stdout.flush()
    for pair in pairs.values():
        pair.signal(signal.SIGCONT)  # to end
    ours.send(None)
    child.join(10)


if __name__ == "__main__":
    main()
