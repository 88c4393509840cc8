# SPDX-License-Identifier: Apache-2.0
"""The tensors of a value: each is stored once, however many names it has, and torch's come back as what they were.

numpy arrays are the same tensor if they are the same object, as for pickle. torch tensors share their storage: tied
weights are one tensor in two places, and overlapping views become one tensor that has all their elements, and views of
that."""
from __future__ import annotations

import sys
from itertools import combinations
from typing import Any, Optional, Union, cast

from . import _rdt
from ._arrays import torch
from ._errors import Mismatch

Take = Union[int, list[Any]]  # the number of a tensor, or ["same", ...] or ["view", ...] of _plain.py


def notes_of(tensors: list[Any]) -> str:
    """A letter for each tensor: what it is besides its elements. "." nothing, "g" requires_grad, "p" a Parameter, "f" a
    frozen Parameter, "?" something that only a pickle keeps. "": all are "."."""
    if "torch" not in sys.modules or torch() is None:
        return ""
    notes = _rdt.torch_notes(tensors)
    return notes if notes.strip(".") else ""


def dressed(tensor: Any, note: str, again: bool = False) -> Any:
    """The tensor with what its letter says. again: as another tensor of the same memory."""
    module = torch() if "torch" in sys.modules else None
    if module is None or not isinstance(tensor, module.Tensor):
        return tensor.view() if again and hasattr(tensor, "view") and not isinstance(tensor, _rdt.Tensor) else tensor
    if again or note in ("p", "f"):
        tensor = tensor.detach()
    if note in ("p", "f"):
        return module.nn.Parameter(tensor, note == "p")
    return tensor.requires_grad_() if note == "g" else tensor


