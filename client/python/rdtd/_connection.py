# SPDX-License-Identifier: Apache-2.0
"""Connection: the API of rdtd for Python programs."""
from __future__ import annotations

import inspect
import os
import re
import sys
import time
import weakref
from functools import partial
from os import PathLike
from typing import Any, Callable, ContextManager, Iterable, Literal, Mapping, Optional, Sequence, Union, overload

from . import _rdt
from ._aio import AGAIN, in_thread
from ._arrays import box, convert, gpu_of, kind_of, stream_number, torch_uses_gpus
from ._check import checked, shown
from ._daemon import SYSTEM_SOCKET
from ._errors import Denied, Error, Freed, Invalid, NotFound, OwnerDied, PeerLost, TimedOut
from ._follow import Follower
from ._gpu import TorchPools
from ._groups import GroupCalls
from ._info import InfoCalls
from ._many import ManyCalls
from ._memory import As, MemoryCalls
from ._requests import (HOLD, MODES, VISIBILITY, Fetched, FetchInto, Held, How, Ref, Request, Steps, Visible, is_open,
                        parts_refused, ref_of)
from ._part_deltas import Before
from ._shards import PartCalls, Publishing
from ._structure import Layout, bare, encode, encode_nested, refused
from ._targets import Targets, check_memory
from ._versions import Published, Versions
from ._waits import WaitCalls, returns_errors

Mode = Literal["auto", "share", "copy", "cow"]

AUTO, COW = MODES["auto"], MODES["cow"]
_STORE_SECONDS, _STORE_RATE = 600.0, 64 << 20  # and a second more for each so many bytes
_SIMPLE = frozenset(("mode", "as_"))  # get handles these options without a Request
_MANY = 16  # refs of which get fetches those on this node without a Request for each


def _is_structure(into: Any) -> bool:
    return into is not None and not kind_of(into)


def _in_two_steps(ref: Any, targets: Optional[Targets], as_: str) -> bool:
    """Whether the targets are handed to librdt only when the object is there."""
    if targets is None:
        return False
    if targets.skips or _is_structure(targets.into) and as_ != "list":
        return True
    return (ref.is_name or not ref.generation) and targets.may_move()


