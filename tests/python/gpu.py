# SPDX-License-Identifier: Apache-2.0
"""GPU memory in Python, on a FAKE driver (tests/fake_cuda), whose device memory the processor cannot touch.
The tests show which calls are made in which order, and how long things live; they show nothing about a GPU.
Small classes stand for the tensors of foreign libraries."""
import ctypes as ct
import multiprocessing
import os
import struct
import subprocess
import sys
import threading

import rdtd
from rdtd import _rdt

from interrupts import interrupted, stopped
from nodes import LONG, Node, main, nodes, optional, raises, required, until

np = required("numpy")
torch = optional("torch")

FAKE = os.path.join(os.environ["RDT_BUILD_DIR"], "tests", "fake_cuda")
if not os.path.exists(os.path.join(FAKE, "libcuda.so.1")):
    print("built without cuda.h: make cuda-headers")
    sys.exit(77)
before = os.environ.get("LD_LIBRARY_PATH")
os.environ["LD_LIBRARY_PATH"] = FAKE + (":" + before if before else "")  # for the daemons
# For this process: dlopen finds the library by its name from now on.
cuda = ct.CDLL(os.path.join(FAKE, "libcuda.so.1"))
cuda.fake_cuda_reach.restype = ct.c_void_p
cuda.fake_cuda_reach.argtypes = [ct.c_uint64, ct.c_size_t]
LEGACY = 1


