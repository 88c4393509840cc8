# SPDX-License-Identifier: Apache-2.0
"""Blocks: pages of a KV cache. Blocks that lie scattered in one region are fetched in one request into scattered targets on another node,
1, 8 or 32 requests in flight; and a single block alone.

    GB/s    all bytes of the requests by the time from the first request to the last byte
    p50, us of single fetches, one after the other

Nodes are network namespaces, unshaped. What a request names is prepared before, on nobody's clock: with rdtd the owner has put an object of
the scattered blocks, with NIXL a descriptor list is prepared. The owner puts as many objects of the same blocks as requests are in flight,
because fetches of one object would share one transfer, which no cache of different pages has. Requests in flight write to the same targets, whose first and last byte the
reader checks afterwards, block by block. $BLOCKS='512x65536 4096x65536' chooses others."""
import itertools
import os
import random
import socket
import threading

from harness import Side, now, percentile

IN_FLIGHT = (1, 8, 32)
SINGLE = (4096, 65536)
MOST = 64 << 20  # bytes of a request of which 32 may be in flight; of larger ones there are fewer
PORT = 7300


def shapes(bench):
    text = os.environ.get("BLOCKS")
    if text:
        return [tuple(map(int, one.split("x"))) for one in text.split()]
    if bench.quick:
        return [(64, 16384)]
    return [(count, size << 10) for count in (512, 4096) for size in (16, 64, 256) if count * size << 10 <= (256 << 20) * bench.scale]


def scattered(count, size, seed):
    """Offsets of blocks in a region that has a quarter more room."""
    room = region_bytes(count, size) // size
    return [place * size for place in random.Random(seed).sample(range(room), count)]


