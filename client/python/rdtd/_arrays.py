# SPDX-License-Identifier: Apache-2.0
"""numpy and torch: which of their types are tensors for rdtd, and how the daemon's memory becomes their
arrays.

Neither is required. numpy is imported with the first array that is requested, torch when the first torch
tensor is put or requested. """
from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional

from . import _rdt
from ._check import a_number, a_text, shown
from ._errors import Invalid


class DType(NamedTuple):
    """A dtype of rdtd: a row of rdt_dtype.h."""
    number: int
    bytes: int
    name: str  # in numpy, ml_dtypes or torch: "float32"
    kind: str  # numpy's: "f"; "": numpy lacks it (bf16 and fp8 are in ml_dtypes)
    plain: bool  # every torch accepts it in a DLPack capsule; others are exported as integers and viewed as it


DTYPES = {text: DType(*row) for text, row in _rdt.DTYPES.items()}
BY_OTHER_NAME = {dtype.name: text for text, dtype in DTYPES.items()}
# What numpy calls them as well: "f4", "<f4", "half", "float". Without a byte order "i8" and "u8" are rdtd's
# own, of eight bits.
NUMPY_CODES = {f"{dtype.kind}{dtype.bytes}": text for text, dtype in DTYPES.items() if dtype.kind}
NUMPY_WORDS = {"half": "f16", "single": "f32", "float": "f64", "double": "f64", "int": "i64", "long": "i64",
               "short": "i16", "complex": "c128"}
PYTHON_TYPES: dict[Any, str] = {float: "f64", int: "i64", bool: "bool", complex: "c128"}


# ---- numpy ----

_np: Any = None  # False: not installed
_np_dtypes: dict[str, Any] = {}  # "f32" -> numpy.dtype
_np_known: dict[Any, str] = {}  # numpy.dtype -> "f32"
_np_plain: set[int] = set()  # ids of the dtypes in _np_dtypes, which most arrays share: the fastest way to know one


def numpy() -> Any:
    """The module numpy; None if it is not installed."""
    global _np
    if _np is None:
        try:
            module: Any = import_module("numpy")
        except ImportError:
            module = False
        else:
            for text in NUMPY_CODES.values():
                dtype = module.dtype(DTYPES[text].name)
                _np_dtypes[text] = dtype
                _np_known[dtype] = text
                _np_plain.add(id(dtype))
        _np = module  # last: another thread that sees it needs the rest
    return _np or None


def numpy_dtype(text: str) -> Any:
    """The numpy dtype for "f32", "bf16", ...; None if numpy lacks it (bf16 and fp8 need ml_dtypes)."""
    np = numpy()
    if np is None:
        return None
    found = _np_dtypes.get(text)
    if found is None and text in DTYPES:
        try:
            found = np.dtype(getattr(import_module("ml_dtypes"), DTYPES[text].name))
        except (ImportError, AttributeError, TypeError):
            return None
        _np_dtypes[text] = found
        _np_known[found] = text
        _np_plain.add(id(found))
    return found


def plain_array(array: Any) -> bool:
    """Whether the dtype of a numpy array is an rdtd dtype: not objects, structs or times, in native byte order, and without
    metadata, such as the names of h5py's enums."""
    dtype = array.dtype
    if id(dtype) in _np_plain:
        return True
    numpy()
    if dtype.metadata:
        return False
    if dtype in _np_known:
        return True
    text = BY_OTHER_NAME.get(dtype.name)
    return text is not None and numpy_dtype(text) == dtype


def to_numpy(tensor: _rdt.Tensor) -> Any:
    """The tensor's memory as an ndarray, read-only if the memory is. Returns the Tensor itself if it is on a
    GPU, numpy lacks its dtype, or numpy is not installed."""
    dtype = _np_dtypes.get(tensor.dtype)
    if dtype is None:
        dtype = numpy_dtype(tensor.dtype)
    if dtype is None:
        return tensor
    if tensor.contiguous:
        try:
            return _np.ndarray(tensor.shape, dtype, tensor)
        except BufferError:
            if tensor.device == "cpu":
                raise
            return tensor
    if tensor.device != "cpu":
        return tensor
    if DTYPES[tensor.dtype].kind:
        return _np.asarray(tensor)
    return _np.asarray(tensor.bits()).view(dtype)


# ---- torch ----

_torch: Any = None
_from_capsule: Any = None
_torch_by_text: dict[str, Any] = {}


