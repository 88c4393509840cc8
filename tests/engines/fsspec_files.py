# SPDX-License-Identifier: Apache-2.0
"""rdtd.fsspec: published names as files, in fsspec itself and in the libraries that open files by it."""
from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import pickle
import random
import signal
import tempfile
import time
import weakref
from typing import Any, Iterator
from urllib.parse import unquote

import rdtd
from nodes import LONG, Node, end, main, need, optional, raises, required

fsspec = required("fsspec")
np = required("numpy")
torch, pa, pd, safetensors, zarr = [optional(name) for name in ("torch", "pyarrow", "pandas", "safetensors", "zarr")]

# What the entry point does when the package is installed.
fsspec.register_implementation("rdtd", "rdtd.fsspec.RdtdFileSystem", clobber=True)


@contextlib.contextmanager
def files(*flags: str) -> Iterator[tuple[Any, rdtd.Connection]]:
    """The files of a node, and a connection to it. Its names end with the block."""
    with Node(*flags) as node:
        os.environ["RDT_SOCKET"] = node.socket
        try:
            with rdtd.connect() as c:
                fs = fsspec.filesystem("rdtd", skip_instance_cache=True)
                yield fs, c
                for row in c.names():
                    c.unpublish(unquote(row["name"]))
        finally:
            del os.environ["RDT_SOCKET"]
            rdtd.default().close()


def test_files_are_written_read_and_removed() -> None:
    with files() as (fs, c):
        for number, data in enumerate([b"", b"x", b"hello", bytes(range(256)) * 5000]):
            fs.pipe_file("rdtd://a/b", data)
            assert fs.cat_file("a/b") == data and fs.cat("rdtd://a/b") == data
            info = fs.info("a/b")
            assert info == {"name": "a/b", "size": len(data), "type": "file", "version": number + 1}, info
            with fs.open("a/b") as file:
                assert file.read() == data and file.read() == b"" and file.size == len(data)
        with fs.open("text", "w", encoding="utf-8") as file:
            file.write("früh\nspät\n")
        with fs.open("text", "r", encoding="utf-8") as file:
            assert list(file) == ["früh\n", "spät\n"]
        assert np.asarray(c.get(c.name("text"))).tobytes() == "früh\nspät\n".encode()
        with fs.open("text", "ab") as file:
            file.write(b"end")
        assert fs.cat("text") == "früh\nspät\nend".encode()
        with raises(FileExistsError):
            fs.open("text", "xb")
        with raises(FileExistsError):
            fs.pipe_file("text", b"x", mode="create")
        with fs.open("new", "xb") as file:
            file.write(b"new")
        assert fs.cat("new") == b"new" and fs.ukey("new") != fs.ukey("text")
        assert abs(fs.modified("new").timestamp() - time.time()) < LONG
        fs.rm("text")
        assert not fs.exists("text") and fs.exists("new") and fs.exists("a") and not fs.exists("b")
        for missing in (lambda: fs.open("nix"), lambda: fs.cat_file("nix"), lambda: fs.rm_file("nix"), lambda: fs.info("nix"),
                        lambda: fs.ls("nix")):
            with raises(FileNotFoundError, "nix"):
                missing()
        with raises(IsADirectoryError):
            fs.cat_file("")
        with raises(ValueError, "rb, wb, xb or ab"):
            fs.open("a/b", "r+b")


def test_ranges_and_seeks_are_those_of_a_file() -> None:
    with files() as (fs, c):
        data = random.Random(5).randbytes(100_000)
        fs.pipe_file("f", data)
        plain = io.BytesIO(data)
        rng = random.Random(6)
        with fs.open("f") as file:
            for _ in range(500):
                to, count = rng.randrange(0, 110_000), rng.choice([-1, 0, 1, 100, 70_000])
                assert file.seek(to) == plain.seek(to) == to
                assert file.read(count) == plain.read(count) and file.tell() == plain.tell()
                room, other = bytearray(max(count, 0)), bytearray(max(count, 0))
                assert file.readinto(room) == plain.readinto(other) and room == other
            assert file.seek(-10, 2) == plain.seek(-10, 2) and file.seek(3, 1) == plain.seek(3, 1)
            assert file.read() == plain.read()
            with raises(ValueError):
                file.seek(-1)
            file.seek(5)
            view = file.read_view(20)
            assert view == data[5:25] and view.readonly
        with raises(ValueError, "closed"):
            file.read(1)
        for start, stop in [(None, None), (5, 10), (-10, None), (None, -10), (90_000, 200_000), (10, 5), (0, 0)]:
            assert fs.cat_file("f", start=start, end=stop) == data[start:stop], (start, stop)
        assert fs.cat_ranges(["f", "f"], [0, 5], [3, 8]) == [data[:3], data[5:8]]
        assert fs.head("f", 10) == data[:10] and fs.tail("f", 10) == data[-10:]
        assert fs.read_block("f", 10, 20) == data[10:30]


