# SPDX-License-Identifier: Apache-2.0
"""The plain form of values: JSON that refers to tensors by number. Reading it runs no code of whoever wrote it.

Lists, dicts with keys of text, numbers, text, True, False and None are JSON's own. Everything else is a dict with
the single key "$", "$list", "$tuple", "$dict", "$ordered" or "$ref", or {"$": [WHAT, ...]} with the words of
_Reader. (Earlier versions raise TypeError for the last kind.) A value that occurs in several places is written once, as
{"$": ["def", NUMBER, VALUE]}, and elsewhere as {"$": ["use", NUMBER]}.

Dataclasses, named tuples and enums are written with the name of their class. The reader finds the class among the
modules that it has imported, without running any code: it looks into their dictionaries only, calls no __init__ and no
__setstate__, and sets the declared fields directly. It refuses classes for which that would not do."""
from __future__ import annotations

import copyreg
import dataclasses
import datetime
import decimal
import enum
import functools
import struct
import sys
import types
import uuid
from collections import Counter, OrderedDict
from importlib import import_module
from typing import Any, Callable, Iterable, Iterator, Optional

from . import _rdt
from ._arrays import kind_of
from ._errors import Error, Invalid, Mismatch, NotFound
from ._shared import Leaves, dressed, viewed

_DEEPEST = 100  # values within values; a reader has to go as deep, whatever called it
_LARGEST_KEY = 10000  # values in a key of a dict or set
_SAME_HASH = 100  # keys of a dict or set that have one hash: Python compares each with all of them
_BIG = 1 << 10000  # longer integers are written in base 16, which Python reads and writes in linear time
_LISTED = 100  # times that a reader lists the tensors; a writer lists each once
_FREE = frozenset((bool, float, type(None)))  # JSON has them as they are
_KEYS = frozenset((str, int, bool, float, type(None)))  # keys of $dict without a form of their own
_HASHABLE = _KEYS | frozenset((bytes, complex, range, datetime.date, datetime.time, datetime.datetime, datetime.timedelta,
                               decimal.Decimal, uuid.UUID))


class NotPlain(Exception):
    """An inner value needs a pickle. `what` says which one, `where` is the expression that names it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.where = ""

    @classmethod
    def of(cls, where: str, what: str) -> NotPlain:
        made = cls(what)
        made.where = where
        return made

    def inside(self, place: str) -> None:
        self.where = place + self.where

    def __str__(self) -> str:
        return f"value{self.where} {self.what}"


def type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_text(value: str) -> bool:
    """Whether JSON has the text: two halves of a character would become one."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- classes ----

_dict_of_type: Callable[[Any], Any] = vars(type)["__dict__"].__get__


def _find(module: str, qualname: str) -> Any:
    """The object with this name among the imported modules; None: there is none."""
    found: Any = sys.modules.get(module)
    if not isinstance(found, types.ModuleType):
        return None
    for name in qualname.split("."):
        inside = object.__getattribute__(found, "__dict__") if isinstance(found, types.ModuleType) else \
            _dict_of_type(found) if isinstance(found, type) else {}
        found = inside.get(name)
    return found


_HEAP_TYPE = 1 << 9
_CUSTOM = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__",
           "__copyreg__", "__del__", "__new__")


def _is_simple(cls: type, top: type) -> bool:
    """Whether instances of the class are fields and nothing else, on top of `top`."""
    for base in cls.__mro__:
        if base is top or base is object:
            continue
        if not base.__flags__ & _HEAP_TYPE or base in copyreg.dispatch_table:
            return False
        for name in _CUSTOM:
            own = vars(base).get(name)
            if own is not None and getattr(own, "__module__", None) != "dataclasses" \
                    and not (top is tuple and name in ("__new__", "__getnewargs__")):
                return False
    return True