def torch() -> Any:
    """The module torch, imported on the first call; None if it is not installed."""
    global _torch, _from_capsule
    if _torch is None:
        try:
            module: Any = import_module("torch")
        except ImportError:
            module = False
        else:
            numbers = {}
            for other, text in BY_OTHER_NAME.items():
                dtype = getattr(module, other, None)
                if isinstance(dtype, module.dtype):
                    _torch_by_text[text] = dtype
                    numbers[dtype] = DTYPES[text].number
            # The function that torch.from_dlpack calls in the end; it runs once for every tensor.
            _from_capsule = getattr(module._C, "_from_dlpack", module.utils.dlpack.from_dlpack)
            _rdt.set_torch(module.Tensor, numbers, _stream_of)
        _torch = module  # last: another thread that sees it needs the rest
    return _torch or None


def _stream_of(ordinal: int) -> int:
    stream: int = sys.modules["torch"].cuda.current_stream(ordinal).cuda_stream
    return stream


def torch_uses_gpus() -> bool:
    """Whether torch was imported and has opened a GPU. Imports nothing."""
    module = sys.modules.get("torch")
    try:
        return module is not None and bool(module.cuda.is_initialized())
    except AttributeError:  # torch is being imported
        return False


def stream_number(stream: Any) -> int:
    """The CUDA number of a stream: a number, a torch.cuda.Stream, or any object with `cuda_stream` or `ptr`.
    Raises TypeError."""
    number = stream
    for name in ("cuda_stream", "ptr"):
        number = getattr(number, name, number)
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"stream must be a stream or its CUDA number, not {shown(stream)}")
    return a_number(number, "stream", 0, 2**64 - 1)


_MOST_GPUS = 64


def gpu_of(device: Any) -> Any:
    """Interprets a caller's device: None for host memory, a GPU's ordinal, or its UUID. Raises ValueError."""
    if isinstance(device, int) and not isinstance(device, bool):
        return a_number(device, "device", 0, _MOST_GPUS - 1)
    name = device if isinstance(device, str) else str(device)  # torch.device says "cuda:1"
    if name in ("host", "cpu"):
        return None
    if name.startswith(("GPU-", "MIG-")):
        a_text(name, "device")
        return name
    kind, colon, number = name.partition(":")
    if kind == "cuda" and not colon:
        return _torch.cuda.current_device() if torch_uses_gpus() and torch() else 0
    if kind == "cuda" and number.isascii() and number.isdigit():
        return a_number(int(number[:9]), "device", 0, _MOST_GPUS - 1)
    raise ValueError(f"device must be \"host\", \"cuda\", \"cuda:1\", a torch.device, the ordinal of a GPU "
                     f"in this process, or its UUID, not {shown(device)}")


def to_torch(tensor: _rdt.Tensor) -> Any:
    """The tensor's memory as a torch.Tensor, on its GPU if it is on one. torch has no read-only tensors:
    writing to read-only memory is a fault.

    Raises TypeError if this torch lacks the dtype or uses no GPU."""
    module = torch()
    if module is None:
        raise ImportError("torch is not installed: as_=\"numpy\" and as_=\"tensor\" do not need it")
    text = tensor.dtype
    dtype = _torch_by_text.get(text)
    if dtype is None:
        raise TypeError(f"this torch ({module.__version__}) has no dtype {text}: use as_=\"tensor\", and "
                        "bits() for the raw elements")
    if tensor.device != "cpu" and not module.cuda.is_available():
        raise TypeError(f"this torch ({module.__version__}) cannot use a GPU: pass as_=\"tensor\" or "
                        "device=\"host\"")
    made = _from_capsule(tensor._capsule())
    return made if DTYPES[text].plain else made.view(dtype)


# ---- what is a tensor ----

_kinds: dict[type, str] = {bytes: "b", bytearray: "B", _rdt.Tensor: "o", memoryview: "o"}


_BUFFERS = frozenset((("_ctypes", "Array"), ("mmap", "mmap")))


def _classify(cls: type) -> str:
    np = numpy() if "numpy" in sys.modules else None  # waits if another thread is importing it
    if np is not None and issubclass(cls, np.ndarray):
        return "n" if cls in (np.ndarray, np.memmap) else ""
    if "torch" in sys.modules and torch() is not None and issubclass(cls, _torch.Tensor):
        return "t"
    if np is not None and issubclass(cls, np.generic):
        return ""
    if any((base.__module__, base.__name__) in _BUFFERS for base in cls.__mro__):
        return "o"
    if cls.__module__.partition(".")[0] == "pyarrow":
        return ""  # its arrays offer DLPack, but only those of numbers without nulls are tensors
    if hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__"):
        return "o"
    return "o" if hasattr(cls, "__cuda_array_interface__") else ""