def viewed(base: Any, dtype: str, offset: int, shape: list[int], strides: list[int], note: str) -> Any:
    """A view of a tensor's memory: dtype is torch's name, offset and strides count its elements."""
    if isinstance(base, _rdt.Tensor) or not hasattr(base, "view"):
        raise Mismatch("tensors of the object share their memory: fetch it with as_=\"auto\", \"torch\" or \"list\", and "
                       "without into")
    numbers = [offset, *shape, *strides]
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError("a view has a wrong shape")
    module = sys.modules.get("torch")
    if module is not None and isinstance(base, module.Tensor):
        wanted = vars(module).get(dtype)
        if not isinstance(wanted, module.dtype):
            raise ValueError("a view has a wrong dtype")
        flat = base.detach()
        if base.dtype != wanted:
            flat = flat[:len(flat) // wanted.itemsize * wanted.itemsize].view(wanted)
        room = flat.numel()
    else:
        np: Any = sys.modules["numpy"]
        flat = base.view(dtype)
        room = flat.size
    if flat.ndim != 1 or 0 not in shape and offset + sum((n - 1) * step for n, step in zip(shape, strides)) >= room:
        raise ValueError("a view does not lie in its tensor")
    if module is not None and isinstance(base, module.Tensor):
        return dressed(module.as_strided(flat, shape, strides, flat.storage_offset() + offset), note)
    size = flat.itemsize
    made = np.lib.stride_tricks.as_strided(flat[offset:], shape, [step * size for step in strides])
    return made


_Place = tuple[Any, ...]
_MOST_COMPARED = 256  # tensors whose memory interlocks; more are stored as one


def _place(tensor: Any) -> _Place:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _same_memory(a: Any, b: Any) -> bool:
    """Whether two tensors of one storage have a byte in common."""
    np: Any = sys.modules.get("numpy")
    if np is None or not a.is_cpu:
        return True

    def raw(tensor: Any) -> Any:
        size = tensor.element_size()

        class At:
            __array_interface__ = {
                "version": 3, "typestr": f"|V{size}", "data": (tensor.data_ptr(), True), "shape": tuple(tensor.shape),
                "strides": tuple(step * size for step in tensor.stride())}
        return np.asarray(At())

    try:
        return bool(np.shares_memory(raw(a), raw(b), max_work=10000))
    except Exception:  # numpy's TooHardError, whose name depends on the version
        return True


class Shared:
    """The torch tensors of a value that share memory, found by where they lie."""

    def __init__(self, tensors: list[Any]) -> None:
        self._bases: dict[_Place, tuple[Any, Optional[list[Any]]]] = {}
        self.only_names = True  # the tensors that share memory are equal views of it
        module = torch()
        storages: dict[int, list[Any]] = {}
        for tensor in tensors:
            if module is not None and isinstance(tensor, module.Tensor) and tensor.layout == module.strided \
                    and not tensor.is_nested and tensor.numel() and not tensor.is_conj() and not tensor.is_neg():
                storages.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        for group in storages.values():
            self._learn(module, group)

    def __bool__(self) -> bool:
        return bool(self._bases)

    def _learn(self, module: Any, group: list[Any]) -> None:
        """Finds out which tensors of one storage overlap, in groups of those that do."""
        group.sort(key=lambda tensor: (tensor.data_ptr(), -tensor.nbytes))
        together: list[Any] = []
        end = 0
        for tensor in group:
            size = tensor.element_size()
            last = tensor.data_ptr() + size * (1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride())))
            if together and tensor.data_ptr() >= end:
                self._join(module, together)
                together = []
            together.append(tensor)
            end = max(end, last)
        self._join(module, together)

    def _join(self, module: Any, group: list[Any]) -> None:
        first = group[0]
        if len({_place(tensor) for tensor in group}) == 1:
            if len(group) > 1:
                self._bases[_place(first)] = first, None
            return
        if len(group) <= _MOST_COMPARED and not any(_same_memory(a, b) for a, b in combinations(group, 2)):
            return  # columns of one matrix, for example
        self.only_names = False
        size = first.element_size()
        dtype = first.dtype
        if any(tensor.dtype != dtype or (tensor.data_ptr() - first.data_ptr()) % size for tensor in group):
            dtype, size = module.uint8, 1
        begin = first.data_ptr()
        end = max(t.data_ptr() + t.element_size() * (1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride())))
                  for t in group)
        storage = first.untyped_storage()
        skip = begin - storage.data_ptr()
        if skip + end - begin > storage.nbytes() or any((t.data_ptr() - begin) % t.element_size() for t in group):
            return
        base = module.empty(0, dtype=dtype, device=first.device).set_(storage, skip // size, ((end - begin) // size,), (1,))
        for t in group:
            offset = (t.data_ptr() - begin) // t.element_size()
            self._bases[_place(t)] = base, [str(t.dtype).rpartition(".")[2], offset, list(t.shape), list(t.stride())]

    def of(self, tensor: Any) -> Optional[tuple[Any, Optional[list[Any]]]]:
        """The tensor that is stored for this one, and its view; None: it shares no memory."""
        if tensor.layout is not sys.modules["torch"].strided or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
            return None
        return self._bases.get(_place(tensor))


class Leaves:
    """The tensors of a value that is being written, and their numbers."""

    def __init__(self, shared: Optional[Shared] = None) -> None:
        self.tensors: list[Any] = []
        self.kinds: list[str] = []
        self.refs: list[Any] = []  # the Refs in the value
        self._shared = shared
        self._numbers: dict[int, int] = {}

    def take(self, tensor: Any, kind: str) -> Take:
        return self._number(tensor, kind) if self._shared is None else self._shared_take(tensor, kind)

    def _number(self, tensor: Any, kind: str) -> int:
        number = self._numbers.setdefault(id(tensor), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(tensor)
            self.kinds.append(kind)
        return number

    def _shared_take(self, tensor: Any, kind: str) -> Take:
        found = cast(Shared, self._shared).of(tensor) if kind == "t" else None
        if found is None:
            return self._number(tensor, kind)
        base, view = found
        number = self._number(base, kind)
        if view is None:
            return number if tensor is base else ["same", number, notes_of([tensor]) or "."]
        return ["view", number, *view, notes_of([tensor]) or "."]

    def shares(self) -> Optional[Shared]:
        """What of the tensors shares memory; None: nothing does. To be known before they are taken again."""
        if "t" not in self.kinds or self._shared is not None or not _rdt.torch_overlap(self.tensors):
            return None
        return Shared(self.tensors) or None
