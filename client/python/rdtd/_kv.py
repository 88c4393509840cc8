# SPDX-License-Identifier: Apache-2.0
"""Blocks of a KV cache as evictable objects of this node's daemon: what rdtd.lmcache, rdtd.vllm and rdtd.sglang share.

A block is the bytes of one buffer. The engines' hashes name it, so every engine of this user on the node that computes the same
block finds it, and with the option nodes every one on the other nodes; it outlives them all, and goes when its memory is wanted
(`evictable` in Connection.put). An engine goes on without its daemon: nothing is found then and nothing is stored, and one
sentence is logged."""
from __future__ import annotations

import base64
import hashlib
import logging
import math
import threading
import time
from collections import deque
from typing import Any, Callable, Iterable, Optional, Sequence, TypeVar

from ._check import a_text, seconds
from ._connection import Connection
from ._errors import Disconnected, Error, Forked, Restarted
from ._many import Found
from ._requests import Ref

_T = TypeVar("_T")
_QUIET = 10.0  # seconds between two warnings
_RETRY = 0.5  # seconds between tries to connect again
_LONGEST_GET = 60.0  # seconds: nothing is waited for, but a daemon may be stopped
_LOST = (Disconnected, Forked, Restarted)  # the connection, for good; in a child after a fork that of the parent
_log = logging.getLogger("rdtd.kv")


def options(where: str, given: Any, known: dict[str, Any]) -> dict[str, Any]:
    """The options that an engine passes on, with those of `known` for what it leaves out. Raises ValueError, which names the
    option that is wrong."""
    if not isinstance(given, dict):
        raise ValueError(f"{where} must be a dict of options, not {given!r}")
    strange = sorted(set(given) - set(known))
    if strange:
        raise ValueError(f"{where} has no option {strange[0]!r}; it has {', '.join(known)}")
    chosen = {**known, **given}
    try:
        seconds(chosen["lease_for"], "lease_for")
        if not chosen["lease_for"]:
            raise ValueError(f"lease_for must be above 0, not {chosen['lease_for']!r}")
        if chosen["nodes"] is not None:
            seconds(chosen["nodes"], "nodes")
            if not 0 < chosen["nodes"] <= 60:
                raise ValueError(f"nodes must be null or up to 60 seconds, not {chosen['nodes']!r}")
        a_text(chosen["space"], "space")
        if chosen["socket"] is not None:
            a_text(chosen["socket"], "socket")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    if not 1 <= len(chosen["space"].encode()) <= 32:
        raise ValueError(f"{where}: space must have 1 to 32 bytes, as it begins the id of each block: {chosen['space']!r}")
    return chosen


def space_of(*parts: str, layout: Optional[str] = None) -> str:
    """The name space of parts, such as an engine and a model: the prefix of the ids of all its blocks, at most 84 bytes.
    Longer ones are cut. layout: what else tells the blocks of one space from those of others; a digest of it and of the whole
    parts ends the prefix. Without it, the ids' digests must be of the parts."""
    end = "/"
    if layout is not None:
        end += id_of("", *[part.encode() for part in parts], layout.encode())[:12] + "/"
    text = "/".join(part.replace("/", "--") for part in parts).encode()
    return text[:84 - len(end)].decode(errors="ignore") + end


def id_of(space: str, *fields: bytes) -> str:
    """The id of a block, at most 128 bytes: its name space, and a digest of it and of all fields."""
    digest = hashlib.sha256(b"".join([len(field).to_bytes(4, "little") + field for field in (space.encode(), *fields)]))
    return space + base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