def driver(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, f"{name}: {result}"


def use(gpu):
    context, device = ct.c_void_p(), ct.c_int()
    driver("cuInit", 0)
    driver("cuDeviceGet", ct.byref(device), gpu)
    driver("cuDevicePrimaryCtxRetain", ct.byref(context), device)
    driver("cuCtxSetCurrent", context)


def seen(address, count, dtype):
    """Returns the bytes at an address of the device, read by the fake driver."""
    reached = cuda.fake_cuda_reach(address, count * np.dtype(dtype).itemsize)
    assert reached, "it is no device memory"
    return np.frombuffer((ct.c_char * (count * np.dtype(dtype).itemsize)).from_address(reached), dtype)


def address_of(tensor):
    return tensor.__cuda_array_interface__["data"][0]


class Gate:
    """A stream that stands still until it is opened."""

    def __init__(self):
        self.stream = ct.c_void_p()
        driver("cuStreamCreate", ct.byref(self.stream), 0)
        self.event = threading.Event()
        self.call = ct.CFUNCTYPE(None, ct.c_void_p)(lambda _: self.event.wait(LONG) and None)
        driver("cuLaunchHostFunc", self.stream, self.call, None)

    def copy(self, to, source, count):
        driver("cuMemcpyAsync_v2" if hasattr(cuda, "cuMemcpyAsync_v2") else "cuMemcpyAsync", ct.c_uint64(to),
               ct.c_uint64(source),
               ct.c_size_t(count), self.stream)

    def end(self):
        self.event.set()
        driver("cuStreamSynchronize", self.stream)
        driver("cuStreamDestroy_v2" if hasattr(cuda, "cuStreamDestroy_v2") else "cuStreamDestroy",
               self.stream)


class Own:
    """Device memory of this process, as a foreign library allocates it."""

    def __init__(self, array, stream=None):
        self.array = array
        self.address = ct.c_uint64()
        driver("cuMemAlloc_v2" if hasattr(cuda, "cuMemAlloc_v2") else "cuMemAlloc", ct.byref(self.address),
               ct.c_size_t(array.nbytes))
        seen(self.address.value, array.size, array.dtype)[:] = array.ravel()
        self.stream = stream

    def end(self):
        driver("cuMemFree_v2" if hasattr(cuda, "cuMemFree_v2") else "cuMemFree", self.address)


class ByInterface(Own):
    @property
    def __cuda_array_interface__(self):
        return {"version": 3, "typestr": self.array.dtype.str, "shape": self.array.shape, "strides": None,
                "data": (self.address.value, False), "stream": self.stream}


class ByDlpack:
    """An object with DLPack, which records the stream that it is asked for."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.asked = []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **more):
        self.asked.append(stream)
        return self.tensor.__dlpack__(stream=stream)


class Gpu(Node):
    """A daemon with the fake driver, and two connections."""

    def __enter__(self):
        use(0)
        self.c, self.reader = rdtd.connect(self.socket), rdtd.connect(self.socket)
        return self.c, self.reader

    def __exit__(self, *ignored):
        self.c.close()
        self.reader.close()


VALUE = np.arange(1 << 19, dtype="f4").reshape(512, 1024)


def test_host_memory_goes_to_a_gpu_and_back():
    with Gpu() as (c, reader):
        ref = c.put(VALUE)
        t = c.get(ref, device="cuda:0")
        assert isinstance(t, rdtd.Tensor) and t.device == "cuda:0" and t.shape == VALUE.shape
        assert t.dtype == "f32"
        assert (seen(address_of(t), VALUE.size, "f4") == VALUE.ravel()).all()
        assert t.tobytes() == VALUE.tobytes() and "on GPU 0" in repr(t)
        back = c.put(t)
        assert back.copied == 1, "a fetched tensor is copied, on the GPU"
        del t
        assert (reader.get(back, device="host") == VALUE).all()
        assert (reader.get(back, device="cuda:0").tobytes()) == VALUE.tobytes()
        assert (reader.get(back, as_="numpy") == VALUE).all()
        other = reader.get(back, device="cuda:1")
        assert other.device == "cuda:1" and other.__dlpack_device__() == (2, 1)
        assert other.tobytes() == VALUE.tobytes()


def test_a_process_that_uses_no_gpu_gets_host_memory():
    with Gpu() as (c, reader):
        ref = c.put(c.get(c.put(VALUE), device=0))
        got = reader.get(ref)
        assert isinstance(got, np.ndarray) and (got == VALUE).all()
        there = reader.get(ref, device="cuda")
        fetched = reader.get_fetched(ref)  # from now on fetches deliver tensors where they lie
        assert fetched.value.device == "cuda:0" and fetched.path == "local/share" and there.device == "cuda:0"
        assert reader.get(ref, device=reader._gpu(1)).device == "cuda:1"


def test_empty_on_a_gpu_is_put_without_a_copy():
    with Gpu() as (c, reader):
        e = c.empty((512, 1024), "f32", device="cuda:1")
        assert e.device == "cuda:1" and not seen(address_of(e), VALUE.size, "f4").any()
        seen(address_of(e), VALUE.size, "f4")[:] = VALUE.ravel()
        ref = c.put({"w": e, "step": 3})
        assert ref.copied == 0
        got = reader.get(ref, device="host")
        assert got["step"] == 3 and (got["w"] == VALUE).all()
        like = c.empty_like({"a": VALUE, "b": [VALUE[:2]]}, device="cuda:0")
        assert like["b"][0].device == "cuda:0" and like["b"][0].shape == (2, 1024)
        with raises(BufferError, "on GPU 1"):
            memoryview(e)
        with raises(AttributeError, "GPU 1"):
            e.__array_interface__
        with raises(AttributeError, "host memory"):
            c.empty(3, as_="tensor").__cuda_array_interface__


def test_structure_goes_with_tensors_in_both_places():
    with Gpu() as (c, reader):
        on_gpu = c.get(c.put(VALUE), device=0)
        long = {f"n{i}": i for i in range(30000)}
        value = {"gpu": on_gpu, "host": np.arange(5), "blob": b"x" * 9000, "long": long}
        ref = c.put(value)
        got = reader.get(ref, device="cuda:0")
        assert got["gpu"].device == "cuda:0" and got["host"].tobytes() == np.arange(5).tobytes()
        assert got["blob"] == value["blob"]
        assert got["long"] == long
        as_they_lie = reader.get(ref)
        assert as_they_lie["gpu"].device == "cuda:0" and (as_they_lie["host"] == np.arange(5)).all()
        host = reader.get(ref, device="host")
        assert (host["gpu"] == VALUE).all() and host["long"] == long
        all_there = reader.get(c.put({"a": VALUE, "blob": b"y" * 9000, "set": {1, 2}}), device="cuda:0")
        assert all_there["a"].tobytes() == VALUE.tobytes() and all_there["blob"] == b"y" * 9000
        assert all_there["set"] == {1, 2}


def test_dlpack_goes_both_ways_and_streams_are_honoured():
    with Gpu() as (c, reader):
        t = c.get(c.put(VALUE), device=0)
        capsule = t.__dlpack__(stream=LEGACY)
        assert "dltensor" in repr(capsule) and t.__dlpack_device__() == (2, 0)
        for stream in (None, -1, 2, 0x12345):
            t.__dlpack__(stream=stream, max_version=(1, 0))
        with raises(ValueError, "ambiguous"):
            t.__dlpack__(stream=0)
        with raises(BufferError, "on GPU 0"):
            t.__dlpack__(dl_device=(2, 1))
        with raises(BufferError, "no streams"):
            c.empty(3, as_="tensor").__dlpack__(stream=2)
        foreign = ByDlpack(t)
        ref = c.put(foreign)
        assert foreign.asked == [LEGACY], "the producer makes our stream wait"
        assert (reader.get(ref, device="host") == VALUE).all()
        foreign.asked.clear()
        gate = Gate()
        gate.event.set()
        c.put(foreign, stream=gate.stream.value)
        assert foreign.asked == [gate.stream.value]
        gate.end()
        del capsule, foreign


def test_array_interface_comes_in_by_a_copy_on_the_gpu():
    with Gpu() as (c, reader):
        own = ByInterface(VALUE)
        ref = c.put({"a": own})
        assert ref.copied == 1
        own.end()  # the daemon has a copy
        got = reader.get(ref, device="cuda:0")["a"]
        assert got.tobytes() == VALUE.tobytes()
        wrong = ByInterface(VALUE)
        wrong.array = np.zeros(3, ">f4")
        with raises(TypeError, "no rdtd dtype matches"):
            c.put([wrong])
        wrong.end()


def test_put_waits_for_a_foreign_stream():
    with Gpu() as (c, reader):
        source, gate = Own(VALUE), Gate()
        late = ByInterface(np.zeros_like(VALUE), gate.stream.value)
        gate.copy(late.address.value, source.address.value, VALUE.nbytes)
        refs = []
        thread = threading.Thread(target=lambda: refs.append(c.put(late)))
        thread.start()
        reader.ping()
        assert thread.is_alive(), "the stream has not come there"
        gate.event.set()
        thread.join(LONG)
        gate.end()
        assert (reader.get(refs.pop(), device="host") == VALUE).all()
        late.end()
        source.end()


def test_put_of_own_memory_returns_at_once_and_readers_wait_for_its_stream():
    with Gpu() as (c, reader):
        e = c.empty((512, 1024), "f32", device=0)
        source, gate = Own(VALUE), Gate()
        gate.copy(address_of(e), source.address.value, VALUE.nbytes)
        ref = c.put(e, stream=gate.stream.value)
        wait = reader.fetch(ref, device="host")
        reader.ping()
        assert not wait.done() and c.stat(ref)["state"] == "filling"
        gate.event.set()
        assert (wait.result(LONG) == VALUE).all()
        gate.end()
        source.end()


def test_publish_waits_for_the_producers_stream():
    with Gpu() as (c, reader):
        e = c.empty((512, 1024), "f32", device=0)
        source, gate, versions = Own(VALUE), Gate(), []
        gate.copy(address_of(e), source.address.value, VALUE.nbytes)
        ref = c.put(e, stream=gate.stream.value)
        publishing = threading.Thread(target=lambda: versions.append(c.publish("w", ref)))
        publishing.start()
        wait = reader.fetch(reader.name("w"), device="host")
        reader.ping()
        assert publishing.is_alive() and not wait.done()
        gate.event.set()
        assert (wait.result(LONG) == VALUE).all()
        publishing.join(LONG)
        assert versions == [1]
        c.unpublish("w")
        gate.end()
        source.end()


def test_put_to_host_memory_returns_at_once_and_takes_no_memory_of_the_gpu():
    with Gpu() as (c, reader):
        e = c.empty((512, 1024), "f32", device=0)
        source, gate = Own(VALUE), Gate()
        gate.copy(address_of(e), source.address.value, VALUE.nbytes)
        ref = c.put({"w": e}, stream=gate.stream.value, device="host")
        assert ref.copied == 1 and not ref._live
        wait = reader.fetch(ref)
        reader.ping()
        assert not wait.done()
        gate.event.set()
        fetched = wait.fetched(LONG)
        assert fetched.path == "local/share" and isinstance(fetched.value["w"], np.ndarray)
        assert fetched.value["w"].tobytes() == VALUE.tobytes()
        gate.end()
        source.end()


def test_versions_of_gpu_tensors_in_host_memory():
    with Gpu() as (c, reader):
        own = ByInterface(VALUE, stream=LEGACY)
        for step in range(1, 4):
            seen(own.address.value, VALUE.size, "f4")[:] = VALUE.ravel() + step
            assert c.publish("w", {"w": own, "step": step}, device="host") == step
            seen(own.address.value, VALUE.size, "f4")[:] = 0
            got = reader.get(c.name("w"))
            assert got["step"] == step and (got["w"] == VALUE + step).all()
        seen(own.address.value, VALUE.size, "f4")[:] = VALUE.ravel()
        kept = c.put({"w": own}, id="kept", evictable=True, device="host")
        assert (reader.get(kept)["w"] == VALUE).all()
        summed = c.put({"w": own}, checksum=True, device="host")
        assert (reader.get(summed, verify=True)["w"] == VALUE).all()
        with raises(ValueError, "copy=False"):
            c.put(own, device="host", copy=False)
        with raises(ValueError, "to no other GPU"):
            c.put(own, device="cuda:1")
        c.free(kept)
        c.unpublish("w")
        own.end()


def test_snapshots_on_a_gpu_are_shared_when_the_reader_asks():
    with Gpu() as (c, reader):
        own = ByInterface(VALUE, stream=LEGACY)
        c.publish("w", {"w": own})
        shared = reader.get_fetched(c.name("w"), device="cuda:0", mode="share")
        private = reader.get_fetched(c.name("w"), device="cuda:0", mode="cow")
        assert (shared.path, private.path) == ("local/share", "local/copy")
        assert shared.value["w"].readonly and not private.value["w"].readonly
        assert not shared.value["w"].__cuda_array_interface__["data"][1]  # torch refuses what says so
        snapshot = c.put({"w": own}, snapshot=True)  # the daemon makes it
        again = reader.get_fetched(snapshot, device="cuda:0", as_="tensor")
        assert again.path == "local/share" and again.value["w"].readonly
        with raises((ValueError, TypeError, BufferError, rdtd.Invalid), "read-only"):
            reader.get(snapshot, into={"w": again.value["w"]})
        address = address_of(private.value["w"])
        seen(address, VALUE.size, "f4")[:] = 0
        assert shared.value["w"].tobytes() == VALUE.tobytes()
        c.unpublish("w")
        own.end()


def test_targets_on_a_gpu_are_written():
    with Gpu() as (c, reader):
        ref = c.put(VALUE)
        own = ByInterface(np.zeros_like(VALUE))
        assert reader.get(ref, into=own) is own
        assert (seen(own.address.value, VALUE.size, "f4") == VALUE.ravel()).all()
        mine = c.empty(VALUE.shape, "f32", device=1)
        c.get(ref, into=mine)
        assert mine.tobytes() == VALUE.tobytes()
        with raises(rdtd.Mismatch):
            reader.get(ref, into=ByInterface(np.zeros(3, "f4")))
        own.end()


def test_targets_may_lie_on_a_gpu_and_in_host_memory_together():
    with Gpu() as (c, reader):
        value = {"on": VALUE, "in": VALUE[:7] + 1, "known": VALUE[:3] + 2, "none": VALUE[:0]}
        ref = c.put(value)
        own, host = ByInterface(np.zeros_like(VALUE)), np.zeros_like(value["in"])
        known = reader.empty(value["known"].shape, "f32")
        into = {"on": own, "in": host, "known": known, "none": np.zeros_like(value["none"])}
        for _ in range(2):
            assert reader.get(ref, into=into) is into
            assert (seen(own.address.value, VALUE.size, "f4") == VALUE.ravel()).all()
            assert (host == value["in"]).all() and known.tobytes() == value["known"].tobytes()
            host[:] = 0
        wrong = {**into, "in": np.zeros((2, 2), "f4")}
        with raises(rdtd.Mismatch):
            reader.get(ref, into=wrong)
        assert (wrong["in"] == 0).all()
        own.end()


def test_target_that_the_daemon_cannot_map_is_written_by_a_copy():
    with Gpu() as (c, reader):
        value = VALUE[:, :100].copy()  # shares a block of the driver with others, so it is not exported
        ref = c.put(value)
        own = ByInterface(np.zeros_like(value))
        assert reader.get(ref, into=own) is own
        assert (seen(own.address.value, value.size, "f4") == value.ravel()).all()
        own.end()


def chunks(count, size=2 << 20):
    """Memory of chunks that are mapped next to one another, as torch's expandable segments."""
    base = ct.c_uint64()
    driver("cuMemAddressReserve", ct.byref(base), ct.c_size_t(count * size), ct.c_size_t(0), ct.c_uint64(0),
           ct.c_uint64(0))
    for i in range(count):
        handle, prop = ct.c_uint64(), ct.create_string_buffer(struct.pack("iiiiQQ", 1, 1, 1, 0, 0, 0))
        driver("cuMemCreate", ct.byref(handle), ct.c_size_t(size), prop, ct.c_uint64(0))
        driver("cuMemMap", ct.c_uint64(base.value + i * size), ct.c_size_t(size), ct.c_size_t(0), handle, ct.c_uint64(0))
        driver("cuMemRelease", handle)
    desc = ct.create_string_buffer(struct.pack("iii", 1, 0, 3))
    driver("cuMemSetAccess", base, ct.c_size_t(count * size), desc, ct.c_size_t(1))
    return base.value


def in_chunks(address, like):
    tensor = ByInterface.__new__(ByInterface)
    tensor.array, tensor.address, tensor.stream = like, ct.c_uint64(address), LEGACY
    return tensor


def test_tensors_that_share_chunks_are_targets_and_are_put():
    with Gpu() as (c, reader):
        part = np.arange(3 << 18, dtype="f4")  # 3 MiB: the middle one of three chunks belongs to two tensors
        base = chunks(4)
        one, two = in_chunks(base, part), in_chunks(base + part.nbytes, part)
        ref = c.put([part, part + 1])
        for first, second in ((one, two), (two, one)):
            reader.get(ref, into=[first, second])
            assert (seen(first.address.value, part.size, "f4") == part).all()
            assert (seen(second.address.value, part.size, "f4") == part + 1).all()
        live = c.put([one, two], copy=False)
        assert live.copied == 0
        assert (reader.get(live, device="host")[1] == part).all()


def test_seventy_allocations_are_targets_and_are_shared():
    with Gpu() as (c, reader):
        values = [np.full(1 << 19, i, "f4") for i in range(70)]  # each an allocation of 2 MiB, as cudaMalloc's
        ref, targets = c.put(values), [ByInterface(np.zeros(1 << 19, "f4"), stream=LEGACY) for _ in values]
        for _ in range(2):
            reader.get(ref, into=targets)
            for i, target in enumerate(targets):
                assert seen(target.address.value, 1, "f4")[0] == i
        live = c.put(targets, copy=False)
        assert live.copied == (len(targets) if refuses() else 0)
        if not refuses():
            got = reader.get_fetched(live, as_="tensor", mode="share", device="cuda:0")
            assert got.path == "local/share"
            assert seen(address_of(got.value[69]), 1, "f4")[0] == 69
            del got
        live.free()
        reader.ping()
        until(lambda: (c.dispatch(), all(kept.done() for kept in c._kept_live))[1], "the object is gone")
        for target in targets:
            target.end()


KV = np.arange(300 * 4096, dtype="f4").reshape(300, 4096)  # blocks of 16 KiB


def blocks(address, order):
    return [in_chunks(address + i * KV[0].nbytes, KV[0]) for i in order]


def transfers(c):
    return c.status()["transfers_done"]


def test_blocks_of_a_gpu_that_is_known_are_loaded_together():
    with Gpu() as (c, reader):
        refs = c.put_many(list(KV), evictable=True, ids=[f"kv-{i}" for i in range(len(KV))])
        base, order = chunks(3), [i * 7 % len(KV) for i in range(len(KV))]
        cache = in_chunks(base, KV)
        with reader.import_memory(cache) as known:
            assert known.address == base and known.bytes >= KV.nbytes
            with raises(rdtd.Invalid, "already"):
                reader.import_memory(cache)
            before = transfers(c)
            assert reader.load_many(refs, blocks(base, order)) == [None] * len(KV)
            assert transfers(c) == before
            assert (seen(base, KV.size, "f4").reshape(KV.shape)[order] == KV).all()
            c.free(refs[5], force=True)
            c.put(KV[6] + 1, id="kv-6", replace=True, evictable=True)
            seen(base, KV.size, "f4")[:] = 0
            found = reader.load_many(reader.lookup([f"kv-{i}" for i in range(len(KV)) if i != 5]) + [refs[5]],
                                     blocks(base, range(len(KV))), errors="return")
            assert found[:-1] == [None] * (len(KV) - 1) and isinstance(found[-1], rdtd.Freed)
            got = seen(base, KV.size, "f4").reshape(KV.shape)
            assert (got[:5] == KV[:5]).all() and (got[5] == KV[6] + 1).all() and (got[6:-1] == KV[7:]).all()
            assert (got[-1] == 0).all()
        c.free(prefix="kv-", force=True)
        again = reader.import_memory(cache)
        again.close()
        with raises(rdtd.Unsupported):
            reader.import_memory(ByInterface(KV[:1].copy()))  # shares a block of the driver with others


def test_blocks_of_a_gpu_go_to_the_host_cache():
    with Gpu() as (c, reader):
        base, ids, gate = chunks(3), [f"kv-{i}" for i in range(len(KV))], Gate()
        source = Own(KV)
        gate.copy(base, source.address.value, KV.nbytes)
        values = [in_chunks(base + i * KV[0].nbytes, KV[0]) for i in range(len(KV))]
        values[0].stream = gate.stream.value
        values[1] = KV[1]  # one in host memory
        threading.Timer(0.2, gate.event.set).start()
        refs = c.put_many(values, ids=ids, evictable=True, device="host")  # when the stream has written them
        gate.end()
        values[0].stream = LEGACY
        assert [reader.get(ref).tobytes() for ref in refs] == [one.tobytes() for one in KV]
        found = c.put_many(values[:3], ids=["new", ids[4], None], snapshot=True, device="host", errors="return")
        assert isinstance(found[1], rdtd.Exists) and str(found[1]).startswith("value 1: ")
        assert reader.get(found[2]).tobytes() == KV[2].tobytes()
        with raises(rdtd.Unsupported, "device"):
            c.put_many(values[:3], evictable=True)
        with raises(ValueError, "device"):
            c.put_many(values[:3], device="cuda:1")
        c.free(prefix="kv-", force=True)
        source.end()


def test_calls_with_tensors_of_a_busy_stream_end_in_time():
    with Gpu() as (c, reader):
        gate, target = Gate(), ByInterface(np.zeros_like(VALUE))
        target.stream = gate.stream.value
        ref = c.put(VALUE)
        for call in (lambda: reader.get(ref, into=target, timeout=0.2),
                     lambda: reader.load_many([ref], [target], timeout=0.2),
                     lambda: reader.put(target, evictable=True, device="host", timeout=0.2),
                     lambda: reader.put_many([target], evictable=True, device="host", timeout=0.2)):
            with raises(rdtd.TimedOut, "stream"):
                call()
        gate.end()
        target.end()


def test_blocks_of_a_gpu_that_is_not_known_are_loaded():
    with Gpu() as (c, reader):
        refs = c.put_many(list(KV[:3]), snapshot=True)
        shares = [ByInterface(np.zeros_like(KV[0]), stream=LEGACY) for _ in range(3)]  # the daemon cannot map these
        c.free(refs[1], force=True)
        errors = reader.load_many(refs, shares, errors="return")
        assert errors[0] is None and errors[2] is None and isinstance(errors[1], rdtd.Freed)
        for i, whole in enumerate((KV[0], np.zeros_like(KV[0]), KV[2])):
            assert (seen(shares[i].address.value, KV[0].size, "f4") == whole).all()
        base = chunks(1)
        reader.load_many([refs[0], refs[2]], blocks(base, (4, 0)))
        got = seen(base, 5 * KV[0].size, "f4").reshape(5, -1)
        assert (got[4] == KV[0]).all() and (got[0] == KV[2]).all()
        for share in shares:
            share.end()


def test_ctrl_c_ends_the_release_of_targets_on_a_gpu():
    with Gpu() as (c, reader):
        own = ByInterface(np.zeros_like(VALUE))
        requests = [reader.fetch(rdtd.Ref("never"), into=own)]

        def release():
            requests.clear()
            for _ in range(1000):  # the exception comes after the destructor
                pass
        with stopped(nodes[-1]):
            interrupted(release)
        reader.ping(LONG)
        own.end()


def test_dropping_a_tensor_waits_for_no_stream():
    with Gpu() as (c, reader):
        ref = c.put(VALUE)
        got, source, gate = reader.get(ref, device=0), Own(VALUE), Gate()
        pointer = ct.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ct.c_void_p, [ct.py_object, ct.c_char_p]
        capsule = got.__dlpack__(stream=gate.stream.value)
        address = ct.c_uint64.from_address(pointer(capsule, b"dltensor")).value
        # The fake driver aborts the process if a stream reads memory that was freed.
        gate.copy(source.address.value, address, VALUE.nbytes)
        del got, capsule  # would wait for ever if it waited for the stream
        reader.ping()
        gate.event.set()
        gate.end()
        source.end()


def refuses():
    """Whether the fake driver opens no legacy handle of another process."""
    return any(os.environ.get(name, "0") != "0" for name in ("FAKE_CUDA_NO_IPC", "FAKE_CUDA_UNKIND"))


def test_every_thread_that_puts_without_a_copy_keeps_its_tensors():
    with Gpu() as (c, reader):
        if refuses():
            return
        own, refs = ByInterface(VALUE), []
        threads = [threading.Thread(target=lambda: refs.extend([c.put({"w": own}, copy=False) for _ in range(50)]))
                   for _ in range(4)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        sys.setswitchinterval(interval)
        assert len(refs) == len(c._kept_live) == 200, (len(refs), len(c._kept_live))
        refs.clear()


def test_put_without_a_copy_keeps_the_tensors_until_the_object_is_freed():
    with Gpu() as (c, reader):
        own = ByInterface(VALUE)
        ref = c.put({"w": own}, copy=False)
        assert ref.copied == int(refuses())
        if not refuses():
            assert ref._live and len(c._kept_live) == 1
            seen(own.address.value, VALUE.size, "f4")[:] = VALUE.ravel() + 1
            assert (reader.get(ref, device="host")["w"] == VALUE + 1).all(), "the object is live"
            ref.free()
            until(lambda: (c.dispatch(), next(iter(c._kept_live)).done())[1], "the object is gone")
        host = c.put(VALUE, copy=False)
        assert host.copied == 1 and (reader.get(host) == VALUE).all()
        with raises(ValueError, "detached"):
            c.put(own, copy=False, detached=True)
        own.end()


def test_memory_goes_back_when_no_stream_uses_it():
    with Gpu() as (c, reader):
        e = c.empty((512, 1024), "f32", device=0)
        source, gate = Own(VALUE), Gate()
        # The fake driver aborts the process if a stream writes memory that was freed.
        gate.copy(address_of(e), source.address.value, VALUE.nbytes)
        held = [e]
        del e
        thread = threading.Thread(target=held.clear)
        thread.start()
        reader.ping()
        assert thread.is_alive()
        gate.event.set()
        thread.join(LONG)
        gate.end()
        source.end()


def test_devices_that_are_not_there_are_said():
    with Gpu() as (c, reader):
        ref = c.put(VALUE)
        with raises(rdtd.NotFound, "no GPU 7"):
            c.get(ref, device="cuda:7")
        with raises(rdtd.Unsupported, "MIG-00000000-0000-0000-0000-000000000000"):  # a part of a GPU
            c.get(ref, device="MIG-00000000-0000-0000-0000-000000000000")
        with raises(ValueError, "device must be"):
            c.empty(3, device="tpu")
        with raises(rdtd.Error):
            c.empty(3, device="GPU-00000000-0000-0000-0000-000000000000")
        with raises((MemoryError, rdtd.Error)):
            c.empty(1 << 40, "u8", device=0)


def pool(socket):
    """Calls the two functions that torch looks up by their names, in a process of its own, because the
    session lasts until that process ends."""
    use(0)
    with rdtd.connect(socket) as c, rdtd.connect(socket) as reader:
        module = ct.CDLL(_rdt.__file__)
        module.rdt_torch_alloc.restype = ct.c_void_p
        module.rdt_torch_alloc.argtypes = [ct.c_ssize_t, ct.c_int, ct.c_void_p]
        module.rdt_torch_free.argtypes = [ct.c_void_p, ct.c_ssize_t, ct.c_int, ct.c_void_p]
        failures = _rdt.pool_info()["failures"]
        assert module.rdt_torch_alloc(1 << 21, 0, None) is None
        assert _rdt.pool_info()["failures"] == failures + 1
        c._use_pool()
        address = module.rdt_torch_alloc(4 << 20, 0, None)
        assert address and _rdt.pool_info()["blocks"] == 1
        part = ByInterface.__new__(ByInterface)  # a tensor within the block
        part.array, part.address, part.stream = VALUE, ct.c_uint64(address + (1 << 20)), None
        seen(part.address.value, VALUE.size, "f4")[:] = VALUE.ravel()
        ref = c.put(part)
        assert ref.copied == 0 and ref._live and len(c._kept_live) == 1
        module.rdt_torch_free(address, 4 << 20, 0, None)  # the object holds the memory
        assert (reader.get(ref, device="host") == VALUE).all()
        ref.free()
        until(lambda: (c.dispatch(), next(iter(c._kept_live)).done())[1], "the object is gone")
        again = c.empty((512, 1024), "f32", device=0)
        c.put(again)
        other = module.rdt_torch_alloc(1 << 20, 1, None)
        assert other and module.rdt_torch_alloc(1 << 50, 0, None) is None and _rdt.pool_info()["last"]
        module.rdt_torch_free(other, 1 << 20, 1, None)
        assert _rdt.pool_info()["blocks"] == 0
        if torch is None:
            with raises(rdtd.Unsupported, "torch is not installed"):
                c.torch_pool().__enter__()
        elif not torch.cuda.is_available():
            with raises(rdtd.Unsupported, torch.__version__):
                c.torch_pool("cuda:0").__enter__()


def test_pool_is_the_daemons_memory_and_says_what_is_missing():
    with Node() as node:
        done = subprocess.run([sys.executable, __file__, node.socket], capture_output=True, text=True,
                              timeout=LONG)
        assert done.returncode == 0, done.stdout + done.stderr


def ends(child):
    """Waits for a forked child, which must not hang."""
    status = []
    until(lambda: (status.append(os.waitpid(child, os.WNOHANG)), status[-1][0] == child)[1], "the child ends")
    assert status[-1][1] == 0, status[-1]


def test_forked_children_of_a_trainer_that_has_published_end():
    with Node() as node:
        use(0)
        os.environ["RDT_SOCKET"] = node.socket
        c = rdtd.default()
        c.publish("policy", {"w": ByInterface(VALUE, stream=1)})
        got = c.get(c.name("policy"), device="cuda:0", as_="tensor")
        kept = c.get(c.name("policy"), device="cuda:0", as_="tensor")
        consumed = got["w"].__dlpack__(stream=1)
        del consumed, got  # a release behind streams starts the library's thread
        for child_does in (lambda: None, c.close, lambda: kept.clear(), lambda: rdtd.default().put(VALUE.copy())):
            child = os.fork()
            if child == 0:
                child_does()
                os._exit(0)
            ends(child)
        worker = multiprocessing.get_context("fork").Process(target=sum, args=((1, 2),))  # a DataLoader's
        worker.start()
        worker.join(LONG)
        assert worker.exitcode == 0, worker.exitcode
        assert "w" in kept
        kept.clear()
        c.unpublish("policy")
        c.close()
        del os.environ["RDT_SOCKET"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        pool(sys.argv[1])
    else:
        main(globals())
