# SPDX-License-Identifier: Apache-2.0
"""rdtd: put, fetch, wait for and free tensors through the rdtd of this node.

    import numpy, rdtd

    with rdtd.connect() as c:
        ref = c.put({"w": numpy.ones((32, 32), "f4"), "step": 7})
        value = c.get(ref)          # any process: the very same memory, read-only; another node: a copy
        value = await c.fetch(ref)  # the same in an event loop

On one node, processes share memory by file descriptor, in constant time whatever the size. Between nodes, the
daemons move the bytes. Arrays that came from rdtd keep their memory alive, so nothing has to be released: the
memory lives as long as its last view.

Tensors are in host memory or on CUDA GPUs (`device=`, `torch_pool`). The package uses numpy and torch if they
are installed and requires neither. """
from __future__ import annotations

import os
import threading
from os import PathLike
from typing import Any, ContextManager, Optional, Union

from . import _aio, _arrays, _rdt
from ._connection import Connection
from ._delta import DeltaFollower, DeltaPublisher
from ._errors import *  # noqa: F401,F403
from ._errors import BY_STATUS, Error
from ._errors import __all__ as _error_names
from ._follow import Committed, Follower, Prepared
from ._groups import Group, Member
from ._many import Found
from ._memory import Buffers, Imported
from ._arrays import DTYPES
from ._requests import Fetched, Ref, Request, forked
from ._rdt import Tensor
from ._shards import Box, Manifest, Part, Plan, PlanRun, Publishing, Shard
from ._versions import Published, Versions

__version__ = _rdt.VERSION
__all__ = ["connect", "default", "put", "get", "fetch", "torch_pool", "Connection", "Ref", "Request", "Fetched", "Tensor",
           "Versions", "Published", "Buffers", "Imported", "Follower", "Prepared", "Committed", "DeltaPublisher",
           "DeltaFollower", "Found", "Member", "Group", "Box", "Shard", "Part", "Manifest", "Plan", "PlanRun", "Publishing",
           *_error_names]

_rdt.setup(BY_STATUS, Error, Ref, Request, {dtype.name: dtype.number for dtype in DTYPES.values() if not dtype.kind},
           _arrays.kind_of)


def connect(socket: Union[str, PathLike[str], None] = None, *, name: Optional[str] = None,
            timeout: Optional[float] = None, daemon_uid: Optional[int] = None) -> Connection:
    """Opens a connection to the daemon of this node: see Connection."""
    return Connection(socket, name=name, timeout=timeout, daemon_uid=daemon_uid)


_default: Optional[Connection] = None
# Reentrant: the garbage collector may run code that needs the connection while the lock is held.
_lock = threading.RLock()


def default() -> Connection:
    """This process's shared connection, which `put`, `get` and `fetch` of this module use.

    The first call opens it; a later call opens a new one if it was lost or closed. A child after a fork (a
    DataLoader worker, for instance) gets a connection of its own."""
    global _default
    with _lock:
        if _default is not None and not _default.closed:
            try:
                _default.dispatch()
            except Error:  # the connection is lost: try a new one
                _default = None
        if _default is None or _default.closed:
            _default = Connection()
        return _default


def _after_fork() -> None:
    global _default, _lock
    _default = None
    _lock = threading.RLock()
    Connection._hub_lock = threading.Lock()
    _aio.forked()
    forked()


os.register_at_fork(after_in_child=_after_fork)


def put(value: Any, **options: Any) -> Ref:
    """Calls Connection.put on `default()`."""
    return default().put(value, **options)


def get(refs: Any, **options: Any) -> Any:
    """Calls Connection.get on `default()`."""
    return default().get(refs, **options)


def fetch(refs: Any, **options: Any) -> Any:
    """Calls Connection.fetch on `default()`."""
    return default().fetch(refs, **options)


def torch_pool(device: Any = None) -> ContextManager[Any]:
    """Calls Connection.torch_pool on `default()`. Put the tensors with the same connection, for instance by
    `rdtd.put`."""
    return default().torch_pool(device)
