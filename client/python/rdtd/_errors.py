# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each status of rdt_status.h. Each also derives from the built-in exception for such a
failure."""
from __future__ import annotations

import pickle
from typing import Any, Optional

from . import _rdt

__all__ = [
    "Error", "Invalid", "NoMemory", "LimitReached", "NotFound", "Exists", "Denied", "Freed", "OwnerDied",
    "PeerLost", "TimedOut",
    "Cancelled", "TransportFailed", "NoPath", "Mismatch", "Unsupported", "ProtocolBroken", "Restarted",
    "Disconnected", "Forked",
    "ShuttingDown", "Busy", "SystemFailed", "Internal", "Damaged", "NotPut", "PickleRefused",
]

BY_STATUS: dict[int, type[Error]] = {}


def printable(text: str) -> str:
    """The text without control characters, which terminals obey."""
    return text if text.isprintable() else "".join([c if c.isprintable() else "?" for c in text])


class Error(Exception):
    """An error of librdt. str() is one sentence that names the object. `status` is the number from
    rdt_status.h."""

    status: int = 0

    def __init__(self, *args: object) -> None:
        """Ids, names and texts of other nodes may be in the sentence: no control characters reach a terminal or a log."""
        super().__init__(*[printable(one) if isinstance(one, str) else one for one in args])

    def __reduce__(self) -> Any:
        """With errno, which OSError forgets when it is pickled."""
        made = super().__reduce__()
        number = getattr(self, "errno", None)
        return made if number is None else (*made[:2], {**self.__dict__, "errno": number})

    def __init_subclass__(cls, of: Optional[str] = None) -> None:
        """of: the status whose errors raise this class."""
        if of:
            cls.status = _rdt.STATUSES[of]
            BY_STATUS[cls.status] = cls

    @property
    def status_name(self) -> str:
        """The name of the status, for example "TIMED_OUT"."""
        return status_name(self.status)


class Invalid(Error, ValueError, of="INVALID"):
    """INVALID: an argument is not valid."""


class NoMemory(Error, MemoryError, of="NO_MEMORY"):
    """NO_MEMORY: the system or the daemon's memory_limit has no room."""


class LimitReached(Error, MemoryError, of="LIMIT"):
    """LIMIT: the request exceeds a limit of this client or user. The message names the limit and its
    configuration key."""


class NotFound(Error, LookupError, of="NOT_FOUND"):
    """NOT_FOUND: no such object, name, node or group."""


class Exists(Error, FileExistsError, of="EXISTS"):
    """EXISTS: the id or name is in use."""


class Denied(Error, PermissionError, of="DENIED"):
    """DENIED: the object belongs to another user."""


class Freed(Error, LookupError, of="FREED"):
    """FREED: the object was freed, or it was detached and its ttl has passed."""


class OwnerDied(Error, ConnectionError, of="OWNER_DIED"):
    """OWNER_DIED: the process that put the object has ended, and nobody else held the object."""


class PeerLost(Error, ConnectionError, of="PEER_LOST"):
    """PEER_LOST: the other node is dead, frozen, unreachable or restarting. A retry may succeed."""


class TimedOut(Error, TimeoutError, of="TIMED_OUT"):
    """TIMED_OUT: the deadline passed."""


class Cancelled(Error, of="CANCELLED"):
    """CANCELLED: the request was cancelled, or its connection was closed."""


class TransportFailed(Error, ConnectionError, of="TRANSPORT"):
    """TRANSPORT: the transport failed; the message has its own text. A retry may succeed."""


class NoPath(Error, of="NO_PATH"):
    """NO_PATH: no acceptable path. The message names every candidate and why it was rejected."""


class Mismatch(Error, ValueError, of="MISMATCH"):
    """MISMATCH: a target does not match its tensor. Nothing was written."""


class Unsupported(Error, NotImplementedError, of="UNSUPPORTED"):
    """UNSUPPORTED: not supported by this version, or the backend is not loaded."""


class ProtocolBroken(Error, ConnectionError, of="PROTOCOL"):
    """PROTOCOL: the other end violated the protocol or uses another version of it."""


class Restarted(Error, ConnectionError, of="RESTARTED"):
    """RESTARTED: the daemon restarted, and did not continue the request or the session; the message says
    which. Connect again if it was the session."""


class Disconnected(Error, ConnectionError, of="DISCONNECTED"):
    """DISCONNECTED: the daemon has ended, or the connection was closed: connect again. From connect(): no
    daemon serves the socket."""


class Forked(Error, RuntimeError, of="FORKED"):
    """FORKED: a child process used its parent's connection. Connect in the child, or use rdtd.default()."""


class ShuttingDown(Error, ConnectionError, of="SHUTTING_DOWN"):
    """SHUTTING_DOWN: the daemon, this node's or that of a fetched object, is shutting down. A retry may succeed later."""


class Busy(Error, of="BUSY"):
    """BUSY: the object is in use."""


class SystemFailed(Error, OSError, of="SYSTEM"):
    """SYSTEM: a system call failed; `errno` has the reason."""


class Internal(Error, of="INTERNAL"):
    """INTERNAL: a bug in rdtd."""


class Damaged(Error, of="DAMAGED"):
    """DAMAGED: bytes differ from their checksum: of a stored file, of a snapshot from another node, or of what a fetch
    with verify=True brought."""


class NotPut(NotFound, TimedOut, of="NOT_PUT"):
    """NOT_PUT: a call with timeout=0 found that nobody has put the object, or published such a version of the name. A call that
    waits raises TimedOut instead, from which this is derived, too."""


class PickleRefused(Error, pickle.UnpicklingError):
    """The object's structure is a pickle, of another user or node that the reader has no reason to trust: see
    allow_pickle."""


_NAMES = {number: name for name, number in _rdt.STATUSES.items()}


def status_name(status: int) -> str:
    """The name of a status of rdt_status.h, for example "TIMED_OUT"."""
    return _NAMES.get(status, "UNKNOWN")
