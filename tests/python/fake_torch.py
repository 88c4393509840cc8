# SPDX-License-Identifier: Apache-2.0
"""The little of torch that rdtd looks at, over the FAKE driver (tests/fake_cuda), since a torch of the package
index uses no fake driver: tensors in host memory and on fake GPUs, the current stream and the current device. It
computes nothing. `install()` makes it the module "torch" of this process."""
import ctypes as ct
import sys
import types

import numpy as np


class dtype:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"

    def __reduce__(self):
        return _dtype_named, (self.name,)


def _dtype_named(name):
    return globals()[name]


float32, int64 = dtype("float32"), dtype("int64")
_NUMPY = {float32: "f4", int64: "i8"}


class device(types.SimpleNamespace):
    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


class _Dl(ct.Structure):
    """The beginning of DLManagedTensor."""

    _fields_ = [("data", ct.c_void_p), ("type", ct.c_int32), ("id", ct.c_int32), ("ndim", ct.c_int32),
                ("code", ct.c_uint8), ("bits", ct.c_uint8), ("lanes", ct.c_uint16),
                ("shape", ct.POINTER(ct.c_int64)), ("strides", ct.POINTER(ct.c_int64)),
                ("offset", ct.c_uint64)]


class Tensor:
    """Contiguous. `memory` keeps its bytes alive."""

    def __init__(self, address, shape, dtype_, gpu, memory):
        self.address, self.shape, self.dtype, self.memory = address, tuple(shape), dtype_, memory
        self.device = device(type="cpu" if gpu is None else "cuda", index=gpu)
        self.is_cpu, self.is_cuda = gpu is None, gpu is not None

    def stride(self):
        return tuple(int(np.prod(self.shape[i + 1:])) for i in range(len(self.shape)))

    def data_ptr(self):
        return self.address

    def is_conj(self):
        return False

    is_neg = is_conj

    def copy_(self, other):
        self.bytes()[...] = other.bytes()

    def bytes(self):
        """Its bytes as a numpy array, which can be written."""
        count = int(np.prod(self.shape)) * np.dtype(_NUMPY[self.dtype]).itemsize
        at = self.address if self.is_cpu else driver.fake_cuda_reach(self.address, count)
        return np.frombuffer((ct.c_char * count).from_address(at), "u1")

    def numpy(self):
        return self.bytes().view(_NUMPY[self.dtype]).reshape(self.shape)


driver = None  # the fake driver, as ctypes loads it


def install(library, allocate):
    """library: the fake driver. allocate(gpu, bytes): memory of that GPU, an object with `.value`."""
    global driver
    driver = library
    module = types.ModuleType("torch")
    state = types.SimpleNamespace(stream=0, gpu=0, available=True)

    def empty(shape, *, dtype, device):
        count = int(np.prod(shape)) * np.dtype(_NUMPY[dtype]).itemsize
        if str(device) == "cpu":
            memory = np.zeros(count, "u1")
            return Tensor(memory.ctypes.data, shape, dtype, None, memory)
        gpu = int(str(device).partition(":")[2] or state.gpu)
        memory = allocate(gpu, count)
        return Tensor(memory.value, shape, dtype, gpu, memory)

    def from_dlpack(capsule):
        get = ct.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ct.c_void_p, [ct.py_object, ct.c_char_p]
        dl = _Dl.from_address(get(capsule, b"dltensor"))
        found = {(2, 32): float32, (0, 64): int64}[dl.code, dl.bits]
        return Tensor(dl.data + dl.offset, dl.shape[:dl.ndim], found, dl.id if dl.type == 2 else None, capsule)

    module.__dict__.update(
        __version__="of the fake", Tensor=Tensor, dtype=dtype, float32=float32, int64=int64, empty=empty,
        Size=tuple, device=device, state=state, _C=types.SimpleNamespace(_from_dlpack=from_dlpack),
        utils=types.SimpleNamespace(dlpack=types.SimpleNamespace(from_dlpack=from_dlpack)),
        cuda=types.SimpleNamespace(is_available=lambda: state.available,
                                   is_initialized=lambda: state.available, current_device=lambda: state.gpu,
                                   current_stream=lambda gpu: types.SimpleNamespace(cuda_stream=state.stream)))
    sys.modules["torch"] = module
    return module