class Blocks:
    """Stores, finds and loads blocks. Any thread may make any call; each waits until it is done. None raises an `Error`: what
    could not be stored, found or loaded has False. A block is anything that `put` takes as one tensor in host memory, such as
    a memoryview or a torch tensor on the CPU, or a list of these; `put` copies it once, and `load` copies it once.

    socket: of the daemon, as for `connect`. lease_for: seconds for which `lookup` protects what it has found. nodes: seconds for
    which other nodes are asked for blocks that this one does not have; None: they are not. What is loaded from another node is
    stored here as well, so that the next engine finds it on this node; `delete` and `clear` are about this node only.
    Errors: those of `connect`, now; later ones are taken for a cache that has nothing."""

    def __init__(self, socket: Optional[str], lease_for: float, nodes: Optional[float] = None) -> None:
        self._socket, self._lease_for, self._nodes = socket, lease_for, nodes
        self._lock = threading.Lock()
        self._leases: dict[str, list[tuple[float, Ref]]] = {}  # by id: when it ends, oldest first
        self._ends: deque[tuple[float, str]] = deque()  # of all leases, also of those that were ended before
        self._closed = threading.Event()
        self._warned = -math.inf
        self._connection: Optional[Connection] = Connection(socket)

    def _lost(self, connection: Connection, error: Error) -> None:
        """A thread opens the next connection, so that the engine does not wait for a daemon that may be stopped."""
        with self._lock:
            if self._connection is not connection:
                return
            self._connection = None
            self._leases.clear()
            self._ends.clear()
        _log.warning("blocks are neither stored nor found until a daemon is there again: %s", error)
        threading.Thread(target=self._reconnect, name="rdtd-kv-connect", daemon=True).start()

    def _reconnect(self) -> None:
        while not self._closed.wait(_RETRY):
            try:
                connection = Connection(self._socket)
            except Error:
                continue
            with self._lock:
                if not self._closed.is_set():
                    self._connection = connection
                    _log.warning("a daemon is there again: blocks are stored and found as before")
                    return
            connection.close()

    def _call(self, what: Callable[[Connection], _T], without: _T) -> _T:
        """What the connection gives, or `without` while there is none. What a restart of the daemon has ended is done again."""
        connection = self._connection
        if connection is None:
            return without
        try:
            try:
                return what(connection)
            except Restarted:
                return what(connection)
        except _LOST as error:
            self._lost(connection, error)
        except Error as error:
            self._warn("%s", error)
        return without

    def _warn(self, text: str, *values: Any) -> None:
        """Logs what may happen to every block of a full cache."""
        now = time.monotonic()
        if now - self._warned >= _QUIET:
            self._warned = now
            _log.warning(text, *values)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def store(self, ids: Sequence[str], blocks: Sequence[Any]) -> list[bool]:
        """Puts each block in the place of one that may have its id. False: there was no room."""
        def put(connection: Connection) -> list[bool]:
            made = connection.put_many(blocks, ids=ids, evictable=True, replace=True, errors="return")
            lost = [one for one in made if not isinstance(one, Ref)]
            if lost:
                if isinstance(lost[0], _LOST):
                    raise lost[0]
                self._warn("%d of %d blocks were not stored: %s", len(lost), len(made), lost[0])
            return [isinstance(one, Ref) for one in made]
        return self._call(put, [False] * len(ids)) if ids else []

    def lookup(self, ids: Sequence[str], lease: bool, until_missing: bool = False) -> list[bool]:
        """Which of them are there. lease: what is there stays for lease_for seconds, or until one `unlock` of each id.
        until_missing: those behind the first that is missing have False, and are not leased."""
        def find(connection: Connection) -> list[bool]:
            now = time.monotonic()
            found = self._find(connection, ids, lease, until_missing)
            with self._lock:
                while self._ends and self._ends[0][0] <= now:
                    self._passed(*self._ends.popleft())
                for one, ref in zip(ids, found):
                    if lease and ref is not None:
                        self._leases.setdefault(one, []).append((now + self._lease_for, ref))
                        self._ends.append((now + self._lease_for, one))
            return [ref is not None for ref in found] + [False] * (len(ids) - len(found))
        return self._call(find, [False] * len(ids)) if ids else []

    def _find(self, connection: Connection, ids: Sequence[str], lease: bool = True, until_missing: bool = False) -> Found:
        found = connection.lookup(ids, lease_for=self._lease_for if lease else None, until_missing=until_missing, nodes=self._nodes)
        for node, error in found.unasked.items():
            self._warn("blocks of node %s are not found: %s", node, error)
        return found

    def _passed(self, ends: float, one: str) -> None:
        left = [lease for lease in self._leases.get(one, ()) if lease[0] > ends]
        if left:
            self._leases[one] = left
        else:
            self._leases.pop(one, None)

    def load(self, ids: Sequence[str], into: Sequence[Any]) -> list[bool]:
        """Copies each block into its buffer, which is of the same kind as the one that was stored. False: it is not there, or
        has another size."""
        def get(connection: Connection) -> list[bool]:
            here = connection.node["node"]
            with self._lock:
                refs = [self._leases[one][-1][1] if one in self._leases else None for one in ids]
            missing = [one for one, ref in zip(ids, refs) if ref is None]
            leased = list(self._find(connection, missing)) if missing else []
            more = iter(leased)
            refs = [next(more) if ref is None else ref for ref in refs]
            there = [(ref, buffer) for ref, buffer in zip(refs, into) if ref is not None]
            try:
                got = connection.load_many([ref for ref, _ in there], [buffer for _, buffer in there], errors="return",
                                           timeout=_LONGEST_GET)
            finally:
                connection.end_lease([ref for ref in leased if ref is not None])
            for one in got:
                if isinstance(one, _LOST):
                    raise one
            results = iter(got)
            whole = [ref is not None and next(results) is None for ref in refs]
            self._keep(connection, [(one, buffer) for one, ref, buffer, there in zip(ids, refs, into, whole)
                                    if there and ref is not None and ref.node != here])
            return whole
        return self._call(get, [False] * len(ids)) if ids else []

    def _keep(self, connection: Connection, loaded: list[tuple[str, Any]]) -> None:
        """Stores what came from other nodes here, unless somebody has done so meanwhile. What has no room here stays on its node."""
        if loaded:
            connection.put_many([block for _, block in loaded], ids=[one for one, _ in loaded], evictable=True, errors="return")

    def stay(self, ids: Sequence[str]) -> list[bool]:
        """Which of them are on this node; all, while nobody can say. Is no use of them."""
        def find(connection: Connection) -> list[bool]:
            return connection.exists([Ref.from_id(one) for one in ids])
        return self._call(find, [True] * len(ids)) if ids else []

    def unlock(self, ids: Iterable[str]) -> None:
        """Ends one lease of each id. Those that have passed, or never were, are passed over."""
        ended, now = [], time.monotonic()
        with self._lock:
            for one in ids:
                leases = self._leases.get(one)
                if leases:
                    ends, ref = leases.pop(0)
                    if not leases:
                        del self._leases[one]
                    if ends > now:
                        ended.append(ref)
        if ended:
            self._call(lambda connection: connection.end_lease(ended), None)

    def delete(self, ids: Iterable[str]) -> None:
        """Frees what is there of them. What is leased, or being read, ends after that."""
        def free(connection: Connection) -> None:
            for one in ids:
                try:
                    connection.free(Ref.from_id(one))
                except _LOST:
                    raise
                except Error:  # it is gone
                    pass
        self._call(free, None)

    def clear(self, space: str) -> None:
        """Frees all blocks of a name space, whoever has stored them."""
        self._call(lambda connection: connection.free(prefix=space, force=True), None)

    def close(self) -> None:
        """Ends the leases and the connection. The blocks stay."""
        self.unlock([one for one, leases in list(self._leases.items()) for _ in leases])
        with self._lock:
            self._closed.set()
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
