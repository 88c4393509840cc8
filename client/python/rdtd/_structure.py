# SPDX-License-Identifier: Apache-2.0
"""Encodes nested values as objects: their tensors become the object's tensors, and the rest becomes its
metadata.

The first bytes of the metadata tell which of three forms it has:
- a safetensors header, for a dict of tensors. `rdtctl fetch` writes such an object as a safetensors file, and
  files that `rdtctl put` reads are fetched as dicts.
- {"rdt": 1, "form": "tree", ...}: JSON that refers to tensors by number, for dicts, lists, tuples, strings,
  numbers and bytes.
- {"rdt": 1, "form": "pickle", ...}: a pickle that refers to tensors by number, for everything else. "buffers"
  are the numbers of those that are its out-of-band buffers (PEP 574), in order.

A single tensor has no metadata, or only a note that it was a torch tensor. Long text is stored as one more
tensor after the others ("tail"). """
from __future__ import annotations

import io
import json
import pickle
import re
from collections import OrderedDict
from typing import Any, Callable, Iterator, NamedTuple, Optional, cast

from . import _rdt
from ._arrays import convert, kind_of, to_numpy
from ._errors import Mismatch, PickleRefused

_quote: Callable[[str], str] = json.JSONEncoder().encode  # quotes a string; the fastest way that json offers
TAIL_BYTES = 1 << 18  # longer text becomes a tensor
BLOB_BYTES = 1 << 12  # longer bytes in a pickle become a tensor


_ONE_OF_TORCH = b'{"rdt":1,"kinds":"t"}\n'  # the metadata of a single torch tensor


class Encoded(NamedTuple):
    tensors: list[Any]
    metadata: bytes
    # JSON strings for a safetensors header that `metadata` completes; None: another form.
    names: Optional[list[str]]
    has_torch: bool


class _NotPlain(Exception):
    """A part of the value needs a pickle; the message says which part."""


def encode(value: Any, allow_pickle: bool) -> Encoded:
    """Encodes a value. Raises TypeError, which names the part, if it needs a pickle and allow_pickle is
    False."""
    kind = kind_of(value)
    if kind == "t":
        return Encoded([value], _ONE_OF_TORCH, None, True)
    if kind in ("n", "o"):
        return Encoded([value], b"", None, False)
    return _encode_flat(value) or encode_nested(value, allow_pickle)