@functools.lru_cache(1024)
def _fields(cls: Any) -> Optional[dict[str, Any]]:
    """The fields of a dataclass whose instances can be built from them, each with the descriptor of its slot, or None; None:
    of any other class."""
    if not any("__dataclass_fields__" in vars(base) for base in cls.__mro__) or not _is_simple(cls, object):
        return None
    names = tuple(field.name for field in dataclasses.fields(cls))
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        if not {slots} <= set(names) if isinstance(slots, str) else \
                not set(slots) <= {*names, "__dict__", "__weakref__"}:
            return None
    return {name: _slot(cls, name) for name in names}


@functools.lru_cache(1024)
def _named(cls: Any) -> Optional[tuple[str, ...]]:
    """The fields of a named tuple; None: of any other class."""
    fields = vars(cls).get("_fields")
    if not issubclass(cls, tuple) or not isinstance(fields, tuple) or cls.__bases__ != (tuple,) \
            or vars(cls).get("__slots__") != () or not _is_simple(cls, tuple):
        return None
    return fields


def _slot(cls: type, name: str) -> Any:
    """The descriptor of the slot that holds the field, or None."""
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return found if isinstance(found, types.MemberDescriptorType) else None


_NONE = object()


def _state(value: Any, fields: dict[str, Any]) -> Optional[dict[str, Any]]:
    """The fields of an instance; None: it has others, or lacks one."""
    inside = getattr(value, "__dict__", {})
    state = {}
    for name, slot in fields.items():
        item = inside.get(name, _NONE) if slot is None else getattr(value, name, _NONE)
        if item is _NONE:
            return None
        state[name] = item
    return state if inside.keys() <= state.keys() else None


# ---- writing ----

def _offset(zone: Any) -> Any:
    if zone is None:
        return None
    if type(zone) is not datetime.timezone:
        raise NotPlain(f"has the time zone {zone!r}")
    offset = zone.utcoffset(None)
    if repr(zone) != repr(datetime.timezone(offset)) and zone is not datetime.timezone.utc:
        raise NotPlain("has a time zone with a name")
    return [offset.days, offset.seconds, offset.microseconds]


_ATOMS: dict[type, Callable[[Any], list[Any]]] = {
    complex: lambda v: ["complex", _real(v.real), _real(v.imag)],
    range: lambda v: ["range", _number(v.start), _number(v.stop), _number(v.step)],
    datetime.date: lambda v: ["date", v.year, v.month, v.day],
    datetime.time: lambda v: ["time", v.hour, v.minute, v.second, v.microsecond, v.fold, _offset(v.tzinfo)],
    datetime.datetime: lambda v: ["datetime", v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold,
                                  _offset(v.tzinfo)],
    datetime.timedelta: lambda v: ["timedelta", v.days, v.seconds, v.microseconds],
    decimal.Decimal: lambda v: ["decimal", str(v)],
    uuid.UUID: lambda v: ["uuid", v.hex] if v.is_safe is uuid.SafeUUID.unknown else ["uuid", v.hex, v.is_safe.name],
    type(Ellipsis): lambda v: ["ellipsis"],
}


_NAN = struct.pack("<d", float("nan"))  # which JSON has


def _nan(value: float) -> Any:
    """A number that is none: it may have a sign and a payload."""
    packed = struct.pack("<d", value)
    return value if packed == _NAN else {"$": ["nan", packed.hex()]}


def _real(value: float) -> Any:
    return value if value == value else _nan(value)


def _read_nan(text: str) -> float:
    (value,) = struct.unpack("<d", bytes.fromhex(text))
    if value == value:
        raise ValueError("a number that is none is one")
    return float(value)


def _number(value: int) -> Any:
    return value if -_BIG < value < _BIG else {"$": ["int", hex(value)]}


def _scalar_dtype(dtype: Any) -> Optional[str]:
    """A numpy dtype as text, if that says all of it."""
    np = sys.modules["numpy"]
    text = dtype.str
    if dtype.kind not in "biufcmMSU" or dtype.fields is not None or dtype.subdtype is not None or dtype.metadata \
            or np.dtype(text) != dtype:
        return None
    return str(text)


