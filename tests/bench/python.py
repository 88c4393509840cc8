# SPDX-License-Identifier: Apache-2.0
"""python.py LIBRDT SOCKET: the cost of the Python package above the library, which ctypes calls here, measured
alternately. Prints a row for each round."""
import ctypes as ct
import statistics
import sys
import time

import numpy as np

import rdtd

ROUNDS, CALLS, TENSORS = 15, 40, 10000


class Tensor(ct.Structure):
    _fields_ = [("dtype", ct.c_int), ("ndim", ct.c_uint32), ("shape", ct.c_void_p), ("strides", ct.c_void_p), ("data", ct.c_void_p)]


lib = ct.CDLL(sys.argv[1])
for name in ("rdt_connect", "rdt_alloc", "rdt_put", "rdt_free", "rdt_fetch", "rdt_object_tensor"):
    getattr(lib, name).restype = ct.c_int
lib.rdt_release.restype = None
error = ct.create_string_buffer(1024)


def ok(status):
    if status:
        sys.exit(error.raw[8:].split(b"\0")[0])


class ConnectOptions(ct.Structure):
    _fields_ = [("struct_size", ct.c_size_t), ("socket", ct.c_char_p), ("name", ct.c_char_p), ("timeout", ct.c_int64)]


connection, address, found = ct.c_void_p(), ct.c_void_p(), ct.c_void_p()
options = ConnectOptions(ct.sizeof(ConnectOptions), sys.argv[2].encode(), None, 0)
ok(lib.rdt_connect(ct.byref(options), ct.byref(connection), error))
ok(lib.rdt_alloc(connection, ct.c_size_t(TENSORS * 4096), ct.byref(address), error))
shape = (ct.c_int64 * 1)(1024)
tensors = (Tensor * TENSORS)(*[Tensor(12, 1, ct.addressof(shape), None, address.value + 4096 * i) for i in range(TENSORS)])
ref = ct.create_string_buffer(512)
one_ref, many_ref = ct.create_string_buffer(512), ct.create_string_buffer(512)
connection_p, none = connection, ct.c_void_p()
ok(lib.rdt_put(connection, tensors, ct.c_size_t(1), None, one_ref, error))
ok(lib.rdt_put(connection, tensors, ct.c_size_t(TENSORS), None, many_ref, error))


def c_put():
    ok(lib.rdt_put(connection, tensors, ct.c_size_t(TENSORS), None, ref, error))
    ok(lib.rdt_free(connection, ref, ct.c_bool(False), error))


def c_get(which):
    ok(lib.rdt_fetch(connection, which, ct.c_size_t(1), None, ct.byref(found), error))
    lib.rdt_release(found)


c = rdtd.connect(sys.argv[2])
one = c.put(c.empty(1024, "f32"))
arrays = c.empty_like({f"layer.{i}": np.zeros(1024, "f4") for i in range(TENSORS)})
many = c.put(arrays)


def python_put():
    c.put(arrays).free()


def median(call, calls):
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


for row, ours, reference, calls, per, allowed in (("python_get", lambda: c.get(one), lambda: c_get(one_ref), CALLS, 1, 20),
                                                  ("python_put_10000", python_put, c_put, 3, TENSORS, 2),
                                                  ("python_get_10000", lambda: c.get(many), lambda: c_get(many_ref), 3, TENSORS, 2)):
    for i in range(ROUNDS + 1):
        above = (median(ours, calls) - median(reference, calls)) / per
        if i:  # the first warms up
            print(row, "us", "lower", 1, f"{max(above, 0.001):.3f}", allowed, sep="\t")