def encode_nested(value: Any, allow_pickle: bool) -> Encoded:
    tensors: list[Any] = []
    kinds: list[str] = []
    try:
        tree = _tree(value, "value", tensors, kinds)
        return _pack("tree", json.dumps(tree, separators=(",", ":")).encode(), tensors, kinds)
    except _NotPlain as why:
        if not allow_pickle:
            raise TypeError(f"put without pickle: {why}") from None
    tensors, kinds = [], []
    out = io.BytesIO()
    pickler = _Pickler(out, tensors, kinds)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        where, part = _unpicklable(value, "value")
        what = f"{where}, a {_type_name(part)}"
        raise TypeError(f"put: {what}, is not a tensor and cannot be pickled: {error}") from error
    return _pack("pickle", out.getvalue(), tensors, kinds, pickler.buffers)


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _parts(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The direct parts of a value, each with the expression that names it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{where}[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield f"{where}[{i}]", item
    elif not kind_of(value):
        for name, item in getattr(value, "__dict__", {}).items():
            yield f"{where}.{name}", item


def _unpicklable(value: Any, where: str) -> tuple[str, Any]:
    """The innermost part that cannot be pickled."""
    for inner, part in _parts(value, where):
        try:
            _Pickler(io.BytesIO(), [], []).dump(part)
        except Exception:
            return _unpicklable(part, inner)
    return where, value


def _place_of(leaf: Any, value: Any, where: str, depth: int = 0) -> Optional[str]:
    if value is leaf:
        return where
    if depth == 32:
        return None
    return next((found for inner, part in _parts(value, where)
                 if (found := _place_of(leaf, part, inner, depth + 1))), None)


def refused(error: Exception, value: Any, tensors: list[Any]) -> Exception:
    """The error of a put that names a tensor by its number, with the expression that names it in `value`."""
    found = re.match(r"put: tensor (\d+): (.*)", str(error), re.DOTALL)
    if not found or int(found[1]) >= len(tensors):
        return error
    leaf = tensors[int(found[1])]
    layout = str(getattr(leaf, "layout", "torch.strided"))
    why = found[2]
    if layout != "torch.strided":
        why = f"it has the layout {layout}: put its parts, or its to_dense()"
    elif not isinstance(error, TypeError):
        return error
    return TypeError(f"put: tensor {found[1]}, {_place_of(leaf, value, 'value') or 'inside a pickle'}: {why}")


def _pack(form: str, text: bytes, tensors: list[Any], kinds: list[str],
          buffers: Optional[list[int]] = None) -> Encoded:
    head: dict[str, Any] = {"rdt": 1, "form": form, "kinds": _shorten(kinds)}
    if buffers:
        head["buffers"] = buffers
    has_torch = "t" in kinds
    if len(text) > TAIL_BYTES:
        head["tail"] = True
        tensors.append(memoryview(text))
        text = b""
    return Encoded(tensors, json.dumps(head, separators=(",", ":")).encode() + b"\n" + text, None, has_torch)


def _shorten(kinds: list[str]) -> str:
    if not kinds:
        return "n"
    return kinds[0] if kinds.count(kinds[0]) == len(kinds) else "".join(kinds)


def _encode_flat(value: Any) -> Optional[Encoded]:
    cls = type(value)
    if cls is not dict and cls is not OrderedDict or not value or "__metadata__" in value:
        return None
    names = []
    kinds = []
    for name, leaf in value.items():
        kind = kind_of(leaf)
        if type(name) is not str or kind not in ("n", "t", "o"):
            return None
        names.append(_quote(name))
        kinds.append(kind)
    said = _shorten(kinds)
    more = {"rdt": said} if cls is dict else {"rdt": said, "rdt.type": "OrderedDict"}
    return Encoded(list(value.values()), b',"__metadata__":' + json.dumps(more).encode() + b"\0", names,
                   "t" in said)


_SCALARS = frozenset((str, int, bool, type(None)))


def _tree(value: Any, where: str, tensors: list[Any], kinds: list[str]) -> Any:
    cls = type(value)
    if cls in _SCALARS or cls is float:
        return value
    kind = kind_of(value)
    if kind:
        tensors.append(value)
        kinds.append(kind)
        return {"$": len(tensors) - 1}
    if cls is list:
        if value and all(map(kind_of, value)):  # only tensors: one entry for all of them
            first = len(tensors)
            tensors += value
            kinds += map(kind_of, value)
            return {"$list": [first, len(value)]}
        return [_tree(item, f"{where}[{i}]", tensors, kinds) for i, item in enumerate(value)]
    if cls is tuple:
        return {"$tuple": [_tree(item, f"{where}[{i}]", tensors, kinds) for i, item in enumerate(value)]}
    if cls is dict and all(type(key) is str and key[:1] != "$" for key in value):
        return {key: _tree(item, f"{where}[{key!r}]", tensors, kinds) for key, item in value.items()}
    if cls is dict or cls is OrderedDict:
        pairs = []
        for key, item in value.items():
            if type(key) not in _SCALARS and type(key) is not float:
                raise _NotPlain(f"{where} has a key of type {type(key).__name__}")
            pairs.append([key, _tree(item, f"{where}[{key!r}]", tensors, kinds)])
        return {"$dict" if cls is dict else "$ordered": pairs}
    if isinstance(value, _rdt.Ref):
        return {"$ref": str(value)}
    raise _NotPlain(f"{where} is a {cls.__module__}.{cls.__qualname__}: put its fields, or allow_pickle=True")


def _untree(node: Any, leaves: list[Any], ref: Callable[[str], Any]) -> Any:
    if isinstance(node, list):
        return [_untree(item, leaves, ref) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        ((key, inner),) = node.items()
        if key == "$":
            return leaves[inner]
        if key == "$list":
            first, count = inner
            return leaves[first:first + count]
        if key == "$tuple":
            return tuple(_untree(item, leaves, ref) for item in inner)
        if key == "$dict":
            return {k: _untree(item, leaves, ref) for k, item in inner}
        if key == "$ordered":
            return OrderedDict((k, _untree(item, leaves, ref)) for k, item in inner)
        if key == "$ref":
            return ref(inner)
    return {key: _untree(item, leaves, ref) for key, item in node.items()}


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, tensors: list[Any], kinds: list[str]) -> None:
        super().__init__(out, protocol=5, buffer_callback=self._take_buffer)
        self.tensors = tensors
        self.kinds = kinds
        self.numbers: dict[int, int] = {}
        self.buffers: list[int] = []

    def _take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether the buffer stays in the pickle."""
        raw = buffer.raw()
        if raw.nbytes < BLOB_BYTES:
            return True
        self.buffers.append(len(self.tensors))
        self.tensors.append(raw)
        self.kinds.append("o")
        return False

    def persistent_id(self, value: Any) -> Optional[int]:
        kind = kind_of(value)
        if not kind or kind in "bB" and len(value) < BLOB_BYTES:
            return None
        number = self.numbers.setdefault(id(value), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(value)
            self.kinds.append(kind)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, text: bytes, leaves: list[Any], buffers: list[Any]) -> None:
        super().__init__(io.BytesIO(text), buffers=buffers)
        self.leaves = leaves

    def persistent_load(self, number: int) -> Any:
        return self.leaves[number]


# ---- reading ----

_Names = tuple[list[str], str, "type[dict[str, Any]]"]


def _by_name_quickly(metadata: bytes, tensors: list[_rdt.Tensor]) -> Optional[_Names]:
    """Like _by_name, for a header that put wrote; None for every other header."""
    found = _rdt.header_names(metadata)
    if found is None or len(found[0]) != len(tensors) or len(set(found[0])) != len(tensors):
        return None
    try:
        more = json.loads(found[1])
    except ValueError:  # more text follows: not a header of ours
        return None
    return _kinds_of(found[0], more) if isinstance(more, dict) else None


def _kinds_of(names: list[str], more: dict[str, Any]) -> _Names:
    ordered = more.get("rdt.type") == "OrderedDict"
    return names, str(more.get("rdt", "n")), cast("type[dict[str, Any]]", OrderedDict if ordered else dict)


def _by_name(head: dict[str, Any], tensors: list[_rdt.Tensor]) -> Optional[_Names]:
    """The names in the order of the tensors, the kinds and the dict type, if this is a safetensors header for
    these tensors; otherwise None."""
    more = head.pop("__metadata__", {})
    if not isinstance(more, dict) or len(head) != len(tensors):
        return None
    try:
        begins: list[list[int]] = [entry["data_offsets"] for entry in head.values()]
        names = list(head)
        if any(a > b for a, b in zip(begins, begins[1:])):
            order = sorted(range(len(names)), key=lambda i: begins[i])
            names = [names[i] for i in order]
    except (KeyError, TypeError):
        return None
    return _kinds_of(names, more)


def _head(metadata: bytes) -> tuple[Optional[dict[str, Any]], bytes]:
    if metadata[:1] != b"{":
        return None, b""
    line, _, text = metadata.partition(b"\n")
    try:
        head = json.loads(line)
    except ValueError:
        try:
            head = json.loads(metadata)  # a header with line breaks
        except ValueError:
            return None, b""
    return (head, text) if isinstance(head, dict) else (None, b"")


def _as_buffer(tensor: Any) -> Any:
    """The bytes of a tensor as an object with the buffer protocol: its own memory, unless that is on a GPU. Places of
    targets have none."""
    if not isinstance(tensor, _rdt.Tensor):
        return b""
    return tensor if tensor.device == "cpu" else tensor.tobytes()


class Layout:
    """The structure of an object's tensors, read from its metadata."""

    def __init__(self, metadata: bytes, tensors: list[_rdt.Tensor]) -> None:
        self.tensors = tensors
        self.form = "bare"
        self.text: bytes = b""
        self.kinds = "n"
        self.names = None
        self.buffers: list[int] = []
        if metadata == _ONE_OF_TORCH:
            self.kinds = "t"
            return
        self.names = _by_name_quickly(metadata, tensors)
        if self.names:
            self.form, self.kinds = "names", self.names[1]
            return
        head, self.text = _head(metadata)
        if head is None:
            return
        if head.get("rdt") == 1:
            self.kinds = str(head.get("kinds", "n"))
            self.form = str(head.get("form", "bare"))
            self.buffers = [i for i in head.get("buffers", []) if 0 <= i < len(tensors)]
            if head.get("tail") and tensors:
                self.text = tensors[-1].tobytes()
                self.tensors = tensors[:-1]
        else:
            self.names = _by_name(head, tensors)
            if self.names:
                self.form, self.kinds = "names", self.names[1]

    @property
    def has_torch(self) -> bool:
        return "t" in self.kinds

    def leaves(self, as_: str) -> list[Any]:
        return convert(self.tensors, self.kinds, as_)

    def value(self, as_: str, may_unpickle: bool, ref: Callable[[str], Any]) -> Any:
        """The value that was put. Raises PickleRefused."""
        return self.leaves("auto") if as_ == "list" else self.filled(self.leaves(as_), may_unpickle, ref)

    def filled(self, leaves: list[Any], may_unpickle: bool, ref: Callable[[str], Any]) -> Any:
        """The structure with `leaves` in place of its tensors. Raises PickleRefused."""
        if self.form == "pickle" and not may_unpickle:
            raise PickleRefused("the object's structure is a pickle, which can run any code of its "
                                "producer: pass allow_pickle=True if you "
                                "trust the producer, or as_=\"list\" for the tensors alone")
        if self.form == "names":
            names, _, cls = cast(_Names, self.names)
            return cls(zip(names, leaves))
        if self.form == "tree":
            return _untree(json.loads(self.text), leaves, ref)
        if self.form == "pickle":
            return _Unpickler(self.text, leaves, [_as_buffer(self.tensors[i]) for i in self.buffers]).load()
        return leaves[0] if len(leaves) == 1 else leaves


def bare(tensors: list[_rdt.Tensor]) -> Any:
    """The value of an object without metadata."""
    return to_numpy(tensors[0]) if len(tensors) == 1 else [to_numpy(tensor) for tensor in tensors]


def flatten(value: Any) -> list[Any]:
    """The tensors of a nested value, in the order of put. Raises TypeError if the value contains anything
    else."""
    if kind_of(value):
        return [value]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in flatten(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flatten(item)]
    raise TypeError(f"targets must be tensors in dicts, lists and tuples; found a {type(value).__name__}")


# ---- targets ----

_IN_ORDER = "pass as_=\"list\" and a list of targets in the order of the tensors"


class _Place:
    """Stands for a tensor of the object in the object's structure."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def tobytes(self) -> bytes:
        raise Mismatch(f"the object's structure is too large to be matched with into: {_IN_ORDER}")


def arrange(metadata: bytes, count: int, into: Any, may_unpickle: bool) -> list[Any]:
    """The targets of `into` in the order of the object's tensors: dicts match by key, lists and tuples by
    index. Parts of the object without tensors need no counterpart. Raises Mismatch, which names the place."""
    layout = Layout(metadata, cast("list[_rdt.Tensor]", [_Place(i) for i in range(count)]))
    if layout.form == "bare" and not isinstance(into, dict):
        return flatten(into)  # the tensors have an order and nothing else
    placed: dict[int, Any] = {}
    _place(into, layout.filled(layout.tensors, may_unpickle, str), "into", placed)
    if len(placed) != count:
        raise Mismatch(f"the object has {count} tensors, of which only {len(placed)} lie in its dicts, "
                        f"lists and tuples: {_IN_ORDER}")
    return [placed[i] for i in range(count)]


def _place(into: Any, put: Any, where: str, placed: dict[int, Any]) -> None:
    if kind_of(into):
        if not isinstance(put, _Place):
            raise Mismatch(f"{where} is a tensor, but the object has {_described(put)} there")
        if put.number in placed:
            raise Mismatch(f"{where}: the object has this tensor in two places: {_IN_ORDER}")
        placed[put.number] = into
    elif isinstance(into, dict):
        if not isinstance(put, dict):
            raise Mismatch(f"{where} is a dict, but the object has {_described(put)} there")
        for key, item in into.items():
            if key not in put:
                raise Mismatch(f"{where} has the key {key!r}, but the object has {_described(put)} there")
            _place(item, put[key], f"{where}[{key!r}]", placed)
        for key, item in put.items():
            if key not in into and _has_tensors(item):
                raise Mismatch(f"{where} has no target for the object's key {key!r}")
    else:
        if not isinstance(put, (list, tuple)):
            raise Mismatch(f"{where} is a {type(into).__name__}, but the object has {_described(put)} "
                            f"there: give it that structure, or {_IN_ORDER}")
        parts = [item for item in put if _has_tensors(item)]
        if len(parts) != len(into):
            raise Mismatch(f"{where} has {len(into)} targets, but the object has {_described(put)} there, "
                            f"with tensors in {len(parts)} of its items")
        for i, (item, part) in enumerate(zip(into, parts)):
            _place(item, part, f"{where}[{i}]", placed)


def _has_tensors(put: Any) -> bool:
    if isinstance(put, dict):
        return any(map(_has_tensors, put.values()))
    return isinstance(put, _Place) or isinstance(put, (list, tuple)) and any(map(_has_tensors, put))


def _described(put: Any) -> str:
    if isinstance(put, _Place):
        return "a tensor"
    if isinstance(put, dict):
        keys = [repr(key) for key in list(put)[:8]] + ["..."] * (len(put) > 8)
        return f"a dict with the keys {', '.join(keys)}" if put else "an empty dict"
    if isinstance(put, (list, tuple)):
        return f"a {type(put).__name__} of {len(put)}"
    return f"a {_type_name(put)}"
