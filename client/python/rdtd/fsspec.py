# SPDX-License-Identifier: Apache-2.0
"""Published names as files of fsspec: `rdtd://NAME`, in pandas, pyarrow, numpy, torch and whatever else opens files by fsspec.

    import fsspec, pandas, rdtd

    frame.to_parquet("rdtd://tables/train.parquet")          # publishes the name tables/train.parquet
    pandas.read_parquet("rdtd://tables/train.parquet")       # any process, any node of the node table
    with fsspec.open("rdtd://policy") as file:               # what rdtd.torch.publish or c.publish has put:
        safetensors.torch.load(file.read())                  # a dict of tensors is a safetensors file

A path is a published name, of at most 128 bytes, and a file is the newest version of it. A "/" in a name makes folders, which
exist as long as names are in them. Names that begin or end with "/" have no path.

- A value that is one tensor, or bytes: the file is its bytes, in row-major order. What is written by fsspec is such a value.
- A dict of tensors, and a version of many parts: the file is a safetensors file of it, as `rdtctl fetch` writes. A tensor with
  several names, as tied weights have, is in the file under each of them; rdtd has it once.
- Any other value is no file: Connection.get reads it.

A file that is open for reading holds its version, and reads that one to the end. On the node of the version it is read from the
object's own memory, and only what is read is copied; `read_view` copies nothing. Of bytes on another node only the ranges that
are read travel; of a safetensors file there, all tensors, with the first read of one. A file that is written is gathered in
this process, copied once when it is closed, and then takes the place of the version before in one step: readers find one or the
other. If a `with` block of `fs.open` in binary mode raises, nothing is published; fsspec.open closes its file all the same,
which publishes what was written, unless the block is within `with fs.transaction`. Files are not appended to in place: mode
"ab" reads the old version and publishes a whole one.

Tested with fsspec 2026.9, pyarrow 26, torch 2.15 and numpy 2.4. Source: fsspec.spec.AbstractFileSystem."""
# mypy: disable-error-code="import, misc, no-untyped-call"
from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import struct
from datetime import datetime, timedelta, timezone
from typing import Any, Iterator, Optional
from urllib.parse import unquote

from ._engines import Engine

_ENGINE = Engine("rdtd.fsspec", ("fsspec",), "2026.9")

try:
    from fsspec.compression import compr
    from fsspec.core import get_compression
    from fsspec.spec import AbstractFileSystem
except ImportError as error:
    raise _ENGINE.other(error) from None

import rdtd

from ._arrays import DTYPES
from ._errors import Freed, NotFound, Unsupported
from ._requests import MODES, Ref
from ._structure import Layout, _head

__all__ = ["RdtdFileSystem"]

_BUFFER = 1 << 20  # read at once from another node
# Of safetensors files, as in rdt_dtype.h: the dtypes that are not called by our text in capitals, and those that are lacking.
_SAFETENSORS = {"f8_e4m3fn": "F8_E4M3", "f8_e8m0fnu": "F8_E8M0"}
_LACKING = frozenset(("f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e4m3b11fnuz", "f8_e4m3", "f8_e3m4", "c32", "c128"))


def _bytes_of(tensor: rdtd.Tensor) -> memoryview:
    if not tensor.nbytes:
        return memoryview(b"")
    if tensor.device != "cpu":
        return memoryview(tensor.tobytes())
    elements: Any = tensor.bits() if DTYPES[tensor.dtype].bytes <= 8 else tensor
    view = memoryview(elements)
    return view.cast("B") if tensor.contiguous and elements is not tensor else memoryview(view.tobytes())