def _of_library(value: Any) -> Optional[list[Any]]:
    """numpy's scalars and dtypes, torch's dtypes, sizes and devices."""
    cls = type(value)
    np = sys.modules.get("numpy")
    if np is not None and cls.__module__ == "numpy" and isinstance(value, np.generic):
        text = _scalar_dtype(value.dtype)
        return None if text is None or cls is not value.dtype.type else ["scalar", text, value.tobytes().hex()]
    if np is not None and isinstance(value, np.dtype):
        text = _scalar_dtype(value)
        return None if text is None else ["dtype", text]
    torch = sys.modules.get("torch")
    if torch is not None and cls.__module__ == "torch":
        if cls is torch.dtype:
            return ["torch.dtype", str(value).rpartition(".")[2]]
        if cls is torch.device:
            return ["torch.device", str(value)]
        if cls is torch.Size:
            return ["torch.Size", list(value)]
    return None


class Writer:
    """Turns a value into the plain form. With `shared`, the values that occur in several places are known."""

    def __init__(self, leaves: Leaves, shared: Optional[set[int]] = None) -> None:
        self._leaves = leaves
        self._seen: set[int] = set()
        self.shared: set[int] = shared or set()  # ids of the values that have occurred twice
        self._known = shared is not None
        self._numbers: dict[int, int] = {}
        self._open: set[int] = set()  # immutable values that are being written
        self._depth = 0
        self._classes: dict[type, str] = {}  # how they are written

    def node(self, value: Any) -> Any:
        cls = type(value)
        if cls is str:
            return value if value.isascii() or is_text(value) else {"$": ["str", _escaped(value)]}
        if cls is int:
            return _number(value)
        if cls in _FREE:
            return value if value == value else _nan(value)
        if cls in _WRITERS:
            return self._child(value, cls)
        kind = kind_of(value)
        if kind:
            return {"$": self._leaves.take(value, kind)}
        if cls in _ATOMS:
            return {"$": _ATOMS[cls](value)}
        return self._child(value, cls)

    def _child(self, value: Any, cls: Any) -> Any:
        write = _WRITERS.get(cls)
        if write is None:
            if isinstance(value, enum.Enum):
                return {"$": self._enum(value)}
            if cls.__module__ == "rdtd._requests" and isinstance(value, _rdt.Ref):
                self._leaves.refs.append(value)
                return {"$ref": str(value)}
            known = _of_library(value)
            if known is not None:
                return {"$": known}
            write = Writer._named_tuple if _named(cls) else Writer._instance
        key = id(value)
        if key in self._seen:
            if not self._known:
                self.shared.add(key)
                return None
            if key in self._open:
                raise NotPlain("contains itself through a tuple")
            return {"$": ["use", self._numbers[key]]}
        self._seen.add(key)
        if self._depth == _DEEPEST:
            raise NotPlain(f"is nested more than {_DEEPEST} levels deep")
        self._depth += 1
        made = write(self, value) if key not in self.shared or not self._known else self._definition(value, key, write)
        self._depth -= 1
        return made

    def _definition(self, value: Any, key: int, write: Callable[[Writer, Any], Any]) -> Any:
        self._numbers[key] = number = len(self._numbers)
        immutable = isinstance(value, (tuple, frozenset, slice))
        if immutable:
            self._open.add(key)
        made = {"$": ["def", number, write(self, value)]}
        self._open.discard(key)
        return made

    def _items(self, items: Any) -> list[Any]:
        nodes = []
        i = 0
        try:
            for i, item in enumerate(items):
                nodes.append(self.node(item))
        except NotPlain as why:
            why.inside(f"[{i}]")
            raise
        return nodes

    def _list(self, value: list[Any]) -> Any:
        if value and all(map(kind_of, value)):  # only tensors: one entry for all of them
            known = len(self._leaves.tensors)
            numbers = [self._leaves.take(item, kind_of(item)) for item in value]
            if numbers == list(range(known, known + len(value))):
                return {"$list": [known, len(value)]}
            return [{"$": number} for number in numbers]
        return self._items(value)

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        return {"$tuple": self._items(value)}

    def _set(self, value: Any) -> Any:
        self._check_hashes(value)
        nodes = []
        for item in value:
            self._check_key(item)
            nodes.append(self.node(item))
        return {"$": [type(value).__name__, nodes]}

    def _dict(self, value: Any) -> Any:
        cls = type(value)
        if cls is dict and all(type(key) is str and key[:1] != "$" and (key.isascii() or is_text(key)) for key in value):
            nodes = {}
            key: Any = None
            try:
                for key, item in value.items():
                    nodes[key] = self.node(item)
            except NotPlain as why:
                why.inside(f"[{key!r}]")
                raise
            return nodes
        self._check_hashes(value)
        pairs = []
        for key, item in value.items():
            self._check_key(key)
            try:
                pairs.append([self.node(key), self.node(item)])
            except NotPlain as why:
                why.inside(f"[{key!r}]")
                raise
        attributes = {} if cls is dict else vars(value)  # of an OrderedDict, such as the _metadata of a state_dict
        if attributes:
            return {"$": ["ordered", pairs, self._dict(attributes)]}
        return {"$dict" if cls is dict else "$ordered": pairs}

    @staticmethod
    def _check_key(key: Any) -> None:
        if not is_key(key):
            raise NotPlain(f"has a key or element of type {type(key).__name__} that is no plain key")

    @staticmethod
    def _check_hashes(keys: Any) -> None:
        if len(keys) > _SAME_HASH and max(Counter(map(hash, keys)).values()) > _SAME_HASH:
            raise NotPlain(f"has more than {_SAME_HASH} keys or elements of one hash")

    def _slice(self, value: slice) -> Any:
        return {"$": ["slice", self._items((value.start, value.stop, value.step))]}

    def _class_of(self, value: Any) -> str:
        cls = type(value)
        if cls not in self._classes:
            self._classes[cls] = self._named_class(value, cls)
        return self._classes[cls]

    @staticmethod
    def _named_class(value: Any, cls: type) -> str:
        if _find(cls.__module__, cls.__qualname__) is not cls or "<" in cls.__qualname__:
            raise NotPlain(f"is a {type_name(value)}, which no module has under that name")
        return f"{cls.__module__}:{cls.__qualname__}"

    def _enum(self, value: Any) -> list[Any]:
        if type(value)._member_map_.get(value._name_) is not value:
            raise NotPlain(f"is a {type_name(value)} without a name of its own")
        return ["enum", self._class_of(value), value._name_]

    def _named_tuple(self, value: Any) -> Any:
        return {"$": ["named", self._class_of(value), self._items(value)]}

    def _instance(self, value: Any) -> Any:
        cls: Any = type(value)
        fields = _fields(cls)
        state = None if fields is None else _state(value, fields)
        if state is None:
            raise NotPlain(f"is a {type_name(value)}: put its fields, or allow_pickle=True")
        nodes = {}
        name = ""
        where = self._class_of(value)
        try:
            for name, item in state.items():
                nodes[name] = self.node(item)
        except NotPlain as why:
            why.inside(f".{name}")
            raise
        return {"$": ["object", where, nodes]}


