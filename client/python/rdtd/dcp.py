# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint (DCP) in the daemons' memory, under a name.

    import torch.distributed.checkpoint as dcp
    from rdtd.dcp import Reader, Writer

    with Writer("run7") as writer:                                   # on every rank
        dcp.save({"model": model, "optim": optim}, storage_writer=writer)
    dcp.load(state, storage_reader=Reader("run7"))                   # any number of ranks, any sharding

A checkpoint is a version of a name that consists of many parts (rdt-python(7), SHARDED TENSORS). Each rank puts what torch's
planner gives it, which copies each tensor once, and rank 0 adds torch's metadata as one more part. The version becomes visible
when the last part is there: whoever loads finds either the checkpoint before or this one, whole, whenever a rank or a daemon
ends. The parts lie on the nodes of their ranks, and the name keeps the newest checkpoint and no other. It lives in memory: it
outlives the processes that wrote it, and a restart of a daemon that has a keeper, but no reboot.

Loading reshards as torch's planner decides. A rank reads the boxes that it wants into its own tensors, from one version, the
same one on all ranks; of parts on its own node it copies just these boxes, and of other nodes `move` says how much travels. A
Reader also loads what rdtd.torch.publish and Connection.publish_part have published, and rdtd.torch.update reads the tensors of
a checkpoint.

What is no tensor (step counts, learning rates) is written as torch's pickles. A pickle can run any code when it is loaded, so a
Reader loads those of this user on this node, and others only where they are trusted: TRUST IN CODE in rdt-network(7).

Tested with torch 2.15. Source: torch.distributed.checkpoint, whose StorageWriter and StorageReader these are."""
# mypy: disable-error-code="import, misc, no-untyped-call"
from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pickle
import weakref
from dataclasses import replace
from typing import Any, Literal, Optional, Union

from ._engines import Engine

_ENGINE = Engine("rdtd.dcp", ("torch",), "2.15")

try:
    import torch
    from torch.distributed.checkpoint import (
        BytesStorageMetadata, ChunkStorageMetadata, Metadata, StorageReader, StorageWriter, TensorStorageMetadata)
    from torch.distributed.checkpoint.metadata import StorageMeta, TensorProperties
    from torch.distributed.checkpoint.planner import (
        LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType)
    from torch.distributed.checkpoint.storage import WriteResult
    from torch.futures import Future
except ImportError as error:
    raise _ENGINE.other(error) from None

import rdtd

from ._arrays import torch as load_torch
from ._check import checked, shown
from ._errors import Error, Freed, Invalid, NotFound, OwnerDied, PickleRefused
from ._requests import MODES, Ref, Request, Visible, ref_of
from ._shards import Box, _said
from .torch import _await_copies, _connection_of, _in_host_memory, _like_in_host_memory, _to_host_memory

__all__ = ["Writer", "Reader"]

HEAD = "torch.distributed.checkpoint"  # key of what torch's metadata has beyond the tensors
PICKLED = "torch.distributed.checkpoint.planner_data"  # of planners of one's own, whose data may be anything
MOST_SIGNS = 512  # ranks that know each other's signs of life: each gets the list
_CASTS = frozenset((torch.float32, torch.float16, torch.bfloat16))  # which a plan casts to each other


def _name_of(checkpoint_id: Any) -> Ref:
    if isinstance(checkpoint_id, Ref):
        return checkpoint_id
    name = os.fspath(checkpoint_id) if isinstance(checkpoint_id, os.PathLike) else checkpoint_id
    return ref_of(name.removeprefix("rdtd://") if isinstance(name, str) else name, "name")


class _Checkpoint:
    """What Writer and Reader have in common. Pickled, as for a save in a process of its own, it connects anew there."""

    def __init__(self, name: Any, connection: Any, timeout: Optional[float]) -> None:
        load_torch()
        self._at: Optional[Ref] = None if name is None else _name_of(name)
        self._connection: Any = None if connection is None else _connection_of(connection)
        self._timeout = timeout

    def __getstate__(self) -> dict[str, Any]:
        where = getattr(self._connection, "_where", self._connection)
        return {"_at": self._at, "_timeout": self._timeout, "_connection": where}

    @property
    def _c(self) -> rdtd.Connection:
        if isinstance(self._connection, str):
            self._connection = rdtd.connect(self._connection)
        return _connection_of(self._connection)

    @property
    def _name(self) -> Ref:
        if self._at is None:
            raise ValueError(f"{type(self).__name__} has no name: give it one, or pass checkpoint_id")
        return self._at

    @property
    def checkpoint_id(self) -> Optional[str]:
        """The name, as text."""
        return None if self._at is None else self._at.id.decode(errors="replace")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Whether torch may choose this storage by the checkpoint's id: for "rdtd://NAME"."""
        return isinstance(checkpoint_id, str) and checkpoint_id.startswith("rdtd://")


