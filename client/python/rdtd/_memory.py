# SPDX-License-Identifier: Apache-2.0
"""Arrays in the daemon's memory, and the GPUs that they may be on."""
from __future__ import annotations

from typing import Any, Literal, Optional, Sequence, Union

from . import _rdt
from ._arrays import (DTYPES, dtype_text, gpu_of, kind_of, to_numpy, to_torch, torch_uses_gpus)
from ._check import a_number, checked, shown
from ._errors import Unsupported
from ._targets import flatten

As = Literal["auto", "numpy", "torch", "tensor", "list"]
ALIGN = 64  # alignment in bytes of arrays that share an allocation


class MemoryCalls(_rdt.Conn):
    """The part of Connection that allocates arrays."""

    _gpus_open = False

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
        leaves = flatten(value, "value")
        shapes = []
        kinds = []
        for leaf in leaves:
            text = leaf.dtype if isinstance(leaf, _rdt.Tensor) else dtype_text(getattr(leaf, "dtype", "u8"))
            shapes.append((tuple(getattr(leaf, "shape", None)
                                 or (() if hasattr(leaf, "shape") else (len(leaf),))), text))
            kinds.append("t" if kind_of(leaf) == "t" else "auto")
        made = iter(self._arrays(shapes, kinds, timeout, None if device is None else self._place(device)))

        def rebuild(node: Any) -> Any:
            if kind_of(node):
                return next(made)
            if isinstance(node, dict):
                return {key: rebuild(item) for key, item in node.items()}
            return type(node)([rebuild(item) for item in node])

        return rebuild(value)

    def _arrays(self, shapes: list[tuple[tuple[int, ...], str]], kinds: Sequence[str],
                timeout: Optional[float],
                place: Optional[tuple[Optional[str], Optional[str]]]) -> list[Any]:
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
        return made

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
