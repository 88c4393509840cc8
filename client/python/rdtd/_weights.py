# SPDX-License-Identifier: Apache-2.0
"""The versions of a name for a process of an engine, as torch tensors in the memory that all processes of the node share. An
engine whose processes must all load the same version says by a Gather what each of them has. Imports torch when a version is
read."""
from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, Callable, Mapping, Optional, Sequence

import rdtd

from ._arrays import torch
from ._connection import Connection
from ._errors import Error, Invalid, TimedOut
from ._follow import Follower
from ._requests import Ref

Gather = Callable[[Any], Sequence[Any]]
"""Gives each process of an engine what all of them have passed, by rank."""

_connections: dict[str, Connection] = {}
_lock = threading.Lock()


def connection_at(socket: Optional[str]) -> Connection:
    """This process's connection to the daemon of a socket; None: `rdtd.default()`. If it was lost, a new one."""
    if socket is None:
        return rdtd.default()
    with _lock:
        known = _connections.get(socket)
        if known is None or known.closed or not known._is_alive():  # nor is the parent's in a forked child
            known = _connections[socket] = Connection(socket)
        return known


class Weights:
    """The versions of a name. The daemon of this node fetches each of them while the process works, once for all processes of
    the node. Any thread may read; a read that finds another one waiting does not wait for that. gather: for an engine whose
    processes must load the same version; each of its reads is then one of all processes."""

    def __init__(self, name: Ref, socket: Optional[str] = None, gather: Gather = lambda mine: [mine]) -> None:
        self.name = name
        self._text = name.id.decode("utf-8", "backslashreplace")
        self._socket = socket
        self._gather = gather
        self._asked = 0
        self._lock = threading.Lock()  # of the thread that uses the follower
        self._connection: Optional[Connection] = None
        self._follower: Optional[Follower] = None
        self.follow()

    def follow(self) -> Connection:
        """Sees to it that the daemon fetches the versions from now on, also if another daemon serves the socket now."""
        connection = connection_at(self._socket)
        if connection is not self._connection and self._lock.acquire(blocking=False):
            try:
                self._follower = connection.follow(self.name)
                self._connection = connection
            finally:
                self._lock.release()
        return connection

    def read(self, asked: int, timeout: Optional[float]) -> tuple[int, dict[str, Any]]:
        """Waits until a version is whole on this node, and if `asked` is not 0, that one or a later one. Returns the number of
        the newest and its torch tensors by name, in the pages that all readers of the node share: they must not be written.
        timeout: seconds; None: no limit. All processes of an engine get the same version, or each of them an error.

        Errors: TimedOut (the sentence says what the daemon does), Invalid (the version is no dict of tensors), RuntimeError
        (another process of the engine has no version; says why), those of Follower.prepare and Follower.commit."""
        end = None if timeout is None else time.monotonic() + timeout
        earlier = 0 < asked < self._asked  # perhaps of a new count: the daemon of the publisher was replaced
        least, version = max(asked, 1), 0
        tensors: dict[str, Any] = {}
        while True:
            failure = None
            try:
                if version < least:
                    tensors = {}  # it maps an older version, which the daemon keeps as long
                    version, tensors = self._read(least - 1, end, earlier)
            except Exception as error:
                failure = error
            all_ = self._gather((version, f"{type(failure).__name__}: {failure}" if failure else None))
            if failure is not None:
                raise failure
            said = next((why for _, why in all_ if why is not None), None)
            if said is not None:
                raise RuntimeError(f"another process of this engine has no version of {self._text!r} to load: {said}")
            if len({one for one, _ in all_}) == 1:
                self._asked = asked or self._asked
                return version, tensors
            earlier = False
            least = max(one for one, _ in all_)

    def _read(self, after: int, end: Optional[float], earlier: bool) -> tuple[int, dict[str, Any]]:
        connection = self.follow()
        if self._lock.acquire(blocking=False):
            try:
                follower = self._follower
                if follower is not None and self._connection is connection:
                    if follower.committed <= after or (earlier and self._counts_anew(connection, follower.committed)):
                        return self._next(follower, after, end)
                    with suppress(TimedOut):  # the version that this process has read is new enough
                        return self._next(follower, after, 0)
            finally:
                self._lock.release()
        with connection.follow(self.name, after) as once:
            return self._next(once, after, end)

    def _counts_anew(self, connection: Connection, committed: int) -> bool:
        """Whether the versions that are published now are other ones than those up to `committed`."""
        try:
            holders = connection.stat(self.name)["holders"]
        except Error:
            return True
        return committed > max([row["version"] for row in holders if row["kind"] == "name"], default=0)

    def _next(self, follower: Follower, after: int, end: Optional[float]) -> tuple[int, dict[str, Any]]:
        while True:
            follower.prepare(None if end is None else max(0.0, end - time.monotonic()))
            torch()
            got = follower.commit(as_="torch")
            if got.version > after:
                return got.version, _dict_of_tensors(got.value, self._text, got.version)
            del got  # maps an older version, which the daemon keeps as long

    def close(self) -> None:
        """Ends the following. The connection stays, for the next Weights of this process."""
        if self._follower is not None:
            self._follower.close()


def _dict_of_tensors(value: Any, name: str, version: int) -> dict[str, Any]:
    module = torch()
    if not isinstance(value, Mapping) or not value:
        what = "an empty dict" if isinstance(value, Mapping) else f"a {type(value).__name__}"
        raise Invalid(f"version {version} of {name!r} is {what}, not a dict of tensors by name")
    for key, tensor in value.items():
        if not isinstance(key, str) or not isinstance(tensor, module.Tensor):
            raise Invalid(f"version {version} of {name!r} has a {type(tensor).__name__} as {key!r}: all values must be tensors")
    return dict(value)