def test_folders_are_parts_of_names() -> None:
    with files() as (fs, c):
        for name in "a/1", "a/2", "a/b/3", "c", "per%cent sp ace/x", "ümlaut":
            fs.pipe_file(name, b"12345")
        assert fs.ls("", detail=False) == ["a", "c", "per%cent sp ace", "ümlaut"] and fs.ls("rdtd://a", detail=False) == \
            ["a/1", "a/2", "a/b"]
        assert [row["type"] for row in fs.ls("a")] == ["file", "file", "directory"] and fs.ls("c")[0]["size"] == 5
        assert fs.isdir("a") and fs.isdir("a/b") and not fs.isdir("c") and fs.isfile("a/b/3") and not fs.isfile("a")
        assert fs.find("a") == ["a/1", "a/2", "a/b/3"] and fs.glob("a/*") == ["a/1", "a/2", "a/b"] and fs.du("a") == 15
        c.publish("a/value", {"step": 5})
        assert {row["name"]: row["type"] for row in fs.ls("a")}["a/value"] == fs.info("a/value")["type"] == "other"
        assert not fs.isfile("a/value") and not fs.isdir("a/value") and fs.ls("a/value", detail=False) == ["a/value"]
        with raises(rdtd.Unsupported, "'a/value' is neither one tensor nor bytes"):
            fs.cat_file("a/value")
        fs.rm("a/value", recursive=True)
        fs.cp_file("a/1", "copy")
        assert fs.cat("copy") == b"12345"
        assert c.stat(c.name("copy"))["id"] == c.stat(c.name("a/1"))["id"]  # the same object
        fs.mv("copy", "moved")
        assert not fs.exists("copy") and fs.cat("moved") == b"12345"
        fs.mv("rdtd://moved", "moved/")
        assert fs.cat("moved") == b"12345", "it is where it was"
        fs.mv("a", "z", recursive=True)
        assert fs.find("") == ["c", "moved", "per%cent sp ace/x", "z/1", "z/2", "z/b/3", "ümlaut"]
        fs.mv("z", "a", True)
        assert fs.ukey("a") == fs.ukey("a") != fs.ukey("a/b")
        with raises(FileNotFoundError):
            fs.ukey("z")
        for source, folder in ("a/1", "a/"), ("a/1", "a"), ("a/b/*", "a/b/"), (["a/1"], "a/"):
            fs.mv(source, folder)
            assert fs.find("a") == ["a/1", "a/2", "a/b/3"], "what is moved to where it is stays"
        fs.mv("a/b", "a", recursive=True)
        assert fs.find("a") == ["a/1", "a/2", "a/b/3"]
        fs.mv("a/b", "a/b/c", recursive=True)
        assert fs.find("a") == ["a/1", "a/2", "a/b/c/3"]
        fs.mv("a/b", "a/d", recursive=True, maxdepth=1)
        assert fs.find("a") == ["a/1", "a/2", "a/b/c/3"], "what was not copied"
        fs.makedirs("a/new/folder", exist_ok=True)
        with raises(IsADirectoryError):
            fs.rm("a")
        fs.rm("a", recursive=True)
        assert fs.ls("", detail=False) == ["c", "moved", "per%cent sp ace", "ümlaut"]
        mapper = fsspec.get_mapper("rdtd://store")
        mapper["x/0"] = b"0"
        assert dict(mapper) == {"x/0": b"0"} and "x/0" in mapper and len(mapper) == 1
        del mapper["x/0"]
        assert not mapper


