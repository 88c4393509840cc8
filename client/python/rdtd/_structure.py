# SPDX-License-Identifier: Apache-2.0
"""Encodes nested values as objects: their tensors become the object's tensors, and the rest becomes its
metadata.

The first bytes of the metadata tell which of three forms it has:
- a safetensors header, for a dict of tensors. `rdtctl fetch` writes such an object as a safetensors file, and
  files that `rdtctl put` reads are fetched as dicts. "rdt.same" in its "__metadata__" lists the further names of a
  tensor that has several, and their positions in the dict; "rdt.attributes" is the plain form of an OrderedDict's attributes.
- {"rdt": 1, "form": "tree", ...}: the plain form (_plain.py).
- {"rdt": 1, "form": "pickle", ...}: a pickle that refers to tensors by number, for everything else. "buffers"
  are the numbers of those that are its out-of-band buffers (PEP 574), in order; "why" says what needed it.

A single tensor has no metadata, or only a note of what it was. In all forms "kinds" ("rdt") says of which library each
tensor was, and "torch" ("rdt.torch") which were Parameters (notes_of); earlier versions ignore the latter. Long text is
stored as one more tensor after the others ("tail"). """
from __future__ import annotations

import io
import json
import pickle
import re
import sys
from collections import OrderedDict
from importlib import import_module
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union, cast

from . import _rdt
from ._arrays import bytes_of, convert, kind_of, to_numpy, torch
from ._errors import Error, Invalid, PickleRefused, Unsupported
from ._plain import NotPlain, Reader, Writer, is_text, type_name
from ._shared import Leaves, Shared, dressed, notes_of, viewed

_quote: Callable[[str], str] = json.JSONEncoder().encode  # quotes a string; the fastest way that json offers
TAIL_BYTES = 1 << 18  # longer text becomes a tensor
BLOB_BYTES = 1 << 12  # longer bytes in a pickle become a tensor


ONE_OF_TORCH = b'{"rdt":1,"kinds":"t"}\n'  # the metadata of a single torch tensor


class Encoded(NamedTuple):
    tensors: list[Any]
    metadata: bytes
    # JSON strings for a safetensors header that `metadata` completes; None: another form.
    names: Optional[list[str]]
    has_torch: bool
    refs: list[Any] = []  # the Refs in the value


def encode(value: Any, allow_pickle: bool) -> Encoded:
    """Encodes a value. Raises TypeError, which names the inner value, if it needs a pickle and allow_pickle is
    False."""
    kind = kind_of(value)
    if kind == "t":
        note = notes_of([value])
        if not note:
            return Encoded([value], ONE_OF_TORCH, None, True)
        if note != "?":
            return Encoded([value], _head_of("bare", [kind], note), None, True)
    elif kind in ("n", "o"):
        return Encoded([value], b"", None, False)
    return _encode_flat(value) or encode_nested(value, allow_pickle)


def encode_nested(value: Any, allow_pickle: bool) -> Encoded:
    try:
        return _encode_plain(value)
    except NotPlain as error:
        why = str(error)
        if not allow_pickle:
            raise TypeError(f"put without pickle: {why}") from None
    except RecursionError:
        raise TypeError("put: the value is nested more deeply than Python's recursion limit") from None
    try:
        return _encode_pickle(value, why)
    except RecursionError:
        raise TypeError("put: the value is nested more deeply than Python's recursion limit") from None
    except Error:
        raise
    except Exception as error:
        where, child = _unpicklable(value, "value", set())
        what = f"{where}, a {type_name(child)}"
        raise TypeError(f"put: {what}, is not a tensor and cannot be pickled: {error}") from error


def _encode_plain(value: Any) -> Encoded:
    """Parts that occur in several places, and torch tensors that share memory, are known only after the first try."""
    leaves = Leaves()
    writer = Writer(leaves)
    tree = writer.node(value)
    notes = _notes(leaves)
    if "?" in notes:
        lost = leaves.tensors[notes.index("?")]
        place = _place_of(lost, value, "", set())
        raise NotPlain.of(place or "", f"is a {type_name(lost)} that is more than its elements")
    shares = leaves.shares()
    if writer.shared or shares:
        leaves = Leaves(shares)
        tree = Writer(leaves, writer.shared).node(value)
        notes = _notes(leaves)
    return _pack("tree", json.dumps(tree, separators=(",", ":")).encode(), leaves, notes)


