# SPDX-License-Identifier: Apache-2.0
"""Plain bytes: buffers, out-of-band pickle buffers (PEP 574) and Arrow's arrays go in with one copy, and come out
without one."""
import array
import asyncio
import ctypes
import mmap
import pickle

import rdtd

from nodes import Node, Skipped, main, optional, raises, required

np = required("numpy")
pa = optional("pyarrow")

BLOCK = bytes(range(256)) * 400


class Page:
    """A value of a foreign library that pickles its bytes out of band."""

    def __init__(self, data, name):
        self.data, self.name = data, name

    def __reduce_ex__(self, protocol):
        assert protocol >= 5
        return Page, (pickle.PickleBuffer(self.data), self.name)


def address(buffer):
    return np.frombuffer(buffer, "u1").__array_interface__["data"][0]


def test_bytes_come_out_as_they_lie():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        ref = c.put(memoryview(BLOCK))
        view = memoryview(reader.get(ref, as_="tensor"))
        assert view.readonly and view.nbytes == len(BLOCK) and view == BLOCK
        again = memoryview(reader.get(ref, as_="tensor"))
        assert again == BLOCK and reader.get_fetched(ref).path == "local/share"
        with raises(TypeError):
            view[0] = 1
        assert reader.get(c.put(BLOCK)) == BLOCK and type(reader.get(c.put(bytearray(BLOCK)))) is bytearray
        assert reader.get(c.put(array.array("d", [1.0, 2.0]))).tolist() == [1.0, 2.0]


def test_block_is_created_filled_and_put_without_a_copy():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        wait = reader.fetch(rdtd.Ref.from_id("block"), as_="tensor")
        block = memoryview(c.empty(len(BLOCK), "u8"))
        block[:] = BLOCK
        ref = c.put(block, id="block")
        assert ref.copied == 0 and memoryview(wait.result(20)) == BLOCK


def test_out_of_band_buffers_become_tensors():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        value = {"pages": [Page(bytearray(BLOCK), "a"), Page(BLOCK, "b")], "small": Page(b"xy", "c"), "array": np.arange(5000)}
        ref = c.put(value)
        fetched = reader.get_fetched(ref)
        assert [tensor.nbytes for tensor in fetched.tensors] == [len(BLOCK), len(BLOCK), 40000]
        assert len(fetched.metadata) < 1000, "the bytes are not in the pickle"
        pages = fetched.value["pages"]
        assert [page.name for page in pages] == ["a", "b"] and all(memoryview(page.data) == BLOCK for page in pages)
        assert address(pages[0].data) == address(fetched.tensors[0]), "nothing was copied"
        assert memoryview(fetched.value["small"].data) == b"xy" and (fetched.value["array"] == value["array"]).all()
        for as_ in ("tensor", "numpy"):
            assert memoryview(reader.get(ref, as_=as_)["pages"][1].data) == BLOCK
        with raises(TypeError, "allow_pickle"):
            c.put(value, allow_pickle=False)


def test_pickles_that_the_caller_makes():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        buffers = []
        text = pickle.dumps([Page(BLOCK, "a")], protocol=5, buffer_callback=buffers.append)
        ref = c.put([text, *[buffer.raw() for buffer in buffers]])
        text, *parts = reader.get(ref, as_="tensor")
        (page,) = pickle.loads(text, buffers=parts)
        assert page.name == "a" and memoryview(page.data) == BLOCK


def test_arrow():
    if pa is None:
        raise Skipped("no pyarrow here")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        table = pa.table({"x": pa.array(range(100000)), "name": pa.array([f"row {i}" for i in range(100000)])})
        ref = c.put(table)  # by its out-of-band buffers
        fetched = reader.get_fetched(ref)
        assert fetched.value.equals(table) and len(fetched.metadata) < 10000
        ours = {address(tensor) for tensor in fetched.tensors}
        column = fetched.value.column("x").chunk(0).buffers()[1]
        assert column.address in ours, "nothing was copied"
        ref = c.put(pa.array(range(100000)).buffers()[1])
        assert np.frombuffer(reader.get(ref), "i8")[-1] == 99999
        # Arrow's own format, written into the daemon's memory.
        size = pa.ipc.get_record_batch_size(table.to_batches()[0]) + len(table.schema.serialize()) + 1024
        block = c.empty(size, "u8")
        with pa.ipc.new_stream(pa.FixedSizeBufferWriter(pa.py_buffer(block)), table.schema) as stream:
            stream.write_table(table)
        ref = c.put(block)
        assert ref.copied == 0
        got = pa.ipc.open_stream(pa.py_buffer(reader.get(ref, as_="tensor"))).read_all()
        assert got.equals(table)