def test_a_name_may_be_a_file_and_a_folder() -> None:
    with files() as (fs, c):
        for name in "policy", "policy/adapter", "policy/adapter/old", "policyx":
            fs.pipe_file(name, b"12345")
        assert fs.find("") == ["policy", "policy/adapter", "policy/adapter/old", "policyx"]
        assert [(row["name"], row["type"]) for row in fs.ls("")] == [
            ("policy", "file"), ("policy", "directory"), ("policyx", "file")]
        assert fs.ls("", detail=False) == ["policy", "policyx"] and fs.glob("**/old") == ["policy/adapter/old"]
        fs.rm("policy/adapter")
        assert fs.find("") == ["policy", "policy/adapter/old", "policyx"]
        fs.rm("policy", recursive=True)
        assert fs.find("") == ["policyx"]


def test_what_other_calls_have_published() -> None:
    with files() as (fs, c):
        array = np.arange(60, dtype="f4").reshape(3, 4, 5)
        c.publish("array", array)
        assert fs.cat("array") == array.tobytes() and fs.cat_file("array", 10, 50) == array.tobytes()[10:50]
        c.publish("turned", array.T)
        assert fs.cat("turned") == np.ascontiguousarray(array.T).tobytes() and fs.size("turned") == 240
        c.publish("scalar", np.array(5, "i8"))
        assert fs.cat("scalar") == np.array(5, "i8").tobytes()
        for value in b"bytes", bytearray(b"array"):
            c.publish("bytes", value)
            assert fs.cat("bytes") == bytes(value)
        need(safetensors, "safetensors")
        from safetensors.numpy import load, save
        state = {"w": array, "none": np.zeros((0, 3), "i4"), "turned": array.T, "flag": np.array([True])}
        c.publish("dict", state)
        for read in load(fs.cat("dict")), load(c.get(c.name("dict")) and fs.cat_file("dict", 0, None)):
            assert read.keys() == state.keys() and all((read[key] == state[key]).all() for key in state)
        assert fs.size("dict") == len(fs.cat("dict"))
        whole = fs.cat("dict")
        for start, stop in [(0, 8), (5, 100), (100, 500), (len(whole) - 3, len(whole))]:
            assert fs.cat_file("dict", start, stop) == whole[start:stop]
        c.publish_part("parts", 1, 0, 1, {"w": [rdtd.Box(array[:1], (3, 4, 5)), rdtd.Box(array[1:], (3, 4, 5), (1, 0, 0))]},
                       timeout=LONG)
        assert fs.size("parts") == len(fs.cat("parts")) and (load(fs.cat("parts"))["w"] == array).all()
        fs.pipe_file("file", save({"a": array}))
        assert (load(fs.cat("file"))["a"] == array).all()


def test_every_dtype_and_order_is_read_in_row_major_order() -> None:
    with files() as (fs, c):
        for code in "?", "i2", "f8", "c8", "c16":
            for shape in (), (5,), (2, 3, 4), (2, 0):
                live = c.empty(shape, np.dtype(code).str)
                live[...] = np.arange(live.size).reshape(shape)
                for value in live, live.T, live[::-1] if shape else live:  # of memory from empty the strides stay
                    c.publish("one", value, immutable=True)
                    assert fs.cat("one") == value.tobytes(), (code, value.shape, value.strides)


def test_tied_weights_have_all_their_names() -> None:
    need(torch, "torch")
    need(safetensors, "safetensors")
    from safetensors.torch import load
    weight, other = torch.arange(6.).reshape(2, 3), torch.ones(2, dtype=torch.bfloat16)
    state = {"embed": weight, "b": other, "head": weight, "part": weight[:], "z": torch.zeros(1, dtype=torch.int8)}
    with files() as (fs, c):
        c.publish("tied", state)
        (row,) = c.objects()
        assert row["tensors"] == 3, row
        data = fs.cat("tied")
        assert len(data) == fs.info("tied")["size"]
        found = load(data)
        assert found.keys() == state.keys()
        assert all(torch.equal(found[key], tensor) and found[key].dtype == tensor.dtype for key, tensor in state.items())
        assert b"".join([fs.cat_file("tied", at, at + 7) for at in range(0, len(data), 7)]) == data


