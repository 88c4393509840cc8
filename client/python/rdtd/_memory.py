# SPDX-License-Identifier: Apache-2.0
"""Arrays in the daemon's memory, memory of the program that the daemon knows, and the GPUs that they may be on."""
from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, Sequence, Union, cast

from . import _rdt
from ._arrays import (DTYPES, dtype_text, gpu_of, kind_of, to_numpy, to_torch, torch, torch_uses_gpus)
from ._check import a_number, checked, shown
from ._errors import Disconnected, Forked, Invalid, Mismatch, Unsupported
from ._targets import flatten, places

if TYPE_CHECKING:
    from ._connection import Connection

As = Literal["auto", "numpy", "torch", "tensor", "list"]
ALIGN = 64  # alignment in bytes of arrays that share an allocation


class _Mapped(NamedTuple):
    """A line of /proc/self/maps."""
    start: int
    end: int
    shared: bool
    offset: int
    device: int
    inode: int
    path: str


def _mapping_of(address: int, count: int) -> Optional[_Mapped]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            ends, access, offset, device, inode, *path = line.split(None, 5)
            start, end = [int(number, 16) for number in ends.split("-")]
            if start <= address < end:
                major, minor = [int(number, 16) for number in device.split(":")]
                return _Mapped(start, end, access[3] == "s", int(offset, 16), os.makedev(major, minor), int(inode),
                               path[0].strip() if path else "") if address + count <= end else None
    return None


