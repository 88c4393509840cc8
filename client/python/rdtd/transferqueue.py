# SPDX-License-Identifier: Apache-2.0
"""TransferQueue (verl's data plane) over rdtd: the storage backend "rdtd".

    import ray, transfer_queue as tq, rdtd.transferqueue
    from omegaconf import OmegaConf

    ray.init(runtime_env={"worker_process_setup_hook": "rdtd.transferqueue.register"})   # TransferQueue loads no modules itself
    tq.init(OmegaConf.create({"backend": {"storage_backend": "rdtd", "rdtd": {}}}))

What one call puts, all fields of all its samples, is one object of the daemon, not one for each key: rows that lie behind each
other in memory are one tensor, and are copied once. Readers on the node map the object, whatever part of it they want; to other
nodes the daemons move it once for all readers there. TransferQueue then copies the rows into the batch that it returns.

An object ends when all its keys were cleared or put again by one process; when the program that called init ends or calls close
(on its node); and in any case `ttl` seconds after the put. It does not end with the process that put it.

Keys of the configuration backend.rdtd: socket (of the daemon; null: $RDT_SOCKET or the default), ttl (seconds, 86400; at most
the daemon's detached_ttl_max), allow_pickle (null: values that are no tensors and need a pickle are loaded from producers that
are trusted, TRUST IN CODE in rdt-network(7); true: from all). prefix is set by init.

Tested with TransferQueue 0.1.11. Source: its StorageKVClient and KVStorageManager."""
# mypy: disable-error-code="import, misc, no-untyped-call"
from __future__ import annotations

import asyncio
import contextlib
import math
import os
import struct
import threading
import time
import uuid
import weakref
from typing import Any, NamedTuple, Optional

from ._engines import Engine

_ENGINE = Engine("rdtd.transferqueue", ("transferqueue",), "0.1.11")

try:
    import torch
    from transfer_queue.storage.bootstrap import StorageBootstrapProvider
    from transfer_queue.storage.clients.base import StorageClientFactory, StorageKVClient
    from transfer_queue.storage.managers.base import KVStorageManager, StorageManagerFactory
except ImportError as error:
    raise _ENGINE.other(error) from None

import rdtd

from ._arrays import kind_of
from ._errors import Disconnected, Error, Freed, NotFound, OwnerDied
from ._requests import Ref

__all__ = ["register", "Client", "Manager"]

_PLACE = struct.Struct("<III")  # the number of an object's keys, and where a value is: the tensor (or _OTHER), and its row
_OTHER = 2**32 - 1
_TTL = 86400.0


def register() -> None:
    """Does nothing: importing this module registers the backend. For Ray's worker_process_setup_hook."""


class _Run(NamedTuple):
    """Rows that lie behind each other, as one tensor: of one shape, or flat, with the shape of each."""

    tensor: torch.Tensor
    shapes: Optional[list[list[int]]]


def _is_row(value: Any) -> bool:
    return type(value) is torch.Tensor and value.layout == torch.strided and not value.is_nested and kind_of(value) == "t" and \
        not value.requires_grad and value.is_contiguous() and value.device.type == "cpu" and not value.is_conj() and \
        not value.is_neg()


def _runs(values: list[Any]) -> tuple[list[_Run], list[Any], list[tuple[int, int]]]:
    """The runs of rows, the other values, and the place of each value."""
    runs: list[_Run] = []
    others: list[Any] = []
    places = []
    rows: list[torch.Tensor] = []
    memory, end = None, 0  # of the last row

    def close() -> None:
        if rows:
            runs.append(_run_of(rows))
            rows.clear()

    for value in values:
        if not _is_row(value):
            others.append(value)
            places.append((_OTHER, len(others) - 1))
            continue
        start, storage = value.data_ptr(), value.untyped_storage()
        its = storage.data_ptr(), storage.nbytes()  # numpy's memory may be in several storages that begin at one address
        if rows and not (start == end and value.dtype == rows[0].dtype and value.numel() and its == memory):
            close()
        places.append((len(runs), len(rows)))
        rows.append(value)
        memory, end = its, start + value.nbytes
    close()
    return runs, others, places


def _run_of(rows: list[torch.Tensor]) -> _Run:
    first = rows[0]
    if all([row.shape == first.shape for row in rows]):
        return _Run(first.as_strided((len(rows), *first.shape), (first.numel(), *first.stride())), None)
    return _Run(first.as_strided((sum([row.numel() for row in rows]),), (1,)), [list(row.shape) for row in rows])


