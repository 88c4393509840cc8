# SPDX-License-Identifier: Apache-2.0
"""The versions of a name for a process that loads by itself, as the node's one copy, in torch tensors. _weights.py is for the
processes of an engine that must agree."""
from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, Optional

import rdtd

from ._connection import Connection
from ._errors import TimedOut
from ._follow import Follower
from ._requests import Ref
from ._weights import dict_of_tensors

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
    """The versions of a name. The daemon of this node fetches each of them while the process works, once for all
    processes of the node. Any thread may read; a read that finds another one waiting does not wait for that."""

    def __init__(self, name: Ref, socket: Optional[str] = None) -> None:
        self.name = name
        self._socket = socket
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

    def read(self, after: int, timeout: Optional[float]) -> tuple[int, dict[str, Any]]:
        """Waits for a version above `after` that is whole on this node, and returns the newest and its torch tensors by name,
        in the pages that all readers of the node share: they must not be written. Errors: those of Follower.prepare and
        Follower.commit; Invalid (the version is no dict of tensors)."""
        connection = self.follow()
        if self._lock.acquire(blocking=False):
            try:
                follower = self._follower
                if follower is not None and self._connection is connection:
                    if follower.committed <= after:
                        return self._next(follower, after, timeout)
                    with suppress(TimedOut):  # the version that this process has is new enough
                        return self._next(follower, after, 0)
            finally:
                self._lock.release()
        with connection.follow(self.name, after) as once:
            return self._next(once, after, timeout)

    def _next(self, follower: Follower, after: int, timeout: Optional[float]) -> tuple[int, dict[str, Any]]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            follower.prepare(None if end is None else max(0.0, end - time.monotonic()))
            got = follower.commit(as_="torch")
            if got.version > after:
                break
            del got  # maps an older version, which the daemon keeps as long
        return got.version, dict_of_tensors(got.value, self.name.id.decode("utf-8", "backslashreplace"), got.version)

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