class Connection(GroupCalls, InfoCalls, ManyCalls, MemoryCalls, PartCalls, WaitCalls):
    """A session with the rdtd of this node. The session is the lease of everything it put and holds.

    socket: path of the daemon's socket; None: $RDT_SOCKET, else /run/rdtd/rdtd.sock. name: shown by rdtctl;
    None: the name of the program. timeout: seconds to wait for the connection; None: 10. daemon_uid: the user
    that the daemon runs as; None: $RDT_DAEMON_UID, else root, this process's user, or the owner of the socket's
    folder if nobody else can put a socket there.

    Any thread may make any call. Every call that waits releases the GIL, takes a `timeout` in seconds (0: it
    does not wait), and runs signal handlers at once: what a handler raises (Ctrl-C: KeyboardInterrupt) ends the
    call, and a put that is interrupted leaves no object. timeout=None: what waits for other programs (`get`,
    `fetch`, `hold`, `wait_put`, `manifest`, `publish_part`, ...) has no limit; connecting takes at most 10 s,
    `store` ten minutes, and every other call one minute, and both one second more for each 64 MiB that they
    allocate, copy, verify or store, so that they end with TimedOut beside a daemon that is stopped. After
    a fork, calls in the child raise `Forked`: connect again there (`rdtd.default()` does).

    Errors: Disconnected (no daemon serves the socket), Denied (another user serves the socket, or the daemon
    refuses this one), LimitReached (too many clients), ProtocolBroken, TimedOut."""

    @checked
    def __new__(cls, socket: Union[str, PathLike[str], None] = None, *, name: Optional[str] = None,
                timeout: Optional[float] = None, daemon_uid: Optional[int] = None) -> Any:
        return super().__new__(cls, socket, name, timeout, daemon_uid)

    def __init__(self, socket: Union[str, PathLike[str], None] = None, *, name: Optional[str] = None,
                 timeout: Optional[float] = None, daemon_uid: Optional[int] = None) -> None:
        self._own_pools: Optional[TorchPools] = None
        self._imported = {}
        self._kept_live: dict[Request, Any] = {}
        # The connections that took the place of this one after it was lost.
        self._heirs: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._parts_before: dict[tuple[str, int], Before] = {}  # by name and rank: of publish_part(delta=True)
        self._steps: dict[str, int] = {}  # that were published last, by name: the next ones need not be asked for
        info = self._node()
        self._session = info["session"]
        self._called = name
        self._served_by = daemon_uid
        chosen = os.fspath(socket) if socket is not None else os.environ.get("RDT_SOCKET")
        self._where = os.fsdecode(chosen or SYSTEM_SOCKET)
        self._owner = (info["uid"], info["tenant"])
        is_open(self)

    def __repr__(self) -> str:
        closed = " (closed)" if self.closed else ""
        return f"<rdtd.Connection{closed} to {self._where}, session {self._session}>"

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a connection cannot be pickled, because it belongs to its process: send refs, and "
                        "connect in the other process (rdtd.default() does)")

    def close(self) -> None:
        """Ends the connection: cancels its requests and frees what it put, except detached and published
        objects. A second close does nothing.

        Arrays and tensors that came from it stay valid: the session lasts, with nothing but their memory,
        until the last of them is deleted."""
        super().close()
        for imported in list(self._imported.values()):
            imported.close()
        if self._own_hub:
            self._own_hub.look()
        if "rdtd.torch" in sys.modules:
            sys.modules["rdtd.torch"]._forget(self)
        with self._hub_lock:
            heirs = list(self._heirs)
        for heir in heirs:
            heir.close()

    def dispatch(self) -> int:
        """Reads the daemon's answers, without blocking: to be called when `fileno` is readable. Returns how many requests
        have ended since the last call. Error: Disconnected."""
        ended = -1
        try:
            ended = super().dispatch()
        finally:
            if self._own_hub and (ended or self._own_hub.interrupted):  # the descriptor may not wake up its loops any more
                self._own_hub.look()
        return ended

    def _is_alive(self) -> bool:
        try:
            self.dispatch()
        except Error:
            return False
        return True

    def _reopened(self) -> Connection:
        """A new connection to the same daemon, or to the one that took its place. It is closed with this one."""
        made = Connection(self._where, name=self._called, daemon_uid=self._served_by)
        with self._hub_lock:
            self._heirs.add(made)
        if self.closed:  # just now, by another thread
            made.close()
        return made

    def _may_unpickle(self, brought: _rdt.Object, allowed: Optional[bool] = None) -> bool:
        """Whether code of the producer may run: if the caller says so, else if the producer is this user, on this node or on
        one whose pickles the daemon trusts. What another node says about the owner counts only then."""
        if allowed is not None:
            return allowed
        ref = brought.info()["ref"]
        return ref.owner in (None, self._owner) and (ref.node == self._node()["node"] or brought.pickles_trusted)

    def _ref_of(self, brought: _rdt.Object) -> Callable[[str], Ref]:
        return partial(Ref._named, trusted=partial(self._may_unpickle, brought))

    def _source_of(self, brought: _rdt.Object) -> str:
        """Words for the node that an object came from; none for this one."""
        ref = brought.info()["ref"]
        if ref.node == self._node()["node"]:
            return ""
        return f" of node {ref.node.hex()}" + (f" at {ref.address}" if ref.address else "")

    # ---- the daemon ----

    @property
    def node(self) -> dict[str, Any]:
        """About this node: node and boot_id (16 bytes each), address of the peer link, daemon_version,
        session, uid, tenant."""
        return self._node()

    @checked
    def ping(self, timeout: Optional[float] = 10) -> None:
        """Makes one round trip to the daemon."""
        self._ping(timeout)

    # ---- GPUs ----

    def _keep_live(self, ref: Ref, value: Any, snapshot: bool) -> None:
        """Keeps tensors of torch's pool alive after a put, until their object no longer needs the memory."""
        self.dispatch()
        self._kept_live[self.when_put(ref) if snapshot else self.when_freed(ref)] = value
        for ends in list(self._kept_live):  # in place: other threads put, too
            if ends._state() != AGAIN:
                self._kept_live.pop(ends, None)

    def torch_pool(self, device: Any = None) -> ContextManager[Any]:
        """`with c.torch_pool("cuda:0"): ...`: tensors that torch allocates in this thread inside the block
        are in the daemon's memory of that GPU (None: torch's current GPU), and putting them copies nothing.
        Yields torch's MemPool.

        torch may reuse their memory as always, except for tensors that were put: that memory is kept while
        its object needs it, and returns to torch with a later put. Put the tensors with this connection
        (another connection copies them). The session lasts until the process ends. One connection of a
        process serves torch's pools at a time: the last one whose `torch_pool` was entered.
        Errors: Unsupported (no torch, a torch without CUDA, no driver, or a GPU that the daemon does not
        have: the message says which), NoMemory, LimitReached. If the daemon has no room, torch raises
        torch.OutOfMemoryError; the notes of the exception have the daemon's message."""
        if device is not None:
            gpu_of(device)
        if self._own_pools is None:
            self._own_pools = TorchPools(self)
        return self._own_pools.use(device)

    # ---- put ----

    @checked
    def put(self, value: Any, *, id: Union[str, bytes, None] = None,
            snapshot: Union[bool, Literal["unsealed"]] = False, detached: bool = False, stored: bool = False,
            ttl: Optional[float] = None, visible: Visible = "owner", transport: Optional[str] = None,
            timeout: Optional[float] = None,
            allow_pickle: bool = True, stream: Any = None, grace: Optional[float] = None,
            copy: bool = True, immutable: bool = False, checksum: bool = False, replace: bool = False,
            evictable: bool = False, priority: int = 0, device: Optional[Literal["host"]] = None) -> Ref:
        """Puts a tensor, or a structure (dicts, lists, tuples, dataclasses, ...) that contains tensors, as
        one object. Returns the Ref that holds it.

        Tensors are numpy arrays, torch tensors, memoryviews, ctypes arrays, mmaps, and objects with `__dlpack__` or
        `__cuda_array_interface__`, in host memory or on a CUDA GPU, of at most 32 dimensions, with any strides. They are borrowed
        during the call. Tensors in memory from `empty` or `torch_pool` are not copied: the object is live, so
        readers see later writes to that memory (`wait_freed` returns when nobody reads it any more). All other
        tensors are copied once (`Ref.copied` counts them), on their GPU if they are on one;
        several names of one tensor, and torch tensors of one storage, are stored once. Everything that is not a
        tensor becomes metadata of the object: plain values as they are, others (rdt-python(7), WHAT A VALUE
        BECOMES) as a pickle, which allow_pickle=False refuses with a TypeError that names the value; the
        out-of-band buffers of that pickle (PEP 574: Arrow's, for instance) are tensors, too. A value comes back as
        it was put, or put refuses it.

        id: an id of your choice, 1 to 128 bytes. Readers may wait for it before it is put. The connection
        holds such an object until it is freed, even after the Ref is deleted. replace: if an object has the id, this one
        takes its place in one step, when its bytes are there: a `get` of the id finds one or the other. The earlier one is
        freed as by `free`: its readers, holds and names keep it. After TimedOut the id has one of the two. Not with stored:
        publish under a name. snapshot: the tensors are copied now, and the object never changes: its memory is sealed.
        "unsealed": the same, but the copy lies in memory that this library uses again when the object has ended, so later
        puts of large tensors take a fraction of the time; the kernel does not protect that memory. Tensors in memory from `empty` get a sealed copy in any case.
        detached: the object is freed ttl seconds after the put (above 0; None: ten minutes), whether or not this connection
        lives, and the Ref has no hold.
        evictable: the object is a snapshot in the cache: it stays, whether or not this connection lives, until it is freed,
        until ttl seconds have passed (None: no limit), or until its memory is wanted. Then those that were used least recently
        go first; one that a reader, a hold or a name holds stays. The Ref has no hold. With replace, an entry of the id that is
        there is replaced. In host memory only, and not stored. See `cache`. priority: 0 to 7; of this user's objects all of lower
        priority are evicted before any of a higher one.
        immutable: a promise that nobody writes the tensors while the object exists, that is, before `wait_freed`
        has returned. Memory from `empty` is then not copied, and other nodes treat the object as a snapshot: it
        is fetched once for all readers of a node, and many nodes pass it on to each other.
        checksum: computes the checksum of the tensors before the put, for readers that fetch with verify=True. A
        snapshot has one without this. Readers of a live object that has been written since find it damaged.
        stored: the object is a snapshot that the daemon stores in its storage_dir before put returns, as `store`
        does. If it cannot be stored, put raises the error and there is no object. timeout holds for storing once
        more (None: as in `store`). After a restart of the daemon the object is there again if it is detached or published.
        grace: how many seconds the daemon holds the object for a process that the Ref is pickled for (see
        Ref), at most the daemon's detached_ttl_max; None: 10; 0: not at all. visible: who else may fetch it.
        transport: the preferred transport between nodes.
        timeout: seconds for the call, including a wait of the daemon for room under a limit; None or 0: it does
        not wait for room, and takes at most a minute, and a second more for each 64 MiB.
        copy: False: the object uses the memory of GPU tensors itself where the driver can share it (`Ref.copied`
        counts all others). The object is then live, the tensors are kept until it is freed, and readers of this
        user can also read the memory beside them.
        device: "host": tensors on GPUs are copied to pinned host memory of the daemon, by one copy in their stream, which takes
        no memory of the GPU. The memory is charged as host memory, and serves later puts of this connection. Only a snapshot=True
        of it can be stored. None: tensors stay on their GPU.
        stream: the stream that writes the tensors on GPUs: a torch.cuda.Stream or the CUDA number of a stream.
        None: torch's current stream for torch tensors; the stream that `__cuda_array_interface__` names; the
        legacy default stream for DLPack (whose producer makes it wait) and for rdtd's own tensors. If one
        stream writes all tensors, and they are torch's or rdtd's own, put returns at once and readers wait
        for the stream. Otherwise put waits for the streams.
        Errors: Invalid, TypeError, ValueError (each names the tensor), Exists (the id; with replace: another connection holds
        the earlier object, and it is neither detached nor evictable), LimitReached (with evictable also if what others hold in
        the cache leaves no room), NoMemory, Unsupported (for instance no driver), TimedOut."""
        if replace and id is None:
            raise ValueError("replace needs an id")
        if replace and stored:
            raise ValueError("replace and stored: the disk would have neither of the two for a moment: publish under a name, "
                             "whose earlier version stays there until the new one is stored")
        flags = (_rdt.RDT_PUT_SNAPSHOT if snapshot or stored or evictable else 0) | (_rdt.RDT_PUT_DETACHED if detached else 0)
        flags |= (_rdt.RDT_PUT_IMMUTABLE if immutable else 0) | (_rdt.RDT_PUT_SUM if checksum else 0)
        flags |= (_rdt.RDT_PUT_UNSEALED if snapshot == "unsealed" and not stored else 0) | (0 if copy else _rdt.PUT_MAY_SHARE)
        flags |= (_rdt.RDT_PUT_REPLACE if replace else 0) | (_rdt.RDT_PUT_EVICTABLE if evictable else 0)
        if evictable and (detached or stored or immutable or not copy):
            raise ValueError("an evictable object is a copy that outlives its connection: leave out detached, stored, "
                             "immutable and copy=False")
        if device is not None:
            if device != "host":
                raise ValueError(f"device must be \"host\" or None, not {shown(device)}: a put moves tensors to no other GPU")
            if not copy:
                raise ValueError("device=\"host\" copies the tensors, and copy=False does not: pass one of the two")
            flags |= _rdt.PUT_TO_HOST
        if snapshot and immutable:
            raise ValueError("snapshot copies the tensors, and immutable promises that nobody writes them, so that they need "
                             "no copy: pass one of the two")
        snapshot = bool(snapshot or stored or evictable)
        if detached and not copy:
            raise ValueError("a detached object outlives its connection and tensors, so it needs a copy")
        if ttl is not None and not detached and not evictable:
            raise ValueError("ttl needs detached=True or evictable=True")
        if priority and not evictable:
            raise ValueError("priority needs evictable=True")
        encoded = encode(value, allow_pickle)
        key = id.encode() if isinstance(id, str) else id
        rest = (VISIBILITY[visible], transport, flags, timeout, ttl)
        where = None if stream is None else stream_number(stream)
        for inner in encoded.refs:
            inner._hand_on()
        try:
            ref: Optional[Ref] = self._put(encoded.tensors, key, encoded.metadata or None, *rest,
                                           encoded.names, where, priority)
            if ref is None:
                encoded = encode_nested(value, allow_pickle)
                ref = self._put(encoded.tensors, key, encoded.metadata or None, *rest, None, where, priority)
                assert ref is not None
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            named = refused(error, value, encoded.tensors)
            if named is error:
                raise
            raise named from error
        if encoded.has_torch:
            ref._hint = 1
        if grace is not None:
            ref._grace = grace
        if ref._live:
            self._keep_live(ref, encoded.tensors, snapshot)
        if stored:
            try:
                self._store(ref, self._store_timeout(ref) if timeout is None else timeout)
            except Error as error:  # its id is free again when the caller hears of it
                self._free(ref, False) if not isinstance(error, TimedOut) else self._drop(ref)
                raise
            except BaseException:  # Ctrl-C: an object with an id, or a detached one, would outlive the Ref
                self._drop(ref)
                raise
        return ref

    @checked
    def store(self, ref: _rdt.Ref, *, timeout: Optional[float] = None) -> str:
        """Stores a snapshot, or the newest version of a name, in the storage_dir of its daemon, as a safetensors
        file, and returns the file's path on that node when it is on disk. The object then survives the daemon and
        a reboot of its node if it is published or detached. When an object ends, its file is removed. After
        TimedOut the daemon goes on writing. An "unsealed" snapshot stays in memory, too, as long as the process
        that put it lives. timeout: None is ten minutes, and a second more for each 64 MiB.
        Errors: Unsupported (no storage_dir; memory on a GPU), Invalid (not a snapshot), LimitReached (storage_max,
        owner_max_stored_bytes), SystemFailed (the disk: the object stays in memory), Freed, Denied, NotFound,
        TimedOut, PeerLost."""
        return self._store(ref, self._store_timeout(ref) if timeout is None else timeout)

    def _store_timeout(self, ref: _rdt.Ref) -> float:
        try:
            return _STORE_SECONDS + float(self.stat(ref)["bytes"] // _STORE_RATE)
        except (NotFound, Freed, OwnerDied, Denied, PeerLost):
            return _STORE_SECONDS  # `store` says what is wrong

    @checked
    async def put_async(self, value: Any, **options: Any) -> Ref:
        """Like `put`, for event loops: a thread of the loop's executor copies and waits. If it is cancelled, there is no
        object; with replace, the id has one of the two."""
        return await in_thread(partial(self.put, value, **options), None if options.get("replace") else self._drop)

    @checked
    async def empty_async(self, shape: Union[int, Sequence[int]], dtype: Any = "f32", **options: Any) -> Any:
        """Like `empty`, for event loops: a thread of the loop's executor waits."""
        return await in_thread(partial(self.empty, shape, dtype, **options))

    @checked
    def free(self, ref: Optional[_rdt.Ref] = None, *, force: bool = False, prefix: Optional[str] = None) -> Optional[int]:
        """Drops the producer's hold on an object of this user. The object ends when its last reader has
        released it. With force=True nobody on any node can fetch it after this call has returned; readers
        that have fetched it keep it.

        prefix: in place of a Ref, all objects of this user on this node whose ids begin with it: those that this
        connection has put, detached and evictable ones, and with force=True all. Returns how many there were.
        Errors: NotFound, Freed, Denied, PeerLost."""
        if (ref is None) == (prefix is None):
            raise TypeError("free takes a Ref or a prefix")
        if prefix is not None:
            return self._end_prefix(prefix, False, force)
        self._free(ref, force)  # type: ignore[arg-type]
        return None

    # ---- fetch ----

    @overload
    def fetch(self, refs: _rdt.Ref, *, timeout: Optional[float] = None, mode: Optional[Mode] = None,
              as_: As = "auto", into: Any = None,
              slices: Any = None, transport: Optional[str] = None, least_path: Optional[str] = None,
              allow_pickle: Optional[bool] = None, device: Any = None,
              group: Optional[str] = None, verify: bool = False) -> Request: ...

    @overload
    def fetch(self, refs: Sequence[_rdt.Ref], *, timeout: Optional[float] = None, mode: Optional[Mode] = None,
              as_: As = "auto", into: Any = None,
              slices: Any = None, transport: Optional[str] = None, least_path: Optional[str] = None,
              allow_pickle: Optional[bool] = None, device: Any = None,
              group: Optional[str] = None, verify: bool = False) -> list[Request]: ...

    @checked
    def fetch(self, refs: Union[_rdt.Ref, Sequence[_rdt.Ref]], *, timeout: Optional[float] = None,
              mode: Optional[Mode] = None, as_: As = "auto", into: Any = None,
              slices: Any = None, transport: Optional[str] = None, least_path: Optional[str] = None,
              allow_pickle: Optional[bool] = None, device: Any = None, group: Optional[str] = None,
              verify: bool = False) -> Any:
        """Starts to fetch all refs at the same time. Returns a Request, or a list of Requests for a list of
        refs.

        A fetch of an id that has not been put yet, or of a name without a new version, waits until `timeout`
        (seconds; None: no limit). A version of many parts (`publish_part`) comes as a dict of its whole tensors by
        their keys, put together in new memory, which may be written, when the result is taken (again within `timeout`);
        `plan` reads them, or boxes of them, into memory that is there.
        mode: "share": the object's own memory on this node, in constant time and read-only (writing to a
        torch tensor of it is a fault, because torch has no read-only tensors); "copy": private and writable;
        "cow": private and writable, in constant time for snapshots in host memory (others are copied); "auto": share
        on this node, copy from another node. Arrays are then read-only in both cases and at every size, so a
        program that works on small arrays also works on large ones. None: "auto", except that torch gets "cow"
        instead of read-only memory.
        as_: "auto": tensors are returned as they were put (torch tensors as torch if torch is installed,
        others as numpy if numpy is installed); "numpy"; "torch"; "tensor": rdtd.Tensor, which needs neither;
        "list": the tensors without the structure.
        into: targets that receive the bytes: a tensor, or dicts, lists and tuples of tensors (for a list of
        refs: a list of these), contiguous and with the dtypes and shapes of the object's tensors. Some may lie
        on GPUs and others in host memory. They keep their memory until the request has ended, and share none, except that
        several may have the very same, as tied weights: then the object must have the same for all of them; nor do they
        share memory of a live object that is fetched, unless each tensor is its own target. Targets in
        dicts are matched by key, those in lists and tuples by index. So `into` needs the structure of the object, except
        for parts without tensors. With as_="list", into is a list of targets in the order of the tensors. None in place of
        a target, or of a dict or list of targets: nothing is wanted of these tensors, and they are not moved. The result is
        `into`. slices: a list that has, for each tensor of the object, None (the whole tensor) or the box of it to be fetched,
        such as numpy.s_[0:10, 5:6], or numpy.s_[0:10], which is whole in the other dimensions, or numpy.s_[0:0], which is
        nothing (for a list of refs: a list of such lists).
        transport: use only this transport. least_path: the slowest acceptable path: "share", "cow", "copy",
        "inline", "direct" or a transport's name.
        group: use only this group (see `create_group`); None: if a path needs a group, the first one that
        both nodes are members of.
        allow_pickle: whether to load a structure that is a pickle, which can run any code of its producer;
        None: only if the producer is this user on this node, or on one that the daemon's key trusted_pickles lists.
        device: where to bring the tensors: "host", or a GPU as in `empty`. None: they stay where they are, if
        torch has opened a GPU in this process or this connection has used one before; otherwise they go to host
        memory. Tensors from another node arrive in host memory. as_="numpy" implies "host". On a GPU, tensors
        that were put as numpy arrays arrive as rdtd.Tensor, which supports DLPack and
        `__cuda_array_interface__`. All bytes are there when the fetch has ended: there is no need to wait for a
        stream. Targets on a GPU whose memory the driver does not share are written when the result is taken.
        verify: the result is compared with the checksum of the object, when it is taken: `Damaged` if the bytes that
        this process got (shared, copied or in `into`) are not those that were put. All of them are read for that. A
        snapshot always has a checksum; other objects have one if they were put with checksum=True, and otherwise
        the result raises `Unsupported`, as it does for tensors on a GPU. Of a version of many parts each part is compared,
        before they are put together. Not with slices, nor where `into` does not want all.
        Errors, from this call or from the request: Freed, OwnerDied, NotFound, Denied, PeerLost,
        TransportFailed, NoPath, Mismatch (names the tensor or the key; nothing was written), Damaged, ShuttingDown (the
        daemon of the object's node was stopped: fetch again when it is back), NoMemory, LimitReached, TimedOut, Cancelled, PickleRefused."""
        one = isinstance(refs, _rdt.Ref)
        given: Any = refs
        if isinstance(given, Mapping):
            raise TypeError(f"refs must be a Ref or a list of Refs, not a {type(given).__name__}; list(refs.values()) is one")
        several = isinstance(given, Iterable) and not isinstance(given, (str, bytes))
        wanted = list(given) if several else [given]
        for ref in wanted:
            if not isinstance(ref, _rdt.Ref):
                raise TypeError(f"refs must be a Ref or a list of Refs, not a {type(ref).__name__}; "
                                "Ref(\"...\") parses one from text")
            if ref._wanting:
                self._hold_too(ref)
        if verify and slices is not None:
            raise ValueError("only a whole object can be verified, not slices of it")
        for what, each_of in ("into", into), ("slices", slices):
            if not one and each_of is not None and not isinstance(each_of, (list, tuple)):
                raise TypeError(f"{what} must be a list with an entry for each of the refs, not {shown(each_of)}")
        if into is not None:
            into = [into] if one else list(into)
        if slices is not None:
            slices = [slices] if one else list(slices)
            for each in slices:
                if each is not None and not isinstance(each, (list, tuple)):
                    raise TypeError("slices is a list with a box or None for each tensor of the object, not "
                                    f"a {type(each).__name__}")
        targets = None
        if into is not None:
            targets = [None if value is None else Targets(value, "into" if one else f"into[{i}]", True)
                       for i, value in enumerate(into)]
            check_memory(targets)
            if verify and any([each is not None and each.skips for each in targets]):
                raise ValueError("only a whole object can be verified, and into does not want all of it (None)")
        boxes = None if slices is None else [None if each is None else [box(one_) for one_ in each]
                                             for each in slices]
        number = MODES["auto"] if mode is None else MODES[mode]
        if mode is None and into is None and (as_ == "torch" or as_ == "auto" and wanted
                                              and all([ref._hint for ref in wanted])):
            number = MODES["cow"]
        place = ("host", None) if device is None and as_ == "numpy" else self._place(device)
        again = [(ref, timeout, transport, least_path, None if boxes is None else [boxes[i]], place, group)
                 for i, ref in enumerate(wanted)]
        if into is not None and targets is not None:
            if len(into) != len(wanted) or boxes is not None and len(boxes) != len(wanted):
                raise ValueError(f"into has {len(into)} entries, and slices {len(boxes or into)}, for {len(wanted)} refs")
            if as_ == "list" and not all(each is None or kind_of(each) for value in into if _is_structure(value)
                                          for each in value):
                raise TypeError("as_=\"list\" takes a list of targets, in the order of the tensors")
            if any([_in_two_steps(*each, as_) for each in zip(wanted, targets)]):
                made = [self._fetch_into(into[i], targets[i], number, as_, mode, allow_pickle, again[i], verify)
                        for i in range(len(wanted))]
                return made[0] if one else made
        started = self._start_fetch(wanted, number, timeout, transport, least_path, boxes, targets, place, group)
        for i, request in enumerate(started):
            request._how = How(as_, mode, None if into is None else into[i], allow_pickle, again[i],
                               verify=verify, targets=None if targets is None else targets[i])
        return started[0] if one else started

    def _start_fetch(self, refs: list[Any], number: int, timeout: Optional[float], transport: Optional[str],
                     least_path: Optional[str], boxes: Optional[list[Any]], targets: Optional[Sequence[Optional[Targets]]],
                     place: Any, group: Optional[str]) -> list[Request]:
        """Starts fetches in one step. Errors name the targets by their places."""
        leaves = None if targets is None else [None if each is None else each.in_order() for each in targets]
        try:
            return self._fetch(refs, number, timeout, transport, least_path, boxes, leaves, place, group)
        except (Error, TypeError, ValueError) as error:
            found = re.match(r"ref (\d+): ", str(error))
            for each in (targets or ())[int(found[1]) if found else 0:][:1]:
                if each is not None:
                    each.name(error)
            raise

    def _fetch_into(self, into: Any, targets: Optional[Targets], number: int, as_: str, mode: Optional[str],
                    allow_pickle: Optional[bool], again: tuple[Any, ...], verify: bool) -> Request:
        """Starts the fetch of one object; see FetchInto."""
        ref, timeout, transport, least_path, boxes, place, group = again
        how = How(as_, mode, into, allow_pickle, again, verify=verify, targets=targets)
        if not _in_two_steps(ref, targets, as_):
            (request,) = self._start_fetch([ref], number, timeout, transport, least_path, boxes,
                                           None if targets is None else [targets], place, group)
            request._how = how
            return request
        (request,) = self._fetch([ref], number, timeout, transport, least_path, None, None, None, group, 0.0,
                                 True)
        deadline = None if timeout is None else time.monotonic() + timeout
        request._how = how._replace(steps=Steps(number, deadline))
        request.__class__ = FetchInto
        return request

    def _again(self, how: How) -> Request:
        ref, timeout, transport, least_path, boxes, place, group = how.again
        (request,) = self._fetch([ref], MODES["cow"], timeout, transport, least_path, boxes, None, place,
                                 group)
        # A second fetch is enough: torch can write its tensors, and arrays beside them are read-only.
        request._how = how._replace(mode="auto")
        return request

    def _put_together(self, how: How, brought: _rdt.Object) -> Fetched:
        """The whole tensors of a version of many parts, by their keys. brought: its manifest, which may have come without
        a hold: if it has ended meanwhile, a newer version is read."""
        ref, timeout, transport, least_path, boxes, place, group = how.again
        end = None if timeout is None else time.monotonic() + timeout
        given = {"slices": boxes is not None, "mode='share'": how.mode == "share", "transport": transport, "group": group,
                 "least_path": least_path, "a GPU as device": place is not None and place[0] != "host"}
        for option in given:
            if given[option]:
                raise parts_refused(ref, option)

        def left() -> Optional[float]:
            return None if end is None else max(0.0, end - time.monotonic())

        request = self._start(HOLD, ref if ref.is_name else brought.info()["ref"], 0, 0, left())
        request._how = Held(0, ref)
        with request._result_or_cancel() as held:
            version, _, parts = self._manifest(held, left())
            whole = {key: (shape, dtype) for _, rows in parts for key, dtype, shape, _, _ in rows}
            tensors = self._arrays(list(whole.values()), ["tensor"] * len(whole), left(), None)
            anywhere: list[Any] = [None] * len(whole)
            run = self._plan(held, tensors, list(whole), anywhere, anywhere, [-1] * len(whole), True, 0,
                             how.verify).run(0, left())
            info = brought.info()
            info.update(ref=Ref._unpack(held.pack()), path="plan", bytes_moved=run["bytes_moved"], writable=True,
                        elapsed=run["wait_s"] + run["fetch_s"] + run["copy_s"], version=version if ref.is_name else 0)
        leaves = convert(tensors, "n", "auto" if how.as_ == "list" else how.as_)
        value = leaves if how.as_ == "list" else dict(zip(whole, leaves))
        return Fetched(value, tensors=tensors, metadata=brought.metadata, **info)

    @checked
    def get(self, refs: Any, *, errors: Literal["raise", "return"] = "raise", **options: Any) -> Any:
        """Fetches and waits. Returns the value of a ref, or the list of values of a list of refs; raises the
        first failure and cancels the rest. errors="return": waits for all, and the value of one that failed is
        its exception (an `Error`).

        Options and errors: see `fetch`. With timeout=0 nothing waits for a put: what is not there has NotPut. The
        arrays keep the daemon's memory alive; nothing needs to be closed."""
        returns = returns_errors(errors)
        if isinstance(refs, list) and len(refs) >= _MANY and options.keys() <= _SIMPLE | {"timeout"} \
                and not (self._gpus_open or torch_uses_gpus()):
            return self._get_many(refs, returns, **options)
        if returns:
            return self._get_each(refs, options)
        if isinstance(refs, _rdt.Ref) and options.keys() <= _SIMPLE \
                and not (options and (self._gpus_open or torch_uses_gpus())):
            return self._get_one(refs, **options)
        if isinstance(refs, list) and len(refs) == 1 and not options.keys() & {"into", "slices"}:
            return [self.get(refs[0], **options)]
        return self._get_all(refs, options)

    def _get_all(self, refs: Any, options: dict[str, Any]) -> Any:
        started = self.fetch(refs, **options)
        requests = [started] if isinstance(refs, _rdt.Ref) else started
        try:
            if requests is started:
                self._wait_for(requests, len(requests), None)
            values = [request.result() for request in requests]
        except BaseException:  # its traceback keeps the requests, which would go on to write the targets
            for request in requests:
                request.cancel()
            raise
        return values if requests is started else values[0]

    def _get_each(self, refs: Any, options: dict[str, Any]) -> Any:
        started = self.fetch(refs, **options)
        requests = [started] if isinstance(refs, _rdt.Ref) else started
        values: list[Any] = []
        try:
            self._wait_each(requests, len(requests), None)
            for request in requests:
                try:
                    values.append(request.result())
                except Error as error:
                    values.append(error.with_traceback(None))  # which would keep the request
        except BaseException:
            for request in requests:
                request.cancel()
            raise
        return values if requests is started else values[0]

    def _get_one(self, ref: _rdt.Ref, mode: Optional[str] = None, as_: str = "auto") -> Any:
        """The most frequent call: does what `fetch` and `result` do, without a Request."""
        cow = mode is None and (as_ == "torch" or as_ == "auto" and bool(ref._hint))  # see Request._needs_cow
        number = COW if cow else AUTO if mode is None else MODES[mode]
        if ref._wanting:
            self._hold_too(ref)
        if not self._gpus_open and torch_uses_gpus():
            self._open_gpus(False)
        return self._value_of(ref, self._get(ref, number), number, mode, as_)

    def _value_of(self, ref: _rdt.Ref, brought: _rdt.Object, number: int, mode: Optional[str], as_: str) -> Any:
        """The value of an object that was fetched in that mode: `number`, by the caller's `mode`."""
        if brought.is_manifest:
            how = How(as_, mode, None, None, (ref, None, None, None, None, None, None))
            return self._put_together(how, brought).value
        metadata = brought.metadata
        readonly = mode is None or number == AUTO  # see Request._tensors
        if not metadata and as_ == "auto":
            return bare(brought.tensors(readonly))
        layout = Layout(metadata, brought.tensors(readonly), readonly or number == MODES["share"])
        if mode is None and number != COW and as_ in ("auto", "list") and layout.has_torch and not brought.private:
            brought = self._get(ref, COW)
            layout = Layout(metadata, brought.tensors(readonly), readonly)
        return layout.value(as_, partial(self._may_unpickle, brought), self._ref_of(brought),
                            self._source_of(brought) if layout.form == "pickle" else "")

    def _get_many(self, refs: list[Any], returns: bool, mode: Optional[str] = None, as_: str = "auto",
                  timeout: Optional[float] = None) -> list[Any]:
        """The values of many refs. What is on this node, and what is small, comes in a few messages; the rest is fetched as
        usual."""
        refs = list(refs)  # the caller may change its own while this waits
        for ref in refs:
            if not isinstance(ref, _rdt.Ref):
                raise TypeError(f"refs must be a Ref or a list of Refs, not a {type(ref).__name__}; "
                                "Ref(\"...\") parses one from text")
            if ref._wanting:
                self._hold_too(ref)
        number = AUTO if mode is None else MODES[mode]
        if mode is None and (as_ == "torch" or as_ == "auto" and all([ref._hint for ref in refs])):
            number = COW
        started = time.monotonic()
        brought = self._fetch_ready(refs, number, timeout)
        rest = [i for i, one in enumerate(brought) if one is None]
        values: list[Any] = [None] * len(refs)
        if rest:
            left = max(timeout - (time.monotonic() - started), 1e-3) if timeout else timeout  # 0 would wait for no put
            options = {"mode": mode, "as_": as_, "timeout": left}
            got = (self._get_each if returns else self._get_all)([refs[i] for i in rest], options)
            for i, value in zip(rest, got):
                values[i] = value
        for i, one in enumerate(brought):
            if one is not None:
                try:
                    values[i] = self._value_of(refs[i], one, number, mode, as_)
                except Error as error:
                    if not returns:
                        raise
                    values[i] = error.with_traceback(None)
        return values

    @checked
    def get_fetched(self, ref: _rdt.Ref, **options: Any) -> Fetched:
        """Like `get` for one ref, but returns a Fetched, which also has the path, the version and the bytes
        moved."""
        made: Fetched = self.fetch(ref, **options)._result_or_cancel(True)
        return made

    # ---- published names ----

    @checked
    def publish(self, name: str, what: Any, *, visible: Visible = "owner", lease: bool = False,
                ttl: Optional[float] = None, stored: bool = False,
                **options: Any) -> Published:
        """Publishes an object as the next version of a name. Returns the version: a number that grows by one, whose
        `ref` is a Ref of the name for other nodes and users. The name holds the object until the next version
        is published or the name ends: when it is unpublished, and

        - with `lease`, when this connection ends, so that a dead publisher is noticed: waits for the next version
          raise `OwnerDied`. The object must be on this node;
        - with `ttl`, when nothing has been published under the name for that many seconds: waits raise `Freed`.

        Each publish sets lease and ttl anew. stored: returns when this version, or a newer one, is on the daemon's
        disk (see `store`), so that the name has it after a reboot; the previous version is then removed from the
        disk. If storing fails, the version stays published, and the error is raised. what: a Ref, or a value,
        which is put first, with options as in `put`; snapshot is "unsealed" by default, True with stored, and False
        with immutable.
        A publish of GPU tensors waits until their stream has written them, at most 50 seconds (5 if the object is on
        another node); `timeout` is for the put before it. If it is interrupted or times out, the version may have
        been published.
        Errors: Invalid, NotFound, Freed, OwnerDied, Denied, Exists, LimitReached, TimedOut, Unsupported, PeerLost."""
        if isinstance(what, _rdt.Ref):
            if options:
                raise TypeError(f"the object was put already, so {', '.join(options)} cannot be applied")
            return self._publish_ref(name, what, visible, lease, ttl, stored)
        options.setdefault("snapshot", False if options.get("immutable") else bool(stored) or "unsealed")
        with self.put(what, visible=visible, **options) as ref:
            try:
                return self._publish_ref(name, ref, visible, lease, ttl, stored)
            except BaseException:
                if options.get("detached") or options.get("evictable"):  # the Ref has no hold that ends
                    self._drop(ref)
                raise

    def _publish_ref(self, name: str, ref: Any, visible: Visible, lease: bool,
                     ttl: Optional[float], stored: bool) -> Published:
        if stored and lease:
            raise ValueError("a name with a lease ends with this connection, so it is not stored")
        ttl_ns = 0 if ttl is None else int(ttl * 1e9)
        published = Published(*self._publish(name, ref, VISIBILITY[visible], lease, ttl_ns))
        if stored:
            self._store(published.ref, self._store_timeout(ref))
        return published

    def _next_step(self, name: Ref) -> int:
        """One above the newest version's, which stays the newest until all ranks have published. If the next publish fails,
        the one after it asks again, on all ranks."""
        known = self._steps.pop(str(name), 0)
        if known:
            return known + 1
        try:
            self.stat(name)  # finds a name of another node, and does not wait for a version
            return 1 + int(self._manifest(name, 10)[1])
        except (TimedOut, Invalid, Freed, NotFound):
            return 1

    @checked
    def publishing(self, name: Union[str, Ref], *, step: Optional[int] = None, rank: int = 0, of: int = 1,
                   visible: Visible = "owner", timeout: Optional[float] = None) -> Publishing:
        """Begins the next version of a name for tensors that come one after the other, as from a generator whose every tensor
        takes a collective:

            with c.publishing("policy") as version:
                for key, tensor in generator:
                    version.add(key, tensor)

        Each tensor is copied at once, into memory that the version before the last had if only the owner may see the versions.
        The version becomes visible whole at the end of the block, and is read as any other. If the block raises, or this
        process ends in it, nothing of the version is left, and the other ranks are told, also those that begin within a minute.

        step, name, visible: as in `publish_part`; None: one more than the newest version's. rank, of: of this publisher, if
        several processes publish parts of the version. timeout: seconds that `add` may wait for room under a limit, and that
        the end may wait for the other ranks; None: `add` does not wait, and the end has no limit. What the daemon refuses, such
        as a step that is not above the newest, is the error of a later call. Errors: Invalid, Unsupported (the daemon is
        older)."""
        at = ref_of(name)
        number = self._next_step(at) if step is None else step
        raw = self._publishing(at, number, rank, of, VISIBILITY[visible], timeout)
        return Publishing(self._steps, raw, at, number, timeout)

    @checked
    def unpublish(self, name: Union[str, _rdt.Ref, None] = None, *, prefix: Optional[str] = None) -> Optional[int]:
        """Removes a name and its hold on the object. Requests that wait for a version raise `Freed`.
        prefix: in place of a name, all names of this user on this node that begin with it; returns how many there were.
        Errors: NotFound, Denied, PeerLost."""
        if (name is None) == (prefix is None):
            raise TypeError("unpublish takes a name or a prefix")
        if prefix is not None:
            n, start = self._end_prefix(prefix, True, False), prefix.encode()
            self._forget_ended(lambda ended: ended.startswith(start))
            return n
        at = ref_of(name)
        self._unpublish(at)
        self._forget_ended(lambda ended: ended == at.id)
        return None

    @checked
    def name(self, name: str, after: int = 0, *, owner: Union[str, int, None] = None,
             near: Optional[_rdt.Ref] = None,
             address: Optional[str] = None) -> Ref:
        """A Ref of the newest version above `after` of a published name, as `Ref.from_name`; owner: the user
        who publishes it (a login name or a uid), if that is not this one. Error: Invalid (no such user)."""
        made = Ref.from_name(name, after, near=near, address=address)
        if owner is not None:
            made = self._owned(made, str(owner))
        return made

    @checked
    def follow(self, name: Union[str, _rdt.Ref], after: int = 0, *, owner: Union[str, int, None] = None,
               near: Optional[_rdt.Ref] = None, address: Optional[str] = None) -> Follower:
        """Follows a name: from now on the daemon of this node fetches each new version while this process works.
        `Follower.prepare` waits until one is whole here, and `Follower.commit` only copies it, or shares it. All
        followers of a user on this node share one copy, which is charged under owner_max_followed_bytes
        (rdt-concepts(7), FOLLOWED NAMES). Single objects and versions in parts can be followed; they must be snapshots, as
        those that `publish` puts are.

        name, owner, near, address: as in `versions`. after: the version that this process has already. Errors: LimitReached
        (also beyond 256 followers of this connection), Invalid (the address is neither HOST:PORT nor a name in the nodes file),
        ValueError (the Ref of an object)."""
        at = self._one_name(name, owner, near, address)
        after = max(after, at.after)
        return Follower(self, at, self._follow(at, after), after)

    def _one_name(self, name: Union[str, _rdt.Ref], owner: Union[str, int, None], near: Optional[_rdt.Ref],
                  address: Optional[str]) -> Any:
        if not isinstance(name, _rdt.Ref):
            return self.name(name, owner=owner, near=near, address=address)
        if not name.is_name:
            raise ValueError(f"{name!r} is not the Ref of a name")
        if owner is not None or near is not None or address is not None:
            raise ValueError("a Ref says itself whose name it is and on which node")
        return name

    @checked
    def versions(self, name: Union[str, _rdt.Ref], after: int = 0, *, owner: Union[str, int, None] = None,
                 near: Optional[_rdt.Ref] = None,
                 address: Optional[str] = None, reconnect: bool = False, **options: Any) -> Versions:
        """Iterates over the versions of a published name above `after`: `for version, value in ...` or `async
        for`. Each step waits for a version newer than the last one and returns the newest; versions in
        between are skipped.

        name: the name, or a Ref of it (`publish(...).ref`), whose own `after` counts if it is higher. owner, near, address:
        see `name`. options: see `fetch`; the timeout is for each version.

        reconnect: the iteration continues when the publisher's node or this node's daemon is lost or restarts, or
        when the name ends with its publisher (`lease`), instead of raising `PeerLost`, `Disconnected`,
        `ShuttingDown` or `OwnerDied`. It tries again, first at once and then every two seconds, until the step's
        timeout. If nothing was published by then, it raises `TimedOut`, with the last failure as its cause. A
        daemon without a keeper counts a name's versions from 1 again when it restarts, so version numbers may go
        down; the version that was returned last is not returned twice. If this connection is lost, the iteration
        opens one of its own."""
        unknown = options.keys() - inspect.signature(self.fetch).parameters.keys()
        if unknown:
            raise TypeError(f"fetch has no option {', '.join(sorted(unknown))}")
        at = self._one_name(name, owner, near, address)
        return Versions(self, at, max(after, at.after), reconnect, options)