class _Batch:
    """An object that was fetched: the values of one put."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._tensors, self._shapes, self._others = value["tensors"], value["shapes"], value["others"]
        self._starts: dict[int, list[int]] = {}

    def value(self, tensor: int, row: int) -> Any:
        if tensor == _OTHER:
            return self._others[row]
        shapes = self._shapes[tensor]
        if shapes is None:
            return self._tensors[tensor][row]
        if tensor not in self._starts:
            starts = self._starts[tensor] = [0]
            for shape in shapes:
                starts.append(starts[-1] + math.prod(shape))
        start, end = self._starts[tensor][row:row + 2]
        return self._tensors[tensor][start:end].view(shapes[row])


@StorageClientFactory.register("RdtdClient")
class Client(StorageKVClient):
    """The storage client. One of each process, which may be called from several threads."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._socket: Optional[str] = config.get("socket")
        self._own: Optional[rdtd.Connection] = None  # if there is a socket
        self._ttl = float(config.get("ttl") or _TTL)
        self._allow_pickle = config.get("allow_pickle")
        self._prefix = config.get("prefix") or "tq."
        # Of objects of which some keys were cleared, where in them these are, and when ttl has ended the object: oldest first.
        self._cleared: dict[bytes, tuple[float, set[bytes]]] = {}
        self._lock = threading.Lock()

    @property
    def _c(self) -> rdtd.Connection:
        if self._socket is None:
            return rdtd.default()
        with self._lock:
            if self._own is None or self._own.closed or not self._own._is_alive():  # nor is the parent's after a fork
                self._own = rdtd.connect(self._socket)
            return self._own

    def put(self, keys: list[str], values: list[Any]) -> list[bytes]:
        """Puts all values as one object, which is a snapshot. Returns for each key where its value is."""
        if len(keys) != len(values):
            raise ValueError(f"there are {len(keys)} keys and {len(values)} values")
        if not keys:
            return []
        runs, others, places = _runs(values)
        value = {"tensors": [run.tensor for run in runs], "shapes": [run.shapes for run in runs], "others": others}
        ref = self._c.put(value, id=self._prefix + uuid.uuid4().hex, snapshot="unsealed", detached=True, ttl=self._ttl)
        packed, pack, many = ref.pack(), _PLACE.pack, len(keys)
        return [packed + pack(many, *place) for place in places]

    def get(self, keys: list[str], shapes: Any = None, dtypes: Any = None, custom_backend_meta: Any = None) -> list[Any]:
        """Returns the values. Tensors are views of the objects' memory, private to this process (copy on write)."""
        places = _places(keys, custom_backend_meta)
        packed = list(dict.fromkeys([one for one, _ in places]))
        refs = [Ref._unpack(one) for one in packed]
        try:
            found = self._c.get(refs, allow_pickle=self._allow_pickle)
        except (Freed, NotFound, OwnerDied) as error:
            raise KeyError(f"TransferQueue's values were cleared, or put longer than {self._ttl} s ago: {error}") from error
        batches = {one: _Batch(value).value for one, value in zip(packed, found)}
        unpack = _PLACE.unpack
        return [batches[one](*unpack(place)[1:]) for one, place in places]

    def clear(self, keys: list[str], custom_backend_meta: Any = None) -> None:
        """Notes that these values are not needed any more, and frees the objects of which no others are left. Errors: those of
        Connection.free, when all other objects have been freed, and Disconnected; ttl ends what this call could not."""
        over = []
        now = time.monotonic()
        with self._lock:
            while self._cleared and next(iter(self._cleared.values()))[0] < now:  # other processes have cleared the rest
                del self._cleared[next(iter(self._cleared))]
            for one, place in _places(keys, custom_backend_meta, True):
                _, cleared = self._cleared.setdefault(one, (now + self._ttl, set()))
                cleared.add(place)
                if len(cleared) == _PLACE.unpack(place)[0]:
                    del self._cleared[one]
                    over.append(Ref._unpack(one))
        failure: Optional[Error] = None
        for ref in over:
            try:
                self._c.free(ref)
            except (Freed, NotFound, OwnerDied):
                pass  # its time was over
            except Disconnected:  # there is no daemon, and each try to connect takes seconds
                raise
            except Error as error:  # its node is lost, for instance
                failure = failure or error
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Ends the connection, if the configuration names a socket."""
        if self._own is not None:
            self._own.close()


def _places(keys: list[str], metas: Any, some: bool = False) -> list[tuple[bytes, bytes]]:
    """For each key the object, and where in it its value is. some: keys that have none are left out."""
    found = [(bytes(meta[:-_PLACE.size]), bytes(meta[-_PLACE.size:])) for meta in metas or () if meta]
    if len(found) != len(keys) and not some:
        lacks = [key for key, meta in zip(keys, metas or [None] * len(keys)) if not meta]
        raise KeyError(f"nothing was put for {lacks[0]!r}" + (f" and {len(lacks) - 1} other keys" if len(lacks) > 1 else ""))
    return found


@StorageManagerFactory.register("rdtd")
class Manager(KVStorageManager):
    """The storage manager: TransferQueue's own for key-value stores, which also clears what is put again."""

    def __init__(self, controller_info: Any, config: Any, zmq_context: Any = None) -> None:
        super().__init__(controller_info, {**(config or {}), "client_name": "RdtdClient"}, zmq_context=zmq_context)

    async def put_data(self, data: Any, metadata: Any, data_parser: Any = None) -> None:
        """Puts the samples, tells the controller, and then clears what the same fields of these samples had. If it is
        cancelled, nothing of the samples is left, or they are put whole and the controller is told."""
        fields = set(data.keys())
        before = [(f"{index}@{field}", meta) for index, known in zip(metadata.global_indexes, metadata._custom_backend_meta)
                  for field, meta in known.items() if field in fields]
        put = _Put(self, before)
        try:
            await KVStorageManager.put_data(put, data, metadata, data_parser)
        except BaseException:
            put.give_up()
            raise

    def close(self) -> None:
        super().close()
        client = getattr(self, "storage_client", None)
        if client is not None:
            client.close()