def _header(tensors: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    """Of a safetensors file with tensors of these dtypes and shapes."""
    at = 0
    head: dict[str, Any] = {}
    for key, (dtype, shape) in tensors.items():
        if dtype in _LACKING:
            raise Unsupported(f"tensor {key!r} has the dtype {dtype}, which safetensors files lack: Connection.get reads it")
        count = math.prod(shape) * DTYPES[dtype].bytes
        head[key] = {"dtype": _SAFETENSORS.get(dtype, dtype.upper()), "shape": list(shape), "data_offsets": [at, at + count]}
        at += count
    return head


def _with_same(entries: dict[str, Any], names: Any) -> dict[str, Any]:
    """The header with an entry for each further name of a tensor, whose bytes follow the others."""
    others = {key: text for key, text in entries.pop("__metadata__").items() if not key.startswith("rdt")}
    at = max(entry["data_offsets"][1] for entry in entries.values())
    for _, name, number, _ in names.same:
        entry = entries[names.names[number]]
        begin, end = entry["data_offsets"]
        entries[name] = {**entry, "data_offsets": [at, at + end - begin]}
        at += end - begin
    return {**entries, **({"__metadata__": others} if others else {})}


class _Version:
    """A version that is held, as a file."""

    def __init__(self, c: rdtd.Connection, at: Ref, path: str, timeout: Optional[float]) -> None:
        self._c = c
        self._timeout = timeout
        self._pieces: list[tuple[int, memoryview]] = []  # that were read, with their places in the file
        self._row = 0  # bytes of a tensor's row; 0: not known
        self._kept: tuple[int, memoryview] = (0, memoryview(b""))  # the last rows, if they are larger than a read, and their place
        self._same: list[int] = []  # the tensors that have further names
        self._names: Optional[list[str]] = None  # None: of many parts, or no safetensors file
        self._head = b""  # of a safetensors file
        head: Any = None
        look = self._look(at, path)
        self.number = look.version
        self.here = self.held.node == c.node["node"]
        nothing = [look.nothing(i) for i in range(look.count)]
        if look.is_manifest:
            manifest = c.manifest(self.held, timeout=timeout)
            head = _header({key: (dtype, shape) for part in manifest.parts for key, dtype, shape, _, _ in part.shards})
        else:
            layout = Layout(look.metadata, nothing)
            if layout.names:
                self._names = layout.names.names
                head, _ = _head(look.metadata)
                if layout.names.same:
                    self._same = [number for _, _, number, _ in layout.names.same]
                    head = _with_same(head, layout.names)
            if not layout.names and (look.count != 1 or layout.form == "pickle" or
                                     layout.form == "tree" and layout.text != b'{"$":0}'):
                raise Unsupported(f"{path!r} is neither one tensor nor bytes nor a dict of tensors, so it is no file: "
                                  "Connection.get reads it")
        if head is not None:
            text = json.dumps(head, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)
            ends = [entry["data_offsets"][1] for key, entry in head.items() if key != "__metadata__"]
            self._head = struct.pack("<Q", len(text)) + text
            self._pieces = [(0, memoryview(self._head))]
            self.size = len(self._head) + max(ends, default=0)
        elif self.here or not nothing[0].shape:  # a scalar has no rows
            self._load()
            self.size = len(self._pieces[0][1])
        else:
            self.size = int(c.stat(self.held)["bytes"])

    def _look(self, at: Ref, path: str) -> Any:
        """Holds the newest version, and returns what describes it."""
        for last in False, True:
            if not self._c.exists(at):
                raise FileNotFoundError(errno.ENOENT, "rdtd: nothing is published under this name", path)
            (request,) = self._c._fetch([at], MODES["auto"], self._timeout, None, None, None, None, None, None, 0.0, True)
            request._wait(None)
            look = request._take()
            try:
                self.held = self._c.hold(look.info()["ref"], timeout=self._timeout)
                return look
            except (Freed, NotFound):  # by the next version, between two messages
                if last:
                    raise

    def _load(self) -> None:
        """Reads all tensors: on this node, maps them."""
        fetched = self._c.get_fetched(self.held, as_="tensor", timeout=self._timeout)
        tensors = fetched.tensors
        if self._head and self._names is None:  # of many parts
            tensors = list(fetched.value.values())
        place = len(self._head)
        pieces = []
        for tensor in [*tensors, *(tensors[number] for number in self._same)]:
            pieces.append((place, _bytes_of(tensor)))
            place += tensor.nbytes
        self._pieces += pieces  # all, or after an error none

    def read(self, start: int, end: int) -> memoryview:
        """The bytes [start, end) of the file, which has them."""
        if start >= end:
            return memoryview(b"")
        if not self._pieces:
            return self._fetch(start, end)
        if len(self._pieces) < 2 and end > len(self._head) and self._head:
            self._load()
        found = [piece[max(0, start - place):end - place] for place, piece in self._pieces
                 if place < end and start < place + len(piece)]
        return found[0] if len(found) == 1 else memoryview(b"".join(found))

    def _fetch(self, start: int, end: int) -> memoryview:
        """From another node: the rows that have these bytes."""
        place, kept = self._kept
        if place <= start < place + len(kept):
            found = kept[start - place:end - place]
            rest = start + len(found)
            return found if rest == end else memoryview(b"".join([found, self._fetch(rest, end)]))
        if not self._row:
            row = self._c.get_fetched(self.held, as_="tensor", slices=[slice(0, 0)], timeout=self._timeout).tensors[0]
            self._row = math.prod(row.shape[1:]) * DTYPES[row.dtype].bytes
        first = start // self._row
        part = slice(first, -(-end // self._row))
        tensor = self._c.get_fetched(self.held, as_="tensor", slices=[part], timeout=self._timeout).tensors[0]
        found = _bytes_of(tensor)
        if self._row > _BUFFER:
            self._kept = first * self._row, found
        return found[start - first * self._row:end - first * self._row]


class _Reading(io.RawIOBase):
    """A version that is read as a file."""

    mode = "rb"

    def __init__(self, version: _Version, path: str) -> None:
        self._version = version
        self._at = 0
        self.size = version.size
        self.name = path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        at = to + (0, self._at, self.size)[whence]
        if at < 0:
            raise ValueError(f"a file cannot be read from byte {at} on")
        self._at = at
        return at

    def read_view(self, size: int = -1) -> memoryview:
        """Like read, but the bytes are the object's own memory, which must not be written, if they lie on this node."""
        if self.closed:
            raise ValueError(f"the file {self.name!r} is closed")
        end = self.size if size is None or size < 0 else min(self.size, self._at + size)
        found = self._version.read(self._at, end)
        self._at = max(self._at, end)
        return found

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_view(size))

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        found = self.read_view(len(room))
        room[:len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            del self._version
        super().close()


class _Writing(io.BytesIO):
    """A file that is being written, which is published when it is closed."""

    def __init__(self, fs: RdtdFileSystem, path: str, mode: str, at_close: bool, options: dict[str, Any]) -> None:
        super().__init__()
        self._fs = fs
        self.name = path
        self.mode = mode
        self._at_close = at_close
        self._options = options
        self._data: Any = None  # after close, if a transaction commits

    def readable(self) -> bool:
        return False

    def __exit__(self, kind: Any = None, *ignored: Any) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._fs is not None:
                self._data = self.getvalue()
                if self._at_close:
                    self.commit()
        finally:
            super().close()

    def commit(self) -> None:
        """Publishes what was written: fsspec calls this at the end of a transaction."""
        if self._data is not None:
            self._fs._publish(self.name, self._data, **self._options)
        self.discard()

    def discard(self) -> None:
        """Forgets what was written."""
        self._fs = self._data = None  # type: ignore[assignment]

    def __del__(self) -> None:  # of a file that nobody has closed
        self.discard()


class _Compressing:
    """A file that is being written through a compressor, whose own `close` leaves the file below it open."""

    def __init__(self, compressor: Any, below: _Writing) -> None:
        self._compressor = compressor
        self._below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compressor, name)

    def __enter__(self) -> _Compressing:
        return self

    def __exit__(self, kind: Any = None, *ignored: Any) -> None:
        if kind is not None:
            self._below.discard()
        self.close()

    def close(self) -> None:
        self._compressor.close()
        self._below.close()


class RdtdFileSystem(AbstractFileSystem):
    """The names that are published on this node, and those of others by their exact path.

    socket: of the daemon; None: rdtd.default(). owner: the user whose names are read; None: this one. address: the node whose
    names are read; None: this one or any of the node table. visible, ttl: of what is written, as for Connection.publish; also
    options of `open` and `pipe_file`. timeout: seconds for each step; None: no limit. Files are listed of this node only, and
    written and removed here or, in a node table, where the name is.
    Errors: FileNotFoundError, FileExistsError (mode "xb", which looks once, before it writes), IsADirectoryError,
    PermissionError (rdtd.Denied), rdtd.Unsupported (a value that is no file) and those of get and publish."""

    protocol = "rdtd"
    root_marker = ""

    def __init__(self, socket: Optional[str] = None, owner: Any = None, address: Optional[str] = None, visible: Any = "owner",
                 ttl: Optional[float] = None, timeout: Optional[float] = 60, **options: Any) -> None:
        super().__init__(socket=socket, owner=owner, address=address, visible=visible, ttl=ttl, timeout=timeout, **options)
        self.socket = socket
        self.owner = owner
        self.address = address
        self.timeout = timeout
        self._options = {"visible": visible, "ttl": ttl}
        self._own: Optional[tuple[int, rdtd.Connection]] = None  # and the process

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return super()._strip_protocol(path).strip("/")

    @property
    def _c(self) -> rdtd.Connection:
        if self.socket is None:
            return rdtd.default()
        if self._own is None or self._own[0] != os.getpid() or not self._own[1]._is_alive():
            self._own = os.getpid(), rdtd.connect(self.socket)
        return self._own[1]

    def _ref(self, path: str) -> Ref:
        return self._c.name(path, owner=self.owner, address=self.address)

    def _version(self, path: Any) -> _Version:
        name = self._strip_protocol(path)
        if not name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return _Version(self._c, self._ref(name), name, self.timeout)

    # ---- what is there ----

    def _below(self, path: str) -> Iterator[str]:
        """The names in a folder and those below it, on this node."""
        c = self._c
        of = c._owner if self.owner is None else self._ref("x").owner
        for row in c.names(prefix=f"{path}/" if path else None):
            name = unquote(row["name"])
            if row["owner"] == of and name == name.strip("/") and row["object"] is not None:
                yield name

    def info(self, path: Any, **ignored: Any) -> dict[str, Any]:
        """name, size (in bytes), type, and of a file the version of its name. Values that are no files have the type "other".
        Error: FileNotFoundError."""
        name = self._strip_protocol(path)
        if name and self._c.exists(self._ref(name)):
            try:
                version = self._version(name)
            except Unsupported:
                return {"name": name, "size": None, "type": "other"}
            return {"name": name, "size": version.size, "type": "file", "version": version.number}
        if name and not any(True for _ in self._below(name)):
            raise FileNotFoundError(errno.ENOENT, "rdtd: nothing is published under this name", name)
        return {"name": name, "size": 0, "type": "directory"}

    def ls(self, path: Any, detail: bool = True, **ignored: Any) -> list[Any]:
        """What is in a folder. A name that is both a file and a folder has two entries."""
        folder = self._strip_protocol(path)
        start = len(folder) + 1 if folder else 0
        found: dict[tuple[str, bool], Any] = {}  # by name, and whether it is a folder: a name may be both
        for name in self._below(folder):
            first, inside, _ = name[start:].partition("/")
            entry = f"{folder}/{first}" if folder else first
            if inside:
                found[entry, True] = {"name": entry, "size": 0, "type": "directory"}
                continue
            with contextlib.suppress(FileNotFoundError):  # unpublished meanwhile
                found[entry, False] = self.info(entry)
        if not found and folder:
            found = {(folder, False): self.info(folder)}
        rows = [found[entry] for entry in sorted(found)]
        return rows if detail else list(dict.fromkeys([row["name"] for row in rows]))

    def ukey(self, path: Any) -> str:
        """Another text for each version, also of a daemon that counts from 1 again: fsspec's caches ask for it. Of a folder it
        is fsspec's own."""
        try:
            return str(self._version(path).held)
        except (FileNotFoundError, IsADirectoryError):
            own: str = super().ukey(path)
            return own

    def exists(self, path: Any, **ignored: Any) -> bool:
        name = self._strip_protocol(path)
        return not name or self._c.exists(self._ref(name)) or any(True for _ in self._below(name))

    def modified(self, path: Any) -> datetime:
        """When the version was put."""
        version = self._version(path)
        return datetime.now(timezone.utc) - timedelta(seconds=self._c.stat(version.held)["age"])

    created = modified

    # ---- reading ----

    def cat_file(self, path: Any, start: Optional[int] = None, end: Optional[int] = None,
                 versions: Optional[dict[str, _Version]] = None, **ignored: Any) -> bytes:
        """versions: the one that was read last, by name; if this is another one, it takes its place."""
        versions = {} if versions is None else versions
        name = self._strip_protocol(path)
        if name not in versions:
            versions.clear()  # one file may be all of the memory that there is
            versions[name] = self._version(name)
        first, last, _ = slice(start, end).indices(versions[name].size)
        return bytes(versions[name].read(first, last))

    def cat_ranges(self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **options: Any
                   ) -> list[Any]:
        """All ranges of one name are of one version. They are read one behind the other, so that no version is held beside
        another one."""
        if not isinstance(paths, list):
            raise TypeError(f"paths must be a list, not {type(paths).__name__}")
        order = sorted(range(len(paths)), key=lambda i: str(self._strip_protocol(paths[i])))
        starts, ends = [[given[i] for i in order] if isinstance(given, list) and len(given) == len(paths) else given
                        for given in (starts, ends)]
        read = super().cat_ranges([paths[i] for i in order], starts, ends, max_gap, on_error, versions={}, **options)
        found = dict(zip(order, read))
        return [found[i] for i in range(len(paths))]

    def open(self, path: Any, mode: str = "rb", block_size: Any = None, cache_options: Any = None, compression: Any = None,
             **options: Any) -> Any:
        compression = get_compression(path, compression)
        if "b" not in mode or "r" in mode or compression is None:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        below = super().open(path, mode, block_size, cache_options, **options)
        return _Compressing(compr[compression](below, mode=mode[0]), below)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, cache_options: Any = None,
              **options: Any) -> Any:
        if mode == "rb":
            version = self._version(path)
            file = _Reading(version, path)
            return file if version.here else io.BufferedReader(file, _BUFFER)
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"the mode must be rb, wb, xb or ab, not {mode!r}: a version of a name never changes")
        if not path:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if mode == "xb" and self._c.exists(self._ref(path)):
            raise FileExistsError(errno.EEXIST, "rdtd: this name is published already", path)
        made = _Writing(self, path, mode, autocommit, options)
        if mode == "ab" and self._c.exists(self._ref(path)):
            version = self._version(path)
            made.write(version.read(0, version.size))
        return made

    # ---- writing ----

    def _publish(self, path: str, data: Any, **options: Any) -> None:
        if self.address is not None or self.owner is not None:
            raise PermissionError(errno.EPERM, "rdtd: names of another node or user cannot be written", path)
        self._c.publish(path, memoryview(data), **{**self._options, **options})

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **options: Any) -> None:
        name = self._strip_protocol(path)
        if mode == "create" and self._c.exists(self._ref(name)):
            raise FileExistsError(errno.EEXIST, "rdtd: this name is published already", name)
        self._publish(name, value, **options)

    def cp_file(self, path1: Any, path2: Any, made: Optional[set[str]] = None, **ignored: Any) -> None:
        """Publishes the same object under a second name: nothing is copied. Of a folder there is nothing to copy. made: the
        second name is added."""
        try:
            version = self._version(path1)
        except FileNotFoundError:
            if not self.isdir(path1):
                raise
            return
        name = self._strip_protocol(path2)
        self._c.publish(name, version.held, **self._options)
        if made is not None:
            made.add(name)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: Optional[int] = None, **ignored: Any) -> None:
        """What is moved onto itself stays."""
        if self._strip_protocol(path1) == self._strip_protocol(path2):
            return
        names = self.expand_path(path1, recursive=recursive, maxdepth=maxdepth)
        made: set[str] = set()
        self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise", made=made)
        self._remove([name for name in names if name not in made], recursive)

    def rm_file(self, path: Any) -> None:
        name = self._strip_protocol(path)
        try:
            self._c.unpublish(self._ref(name))
        except NotFound:
            raise FileNotFoundError(errno.ENOENT, "rdtd: nothing is published under this name", name) from None

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        """Unpublishes a name, or with recursive all in a folder."""
        self._remove(self.expand_path(path, recursive=recursive, maxdepth=maxdepth), recursive)

    def _remove(self, names: list[str], recursive: bool) -> None:
        for name in reversed(names):
            if self._c.exists(self._ref(name)):
                self.rm_file(name)
            elif not recursive:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)

    def mkdir(self, path: Any, create_parents: bool = True, **ignored: Any) -> None:
        """Does nothing: a folder is there as long as a name is in it."""

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Does nothing, see mkdir."""

    def rmdir(self, path: Any) -> None:
        """Does nothing, see mkdir."""


_ENGINE.check(RdtdFileSystem)