def test_files_of_parts_have_the_dtypes_of_safetensors() -> None:
    """The same as in the files that rdtctl writes, which refuses dtypes that the format lacks."""
    with Node() as node, rdtd.connect(node.socket) as c:
        fs = fsspec.filesystem("rdtd", socket=node.socket, skip_instance_cache=True)
        written = 0
        for number, dtype in enumerate(rdtd.DTYPES):
            c.publish_part("parts", number + 1, 0, 1, {"w": c.empty((2,), dtype, as_="tensor")}, timeout=LONG)
            node.ctl("fetch", "--name", "parts", "-o", str(node.dir / dtype), may_fail=True)
            if not (node.dir / dtype).exists():
                with raises(rdtd.Unsupported, f"'w' has the dtype {dtype}"):
                    fs.cat("parts")
                continue
            file, data = (node.dir / dtype).read_bytes(), fs.cat("parts")
            assert header(data) == header(file) and len(data) == fs.size("parts"), dtype
            written += 1
        assert written > 15, written
        c.unpublish("parts")
        fsspec.filesystem("rdtd").clear_instance_cache()


def header(file: bytes) -> Any:
    """Of a safetensors file, without what a program may add to it."""
    found = json.loads(file[8:8 + int.from_bytes(file[:8], "little")])
    found.pop("__metadata__", None)
    return found


def test_headers_may_have_several_lines() -> None:
    head = json.dumps({"w": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}, indent=1).encode()
    with Node() as node, rdtd.connect(node.socket) as c:
        (node.dir / "file").write_bytes(len(head).to_bytes(8, "little") + head + b"123")
        node.ctl("put", str(node.dir / "file"), "--publish", "w")
        data = fsspec.filesystem("rdtd", socket=node.socket, skip_instance_cache=True).cat("w")
        assert header(data) == json.loads(head) and data[-3:] == b"123"
        c.unpublish("w")


def test_ranges_of_one_call_are_of_one_version() -> None:
    with files() as (fs, c):
        fs.pipe_file("f", b"old old")
        read = fs.cat_file

        def cat_file(path: str, *more: Any, **options: Any) -> Any:
            found = read(path, *more, **options)
            fs.pipe_file(path, b"new new")
            return found
        fs.cat_file = cat_file
        assert fs.cat_ranges(["f", "rdtd://f", "nix"], [0, 4, 0], [3, 7, 1])[:2] == [b"old", b"old"]
        assert fs.cat_ranges(["f"], [0], [3]) == [b"new"]
        with raises(FileNotFoundError):
            fs.cat_ranges(["nix"], [0], [3], on_error="raise")


def test_ranges_of_many_files_hold_one_of_them() -> None:
    with files() as (fs, c):
        held: weakref.WeakSet[Any] = weakref.WeakSet()
        made, most = fs._version, []

        def version(path: str) -> Any:
            held.add(one := made(path))
            most.append(len(held))
            return one
        for name in "abc":
            fs.pipe_file(name, name.encode() * 5)
        fs._version = version
        paths = ["a", "c", "b", "nix", "rdtd://a", "b", "c"]
        found = fs.cat_ranges(paths, list(range(7)), 5)
        assert [type(one) for one in found] == [bytes] * 3 + [FileNotFoundError] + [bytes] * 3
        assert b"|".join(found[:3] + found[4:]) == b"aaaaa|cccc|bbb|a||"
        assert fs.cat_ranges(["b", "a"], 3, [4, 5]) == [b"b", b"aa"]
        assert most == [1] * 5, most
        with raises(ValueError):
            fs.cat_ranges(["a", "b"], [0], 1)


def test_a_read_that_fails_leaves_no_half_file() -> None:
    with files() as (fs, c):
        c.publish("policy", {"a": np.arange(5), "b": np.ones(3)})
        with fs.open("policy") as file:
            bytes_of, tensors = rdtd.fsspec._bytes_of, []

            def fails_once(tensor: Any) -> Any:
                tensors.append(tensor)
                if len(tensors) == 2:
                    raise MemoryError
                return bytes_of(tensor)
            rdtd.fsspec._bytes_of = fails_once
            try:
                with raises(MemoryError):
                    file.read_view()
            finally:
                rdtd.fsspec._bytes_of = bytes_of
            tensors.clear()
            file.seek(0)
            assert file.read() == fs.cat("policy") and len(fs.cat("policy")) == file.size


def test_caches_see_that_a_daemon_counts_versions_anew() -> None:
    with Node() as node, tempfile.TemporaryDirectory() as folder:
        def read() -> bytes:
            cached = fsspec.filesystem("filecache", target_protocol="rdtd", target_options={"socket": node.socket},
                                       cache_storage=folder, check_files=True, skip_instance_cache=True)
            with cached.open("f") as file:
                return bytes(file.read())

        for data in b"one", b"two":
            with rdtd.connect(node.socket) as c:
                assert c.publish("f", data) == 1
                assert read() == read() == data
                if data == b"two":
                    c.unpublish("f")
            fsspec.filesystem("rdtd").clear_instance_cache()
            gc.collect()
            if data == b"one":
                node.kill()
                node.start()