def region_bytes(count, size):
    return (count + max(count // 4, 1)) * size


def fill(memory, offsets, size):
    for number, offset in enumerate(offsets):
        memory[offset:offset + size] = number % 251


def check(memory, offsets, size):
    for number, offset in enumerate(offsets):
        if memory[offset] != number % 251 or memory[offset + size - 1] != number % 251:
            raise RuntimeError(f"block {number} arrived as {memory[offset]}, {memory[offset + size - 1]}")


class Reader:
    """A subclass has begin() -> a request in flight, and finish(requests) -> those still in flight, after at least one has ended."""

    def read(self, in_flight, requests):
        """Returns seconds."""
        start = now()
        flying, begun = [], 0
        while begun < requests or flying:
            while begun < requests and len(flying) < in_flight:
                flying.append(self.begin())
                begun += 1
            flying = self.finish(flying)
        return now() - start

    def alone(self, times):
        """Returns seconds of each of so many single fetches."""
        found = []
        for _ in range(times):
            start = now()
            flying = [self.begin()]
            while flying:
                flying = self.finish(flying)
            found.append(now() - start)
        return found

    def check(self):
        check(self.memory, self.offsets, self.size)


# ---- rdtd ----

class RdtdOwner:
    def __init__(self, path):
        import rdtd
        self.c = rdtd.connect(path)

    def offer(self, count, size):
        self.memory = self.c.empty(region_bytes(count, size), "u8", as_="numpy")
        offsets = scattered(count, size, 1)
        fill(self.memory, offsets, size)
        blocks = [self.memory[offset:offset + size] for offset in offsets]
        self.refs = [self.c.put(blocks) for _ in range(max(IN_FLIGHT))]
        return self.refs


class RdtdReader(Reader):
    def __init__(self, path):
        import rdtd
        self.c = rdtd.connect(path)

    def prepare(self, count, size, refs):
        self.refs, self.size, self.offsets = itertools.cycle(refs), size, scattered(count, size, 2)
        self.memory = self.c.empty(region_bytes(count, size), "u8", as_="numpy")
        self.targets = [self.memory[offset:offset + size] for offset in self.offsets]

    def begin(self):
        return self.c.fetch(next(self.refs), into=self.targets, as_="list")

    def finish(self, flying):
        ended, running = self.c.wait(flying, 1)
        for request in ended:
            request.result()
        return running


# ---- NIXL ----

def nixl_agent(name, progress):
    """progress: a thread answers reads, for processes that do not look for messages themselves. With one at each end, and a reader that looks
    too, three would spin on what may be two processors."""
    from nixl._api import nixl_agent as Agent, nixl_agent_config as Config
    return Agent(name, Config(enable_prog_thread=progress))


def nixl_wait(agent, handle):
    """Posts the request and looks for its end without sleep, as NIXL's examples do."""
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise RuntimeError(f"nixl: {state}")


class NixlEnd:
    def __init__(self, name):
        self.agent = nixl_agent(name, progress=name == "owner")

    def allocate(self, count, size, seed):
        import numpy as np
        self.size, self.offsets = size, scattered(count, size, seed)
        self.memory = np.zeros(region_bytes(count, size), "u1")
        self.agent.register_memory([(self.memory.ctypes.data, self.memory.nbytes, 0, "")], "DRAM")
        return [(self.memory.ctypes.data + offset, size, 0) for offset in self.offsets]


class NixlOwner(NixlEnd):
    def offer(self, count, size):
        blocks = self.allocate(count, size, 1)
        fill(self.memory, self.offsets, size)
        return self.agent.get_agent_metadata(), self.agent.get_serialized_descs(self.agent.get_xfer_descs(blocks, "DRAM"))


class NixlReader(NixlEnd, Reader):
    def prepare(self, count, size, offered):
        local = self.agent.get_xfer_descs(self.allocate(count, size, 2), "DRAM")
        self.agent.add_remote_agent(offered[0])
        remote = self.agent.deserialize_descs(offered[1])
        self.handles = [self.agent.initialize_xfer("READ", local, remote, "owner") for _ in range(max(IN_FLIGHT))]
        self.idle = list(self.handles)

    def begin(self):
        handle = self.idle.pop()
        return handle, self.agent.transfer(handle)

    def finish(self, flying):
        while True:
            left = []
            for handle, state in flying:
                state = state if state != "PROC" else self.agent.check_xfer_state(handle)
                if state == "PROC":
                    left.append((handle, state))
                elif state == "DONE":
                    self.idle.append(handle)
                else:
                    raise RuntimeError(f"nixl: {state}")
            if len(left) < len(flying):
                return left


# ---- a plain socket ----

class SocketOwner:
    def offer(self, count, size):
        import numpy as np
        self.memory, offsets = np.zeros(region_bytes(count, size), "u1"), scattered(count, size, 1)
        fill(self.memory, offsets, size)
        view = memoryview(self.memory)
        self.views = [view[offset:offset + size] for offset in offsets]
        self.listener = socket.create_server(("", PORT))
        threading.Thread(target=self.serve, args=(self.listener,), daemon=True).start()

    def serve(self, listener):
        end, _ = listener.accept()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.close()
        while end.recv(1):
            move(self.views, end.sendmsg)


def move(views, call):
    """sendmsg or recvmsg_into of all views: as many at a time as the kernel takes."""
    at, within = 0, 0
    while at < len(views):
        some = [views[at][within:], *views[at + 1:at + 512]]
        moved = call(some)
        moved = moved[0] if isinstance(moved, tuple) else moved
        if not moved:
            raise ConnectionError("the connection ended")
        moved += within
        while at < len(views) and moved >= len(views[at]):
            moved -= len(views[at])
            at += 1
        within = moved


class SocketReader(Reader):
    def __init__(self, address):
        self.address = address

    def prepare(self, count, size, _):
        import numpy as np
        self.size, self.offsets = size, scattered(count, size, 2)
        self.memory = np.zeros(region_bytes(count, size), "u1")
        view = memoryview(self.memory)
        self.views = [view[offset:offset + size] for offset in self.offsets]
        self.end = socket.create_connection((self.address, PORT))
        self.end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self):
        self.end.sendall(b"r")
        return self

    def finish(self, flying):
        move(self.views, self.end.recvmsg_into)
        return flying[1:]


# ---- rounds ----

def measure(bench, owner, reader, count, size):
    found = {}
    reader.call("prepare", count, size, owner.call("offer", count, size))
    reader.call("read", 1, 2)
    bytes_each = count * size
    if count == 1:
        times = reader.call("alone", 200 if bench.quick else 2000)
        found[f"one block of {size >> 10} KiB", "p50, us"] = percentile(times, 0.5) * 1e6
        found[f"one block of {size >> 10} KiB", "p99, us"] = percentile(times, 0.99) * 1e6
    else:
        for in_flight in IN_FLIGHT:
            if in_flight * bytes_each > max(IN_FLIGHT) * MOST and in_flight > 1:
                continue
            requests = max(in_flight, 4 if bench.quick else min(64, -(-(512 << 20) // bytes_each)))
            found[f"{count} blocks of {size >> 10} KiB, {in_flight} in flight", "GB/s"] = requests * bytes_each / reader.call("read", in_flight, requests) / 1e9
    reader.call("check")
    return found


def both_nodes(make, environment=()):
    """make(bench, nodes) -> (owner, reader), anew for each shape: what was registered for one is gone for the next."""
    def side(bench):
        found = {}
        os.environ.update(environment)
        try:
            for count, size in [*((1, size) for size in SINGLE), *shapes(bench)]:
                with bench.inner() as inner:
                    found.update(measure(inner, *make(inner, inner.network(2)), count, size))
        finally:
            for key in dict(environment):
                del os.environ[key]
        return found
    return side


def rdtd_ends(bench, nodes):
    a, b = bench.daemon("a", nodes[0]), bench.daemon("b", nodes[1])
    return bench.actors([(RdtdOwner, a.socket), (RdtdReader, b.socket)], nodes)


def nixl_ends(bench, nodes):
    return bench.actors([(NixlOwner, "owner"), (NixlReader, "reader")], nodes)


def socket_ends(bench, nodes):
    return bench.actors([(SocketOwner,), (SocketReader, nodes[0].address)], nodes)


def sides():
    ucx = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"}
    large = {**ucx, "UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "256k"}
    return [
        Side("rdtd", both_nodes(rdtd_ends), "Python, trusted_network = yes, busy_poll 200us at both ends, sleeps after that"),
        Side("nixl READ", both_nodes(nixl_ends, ucx), "Python, UCX over TCP, a progress thread at the owner, the reader looks itself"),
        Side("nixl READ, segments of 256k", both_nodes(nixl_ends, large), "the same with UCX_TCP_TX_SEG_SIZE=256k UCX_TCP_RX_SEG_SIZE=256k"),
        Side("plain socket", both_nodes(socket_ends), "Python, sendmsg and recvmsg_into of up to 512 blocks, one byte for each request"),
    ]
