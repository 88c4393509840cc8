# SPDX-License-Identifier: Apache-2.0
"""Queue: one writer hands arrays to eight readers in turn, objects of 23, 96 and 213 MB (inputs of a vision model, f32); and a dict of
10,000 tensors of 400 bytes, to one reader.

    handed    from the moment at which the writer has the array, in ordinary memory, until the reader has it
    read      the same until the reader has read every byte

Each array is new: the writer fills a block of its own memory before, on nobody's clock, and the hand-over includes whatever copy the tool
needs. Readers answer by a pipe of the harness, and add up all bytes as 64-bit numbers, which the writer knows."""
import os
import pickle
import socket
import struct

from harness import CannotRun, Side, memory_available, now, percentile

READERS = 8
SIZES = (23, 96, 213)
TENSORS, EACH = 10000, 100  # elements of f32


class Writer:
    """A subclass has send(reader, value), and may have prepare(address)."""

    def prepare(self, *_):
        pass

    def make(self, megabytes, number):
        import numpy as np
        if megabytes:
            self.value = np.full(megabytes * 1000 * 1000 // 8 * 2, number, "f4")
            return int(self.value.view("i8").sum())
        self.value = {f"tensor.{i}": np.full(EACH, number, "f4") for i in range(TENSORS)}
        if self.torch:
            import torch
            self.value = {name: torch.from_numpy(value) for name, value in self.value.items()}
        return int(np.full(EACH, number, "f4").view("i8").sum()) * TENSORS

    torch = False

    def write(self, reader):
        start = now()
        self.send(reader, self.value)
        return start


class Reader:
    """A subclass has receive()."""

    def read(self):
        import numpy as np
        value = self.receive()
        handed = now()
        if isinstance(value, dict):
            total = sum(int(np.asarray(one).view("i8").sum()) for one in value.values())
        else:
            total = int(np.asarray(value).view("i8").sum())
        return handed, now(), total


def measure(writer, readers, megabytes, objects):
    handed, times, warm = [], [], max(2, len(readers))  # each reader warms up: it imports numpy, for instance
    for number in range(objects + warm):
        reader = readers[number % len(readers)]
        total = writer.call("make", megabytes, number)
        reader.start("read")
        start = writer.call("write", number % len(readers))
        got, end, seen = reader.result()
        if seen != total:
            raise RuntimeError(f"object {number} arrived with the sum {seen}, not {total}")
        if number >= warm:
            handed.append(got - start)
            times.append(end - start)
    case = f"{megabytes} MB" if megabytes else f"a dict of {TENSORS} tensors"
    return {(case, "handed p50, ms"): percentile(handed, 0.5) * 1e3, (case, "read p50, ms"): percentile(times, 0.5) * 1e3,
            (case, "read p99, ms"): percentile(times, 0.99) * 1e3}


def all_sizes(bench, writer, readers, small=True):
    found = {}
    for megabytes in (1,) if bench.quick else SIZES:
        found.update(measure(writer, readers, megabytes, 4 if bench.quick else bench.size(16, 4)))
    if small:
        try:
            found.update(measure(writer, readers[:1], 0, 3 if bench.quick else bench.size(10, 3)))
        except RuntimeError as error:
            found[f"a dict of {TENSORS} tensors", "failed"] = str(error).strip().splitlines()[-1]
    return found


# ---- rdtd: a ref through a pipe ----

class PipeWriter(Writer):
    def prepare(self, address):
        from multiprocessing.connection import Listener
        self.listener = Listener(address, "AF_UNIX")
        self.ends = {}

    def accept(self, count):
        for _ in range(count):
            end = self.listener.accept()
            self.ends[end.recv()] = end

    def send(self, reader, value):
        self.ends[reader].send(value)


class PipeReader(Reader):
    def __init__(self, number):
        self.number = number

    def connect(self, address):
        from multiprocessing.connection import Client
        self.end = Client(address, "AF_UNIX")
        self.end.send(self.number)

    def receive(self):
        return self.end.recv()


class RdtdWriter(PipeWriter):
    def __init__(self, path):
        import rdtd
        self.c = rdtd.connect(path)

    def send(self, reader, value):
        self.ends[reader].send(self.c.put(value))


class InPlaceWriter(RdtdWriter):
    """Fills memory of the daemon, so that put copies nothing."""

    def make(self, megabytes, number):
        import numpy as np
        if not megabytes:
            return super().make(megabytes, number)
        self.value = self.c.empty(megabytes * 1000 * 1000 // 8 * 2, "f32", as_="numpy")
        self.value.fill(number)
        return int(self.value.view("i8").sum())


class RdtdReader(PipeReader):
    def __init__(self, path, number):
        super().__init__(number)
        os.environ["RDT_SOCKET"] = path
        import rdtd
        self.c = rdtd.default()

    def receive(self):
        return self.c.get(self.end.recv())


def by_pipe(writer_class, reader_class, daemon=False, small=True):
    def side(bench):
        first = (bench.daemon().socket,) if daemon else ()
        writer, *readers = bench.actors([(writer_class, *first)] + [(reader_class, *first, number) for number in range(READERS)])
        address = os.path.join(bench.dir, "pipe")
        writer.call("prepare", address)
        writer.start("accept", READERS)
        for reader in readers:
            reader.call("connect", address)
        writer.result()
        return all_sizes(bench, writer, readers, small)
    return side


# ---- torch.multiprocessing ----

class TorchWriter(PipeWriter):
    torch = True

    def __init__(self, strategy):
        import torch.multiprocessing
        torch.multiprocessing.set_sharing_strategy(strategy)
        if strategy == "file_descriptor":
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

    def send(self, reader, value):
        from multiprocessing.reduction import ForkingPickler
        import torch
        value = value if isinstance(value, dict) else torch.from_numpy(value)
        self.ends[reader].send_bytes(ForkingPickler.dumps(value))


class TorchReader(PipeReader):
    def __init__(self, strategy, number):
        super().__init__(number)
        TorchWriter(strategy)


def by_torch(strategy):
    def side(bench):
        writer, *readers = bench.actors([(TorchWriter, strategy)] + [(TorchReader, strategy, number) for number in range(READERS)])
        address = os.path.join(bench.dir, "pipe")
        writer.call("prepare", address)
        writer.start("accept", READERS)
        for reader in readers:
            reader.call("connect", address)
        writer.result()
        return all_sizes(bench, writer, readers)
    return side


# ---- shared_memory by name ----

class NamedWriter(PipeWriter):
    def send(self, reader, value):
        from multiprocessing import shared_memory
        import numpy as np
        block = shared_memory.SharedMemory(create=True, size=value.nbytes)
        np.frombuffer(block.buf, value.dtype, value.size)[:] = value
        self.ends[reader].send((block.name, str(value.dtype), value.shape))
        block.close()


class NamedReader(PipeReader):
    block = None

    def read(self):
        found = super().read()
        self.block.close()
        self.block.unlink()
        return found

    def receive(self):
        from multiprocessing import shared_memory
        import numpy as np
        name, dtype, shape = self.end.recv()
        self.block = shared_memory.SharedMemory(name)
        return np.frombuffer(self.block.buf, dtype, shape[0])


# ---- pickle 5 and Arrow through a socket ----

class SocketWriter(PipeWriter):
    """pickle with protocol 5: its buffers follow in writes of their own."""

    def send(self, reader, value):
        buffers = []
        head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        sizes = struct.pack(f"<{len(views) + 2}Q", len(views), len(head), *(view.nbytes for view in views))
        end = socket.socket(fileno=os.dup(self.ends[reader].fileno()))
        end.sendall(sizes + head)
        if len(views) > 16:
            end.sendall(b"".join(views))
        else:
            for view in views:
                end.sendall(view)
        end.close()


class SocketReader(PipeReader):
    def connect(self, address):
        super().connect(address)
        self.socket = socket.socket(fileno=os.dup(self.end.fileno()))

    def bytes(self, size):
        into = bytearray(size)
        view, at = memoryview(into), 0
        while at < size:
            at += self.socket.recv_into(view[at:])
        return into

    def receive(self):
        count, head = struct.unpack("<2Q", self.bytes(16))
        sizes = struct.unpack(f"<{count}Q", self.bytes(8 * count))
        head = bytes(self.bytes(head))
        body, at, buffers = memoryview(self.bytes(sum(sizes))), 0, []
        for size in sizes:
            buffers.append(body[at:at + size])
            at += size
        return pickle.loads(head, buffers=buffers)


class ArrowWriter(PipeWriter):
    def send(self, reader, value):
        import pyarrow as pa
        value = value if isinstance(value, dict) else {"x": value}
        arrays = [pa.array(one) for one in value.values()]
        batch = pa.record_batch([arrays[0]] if len(arrays) == 1 else arrays, names=list(value))
        with os.fdopen(os.dup(self.ends[reader].fileno()), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch)


class ArrowReader(PipeReader):
    def receive(self):
        import pyarrow as pa
        with os.fdopen(os.dup(self.end.fileno()), "rb") as file:
            stream = pa.ipc.open_stream(file)
            batch = stream.read_next_batch()
            for _ in stream:
                pass
        value = {name: column.to_numpy(zero_copy_only=True) for name, column in zip(batch.schema.names, batch.columns)}
        return value["x"] if len(value) == 1 else value


# ---- Ray ----

class RayWriter(Writer):
    def __init__(self):
        pass

    def send(self, reader, value):
        import ray
        self.ref = ray.put(value)

    def write_ref(self):
        start = self.write(0)
        return start, [self.ref]


class RayReader(Reader):
    def read_ref(self, refs):
        import ray
        self.receive = lambda: ray.get(refs[0])
        return self.read()


def by_ray(bench):
    if memory_available() < 6 << 30:
        raise CannotRun("Ray's store needs 6 GiB")
    ray = bench.ray(2 << 30)
    writer = ray.remote(num_cpus=0)(RayWriter).remote()
    readers = [ray.remote(num_cpus=0)(RayReader).remote() for _ in range(READERS)]

    class One:  # as measure calls it
        def __init__(self, actor, partner=None):
            self.actor, self.partner = actor, partner

        def call(self, method, *args):
            if method == "make":
                return ray.get(self.actor.make.remote(*args), timeout=120)
            start, refs = ray.get(self.actor.write_ref.remote(), timeout=120)
            self.refs = refs
            return start

        def start(self, method):
            pass

        def result(self):
            return ray.get(self.actor.read_ref.remote(self.partner.refs), timeout=120)

    one = One(writer)
    return all_sizes(bench, one, [One(reader, one) for reader in readers])


def sides():
    return [
        Side("rdtd", by_pipe(RdtdWriter, RdtdReader, daemon=True), "put, the Ref through a pipe, get"),
        Side("rdtd, written in place", by_pipe(InPlaceWriter, RdtdReader, daemon=True, small=False), "the array is in memory of c.empty: put copies nothing"),
        Side("torch.multiprocessing, file_descriptor", by_torch("file_descriptor"), "the tensor through a pipe of ForkingPickler, as its queues"),
        Side("torch.multiprocessing, file_system", by_torch("file_system"), "the same"),
        Side("shared_memory by name", by_pipe(NamedWriter, NamedReader, small=False), "a block for each object, which its reader unlinks"),
        Side("pickle 5 through a socket", by_pipe(SocketWriter, SocketReader), "buffers out of band"),
        Side("Arrow through a socket", by_pipe(ArrowWriter, ArrowReader), "a record batch in a stream"),
        Side("Ray object store", by_ray, "ray.put in the writer, ray.get in the reader"),
    ]