_WRITERS: dict[type, Callable[[Writer, Any], Any]] = {
    list: Writer._list, tuple: Writer._tuple, dict: Writer._dict, OrderedDict: Writer._dict, set: Writer._set,
    frozenset: Writer._set, slice: Writer._slice,
}


def is_key(key: Any) -> bool:
    """Whether a dict or a set can be read with this key: hashing it runs only code of Python's own, and of enums, and does not
    take long. Values that a tuple has several times are hashed several times."""
    return _room_after(key, _LARGEST_KEY) >= 0


def _room_after(key: Any, room: int) -> int:
    """How many values in a key may follow this one; below 0: it is no key."""
    cls = type(key)
    if cls in _HASHABLE or isinstance(key, enum.Enum):
        return room - 1
    if cls is tuple or cls is frozenset:
        for child in key:
            room = _room_after(child, room)
            if room < 0:
                return room
        return room - 1
    np = sys.modules.get("numpy")
    return room - 1 if np is not None and cls.__module__ == "numpy" and isinstance(key, np.generic) else -1


def _escaped(text: str) -> str:
    return text.encode("utf-32-le", "surrogatepass").hex()


# ---- reading ----

class Reader:
    """Makes the value again. `leaves`: the tensors. may_import: whether modules that a class is in may be imported.
    Raises Invalid if the form is wrong, and NotFound for a class that this process does not have."""

    def __init__(self, leaves: list[Any], ref: Callable[[str], Any], may_import: Callable[[], bool]) -> None:
        self._leaves = leaves
        self._ref = ref
        self._may_import = may_import
        self._defined: dict[int, Any] = {}
        self._classes: dict[str, type] = {}
        self._listed = 0  # tensors of all "$list"

    def value(self, node: Any) -> Any:
        try:
            return self._read(node, None)
        except Error:
            raise
        except RecursionError:
            raise Invalid("the object's structure is nested more deeply than this process can read") from None
        except MemoryError:
            raise
        except Exception as error:  # numpy's, torch's, those of modules that are imported
            raise Invalid(f"the object's structure cannot be read: {str(error)[:200]!r}") from error

    def _read(self, node: Any, number: Optional[int]) -> Any:
        if type(node) is list:
            return self._fill_list([], node, number)
        if type(node) is not dict:
            return node
        if len(node) == 1:
            ((key, inner),) = node.items()
            if key[:1] == "$":
                if key == "$":
                    if type(inner) is int:
                        return self._leaf(inner)
                    if type(inner) is list:
                        if inner[0] == "def":
                            _, number, child = inner
                            if type(number) is not int or number in self._defined:
                                raise ValueError("a value has two definitions")
                            return self._read(child, number)
                        return self._done(self._special(inner[0], inner[1:], number), number)
                elif key == "$list":
                    first, count = inner
                    self._listed += count
                    if not 0 <= first <= first + count <= len(self._leaves) or self._listed > _LISTED * len(self._leaves):
                        raise ValueError("it has no such tensors")
                    return self._done(self._leaves[first:first + count], number)
                elif key == "$tuple":
                    return self._done(tuple([self._read(item, None) for item in inner]), number)
                elif key == "$dict":
                    return self._fill_dict({}, inner, number)
                elif key == "$ordered":
                    return self._fill_dict(OrderedDict(), inner, number)
                elif key == "$ref":
                    return self._ref(inner)
                raise ValueError(f"{key[:20]!r} means nothing")
        made: dict[Any, Any] = {}
        if number is not None:
            self._defined[number] = made
        for key, item in node.items():
            made[key] = self._read(item, None)
        return made

    def _done(self, made: Any, number: Optional[int]) -> Any:
        if number is not None:
            self._defined[number] = made
        return made

    def _leaf(self, number: int) -> Any:
        if number < 0:
            raise ValueError("it has no such tensor")
        return self._leaves[number]

    def _fill_list(self, made: list[Any], nodes: list[Any], number: Optional[int]) -> Any:
        if number is not None:
            self._defined[number] = made
        for node in nodes:
            made.append(self._read(node, None))
        return made

    def _keys(self, nodes: Iterable[Any]) -> Iterator[Any]:
        """The keys or elements of one dict or set, each as soon as it is asked for."""
        hashes: Counter[int] = Counter()
        for node in nodes:
            key = self._read(node, None)
            if not is_key(key):
                raise TypeError(f"a {type(key).__name__} is no key or element")
            hashes[hash(key)] += 1
            if hashes[hash(key)] > _SAME_HASH:
                raise ValueError(f"more than {_SAME_HASH} keys of a dict or set have the same hash, which Python reads slowly")
            yield key

    def _fill_dict(self, made: Any, pairs: list[Any], number: Optional[int]) -> Any:
        if number is not None:
            self._defined[number] = made
        keys = self._keys(node for node, _ in pairs)
        for _, item in pairs:
            key = next(keys)
            made[key] = self._read(item, None)
        return made

    def _special(self, what: str, rest: list[Any], number: Optional[int]) -> Any:
        read = _READERS.get(what)
        if read is None:
            raise Invalid(f"the object's structure has a {what!r}, which a later rdtd has put: install that one")
        return read(self, rest, number)

    def _class(self, where: str) -> Any:
        if where not in self._classes:
            self._classes[where] = self._find_class(where)
        return self._classes[where]

    def _find_class(self, where: str) -> type:
        module, _, qualname = where.partition(":")
        if module not in sys.modules and self._may_import():
            try:
                import_module(module)
            except ImportError as error:
                raise NotFound(f"the object contains a {where.replace(':', '.')!r}, whose module cannot be imported: "
                               f"{error}") from error
        found = _find(module, qualname)
        if not isinstance(found, type):
            raise NotFound(f"the object contains a {where.replace(':', '.')!r}, and this process has no such class: import "
                           f"{module!r} first, or pass as_=\"list\" for the tensors alone")
        return found

    def _object(self, rest: list[Any], number: Optional[int]) -> Any:
        where, nodes = rest
        cls = self._class(where)
        fields = _fields(cls)
        if fields is None:
            raise Mismatch(f"the object contains a {where!r}, which is no plain dataclass in this process")
        made = object.__new__(cls)
        if number is not None:
            self._defined[number] = made
        for name, node in nodes.items():
            if name not in fields:
                raise Mismatch(f"the object contains a {where!r} with the field {name!r}, which the class of this process "
                               "does not have")
            slot = fields[name]
            item = self._read(node, None)
            if slot is not None:
                slot.__set__(made, item)
            else:
                object.__getattribute__(made, "__dict__")[name] = item
        for name in fields if len(nodes) < len(fields) else ():
            if name not in nodes and not any(name in vars(base) for base in cls.__mro__ if _slot(base, name) is None):
                raise Mismatch(f"the object contains a {where!r} without the field {name!r}, which the class of this "
                               "process has")
        return made

    def _named_tuple(self, rest: list[Any], number: Optional[int]) -> Any:
        where, nodes = rest
        cls = self._class(where)
        names = _named(cls)
        if names is None or len(names) != len(nodes):
            raise Mismatch(f"the object contains a {where!r}, a named tuple of {len(nodes)} fields, which this process does "
                           "not have")
        return tuple.__new__(cls, [self._read(node, None) for node in nodes])

    def _enum(self, rest: list[Any], number: Optional[int]) -> Any:
        where, name = rest
        cls = self._class(where)
        if not issubclass(cls, enum.Enum):
            raise Mismatch(f"the object contains a {where!r}, which is no enum in this process")
        if name not in cls._member_map_:
            raise Mismatch(f"the object contains {name!r} of {where!r}, which the enum of this process does not have")
        return cls._member_map_[name]

    def _ordered(self, rest: list[Any], number: Optional[int]) -> Any:
        pairs, attributes = rest
        made: Any = self._fill_dict(OrderedDict(), pairs, number)
        vars(made).update(self._read(attributes, None))
        return made

    def _set(self, rest: list[Any], number: Optional[int]) -> Any:
        made: set[Any] = set()
        if number is not None:
            self._defined[number] = made
        made.update(self._keys(rest[0]))
        return made

    def _slice(self, rest: list[Any], number: Optional[int]) -> Any:
        start, stop, step = [self._read(node, None) for node in rest[0]]
        return slice(start, stop, step)

    def _view(self, rest: list[Any], number: Optional[int]) -> Any:
        return viewed(self._leaf(rest[0]), *rest[1:])