def test_an_open_file_keeps_its_version() -> None:
    with files() as (fs, c):
        fs.pipe_file("f", b"old" * 1000)
        with fs.open("f") as file:
            fs.pipe_file("f", b"new" * 2000)
            assert file.read() == b"old" * 1000 and fs.cat("f") == b"new" * 2000
            fs.rm("f")
            file.seek(0)
            assert file.read(3) == b"old"


def test_what_fails_publishes_nothing() -> None:
    with files() as (fs, c):
        fs.pipe_file("f", b"old")
        with raises(RuntimeError, "while it is written"):
            with fs.open("f", "wb") as file:
                file.write(b"half")
                raise RuntimeError("while it is written")
        assert fs.cat("f") == b"old"
        left = fs.open("f", "wb")
        left.write(b"half")
        del left
        assert fs.cat("f") == b"old"
        with raises(RuntimeError):
            with fs.transaction:
                with fs.open("f", "wb") as file:
                    file.write(b"half")
                raise RuntimeError
        assert fs.cat("f") == b"old"
        with fs.transaction:
            with fs.open("f", "wb") as file:
                file.write(b"whole")
            assert fs.cat("f") == b"old"
        assert fs.cat("f") == b"whole"
        pid = os.fork()
        if pid == 0:  # a process that is killed while it writes; the child connects anew
            child = fs.open("f", "wb")
            child.write(b"half")
            assert fs.cat("f") == b"whole"
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        assert fs.cat("f") == b"whole"


def test_compressed_files_are_published_when_they_are_closed() -> None:
    with files() as (fs, c):
        for compression in "gzip", "bz2", "xz":
            with fs.open("f", "wb", compression=compression) as file:
                file.write(b"old" * 1000)
            with fs.open("f", compression=compression) as file:
                assert file.read() == b"old" * 1000, compression
            whole = fs.cat("f")
            with raises(RuntimeError):
                with fs.open("f", "wb", compression=compression) as file:
                    file.write(b"half")
                    raise RuntimeError
            left = fs.open("f", "wb", compression=compression)
            left.write(b"half")
            del left, file
            gc.collect()
            assert fs.cat("f") == whole and whole[:3] != b"old", compression
        with fs.open("t.gz", "wt", compression="infer") as file:
            file.write("früh")
        with fs.open("t.gz", "rt", compression="infer") as file:
            assert file.read() == "früh"
        with fs.transaction, fs.open("f", "wb", compression="gzip") as file:
            file.write(b"new")
            assert fs.cat("f") == whole
        with fs.open("f", compression="gzip") as file:
            assert file.read() == b"new"


def test_files_of_other_nodes() -> None:
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as c, rdtd.connect(b.socket) as far:
        here = fsspec.filesystem("rdtd", socket=a.socket, skip_instance_cache=True)
        there = fsspec.filesystem("rdtd", socket=b.socket, address=c.node["address"], skip_instance_cache=True)
        data = random.Random(7).randbytes(4 << 20)
        here.pipe_file("f", data)
        c.publish("array", np.arange(3000, dtype="i4").reshape(100, 30))
        before = far.status()
        assert there.size("f") == len(data) and there.cat_file("f", 1000, 2000) == data[1000:2000]
        moved = sum(row["bytes_in"] for row in far.nodes())
        assert moved < 1 << 20, (moved, before)
        with there.open("f") as file:
            file.seek(-5, 2)
            assert file.read() == data[-5:]
            file.seek(0)
            assert file.read() == data
        assert there.cat("array") == here.cat("array") and there.cat_file("array", 7, 500) == here.cat("array")[7:500]
        c.publish("scalar", np.array(7, "i4"))
        assert there.cat("scalar") == here.cat("scalar") == b"\7\0\0\0" and there.size("scalar") == 4
        c.publish("long rows", np.arange(3 << 20, dtype="i4").reshape(2, -1))
        before = far.status()["bytes_in"]
        with there.open("long rows") as file:
            assert b"".join(iter(lambda: file.read(100000), b"")) == here.cat("long rows")
        assert far.status()["bytes_in"] - before == 12 << 20, "each row travels once"
        assert there.exists("f") and not there.exists("nix")
        with raises(PermissionError, "cannot be written"):
            there.pipe_file("g", b"x")
        copy = pickle.loads(pickle.dumps(there))
        assert copy.cat_file("f", 0, 5) == data[:5]
        c.publish("dict", {"w": np.ones(5, "f4")})
        assert there.cat("dict") == here.cat("dict") and there.size("dict") == here.size("dict")
        for name in "f", "array", "dict", "scalar", "long rows":
            c.unpublish(name)
        del here, there, copy, file
        fsspec.filesystem("rdtd").clear_instance_cache()
        end(a, b)