def _notes(leaves: Leaves) -> str:
    return notes_of(leaves.tensors) if "t" in leaves.kinds else ""


def _encode_pickle(value: Any, why: str) -> Encoded:
    out = io.BytesIO()
    pickler = _Pickler(out, Leaves())
    pickler.dump(value)
    shares = pickler.leaves.shares()
    if shares:
        kept = pickler.leaves.tensors  # their ids stay in use
        out = io.BytesIO()
        pickler = _Pickler(out, Leaves(shares))
        pickler.dump(value)
        del kept
    return _pack("pickle", out.getvalue(), pickler.leaves, _notes(pickler.leaves), pickler.buffers, why)


def _children(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The direct children of a value, each with the expression that names it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{where}[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield f"{where}[{i}]", item
    elif not kind_of(value):
        for name, item in getattr(value, "__dict__", {}).items():
            yield f"{where}.{name}", item


def _unpicklable(value: Any, where: str, seen: set[int]) -> tuple[str, Any]:
    """The innermost child that cannot be pickled."""
    seen.add(id(value))
    for inner, child in _children(value, where):
        if id(child) in seen:
            continue
        try:
            _Pickler(io.BytesIO(), Leaves()).dump(child)
        except Exception:
            return _unpicklable(child, inner, seen)
    return where, value


def _place_of(leaf: Any, value: Any, where: str, seen: set[int]) -> Optional[str]:
    if value is leaf:
        return where
    if id(value) in seen or len(seen) > 100000:
        return None
    seen.add(id(value))
    return next((found for inner, child in _children(value, where)
                 if (found := _place_of(leaf, child, inner, seen)) is not None), None)


def refused(error: Exception, value: Any, tensors: list[Any]) -> Exception:
    """The error of a put that names a tensor by its number, with the expression that names it in `value`."""
    found = re.match(r"(?:put: )?tensor (\d+): (.*)", str(error), re.DOTALL)
    if not found or int(found[1]) >= len(tensors):
        return error
    leaf = tensors[int(found[1])]
    layout = str(getattr(leaf, "layout", "torch.strided"))
    why = found[2]
    if getattr(leaf, "is_nested", False):
        why = "it is a nested tensor: put the tensors that unbind() returns"
    elif layout != "torch.strided":
        why = f"it has the layout {layout}: put the tensors that it consists of, or its to_dense()"
    elif not isinstance(error, (TypeError, ValueError)):
        return error
    place = _place_of(leaf, value, "value", set()) or "inside a pickle"
    said = f"put: tensor {found[1]}, {place}: {why}"
    if isinstance(error, ValueError):
        error.args = (said, *error.args[1:])
        return error
    return TypeError(said)


def _head_of(form: str, kinds: list[str], notes: str, **more: Any) -> bytes:
    head: dict[str, Any] = {"rdt": 1, "form": form, "kinds": _shorten(kinds)}
    if form == "bare":
        del head["form"]
    if notes:
        head["torch"] = _shorten(list(notes))
    head.update(more)
    return json.dumps(head, separators=(",", ":")).encode() + b"\n"


def _pack(form: str, text: bytes, leaves: Leaves, notes: str, buffers: Optional[list[int]] = None,
          why: str = "") -> Encoded:
    tensors = leaves.tensors
    more: dict[str, Any] = {"buffers": buffers} if buffers else {}
    if why:
        more["why"] = why[:200]
    if len(text) > TAIL_BYTES:
        more["tail"] = True
        tensors.append(memoryview(text))
        text = b""
    return Encoded(tensors, _head_of(form, leaves.kinds, notes, **more) + text, None, "t" in leaves.kinds, leaves.refs)


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
    every = "".join(value)
    if not every.isascii() and not is_text(every):
        return None
    said = _shorten(kinds)
    more = {"rdt": said} if cls is dict else {"rdt": said, "rdt.type": "OrderedDict"}
    if cls is not dict and vars(value):
        attributes = _attributes_of(value)
        if attributes is None:
            return None
        more["rdt.attributes"] = attributes
    tensors = list(value.values())
    same: list[list[Any]] = []
    if "t" in said:
        notes = notes_of(tensors)
        if "?" in notes:
            return None
        if notes:
            more["rdt.torch"] = _shorten(list(notes))
        if _rdt.torch_overlap(tensors):
            shared = Shared(tensors)
            if not shared.only_names:
                return None
            tensors, names, same = _once(tensors, names, kinds, notes, shared)
    if said != "t" and len(set(map(id, tensors))) < len(tensors):
        if same:
            return None
        tensors, names, same = _once(tensors, names, kinds, "", None)
    if same:
        again = {position for position, *_ in same}
        kinds = [kind for i, kind in enumerate(kinds) if i not in again]
        more["rdt"] = _shorten(kinds)
        more["rdt.same"] = json.dumps(same)
        if "rdt.torch" in more:
            more["rdt.torch"] = _shorten(list(notes_of(tensors) or "."))
    return Encoded(tensors, b',"__metadata__":' + json.dumps(more).encode() + b"\0", names,
                   "t" in said)


def _attributes_of(value: Any) -> Optional[str]:
    """The plain form of the attributes of an OrderedDict; None: they have tensors, Refs or values that occur twice, or no plain
    form."""
    leaves = Leaves()
    writer = Writer(leaves)
    try:
        tree = writer.node(vars(value))
    except NotPlain:
        return None
    return None if leaves.tensors or leaves.refs or writer.shared else json.dumps(tree)


def _once(tensors: list[Any], names: list[str], kinds: list[str], notes: str,
          shared: Optional[Shared]) -> tuple[list[Any], list[str], list[list[Any]]]:
    """Each tensor once; its name; and for each further name its position in the dict, the name, the number of the tensor,
    and a letter of notes_of if it was another object."""
    leaves = Leaves(shared)
    kept: list[Any] = []
    first_names: list[str] = []
    same: list[list[Any]] = []
    for i, (tensor, name) in enumerate(zip(tensors, names)):
        take = leaves.take(tensor, kinds[i])
        if take == len(kept):
            kept.append(tensor)
            first_names.append(name)
        elif type(take) is int:
            same.append([i, json.loads(name), take, ""])
        else:
            same.append([i, json.loads(name), cast("list[Any]", take)[1], notes[i] if notes else "."])
    return kept, first_names, same


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, leaves: Leaves) -> None:
        super().__init__(out, protocol=5, buffer_callback=self._take_buffer)
        self.leaves = leaves
        self.buffers: list[int] = []
        self._torch = torch() if "torch" in sys.modules else None
        self._arrays: dict[int, tuple[Any, ...]] = {}
        self._kept: list[Any] = []  # their ids stay in use

    def _take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether the buffer stays in the pickle."""
        raw = buffer.raw()
        if raw.nbytes < BLOB_BYTES:
            return True
        self.buffers.append(cast(int, self.leaves.take(raw, "o")))
        return False

    def persistent_id(self, value: Any) -> Any:
        kind = kind_of(value)
        if not kind:
            return self._array(value)
        if kind in "bB" and len(value) < BLOB_BYTES:
            return None
        if kind == "t" and notes_of([value]) == "?" and _is_strided(value):
            return None
        return self.leaves.take(value, kind)

    def _array(self, value: Any) -> Any:
        """A numpy array of another dtype than rdtd's: its bytes, so that it comes back over memory that may be written or not,
        as the reader wants, whatever its size. None: numpy pickles it."""
        numpy = sys.modules.get("numpy")
        if numpy is None or type(value) not in (numpy.ndarray, numpy.memmap, numpy.recarray) or not value.nbytes \
                or value.dtype.kind not in "biufcmMSUV" or value.dtype.hasobject or getattr(value, "__dict__", None):
            return None
        if id(value) not in self._arrays:
            order = "F" if value.flags.fnc else "C"
            raw = numpy.asarray(value).ravel(order=order).view(numpy.ndarray).view("u1")
            self._kept += [value, raw]
            self._arrays[id(value)] = ("array", len(self._arrays), raw.tobytes() if raw.nbytes < BLOB_BYTES else
                                       self.leaves.take(raw, "n"), value.dtype, value.shape, order,
                                       isinstance(value, numpy.recarray))
        return self._arrays[id(value)]

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _rdt.Ref):
            self.leaves.refs.append(value)
            return type(value)._inside, (value.pack(), value._hint)  # type: ignore[attr-defined]
        module = self._torch
        if module is not None and isinstance(value, module.Tensor) and hasattr(module, "nn"):
            return _reduced_tensor(module, value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray) and type(value).__reduce__ is numpy.ndarray.__reduce__ \
                and getattr(value, "__dict__", None):
            made, arguments, state = value.__reduce__()  # numpy forgets the attributes of subclasses
            return made, arguments, (state, value.__dict__), None, None, _set_array
        return NotImplemented


def _is_strided(tensor: Any) -> bool:
    return str(tensor.layout) == "torch.strided" and not tensor.is_nested


def _reduced_tensor(module: Any, value: Any) -> Any:
    """How a torch tensor that is more than its elements is pickled: its elements are a tensor of the object."""
    cls = type(value)
    if cls.__reduce_ex__ not in (module.Tensor.__reduce_ex__, module.nn.Parameter.__reduce_ex__) or \
            getattr(cls, "__torch_dispatch__", None) is not module.Tensor.__torch_dispatch__:
        return NotImplemented
    with module._C.DisableTorchFunctionSubclass():
        plain = value.detach().as_subclass(module.Tensor)
        if notes_of([plain]):
            return NotImplemented
        state = module._utils._get_obj_state(value)
        return _tensor, (cls, plain, value.requires_grad, state)


def _tensor(cls: Any, plain: Any, requires_grad: bool, state: Any) -> Any:
    module = torch()
    made = plain.detach() if cls is module.Tensor else module.Tensor._make_subclass(cls, plain.detach(), requires_grad)
    if cls is module.Tensor and requires_grad:
        made.requires_grad_()
    return module._utils._set_obj_state(made, state)


def _set_array(array: Any, state: Any) -> None:
    array.__setstate__(state[0])
    array.__dict__.update(state[1])


class _Unpickler(pickle.Unpickler):
    def __init__(self, text: bytes, leaves: list[Any], layout: Layout) -> None:
        super().__init__(io.BytesIO(text), buffers=[_as_buffer(layout.tensors[i]) for i in layout.buffers])
        self.leaves = leaves
        self._layout = layout
        self._arrays: dict[int, Any] = {}

    def persistent_load(self, number: Any) -> Any:
        if type(number) is int:
            return self.leaves[number]
        what, leaf, *rest = number
        if what == "array":
            if leaf not in self._arrays:
                self._arrays[leaf] = self._array(*rest)
            return self._arrays[leaf]
        return dressed(self.leaves[leaf], rest[0], True) if what == "same" else viewed(self.leaves[leaf], *rest)


    def _array(self, data: Any, dtype: Any, shape: Any, order: Any, is_record: bool) -> Any:
        if type(data) is int:
            data = self._layout.tensors[data]
            if not isinstance(data, _rdt.Tensor):
                return None  # the place of a target, which no such array can be
            data = _as_buffer(data)
        elif not self._layout.readonly:
            data = bytearray(data)
        numpy = import_module("numpy")
        made = numpy.frombuffer(data, "u1").view(dtype).reshape(shape, order=order)
        return made.view(numpy.recarray) if is_record else made


# ---- reading ----

class _Names(NamedTuple):
    names: list[str]
    kinds: str
    cls: type[dict[str, Any]]
    torch: str
    same: list[list[Any]]  # of _once
    attributes: Optional[str]  # of _attributes_of


def _by_name_quickly(metadata: bytes, tensors: list[_rdt.Tensor]) -> Optional[_Names]:
    """Like _by_name, for a header that put wrote; None for every other header."""
    found = _rdt.header_names(metadata)
    if found is None or len(found[0]) != len(tensors) or len(set(found[0])) != len(tensors):
        return None
    try:
        more = json.loads(found[1])
    except (ValueError, RecursionError):  # more text follows: not a header of ours
        return None
    return _kinds_of(found[0], more) if isinstance(more, dict) else None


def _kinds_of(names: list[str], more: dict[str, Any]) -> _Names:
    cls = cast("type[dict[str, Any]]", OrderedDict if more.get("rdt.type") == "OrderedDict" else dict)
    attributes = more.get("rdt.attributes") if cls is OrderedDict else None
    return _Names(names, str(more.get("rdt", "n")), cls, str(more.get("rdt.torch", "")), _same_of(names, more.get("rdt.same")),
                  None if attributes is None else str(attributes))


def _same_of(names: list[str], text: Any) -> list[list[Any]]:
    if text is None:
        return []
    try:
        same: list[list[Any]] = json.loads(text)
        at = -1
        for position, name, number, note in same:
            if not (type(position) is int and at < position <= len(names) + len(same) and type(name) is str
                    and type(number) is int and 0 <= number < len(names) and note in ("", ".", "g", "p", "f")):
                raise ValueError("a further name of a tensor is wrong")
            at = position
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the object's metadata cannot be read: {str(error)[:200]!r}") from None
    return same


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
    except RecursionError:
        return None, b""
    except ValueError:
        try:
            head = json.loads(metadata)  # a header with line breaks
        except (ValueError, RecursionError):
            return None, b""
    return (head, text) if isinstance(head, dict) else (None, b"")


def _as_buffer(tensor: Any) -> Any:
    """The bytes of a tensor as an object with the buffer protocol: its own memory, unless that is on a GPU. Places of
    targets have none (_targets.py)."""
    if not isinstance(tensor, _rdt.Tensor):
        return b""
    return tensor if tensor.device == "cpu" else tensor.tobytes()


class Layout:
    """The structure of an object's tensors, read from its metadata. Raises Invalid if that is wrong."""

    def __init__(self, metadata: bytes, tensors: list[_rdt.Tensor], readonly: bool = True) -> None:
        self.tensors = tensors
        self.readonly = readonly  # whether the reader gets memory that is not to be written
        self.form = "bare"
        self.text: bytes = b""
        self.kinds = "n"
        self.notes = ""
        self.why = ""
        self.names: Optional[_Names] = None
        self.buffers: list[int] = []
        if metadata == ONE_OF_TORCH:
            self.kinds = "t"
            return
        self.names = _by_name_quickly(metadata, tensors)
        head = None
        if self.names is None:
            head, self.text = _head(metadata)
            if head is None:
                return
            if head.get("rdt") != 1:
                self.names = _by_name(head, tensors)
        if self.names:
            self.form, self.kinds, self.notes = "names", self.names.kinds, self.names.torch
        elif head is not None and head.get("rdt") == 1:
            self._read_head(head)
        if len(self.kinds) not in (1, len(self.tensors)):
            raise Invalid(f"the object's metadata speaks of {len(self.kinds)} tensors, and it has {len(self.tensors)}")

    def _read_head(self, head: dict[str, Any]) -> None:
        self.kinds = str(head.get("kinds", "n")) or "n"
        self.form = str(head.get("form", "bare"))
        self.notes = str(head.get("torch", ""))
        self.why = str(head.get("why", ""))
        buffers = head.get("buffers", [])
        if not isinstance(buffers, list) or not all(type(i) is int and 0 <= i < len(self.tensors) for i in buffers):
            raise Invalid("the object's metadata names buffers that it does not have")
        self.buffers = buffers
        if head.get("tail") and self.tensors:
            if not isinstance(self.tensors[-1], _rdt.Tensor):  # places of targets (_targets.py)
                raise Unsupported(f"what the object has beside its tensors takes more than {TAIL_BYTES >> 10} KiB, and is not "
                                  "fetched before they are: fetch it without into, or put the tensors in an object of their own")
            self.text = bytes_of(self.tensors[-1])
            self.tensors = self.tensors[:-1]

    @property
    def has_torch(self) -> bool:
        return "t" in self.kinds

    def leaves(self, as_: str) -> list[Any]:
        leaves = convert(self.tensors, self.kinds, as_)
        if not self.notes:
            return leaves
        if len(self.notes) not in (1, len(leaves)):
            raise Invalid(f"the object's metadata speaks of {len(self.notes)} tensors, and it has {len(leaves)}")
        notes = self.notes * len(leaves) if len(self.notes) == 1 else self.notes
        return [leaf if note == "." else _dressed(leaf, note) for leaf, note in zip(leaves, notes)]

    def value(self, as_: str, may_unpickle: Callable[[], bool], ref: Callable[[str], Any], where: str = "") -> Any:
        """The value that was put. may_unpickle: whether code of the producer may run. Raises PickleRefused."""
        return self.leaves("auto") if as_ == "list" else self.filled(self.leaves(as_), may_unpickle, ref, where)

    def filled(self, leaves: list[Any], may_unpickle: Callable[[], bool], ref: Callable[[str], Any], where: str = "") -> Any:
        """The structure with `leaves` in place of its tensors. Raises PickleRefused."""
        if self.form == "names":
            names = cast(_Names, self.names)
            made = names.cls(_with_same(names, leaves) if names.same else zip(names.names, leaves))
            if names.attributes is not None:
                attributes = Reader([], ref, may_unpickle).value(_tree(names.attributes))
                if type(attributes) is not dict:
                    raise Invalid("the object's metadata has attributes that are no dict")
                vars(made).update(attributes)
            return made
        if self.form == "tree":
            return Reader(leaves, ref, may_unpickle).value(_tree(self.text))
        if self.form == "pickle":
            if not may_unpickle():
                raise PickleRefused(self._refusal(where))
            try:
                return _Unpickler(self.text, leaves, self).load()
            except (Error, MemoryError):
                raise
            except Exception as error:
                raise Invalid(f"the object{where} is a pickle that cannot be loaded: {type(error).__name__}: "
                              f"{str(error)[:200]}") from error
        return leaves[0] if len(leaves) == 1 else leaves

    def _refusal(self, where: str) -> str:
        why = "".join(c if c.isprintable() else "?" for c in self.why[:200])
        return (f"the object{where} is a pickle{f', because {why}' if why else ''}. A pickle can run any code of its producer: "
                "pass allow_pickle=True if you trust the producer, or as_=\"list\" for the tensors alone")


def _tree(text: Union[str, bytes]) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the object's structure cannot be read: {str(error)[:200]!r}") from None


def _dressed(leaf: Any, note: str, again: bool = False) -> Any:
    try:
        return dressed(leaf, note, again)
    except RuntimeError as error:  # torch's, of integers that require grad
        raise Invalid(f"the object's metadata cannot be read: {str(error)[:200]!r}") from None


def _with_same(names: _Names, leaves: list[Any]) -> list[tuple[str, Any]]:
    """The items of a dict some of whose tensors have several names."""
    items = []
    further = {position: rest for position, *rest in names.same}
    rest = iter(zip(names.names, leaves))
    for i in range(len(leaves) + len(further)):
        if i in further:
            name, number, note = further[i]
            items.append((name, _dressed(leaves[number], note, True) if note else leaves[number]))
        else:
            items += [item for item in (next(rest, None),) if item is not None]
    return items


def bare(tensors: list[_rdt.Tensor]) -> Any:
    """The value of an object without metadata."""
    return to_numpy(tensors[0]) if len(tensors) == 1 else [to_numpy(tensor) for tensor in tensors]