def _zone(offset: Any) -> Any:
    if offset is None:
        return None
    length = datetime.timedelta(*offset)
    return datetime.timezone(length) if length else datetime.timezone.utc


def _np(what: str) -> Any:
    try:
        return import_module("numpy")
    except ImportError:
        raise NotFound(f"the object contains a {what} of numpy, which is not installed") from None


def _torch(what: str) -> Any:
    try:
        return import_module("torch")
    except ImportError:
        raise NotFound(f"the object contains a {what} of torch, which is not installed") from None


def _dtype(text: Any) -> Any:
    np = _np("dtype")
    made = np.dtype(str(text))
    if made.hasobject or made.fields is not None:
        raise ValueError("a dtype has objects or fields")
    return made


def _scalar(text: Any, data: str) -> Any:
    dtype = _dtype(text)
    raw = bytes.fromhex(data)
    if len(raw) != dtype.itemsize:
        raise ValueError("a number has another length than its dtype")
    np = _np("number")
    if dtype.kind == "S":
        return np.bytes_(raw)  # an array forgets zeros at the end
    if dtype.kind == "U":
        return np.str_(raw.decode("utf-32-be" if dtype.byteorder == ">" else "utf-32-le", "surrogatepass"))
    return np.frombuffer(raw, dtype)[0] if raw else np.zeros((), dtype)[()]