# ---- the libraries ----

def test_numpy() -> None:
    with files() as (fs, c):
        array = np.arange(1000.).reshape(10, 100)
        with fsspec.open("rdtd://array.npy", "wb") as file:
            np.save(file, array)
        with fsspec.open("rdtd://array.npy") as file:
            assert (np.load(file) == array).all()
        with fsspec.open("rdtd://arrays.npz", "wb") as file:
            np.savez(file, a=array, b=array[0])
        with fsspec.open("rdtd://arrays.npz") as file, np.load(file) as found:
            assert (found["a"] == array).all() and (found["b"] == array[0]).all()


def test_torch() -> None:
    need(torch, "torch")
    with files() as (fs, c):
        state = {"w": torch.arange(1000.).reshape(10, 100), "step": 5}
        with fsspec.open("rdtd://state.pt", "wb") as file:
            torch.save(state, file)
        with fsspec.open("rdtd://state.pt") as file:
            found = torch.load(file)
        assert torch.equal(found["w"], state["w"]) and found["step"] == 5


def test_torch_checkpoints_by_url() -> None:
    need(torch, "torch")
    import warnings

    import torch.distributed.checkpoint as dcp
    warnings.simplefilter("ignore")
    with files() as (fs, c):
        dcp.save({"w": torch.arange(10.)}, checkpoint_id="rdtd://saved")  # torch's own writer for fsspec: files
        mine = {"w": torch.zeros(10)}
        dcp.load(mine, checkpoint_id="rdtd://saved")
        assert torch.equal(mine["w"], torch.arange(10.)) and fs.isdir("saved")


def test_pyarrow() -> None:
    need(pa, "pyarrow")
    import pyarrow.dataset
    import pyarrow.parquet
    with files() as (fs, c):
        table = pa.table({"a": list(range(1000)), "b": [str(i) for i in range(1000)]})
        pyarrow.parquet.write_table(table, "t/1.parquet", filesystem=fs)
        pyarrow.parquet.write_table(table, "t/2.parquet", filesystem=fs)
        assert pyarrow.parquet.read_table("t/1.parquet", filesystem=fs).equals(table)
        assert pyarrow.dataset.dataset("t", filesystem=fs, format="parquet").count_rows() == 2000
        with fsspec.open("rdtd://table.csv", "wb") as file:
            import pyarrow.csv
            pyarrow.csv.write_csv(table, file)
        with fsspec.open("rdtd://table.csv") as file:
            assert pyarrow.csv.read_csv(file).num_rows == 1000


def test_pandas() -> None:
    need(pd, "pandas")
    with files() as (fs, c):
        frame = pd.DataFrame({"a": range(100), "b": [str(i) for i in range(100)]})
        frame.to_csv("rdtd://frame.csv", index=False)
        assert pd.read_csv("rdtd://frame.csv", dtype={"b": str}).equals(frame)
        frame.to_pickle("rdtd://frame.pkl.gz")
        assert pd.read_pickle("rdtd://frame.pkl.gz").equals(frame)
        need(pa, "pyarrow")
        frame.to_parquet("rdtd://frame.parquet")
        assert pd.read_parquet("rdtd://frame.parquet").equals(frame)


def test_zarr() -> None:
    need(zarr, "zarr")
    with files() as (fs, c):
        made = zarr.create_array("rdtd://store.zarr", shape=(100, 100), chunks=(30, 30), dtype="f4")
        made[:] = np.arange(10000).reshape(100, 100)
        assert (zarr.open_array("rdtd://store.zarr", mode="r")[5:70, 20:90] ==
                np.arange(10000).reshape(100, 100)[5:70, 20:90]).all()
        fs.rm("store.zarr", recursive=True)


if __name__ == "__main__":
    main(globals())
