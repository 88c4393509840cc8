# SPDX-License-Identifier: Apache-2.0
"""Python as the user of a store: keys whose values are replaced, memory of the program that the daemon knows, and
buffers that are written in turn."""
import asyncio
import collections
import ctypes
import gc
import mmap
import os
import tempfile
import threading

import rdtd

from nodes import LONG, Node, main, raises, required, until

np = required("numpy")


def test_value_takes_the_place_of_the_one_that_has_its_id():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        for size in 3, 200_000:
            for options in {"detached": True}, {"snapshot": True}, {"snapshot": "unsealed", "detached": True, "timeout": LONG}:
                key = rdtd.Ref.from_id("key")
                with raises(ValueError, "replace needs an id"):
                    c.put(np.zeros(size), replace=True)
                first = c.put(np.zeros(size), id="key", replace=True, **options)
                with raises(rdtd.Exists, "replace it"):
                    c.put(np.ones(size), id="key", **options)
                read = other.get(key)
                second = c.put({"is": np.ones(size)}, id="key", replace=True, **options)
                assert other.get(key)["is"][-1] == 1 and read[-1] == 0
                del read
                until(lambda: not _is_there(c, first), "the earlier one ends with its reader")
                with raises(rdtd.Freed):
                    c.free(first)
                c.free(second)
        c.put(1, id="key")
        with raises(rdtd.Exists, "held by its producer, client"):
            other.put(2, id="key", replace=True)
        c.put(2, id="key", replace=True, detached=True)
        other.free(other.put(3, id="key", replace=True, detached=True))


def _is_there(c, ref):
    try:
        return bool(c.stat(ref))
    except (rdtd.Freed, rdtd.NotFound):
        return False