def _torch_dtype(name: str) -> Any:
    torch = _torch("dtype")
    found = vars(torch).get(name)
    if not isinstance(found, torch.dtype):
        raise Mismatch(f"the object contains the dtype torch.{name}, which this torch ({torch.__version__}) does not have")
    return found


def _time(cls: Any, rest: list[Any]) -> Any:
    *numbers, fold, zone = rest
    return cls(*numbers, _zone(zone), fold=fold)


_READERS: dict[str, Callable[[Reader, list[Any], Optional[int]], Any]] = {
    "use": lambda r, rest, n: r._defined[rest[0]],
    "view": Reader._view,
    "same": lambda r, rest, n: dressed(r._leaf(rest[0]), rest[1], True),
    "object": Reader._object,
    "named": Reader._named_tuple,
    "enum": Reader._enum,
    "ordered": Reader._ordered,
    "set": Reader._set,
    "frozenset": lambda r, rest, n: frozenset(r._keys(rest[0])),
    "slice": Reader._slice,
    "str": lambda r, rest, n: bytes.fromhex(rest[0]).decode("utf-32-le", "surrogatepass"),
    "int": lambda r, rest, n: int(rest[0], 16),
    "complex": lambda r, rest, n: complex(*[r._read(child, None) for child in rest]),
    "nan": lambda r, rest, n: _read_nan(*rest),
    "range": lambda r, rest, n: range(*[r._read(node, None) for node in rest]),
    "date": lambda r, rest, n: datetime.date(*rest),
    "time": lambda r, rest, n: _time(datetime.time, rest),
    "datetime": lambda r, rest, n: _time(datetime.datetime, rest),
    "timedelta": lambda r, rest, n: datetime.timedelta(*rest),
    "decimal": lambda r, rest, n: decimal.Decimal(rest[0]),
    "uuid": lambda r, rest, n: uuid.UUID(rest[0], is_safe=uuid.SafeUUID[rest[1] if len(rest) > 1 else "unknown"]),
    "ellipsis": lambda r, rest, n: ...,
    "scalar": lambda r, rest, n: _scalar(*rest),
    "dtype": lambda r, rest, n: _dtype(rest[0]),
    "torch.dtype": lambda r, rest, n: _torch_dtype(rest[0]),
    "torch.device": lambda r, rest, n: _torch("device").device(str(rest[0])),
    "torch.Size": lambda r, rest, n: _torch("Size").Size([int(size) for size in rest[0]]),
}
