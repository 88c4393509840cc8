# SPDX-License-Identifier: Apache-2.0
"""A transport of Ray over the simplest possible daemon: `echo` (echo.c), which unpacks, answers and stores nothing. For
ray_bench.py.

A put is one copy into memory that is kept, and a round trip. A receive is a round trip and a private mapping. Nothing
is ever freed. The transport guarantees nothing: after SLOTS puts of a size it overwrites memory, whoever reads it. Its
numbers are the least cost of a transport that asks a daemon once at put and once at receive, copies once and maps once.
It moves one tensor for each object, in host memory, and one thread at a time may use each end."""
import mmap
import os
import socket
import struct
from dataclasses import dataclass

import numpy
import torch
from ray.experimental import TensorTransportMetadata, register_tensor_transport

from ray_nothing import NothingTransport

SLOTS = 48  # more than the objects of a round
DATA_BYTES = 100  # in a request and in its reply: the protobuf of rdtd's are about as long
HEADER = struct.Struct("=IHBBQ")  # bench.h: bytes, type, fds, flags, id
BENCH_PING = 5


def ping():
    """Header and Ping, whose only field is its data."""
    message = bytes([1 << 3 | 2, DATA_BYTES]) + bytes(DATA_BYTES)
    return HEADER.pack(len(message), BENCH_PING, 0, 0, 1) + message


@dataclass
class PlainMetadata(TensorTransportMetadata):
    path: str = ""  # of the memfd, as others may open it


class Echo:
    REQUEST = ping()

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(path)

    def round_trip(self):
        self.sock.sendall(self.REQUEST)
        missing = len(self.REQUEST)  # the reply is as long
        while missing:
            got = len(self.sock.recv(missing))
            if not got:
                raise ConnectionError("echo has ended")
            missing -= got


class Ring:
    """SLOTS memfds of one size, mapped and touched."""

    def __init__(self, size):
        fds = [os.memfd_create("plain", os.MFD_CLOEXEC) for _ in range(SLOTS)]
        for fd in fds:
            os.ftruncate(fd, size)
        self.paths = [f"/proc/{os.getpid()}/fd/{fd}" for fd in fds]
        self.arrays = [numpy.frombuffer(mmap.mmap(fd, size), numpy.uint8) for fd in fds]
        for array in self.arrays:
            array[:] = 1
        self.at = 0

    def copy(self, tensor):
        """Returns the path of the memfd that has it."""
        self.at = (self.at + 1) % SLOTS
        self.arrays[self.at][:] = tensor.numpy().reshape(-1).view(numpy.uint8)
        return self.paths[self.at]


class PlainTransport(NothingTransport):
    def __init__(self):
        self.daemon = None
        self.rings = {}  # of the source, by size
        self.files = {}  # of the target: fds by path

    def tensor_transport_backend(self):
        return "PLAIN"

    def round_trip(self):
        if not self.daemon:
            self.daemon = Echo(os.environ["ECHO_SOCKET"])
        self.daemon.round_trip()

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        (tensor,) = rdt_object
        ring = self.rings.get(tensor.nbytes)
        if ring is None:
            ring = self.rings[tensor.nbytes] = Ring(tensor.nbytes)
        path = ring.copy(tensor)
        self.round_trip()
        return PlainMetadata([(tensor.shape, tensor.dtype)], "cpu", path)

    def recv_multiple_tensors(self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None):
        self.round_trip()
        path = tensor_transport_metadata.path
        fd = self.files.get(path)
        if fd is None:
            fd = self.files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        ((shape, dtype),) = tensor_transport_metadata.tensor_meta
        size = shape.numel() * dtype.itemsize
        return [torch.frombuffer(mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE), dtype=dtype).view(shape)]


def register():
    """As ray_nothing.register(). $ECHO_SOCKET says where echo listens."""
    register_tensor_transport("plain", ["cpu"], PlainTransport, torch.Tensor)