class _Put:
    """One call of put_data: the manager and its client, as TransferQueue's method sees them. If the call is cancelled, the thread
    that puts goes on; and what the controller was told of cannot be taken back."""

    def __init__(self, manager: Manager, before: list[tuple[str, bytes]]) -> None:
        self._manager = manager
        self._before = before
        self._lock = threading.Lock()
        self._made: Optional[tuple[list[str], list[bytes]]] = None  # what was put and the controller was not told of
        self._given_up = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    @property
    def storage_client(self) -> _Put:
        return self

    def put(self, keys: list[str], values: list[Any]) -> list[bytes]:
        metas: list[bytes] = self._manager.storage_client.put(keys, values)
        with self._lock:
            self._made = keys, metas
        if self._given_up:
            self.give_up()
        return metas

    async def notify_data_update(self, *args: Any) -> None:
        self._made = None
        await asyncio.shield(self._tell(args))

    async def _tell(self, args: tuple[Any, ...]) -> None:
        await self._manager.notify_data_update(*args)
        self._clear(self._before)

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            made, self._made = self._made, None
        self._clear(list(zip(*made)) if made else [])

    def _clear(self, values: list[tuple[str, bytes]]) -> None:
        if values:
            with contextlib.suppress(Error):  # of a node that is lost; ttl ends them
                self._manager.storage_client.clear([key for key, _ in values], [meta for _, meta in values])


class _Program:
    """What init keeps until close: its end frees what was put and not cleared, on this node."""

    def __init__(self, socket: Optional[str], prefix: str) -> None:
        self._end = weakref.finalize(self, _free_all, socket, prefix, os.getpid())


def _free_all(socket: Optional[str], prefix: str, pid: int) -> None:
    if os.getpid() != pid:  # the end of a child after a fork is not that of the program
        return
    try:
        with rdtd.connect(socket) as c:
            c.free(prefix=prefix)
    except Error:
        pass  # no daemon any more, and no objects


@StorageBootstrapProvider.register_provider("rdtd")
def _start(conf: Any) -> Any:
    """Called by init in the program that begins."""
    own = conf.backend["rdtd"]
    own["prefix"] = f"tq.{uuid.uuid4().hex[:8]}."
    with rdtd.connect(own.get("socket")):  # no daemon: an error here, not in a worker
        return {"run": _Program(own.get("socket"), own["prefix"])}


_ENGINE.check(Client, Manager)