def test_get_of_an_id_finds_a_value_while_threads_replace_it():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        key = rdtd.Ref.from_id("key")
        c.put(np.zeros(10_000), id="key", detached=True)

        def replace(start):
            for i in range(100):
                c.put(np.full(10_000, start + i), id="key", detached=True, replace=True, snapshot="unsealed", timeout=LONG)

        threads = [threading.Thread(target=replace, args=(start,)) for start in (1000, 2000)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            value = other.get(key, timeout=0)
            assert (value == value[0]).all()
        del value
        c.free(key)


def _memfd(count, flags=os.MFD_ALLOW_SEALING):
    fd = os.memfd_create("pages", flags)
    os.ftruncate(fd, count)
    return fd


def test_memory_of_the_program_is_known_and_not_copied():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        fd = _memfd(1 << 20)
        pages = mmap.mmap(fd, 1 << 20)
        os.close(fd)  # the mmap has one of its own
        array = np.frombuffer(pages, "f4").reshape(256, 1024)
        array[:] = 1
        assert c.put(array).copied == 1
        with c.import_memory(array[3:5]) as imported:  # the whole mapping is known
            assert imported.bytes == 1 << 20 and "1048576 bytes" in repr(imported)
            with raises(rdtd.Invalid, "is known already: use it, or close it first"):
                c.import_memory(pages)
            ref = c.put({"all": array, "row": array[7]})
            assert ref.copied == 0
            read = other.get(ref)
            array[7] = 2
            assert (read["row"] == 2).all() and (read["all"][7] == 2).all(), "the object is live"
            assert not read["row"].flags.writeable
            with raises(BufferError):
                pages.close()
            del ref, read
            c.wait_freed(array, timeout=LONG)
            got = c.fetch(other.put(np.full((256, 1024), 5, "f4")), into=array).result()
            assert got is array and (array == 5).all()
            kept = c.put(array[2:4], id="kept", detached=True)
            assert kept.copied == 0
        imported.close()  # again
        assert "closed" in repr(imported) and c.put(array).copied == 1
        assert (other.get(kept) == 5).all(), "objects stay"
        c.free(kept)
        c.wait_freed(kept, timeout=LONG)
        c.import_memory(array)  # the connection keeps it
        assert c.put(array).copied == 0
        del array, got
        c.close()
        until(lambda: not _refuses(pages.close), "nothing has the pages any more")


def _refuses(call):
    gc.collect()
    try:
        call()
    except BufferError:
        return True
    return False


def test_memory_that_cannot_be_passed_on_is_refused():
    with Node() as node, rdtd.connect(node.socket) as c, tempfile.TemporaryFile(dir="/dev/shm") as file:
        with raises(rdtd.Unsupported, "does not lie in a shared mapping of a file"):
            c.import_memory(np.zeros(100_000))
        with raises(rdtd.Unsupported, "does not lie in a shared mapping of a file"):
            c.import_memory(mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        with raises(rdtd.Unsupported, "does not lie in a shared mapping of a file"):
            c.import_memory(mmap.mmap(-1, 4096))
        with raises(rdtd.Unsupported, "is from empty, which needs no import"):
            c.import_memory(c.empty(1000))
        file.truncate(1 << 20)
        with raises(rdtd.Unsupported, "cannot be sealed against shrinking"):
            c.import_memory(mmap.mmap(file.fileno(), 1 << 20))
        fd = _memfd(1 << 20)
        pages = mmap.mmap(fd, 4096, offset=8192)
        with raises(rdtd.Unsupported, "8192 bytes behind the beginning"):
            c.import_memory(pages)
        whole = mmap.mmap(fd, 1 << 20)
        with raises(ValueError, "another file"):
            c.import_memory(whole, fd=file.fileno())
        for wrong in -1, "3", 2**31:
            with raises((TypeError, ValueError), "fd"):
                c.import_memory(whole, fd=wrong)
        with raises(ValueError, "fd 100000 is not open in this process"):
            c.import_memory(whole, fd=100000)
        unsealed = _memfd(1 << 20, 0)
        with raises(rdtd.Unsupported, "MFD_ALLOW_SEALING"):
            c.import_memory(mmap.mmap(unsealed, 1 << 20))
        os.close(unsealed)
        with raises(TypeError):
            c.import_memory(5)
        c.import_memory(whole, fd=fd).close()
        os.close(fd)


Pair = collections.namedtuple("Pair", "first second")


def test_sets_of_buffers_are_given_in_turn():
    state = {"w": np.zeros((300, 100), "f4"), "b": [np.zeros(7, "i8"), bytearray(5)], "n": np.zeros(())}
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        buffers = c.buffers(like=state)
        assert len(buffers) == 2
        places = set()
        for step in range(1, 7):
            state["w"][:] = step
            state["b"][0][:] = -step
            state["b"][1][:] = bytes([step]) * 5
            mine = buffers.filled(state, timeout=LONG)
            places.add(mine["w"].ctypes.data)
            assert c.publish("policy", mine, immutable=True) == step
            got = other.get(c.name("policy"))
            assert (got["w"] == step).all() and got["b"][0][-1] == -step and bytes(got["b"][1]) == bytes([step]) * 5
            del got
        assert len(places) == 2, "nothing was allocated"
        held = other.get(c.name("policy"))
        c.publish("policy", buffers.filled(state), immutable=True)
        with raises(rdtd.TimedOut):
            buffers.next(timeout=0.05)  # two versions later, the reader still has the first
        assert (held["w"] == 6).all()
        del held
        mine = asyncio.run(_next(buffers))
        assert mine["w"].ctypes.data in places
        for wrong, said in (({"w": state["w"]}, "state['b'][0] is a tensor of the buffers alone"),
                            ({**state, "x": state["w"]}, "state['x'] is a tensor of state alone"),
                            ({**state, "w": state["w"][1:]}, "state['w'] has the shape (299, 100), and its buffer (300, 100)"),
                            ({**state, "w": state["w"].astype("i4")}, "state['w'] has the dtype i32, and its buffer f32"),
                            ({**state, "b": [state["b"][0].astype("f8"), state["b"][1]]}, "the dtype f64, and its buffer i64")):
            with raises(rdtd.Mismatch, said):
                buffers.filled(wrong)
        with raises(ValueError, "like has no tensors"):
            c.buffers(like={})
        with raises(ValueError, "count"):
            c.buffers(like=state, count=0)
        doubles = c.buffers(like=(ctypes.c_double * 3)(1, 2, 3))
        assert doubles.filled((ctypes.c_double * 3)(0.5, 1, 2)).tolist() == [0.5, 1, 2]
        pair = c.buffers(like=Pair(state["w"], [state["n"]])).filled(Pair(state["w"] + 1, [state["n"]]))
        assert type(pair) is Pair and (pair.first == state["w"] + 1).all() and pair.second[0] == 0
        with raises(rdtd.Mismatch, "state has the dtype i64, and its buffer f64"):
            doubles.filled((ctypes.c_int64 * 3)(1, 2, 3))
        one = c.buffers(like=[state["w"]], count=3)
        sets = [one.next() for _ in range(4)]
        assert sets[0] is sets[3] and sets[0] is not sets[1]
        c.unpublish("policy")


async def _next(buffers):
    return await buffers.next_async(timeout=LONG)


main(globals())