def kind_of(value: Any) -> str:
    """How a value is encoded: "n" numpy, "t" torch, "o" another tensor, "b" bytes, "B" bytearray; "": not as
    a tensor."""
    cls = type(value)
    kind = _kinds.get(cls)
    if kind is None:
        kind = _kinds[cls] = _classify(cls)
    if kind == "n" and not plain_array(value):
        return ""
    return kind


def dtype_text(dtype: Any) -> str:
    """The rdtd name of a dtype: "f32" for "f32", numpy.float32, "float32", "f4", "<f4", torch.float32. Raises
    TypeError."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    if isinstance(dtype, type) and dtype in PYTHON_TYPES:
        return PYTHON_TYPES[dtype]
    if dtype is None or isinstance(dtype, (bytes, int)):
        raise TypeError(f"dtype must be the name of a dtype, or a dtype of numpy or torch, not {shown(dtype)}")
    name = dtype if isinstance(dtype, str) else str(dtype)
    if isinstance(dtype, str):
        code = NUMPY_CODES.get(name[1:] if name[:1] in ("<", "=", "|") else name) or NUMPY_WORDS.get(name)
        if code is not None and sys.byteorder == "little":
            return code
    if name.startswith("torch."):
        name = name[6:]
    elif not isinstance(dtype, str) and numpy() is not None:
        try:
            other = _np.dtype(dtype)
            name = other.name if other.isnative else str(other)
        except (TypeError, ValueError):
            pass
    text = BY_OTHER_NAME.get(name)
    if text is None:
        raise TypeError(f"unknown dtype {name}: rdtd has {', '.join(DTYPES)}")
    return text


def convert(tensors: list[_rdt.Tensor], kinds: str, as_: str) -> list[Any]:
    """Converts fetched tensors as `as_` asks. `kinds` says how each was put (one letter: all of them)."""
    one = _CONVERTERS.get(as_)
    if one is None:
        raise ValueError(f"as_ must be one of {', '.join(_CONVERTERS)}, list, not {as_!r}")
    if kinds in ("n", "o"):
        return [one(tensor) for tensor in tensors]
    if kinds == "t" and one is _auto and torch() is not None:
        return [_from_capsule(tensor._capsule()) if DTYPES[tensor.dtype].plain and tensor.device == "cpu"
                else _as_put(tensor, "t")
                for tensor in tensors]
    if len(kinds) == 1:
        kinds *= len(tensors)
    return [_as_put(tensor, kind) if one is _auto or kind in "bB" else one(tensor)
            for tensor, kind in zip(tensors, kinds)]


def bytes_of(tensor: _rdt.Tensor) -> bytes:
    """The elements of a tensor that was put as bytes."""
    if not tensor.contiguous:
        raise Invalid("the object's metadata speaks of bytes, and the tensor has strides")
    return tensor.tobytes()


def _as_put(tensor: _rdt.Tensor, kind: str) -> Any:
    if kind == "b":
        return bytes_of(tensor)
    if kind == "B":
        return bytearray(bytes_of(tensor))
    if kind == "t" and torch() is not None and tensor.dtype in _torch_by_text:
        if tensor.device == "cpu" or _torch.cuda.is_available():
            return to_torch(tensor)
    return to_numpy(tensor)


def _auto(tensor: _rdt.Tensor) -> Any:
    return to_numpy(tensor)


def _same(tensor: _rdt.Tensor) -> Any:
    return tensor


_CONVERTERS: dict[str, Callable[[_rdt.Tensor], Any]] = {"auto": _auto, "numpy": to_numpy, "torch": to_torch,
                                                        "tensor": _same}


def box(slices: Any) -> Optional[tuple[tuple[int, int], ...]]:
    """Converts slices to (start, count) pairs, one for each dimension."""
    if slices is None:
        return None
    ranges = []
    for one in slices if isinstance(slices, tuple) else (slices,):
        if not isinstance(one, slice) or one.stop is None or one.step not in (None, 1):
            raise ValueError("slices: each needs start and stop in every dimension and no step, for example "
                             f"numpy.s_[0:10, 5:6], not {shown(one)}")
        start = 0 if one.start is None else a_number(one.start, "the start of slices", 0, 2**63 - 1)
        ranges.append((start, a_number(one.stop, "the stop of slices", start, 2**63 - 1) - start))
    return tuple(ranges)