def _descriptor_of(mapped: _Mapped) -> Optional[int]:
    """A descriptor of this process for the mapping's file: mmap.mmap, for instance, keeps one."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            stat = os.fstat(int(name))
            if (stat.st_dev, stat.st_ino) == (mapped.device, mapped.inode):
                return int(name)
    return None


class Imported:
    """Memory that the daemon knows, see `Connection.import_memory`. `close`, or leaving a `with` block, ends that."""

    def __init__(self, connection: MemoryCalls, keeps: Any, start: int, count: int, on_gpu: bool = False) -> None:
        self._connection = weakref.ref(connection)
        self._keeps: Any = keeps
        self._on_gpu = on_gpu
        self.address, self.bytes = start, count

    def __repr__(self) -> str:
        return f"<rdtd.Imported{'' if self._keeps else ' (closed)'}: {self.bytes} bytes at {self.address:#x}>"

    def __enter__(self) -> Imported:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def close(self) -> None:
        """The daemon forgets the memory: later puts of tensors there copy them. Objects that were put stay. The program may
        then unmap the memory; that of a GPU it may free when no object is left there (`wait_freed`). A second close does
        nothing."""
        connection = self._connection()
        keeps, self._keeps = self._keeps, None
        if keeps is None:
            return
        if connection is not None:
            connection._imported.pop(self.address, None)
            with contextlib.suppress(Disconnected, Forked):
                connection._forget(self.address, self._on_gpu)
        self._drop(keeps)

    @staticmethod
    def _drop(keeps: Any) -> None:
        for view in keeps:
            if isinstance(view, memoryview):
                view.release()


def _copy(target: Any, source: Any) -> None:
    if kind_of(target) == "t":
        module = torch()
        with module.no_grad():
            target.copy_(source if kind_of(source) == "t" else module.as_tensor(source))
    elif isinstance(target, _rdt.Tensor):  # numpy lacks its dtype
        raw: Any = source.bits() if isinstance(source, _rdt.Tensor) else source
        memory: Any = target.bits()
        memoryview(memory).cast("B")[:] = memoryview(raw).cast("B")
    else:
        target[...] = memoryview(source) if isinstance(source, bytes) else source  # numpy takes bytes for a text


class Buffers:
    """Sets of arrays that are given in turn, see `Connection.buffers`. One thread at a time uses them."""

    def __init__(self, connection: Connection, sets: list[tuple[Any, _rdt.Tensor]]) -> None:
        self._connection = connection
        self._sets = sets
        self._turn = 0

    def __len__(self) -> int:
        return len(self._sets)

    def next(self, timeout: Optional[float] = None) -> Any:
        """The next set, which may be written: waits until no object that was put from it has a hold or a transfer left, on any
        node. Error: TimedOut (names an object and who holds it), after which the same set is the next."""
        value, memory = self._sets[self._turn]
        self._connection.wait_freed(memory, timeout=timeout)
        self._turn = (self._turn + 1) % len(self._sets)
        return value

    async def next_async(self, timeout: Optional[float] = None) -> Any:
        """Like `next`, for event loops."""
        value, memory = self._sets[self._turn]
        await self._connection.when_freed(memory, timeout=timeout)
        self._turn = (self._turn + 1) % len(self._sets)
        return value

    def filled(self, state: Any, timeout: Optional[float] = None) -> Any:
        """The next set, with the values of `state`, whose structure, shapes and dtypes are those of `like`. Tensors of torch
        may be on GPUs. Errors: Mismatch (names the tensor; nothing was copied), TimedOut."""
        theirs = dict(places(state, "state"))
        mine = dict(places(self._sets[self._turn][0], "state"))
        if theirs.keys() != mine.keys():
            other = next(where for where in (*mine, *theirs) if where not in mine or where not in theirs)
            raise Mismatch(f"{other} is a tensor of {'state' if other in theirs else 'the buffers'} alone")
        for where, source in theirs.items():
            shape, wanted = _shape_of(source), _shape_of(mine[where])
            if shape != wanted:
                raise Mismatch(f"{where} has the shape {shape}, and its buffer {wanted}")
            dtype, wanted_dtype = _dtype_of(source), _dtype_of(mine[where])
            if dtype != wanted_dtype:
                raise Mismatch(f"{where} has the dtype {dtype}, and its buffer {wanted_dtype}")
        value = self.next(timeout)
        for where, target in places(value, "state"):
            _copy(target, theirs[where])
        return value


def _shape_of(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape if hasattr(tensor, "shape") else memoryview(tensor).shape)


_OF_FORMAT = {"?": "bool", "e": "f16", "f": "f32", "d": "f64", "Zf": "c64", "Zd": "c128", "c": "u8"}  # of memoryview


def _dtype_of(tensor: Any) -> str:
    if isinstance(tensor, _rdt.Tensor):
        return tensor.dtype
    if hasattr(tensor, "dtype"):
        return dtype_text(tensor.dtype)
    view = memoryview(tensor)
    code = view.format.lstrip("@=<")
    if code and code in "bBhHiIlLqQ":
        return f"{'u' if code.isupper() else 'i'}{8 * view.itemsize}"
    if code not in _OF_FORMAT:
        raise TypeError(f"the elements of {shown(tensor)} have the format {view.format!r}, and no rdtd dtype matches it")
    return _OF_FORMAT[code]


class MemoryCalls(_rdt.Conn):
    """The part of Connection that allocates arrays."""

    _gpus_open = False
    _imported: dict[int, Imported]  # by address

    @checked
    def import_memory(self, buffer: Any, *, fd: Optional[int] = None) -> Imported:
        """Makes memory of this program known to the daemon, so that putting tensors there copies nothing, and a fetch into
        them is written by the daemon. For memory that other processes map, too, such as the pages of an engine.

        buffer: an mmap, array, tensor or memoryview in a shared mapping of a file of `os.memfd_create(name,
        os.MFD_ALLOW_SEALING)`, which begins at the beginning of the file; the daemon knows the whole mapping then. Only such
        memory can be passed on: the pages of malloc, of anonymous mmaps, of torch's pinned allocator and of files in
        /dev/shm cannot, and `empty` allocates memory that needs no import. The file is sealed against shrinking, unless it is.
        fd: a descriptor of the file; None: one that this process has (an mmap keeps one).
        A tensor on a GPU, such as an engine's KV cache, is made known with the whole allocation or the chunks that hold it:
        memory of cudaMalloc that fills blocks of 2 MiB, or PyTorch's expandable segments.

        Objects from there are live: `wait_freed` returns when nobody reads a tensor any more. The memory stays known until
        `Imported.close`, or this connection is closed; until then the buffer is kept, and an mmap cannot be closed.
        Errors: Unsupported (other memory, the message says which), Invalid (it is known already), LimitReached."""
        try:
            start, count = self._span(buffer)
        except (TypeError, ValueError) as error:
            raise TypeError(f"buffer must be an mmap, an array, a tensor or a memoryview, not {shown(buffer)}") from error
        base = self._offer(buffer, start, count)
        if base is not None:
            made = self._imported[base] = Imported(self, [buffer], base, start + count - base, True)
            return made
        mapped = _mapping_of(start, max(count, 1))
        if mapped is None or not mapped.shared or not mapped.inode or mapped.path.startswith("/dev/zero"):  # anonymous memory
            raise Unsupported("the buffer does not lie in a shared mapping of a file, which the daemon could map, too: take "
                              "memory of os.memfd_create, or of empty, or put it, which copies it")
        if mapped.offset:
            raise Unsupported(f"the mapping of the buffer begins {mapped.offset} bytes behind the beginning of its file: map "
                              "the file from its beginning")
        if mapped.start in self._imported:
            raise Invalid(f"{self._imported[mapped.start]!r} is known already: use it, or close it first")
        number = _descriptor_of(mapped) if fd is None else a_number(fd, "fd", 0, 2**31 - 1)
        if number is None:
            raise Unsupported(f"this process has no descriptor of {mapped.path}: pass it as fd, unless the memory is from "
                              "empty, which needs no import")
        try:
            stat = os.fstat(number)
        except OSError as error:
            raise ValueError(f"fd {number} is not open in this process") from error
        if (stat.st_dev, stat.st_ino) != (mapped.device, mapped.inode):
            raise ValueError(f"fd is the descriptor of another file than {mapped.path}, in which the buffer lies")
        try:
            if not fcntl.fcntl(number, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        except OSError as error:
            raise Unsupported(f"{mapped.path} cannot be sealed against shrinking, so its memory could vanish while others read "
                              "it: take memory of os.memfd_create(name, os.MFD_ALLOW_SEALING), or of empty") from error
        length = min(mapped.end - mapped.start, stat.st_size)
        self._import(number, mapped.start, length)
        keeps = [buffer]
        with contextlib.suppress(TypeError, ValueError, BufferError):
            keeps.append(memoryview(buffer))
        made = Imported(self, keeps, mapped.start, length)
        self._imported[mapped.start] = made
        return made

    @checked
    def empty(self, shape: Union[int, Sequence[int]], dtype: Any = "f32", *, as_: As = "auto",
              timeout: Optional[float] = None,
              device: Any = None) -> Any:
        """Allocates a zeroed array in the daemon's memory. Putting it copies nothing.

        shape: number of elements in each dimension. dtype: "f32", "bf16", numpy.float32, torch.bfloat16,
        float, ...
        as_: "numpy", "torch" or "tensor"; "auto" is numpy unless dtype is a torch dtype or numpy lacks the
        dtype. The memory lives as long as the last array, tensor or view of it, and as long as any object
        that was put from it. timeout: seconds, of which the daemon may wait for room under a limit; None: it
        does not wait, and the call takes at most a minute, and a second more for each 64 MiB. device: None or
        "host"; or a GPU ("cuda:0", torch.device, its ordinal in this process, its UUID), where the array is a
        torch tensor if dtype is a torch dtype or as_ is "torch", and an rdtd.Tensor otherwise.
        Errors: NoMemory, LimitReached, TimedOut, TypeError (unknown dtype), Unsupported (a GPU that the
        daemon or this process lacks)."""
        text = dtype_text(dtype)
        if isinstance(shape, (str, bytes, dict)) or not hasattr(shape, "__iter__") and not hasattr(shape, "__index__"):
            raise TypeError(f"shape must be a number or a list of numbers, not {shown(shape)}")
        listed = (shape,) if hasattr(shape, "__index__") and not hasattr(shape, "__len__") else tuple(shape)
        dims = tuple([a_number(n, "a dimension of shape", 0, 2**63 - 1) for n in listed])
        kind = "t" if as_ == "auto" and str(dtype).startswith("torch.") else as_
        return self._arrays([(dims, text)], [kind], timeout,
                            None if device is None else self._place(device))[0]

    @checked
    def empty_like(self, value: Any, *, timeout: Optional[float] = None, device: Any = None) -> Any:
        """Allocates arrays like all tensors of a structure of dicts, lists and tuples, in one allocation, and
        returns the same structure.

        Fill the arrays (a model's state dict, for instance) and put them, step after step, without a copy.
        device, errors: see `empty`."""
        return self._like(value, flatten(value, "value"), timeout, device)[0]

    @checked
    def buffers(self, like: Any, *, count: int = 2, timeout: Optional[float] = None, device: Any = None) -> Buffers:
        """Allocates `count` sets of arrays like all tensors of a structure, each as `empty_like` does, which are given in turn:
        for a trainer that publishes each step, and then allocates nothing and waits only for readers that are `count` versions
        behind. device, errors: see `empty`.

            buffers = c.buffers(like=model.state_dict())
            for step in ...:
                c.publish("policy", buffers.filled(model.state_dict()), immutable=True)"""
        leaves = flatten(like, "like")
        if not leaves:
            raise ValueError("like has no tensors")
        number = a_number(count, "count", 1, 1 << 16)
        end = None if timeout is None else time.monotonic() + timeout
        return Buffers(cast("Connection", self), [self._like(like, leaves, None if end is None else max(0.0, end - time.monotonic()), device)
                              for _ in range(number)])

    def _like(self, value: Any, leaves: list[Any], timeout: Optional[float], device: Any) -> tuple[Any, _rdt.Tensor]:
        """The same structure with new arrays, and all their memory as bytes."""
        shapes = []
        kinds = []
        for leaf in leaves:
            text = _dtype_of(leaf)
            shapes.append((_shape_of(leaf), text))
            kinds.append("t" if kind_of(leaf) == "t" else "auto")
        made, memory = self._allocated(shapes, kinds, timeout, None if device is None else self._place(device))
        left = iter(made)

        def rebuild(node: Any) -> Any:
            if kind_of(node):
                return next(left)
            if isinstance(node, dict):
                return {key: rebuild(item) for key, item in node.items()}
            items = [rebuild(item) for item in node]
            return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)  # a named tuple takes each by itself

        return rebuild(value), memory

    def _arrays(self, shapes: list[tuple[tuple[int, ...], str]], kinds: Sequence[str], timeout: Optional[float],
                place: Optional[tuple[Optional[str], Optional[str]]]) -> list[Any]:
        return self._allocated(shapes, kinds, timeout, place)[0]

    def _allocated(self, shapes: list[tuple[tuple[int, ...], str]], kinds: Sequence[str], timeout: Optional[float],
                   place: Optional[tuple[Optional[str], Optional[str]]]) -> tuple[list[Any], _rdt.Tensor]:
        offsets = []
        end = 0
        for dims, text in shapes:
            count = DTYPES[text].bytes
            for n in dims:
                count *= n
            if len(dims) > 32 or count >= 2**62:
                raise ValueError(f"the shape {shown(dims)} has more than 32 dimensions or 2^62 bytes")
            offsets.append(end)
            end += -(-count // ALIGN) * ALIGN
        memory = _rdt.Memory(self, max(end, 1), timeout, place)
        made = []
        for (dims, text), offset, kind in zip(shapes, offsets, kinds):
            tensor = memory.tensor(DTYPES[text].number, dims, offset)
            if kind in ("t", "torch"):
                made.append(to_torch(tensor))
            else:
                made.append(tensor if kind == "tensor" else to_numpy(tensor))
        return made, memory.tensor(DTYPES["u8"].number, (max(end, 1),), 0)

    def _place(self, device: Any) -> Optional[tuple[Optional[str], Optional[str]]]:
        """The memory kind and device uuid of a device that the caller names; None: keep each tensor where it
        is."""
        if device is None:
            if not self._gpus_open and torch_uses_gpus():
                self._open_gpus(False)
            return None
        gpu = gpu_of(device)
        if gpu is None:
            return "host", None
        self._open_gpus(True)
        return "cuda", gpu if isinstance(gpu, str) else self._gpu(gpu)

    def _open_gpus(self, wanted: bool) -> None:
        try:
            self._gpu_open()
        except Unsupported:
            if wanted:
                raise
        self._gpus_open = True