_signs: weakref.WeakKeyDictionary[rdtd.Connection, str] = weakref.WeakKeyDictionary()


def _sign_of_life(c: rdtd.Connection) -> str:
    """The Ref of an object that ends with the connection."""
    if c not in _signs:
        _signs[c] = str(c.put(memoryview(b"1")).keep())
    return _signs[c]


class Writer(_Checkpoint, StorageWriter):
    """Saves checkpoints: pass it to dcp.save or dcp.async_save as storage_writer, on every rank.

    name: under which the checkpoint is published, as text or as a Ref, which ranks on several nodes need where there is no
    node table (`Ref.from_name("run7", address="host:port")`). checkpoint_id of dcp.save, if given, is used in its place.
    connection: None: rdtd.default(). visible: who may load it. timeout: seconds that a rank may wait for room under a limit,
    and that the daemons may take to complete the version when all ranks have written.

    Tensors may be on any device and have any strides; those on GPUs are copied through pinned host memory. One save of a name
    at a time. After async_save the state dict may be changed as soon as torch has copied it; the copy is then put as by save.

    If a rank ends in a save, torch's collective fails on the others, with an error that names an address. A `with` block around
    the save makes it OwnerDied, which names the rank, with torch's error as its cause; `failure` returns that without a block.
    Errors of a save, each within torch's CheckpointException: those of Connection.publish_part, ValueError (no name,
    use_collectives=False), TypeError (a dtype that rdtd does not have)."""

    @checked
    def __init__(self, name: Union[str, Ref, None] = None, *, connection: Any = None, visible: Visible = "owner",
                 timeout: Optional[float] = 60) -> None:
        super().__init__(name, connection, timeout)
        self._visible = visible
        self._step = 0
        self._part: Optional[Ref] = None  # what this rank has put, until the next save
        self._waiting: Optional[Request] = None  # ends when the version is complete or has failed
        self._others: dict[int, str] = {}  # the signs of life of other ranks
        self._of = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_visible": self._visible, "_step": 0, "_part": None, "_waiting": None,
                "_others": {}, "_of": 0}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is not None:
            failure = self.failure()
            self._let_go()
            if failure is not None and isinstance(error, Exception) and not isinstance(error, Error):
                raise failure from error

    def failure(self, timeout: float = 10) -> Optional[Error]:
        """Why the last save did not become a version: which rank has ended, or what the daemon says. None: it did, or nothing
        is known of a failure within that many seconds. The first rank that knows tells the others."""
        c, waiting = self._c, self._waiting
        if waiting is None:
            return None
        ends = {rank: c.when_freed(Ref(text)) for rank, text in self._others.items()}
        c.wait([waiting, *ends.values()], "any", timeout, errors="return")
        try:
            if waiting.done():
                waiting.result()
                return None
        except Error as why:
            return why
        ended = [str(rank) for rank, end in ends.items() if end.done()]
        if not ended:
            return None
        why = OwnerDied(f"step {self._step} of {self.checkpoint_id!r} did not become a version: the process of rank "
                        f"{', '.join(ended)} has ended, or its node is lost")
        with contextlib.suppress(Error):
            c._give_up_part(self._name, self._step, self._of - 1, self._of, _said(why))
        return why

    def _let_go(self) -> None:
        """Withdraws a part whose version is not complete, and ends the hold on it."""
        waiting, self._waiting, self._part, self._others = self._waiting, None, None, {}
        if waiting is not None:
            waiting.cancel()

    # ---- what torch calls, in this order ----

    def reset(self, checkpoint_id: Any = None) -> None:
        self._let_go()
        if checkpoint_id is not None:
            self._at = _name_of(checkpoint_id)

    def storage_meta(self) -> Any:
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError("use_collectives must be True: an rdtd checkpoint is one version of all ranks")
        self._c._steps.pop(str(self._name), None)  # another program may have published since
        self._step = self._c._next_step(self._name)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self._let_go()
        return replace(plan, storage_data=_sign_of_life(self._c))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # Planners may keep plans for later saves, and lose what this one has got: so the step is not among it.
        signs = {rank: plan.storage_data for rank, plan in enumerate(plans) if plan.storage_data}
        signs = signs if len(signs) <= MOST_SIGNS else {}
        return [replace(plan, storage_data=(rank, len(plans) + 1, signs)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        rank, of, signs = plan.storage_data
        self._of = of
        self._others = {other: sign for other, sign in signs.items() if other != rank}
        try:
            boxes, results = _resolved(plan, planner)
            self._part = self._c.put_part(boxes, visible=self._visible, timeout=self._timeout)
            self._waiting = self._c.start_part(self._name, self._step, rank, of, self._part, visible=self._visible)
        except BaseException as error:
            with contextlib.suppress(Error):
                self._c._give_up_part(self._name, self._step, rank, of, _said(error))
            raise
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        found = metadata.state_dict_metadata
        head: dict[str, Any] = {"bytes": [key for key, what in found.items() if isinstance(what, BytesStorageMetadata)]}
        boxes: dict[str, Any] = {}
        if _is_paths(metadata.planner_data):
            head["paths"] = metadata.planner_data
        elif metadata.planner_data is not None:
            boxes[PICKLED] = memoryview(pickle.dumps(metadata.planner_data))
        boxes[HEAD] = memoryview(json.dumps(head).encode())
        self._c.publish_part(self._name, self._step, len(results), len(results) + 1, boxes, visible=self._visible,
                             timeout=self._timeout)


def _is_paths(data: Any) -> bool:
    """Whether it is what torch's own planner notes: for each key, where its value is in the nested state dict."""
    return isinstance(data, dict) and all(
        [type(key) is str and type(path) is tuple and {type(step) for step in path} <= {str, int}
         for key, path in data.items()])


def _resolved(plan: SavePlan, planner: SavePlanner) -> tuple[dict[str, Any], list[WriteResult]]:
    """The boxes that a rank writes, in host memory."""
    boxes: dict[str, Any] = {}
    results = []
    tensors = []
    for item in plan.items:
        key = item.index.fqn
        if key in (HEAD, PICKLED):
            raise ValueError(f"the state dict has the key {key!r}, which rdtd.dcp needs for itself")
        value = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            data = value.getbuffer()
            boxes[key] = data
            results.append(WriteResult(item.index, data.nbytes, None))
            continue
        if value.is_meta:
            raise TypeError(f"tensor {key!r} is on the meta device, where it has no data to save")
        results.append(WriteResult(item.index, value.nbytes, None))
        box = Box(_to_host_memory(value.detach()), tuple(item.tensor_data.size), tuple(item.tensor_data.chunk.offsets))
        tensors.append(value)
        if value.numel() or not math.prod(item.tensor_data.size):  # nobody reads the empty shard of a tensor
            boxes.setdefault(key, []).append(box)
    _await_copies(tensors)
    return boxes, results


class _Version:
    """A version that is held, and what is known of it."""

    def __init__(self, reader: Reader, at: Ref) -> None:
        c = self._c = reader._c
        self._reader = weakref.proxy(reader)  # its options
        self.held = c.hold(at, timeout=reader._timeout)
        try:
            manifest = c.manifest(self.held, timeout=reader._timeout)
        except Invalid:
            raise Invalid(f"{reader.checkpoint_id!r} is no checkpoint: what is published there is one object, not a version of "
                          "many parts") from None
        self.number = manifest.version
        self._parts = [part.ref for part in manifest.parts]
        self._trusted: dict[int, bool] = {}
        shards = [(i, shard) for i, part in enumerate(manifest.parts) for shard in part.shards]
        self._blobs = {shard.key: (i, shard.shape) for i, shard in shards if shard.key in (HEAD, PICKLED)}
        head = self._head()
        blobs = set(head.get("bytes", ()))
        found: dict[str, Any] = {}
        for i, (key, dtype, shape, start, count) in shards:
            if key in blobs:
                self._blobs[key] = (i, shape)
                found[key] = BytesStorageMetadata()
            elif key not in (HEAD, PICKLED):
                if key not in found:
                    found[key] = TensorStorageMetadata(TensorProperties(dtype=_dtype(key, dtype)), torch.Size(shape), [])
                found[key].chunks.append(ChunkStorageMetadata(torch.Size(start), torch.Size(count)))
        self.metadata = Metadata(found, self._planner_data(head), storage_meta=StorageMeta())

    def _head(self) -> dict[str, Any]:
        if HEAD not in self._blobs:
            return {}  # what other calls than ours have published
        text = bytearray(math.prod(self._blobs[HEAD][1]))
        self.read({HEAD: text})
        try:
            head = json.loads(text)
            if not isinstance(head, dict) or not isinstance(head.get("bytes"), list) or \
                    not isinstance(head.get("paths", {}), dict):
                raise ValueError(shown(head))
        except (ValueError, RecursionError) as error:
            raise Invalid(f"the checkpoint's metadata cannot be read: {str(error)[:200]!r}") from None
        return head

    def _planner_data(self, head: dict[str, Any]) -> Any:
        if "paths" in head:
            return {key: tuple(path) for key, path in head["paths"].items()}
        if PICKLED not in self._blobs:
            return None
        text = self.room(PICKLED)
        self.read({PICKLED: text})
        return pickle.loads(text)

    def room(self, key: str) -> bytearray:
        """Memory for what is no tensor. Raises PickleRefused if its producer is not trusted."""
        if key not in self._blobs:
            raise NotFound(f"version {self.number} of {self._reader.checkpoint_id!r} has no {key!r}")
        part, shape = self._blobs[key]
        if not self._is_trusted(part):
            raise PickleRefused(f"{key!r} of the checkpoint {self._reader.checkpoint_id!r} is a pickle of another user or "
                                "node, which can run any code: Reader(allow_pickle=True) loads it if you trust its writer")
        return bytearray(math.prod(shape))

    def _is_trusted(self, part: int) -> bool:
        allowed: Optional[bool] = self._reader._allow_pickle
        if allowed is not None:
            return allowed
        if part not in self._trusted:
            (request,) = self._c._fetch([self._parts[part]], MODES["auto"], self._reader._timeout, None, None, None, None, None,
                                        None, 0.0, True)
            request._wait(None)
            self._trusted[part] = self._c._may_unpickle(request._take())
        return self._trusted[part]

    def read(self, targets: dict[str, Any]) -> None:
        if targets:
            plan = self._c.plan(self.held, targets, move=self._reader._move, verify=self._reader._verify)
            plan.run(0, timeout=self._reader._timeout)


class Reader(_Checkpoint, StorageReader):
    """Loads the newest checkpoint of a name: pass it to dcp.load as storage_reader, on every rank.

    name, connection: as for Writer; the name of another user as `c.name("run7", owner="alice")`. timeout: seconds for each step
    of a load; None: no limit. move: as for Connection.plan: what travels of parts on other nodes, "slices": only what this rank
    wants. verify: the parts are compared with their checksums before anything is written (Damaged). allow_pickle: True loads
    what is no tensor from any producer, False from none, None from those that are trusted.

    All ranks read the version that rank 0 has found, whose Reader holds it until it is reset or deleted; `version` says which.
    Tensors are written in place, on any device, and cast to their own dtype. Errors, each within torch's CheckpointException:
    NotFound (nothing is published under the name), Invalid (what is published there is no version of many parts), Mismatch (a
    tensor of another shape), PickleRefused, Freed, PeerLost, TimedOut, Damaged. After an error of the read no tensor in host
    memory has changed."""

    @checked
    def __init__(self, name: Union[str, Ref, None] = None, *, connection: Any = None, timeout: Optional[float] = None,
                 move: Literal["auto", "whole", "slices"] = "auto", verify: bool = False,
                 allow_pickle: Optional[bool] = None) -> None:
        super().__init__(name, connection, timeout)
        self._move = move
        self._verify = verify
        self._allow_pickle = allow_pickle
        self._stored: Optional[_Version] = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_move": self._move, "_verify": self._verify, "_allow_pickle": self._allow_pickle,
                "_stored": None}

    @property
    def version(self) -> int:
        """The version that was found or loaded last; 0: none."""
        return 0 if self._stored is None else self._stored.number

    def reset(self, checkpoint_id: Any = None) -> None:
        self._stored = None
        if checkpoint_id is not None:
            self._at = _name_of(checkpoint_id)

    def read_metadata(self, *args: Any) -> Metadata:
        """What the newest version has. Of TensorProperties only the dtype is known."""
        for last in False, True:
            try:
                newest = self._c.stat(self._name)["ref"]  # a hold of the name would wait for a version
            except (NotFound, Freed):
                raise NotFound(f"no checkpoint: nothing is published under {self.checkpoint_id!r}") from None
            try:
                self._stored = _Version(self, newest)
                break
            except (Freed, NotFound):  # by the next version, between two messages
                if last:
                    raise
        assert self._stored is not None
        return self._stored.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        assert self._stored is not None
        return [replace(plan, storage_data=str(self._stored.held)) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        assert self._stored is not None
        known = self._stored.metadata.state_dict_metadata  # with which this rank has planned
        if str(self._stored.held) != plan.storage_data:  # a version came between rank 0's look and this rank's
            self._stored = _Version(self, Ref(plan.storage_data))
        blobs: dict[str, bytearray] = {}
        targets: dict[str, Any] = {}
        written = []
        staged = []
        for item in plan.items:
            index = item.storage_index
            if item.type == LoadItemType.BYTE_IO:
                blobs[index.fqn] = self._stored.room(index.fqn)
                continue
            target = planner.resolve_tensor(item).detach()
            what = known[index.fqn]
            memory = target
            if not _in_host_memory(target) or target.dtype != what.properties.dtype \
                    and not {target.dtype, what.properties.dtype} <= _CASTS:
                memory = _like_in_host_memory(target) if target.dtype == what.properties.dtype else \
                    torch.empty(target.shape, dtype=what.properties.dtype)
                staged.append((target, memory))
            start = tuple([a + b for a, b in zip(index.offset or (0,) * len(what.size), item.storage_offsets)])
            if target.numel():
                targets.setdefault(index.fqn, []).append(Box(memory, tuple(what.size), start))
            written.append((item, target))
        self._stored.read({**targets, **blobs})
        for target, memory in staged:
            target.copy_(memory, non_blocking=True)
        _await_copies([target for target, _ in staged])
        for item, target in written:
            planner.commit_tensor(item, target)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(blobs[item.storage_index.fqn]))
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _dtype(key: str, text: str) -> Any:
    from ._arrays import _torch_by_text
    load_torch()  # a Reader that was unpickled may be the first that needs it
    if text not in _torch_by_text:
        raise TypeError(f"tensor {key!r} has the dtype {text}, which this torch ({torch.__version__}) lacks")
    return _torch_by_text[text]


_ENGINE.check(Writer, Reader)