def test_packed_fields_ctypes_arrays_and_mmaps_are_tensors():
    with Node() as node, rdtd.connect(node.socket) as c:
        points = np.zeros(5, [("tag", "u1"), ("x", "f4"), ("s", "f8", (2,))])
        points["x"], points["s"] = np.arange(5), np.arange(10).reshape(5, 2)
        got = c.get(c.put({"x": points["x"], "s": points["s"][::2], "tag": points["tag"]}))
        assert (got["x"] == points["x"]).all() and (got["s"] == points["s"][::2]).all() and not got["tag"].any()
        numbers, room = (ctypes.c_int * 3 * 2)((1, 2, 3), (4, 5, 6)), mmap.mmap(-1, 8192)
        room[:3] = b"abc"
        assert c.get(c.put(numbers), as_="tensor").dtype == "i32" and c.get(c.put([numbers]))[0].tolist() == [[1, 2, 3], [4, 5, 6]]
        assert bytes(c.get(c.put({"m": room}))["m"][:4]) == b"abc\0"
        c.get(c.put(np.full((2, 3), 7, "i4")), into=numbers)
        assert numbers[1][2] == 7
        values = array.array("f", range(5000))
        assert c.get(c.put(values)) == values  # it comes back as what it was


class Device:
    """A tensor of a foreign library whose device is wrong."""

    def __init__(self, device):
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        raise AssertionError("the device is wrong")


def test_buffers_that_are_gone_are_named():
    released, closed = memoryview(bytearray(9000)), mmap.mmap(-1, 9000)
    released.release()
    closed.close()
    with Node() as node, rdtd.connect(node.socket) as c:
        bare, listed = c.put(bytearray(9000)), c.put([bytearray(9000)])
        for gone, why in (released, "operation forbidden on released memoryview"), (closed, "mmap closed"):
            for call in (c.put, lambda value: c.publish("n", value), lambda value: asyncio.run(c.put_async(value))):
                for value, place in (gone, "value"), ([1, {"a": gone}], "value[1]['a']"):
                    with raises(ValueError, f"put: tensor 0, {place}: {why}"):
                        call(value)
            with raises(ValueError, f"into: {why}"):
                c.get(bare, into=gone)
            with raises(ValueError, f"into[0]: {why}"):
                c.get(listed, into=[gone])
        for device in None, 5, (1,), (1, 0, 0):
            with raises(TypeError, f"put: tensor 0, value[0]: its __dlpack_device__() returned {device}, not a tuple of two"):
                c.put([Device(device)])


def test_pickled_arrays_can_be_written_where_others_can():
    with Node() as node, rdtd.connect(node.socket) as c:
        for count in 3, 30000:
            for array_ in (np.zeros(count, "f4"), np.arange(count).astype(">i8")[::-1], np.zeros(count, "M8[s]"),
                           np.zeros((2, count), "i4,f8").T, np.zeros(count, "U3"), np.rec.fromarrays([np.arange(count)], names="a")):
                ref = c.put({"a": array_, "again": [array_], "pickle": {1}})
                for mode, writable in (None, False), ("auto", False), ("cow", True), ("copy", True):
                    if mode == "cow":
                        ref = c.put({"a": array_, "again": [array_], "pickle": {1}}, snapshot=True)
                    got = c.get(ref, mode=mode)
                    assert got["a"].flags.writeable == writable, (mode, array_.dtype, count)
                    assert type(got["a"]) is type(array_) and got["a"].dtype == array_.dtype and (got["a"] == array_).all()
                    assert got["a"] is got["again"][0] and got["a"].flags.fnc == array_.flags.fnc


def test_arrays_whose_elements_have_no_bytes_come_back():
    with Node() as node, rdtd.connect(node.socket) as c:
        for dtype in np.dtype([]), np.dtype("V0"), np.dtype("S0"), np.dtype([("a", "U0"), ("b", [])]):
            array_ = np.ndarray((2, 3), dtype)
            for value in array_, {"a": array_, "again": [array_]}:
                got = c.get(c.put(value))
                got = got if isinstance(value, np.ndarray) else got["a"]
                assert got.shape == (2, 3) and got.dtype == dtype, (got, dtype)


if __name__ == "__main__":
    main(globals())
