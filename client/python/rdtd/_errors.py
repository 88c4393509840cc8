# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each status of rdt_status.h. Each also derives from the built-in exception for such a
failure."""
from __future__ import annotations

import pickle

from . import _rdt

__all__ = [
    "Error", "Invalid", "NoMemory", "LimitReached", "NotFound", "Exists", "Denied", "Freed", "OwnerDied",
    "PeerLost", "TimedOut",
    "Cancelled", "TransportFailed", "NoPath", "Mismatch", "Unsupported", "ProtocolBroken", "Restarted",
    "Disconnected", "Forked",
    "ShuttingDown", "Busy", "SystemFailed", "Internal", "PickleRefused",
]


class Error(Exception):
    """An error of librdt. str() is one sentence that names the object. `status` is the number from
    rdt_status.h."""

    status: int = 0

    @property
    def status_name(self) -> str:
        """The name of the status, for example "TIMED_OUT"."""
        return status_name(self.status)


class Invalid(Error, ValueError):
    """INVALID: an argument is not valid."""


class NoMemory(Error, MemoryError):
    """NO_MEMORY: the system or the daemon's memory_limit has no room."""


class LimitReached(Error, MemoryError):
    """LIMIT: the request exceeds a limit of this client or user. The message names the limit and its
    configuration key."""


class NotFound(Error, LookupError):
    """NOT_FOUND: no such object, name, node or group."""


class Exists(Error, FileExistsError):
    """EXISTS: the id or name is in use."""


class Denied(Error, PermissionError):
    """DENIED: the object belongs to another user."""


class Freed(Error, LookupError):
    """FREED: the object was freed, or it was detached and its ttl has passed."""


class OwnerDied(Error, ConnectionError):
    """OWNER_DIED: the process that put the object has ended, and nobody else held the object."""


class PeerLost(Error, ConnectionError):
    """PEER_LOST: the other node is dead, frozen, unreachable or restarting. A retry may succeed."""


class TimedOut(Error, TimeoutError):
    """TIMED_OUT: the deadline passed."""


class Cancelled(Error):
    """CANCELLED: the request was cancelled, or its connection was closed."""


class TransportFailed(Error, ConnectionError):
    """TRANSPORT: the transport failed; the message has its own text. A retry may succeed."""


class NoPath(Error):
    """NO_PATH: no acceptable path. The message names every candidate and why it was rejected."""


class Mismatch(Error, ValueError):
    """MISMATCH: a target does not match its tensor. Nothing was written."""


class Unsupported(Error, NotImplementedError):
    """UNSUPPORTED: not supported by this version, or the backend is not loaded."""


class ProtocolBroken(Error, ConnectionError):
    """PROTOCOL: the other end violated the protocol or uses another version of it."""


class Restarted(Error, ConnectionError):
    """RESTARTED: the daemon restarted, and did not go on with the request or with the session; the message says
    which. Connect again if it was the session."""


class Disconnected(Error, ConnectionError):
    """DISCONNECTED: the daemon has ended, or the connection was closed: connect again. From connect(): no
    daemon serves the socket."""


class Forked(Error, RuntimeError):
    """FORKED: a child process used its parent's connection. Connect in the child, or use rdtd.default()."""


class ShuttingDown(Error, ConnectionError):
    """SHUTTING_DOWN: the daemon is shutting down."""


class Busy(Error):
    """BUSY: the object is in use."""


class SystemFailed(Error, OSError):
    """SYSTEM: a system call failed; `errno` has the reason."""


class Internal(Error):
    """INTERNAL: a bug in rdtd."""


class PickleRefused(Error, pickle.UnpicklingError):
    """The object's structure is a pickle, and the reader does not accept pickles of this producer: see
    allow_pickle."""


_NAMES = {number: name for name, number in _rdt.STATUSES.items()}


def status_name(status: int) -> str:
    """The name of a status of rdt_status.h, for example "TIMED_OUT"."""
    return _NAMES.get(status, "UNKNOWN")


BY_STATUS: dict[int, type[Error]] = {
    _rdt.STATUSES[name]: cls
    for name, cls in {
        "INVALID": Invalid, "NO_MEMORY": NoMemory, "LIMIT": LimitReached, "NOT_FOUND": NotFound,
        "EXISTS": Exists, "DENIED": Denied,
        "FREED": Freed, "OWNER_DIED": OwnerDied, "PEER_LOST": PeerLost, "TIMED_OUT": TimedOut,
        "CANCELLED": Cancelled,
        "TRANSPORT": TransportFailed, "NO_PATH": NoPath, "MISMATCH": Mismatch, "UNSUPPORTED": Unsupported,
        "PROTOCOL": ProtocolBroken, "RESTARTED": Restarted, "DISCONNECTED": Disconnected, "FORKED": Forked,
        "SHUTTING_DOWN": ShuttingDown, "BUSY": Busy, "SYSTEM": SystemFailed, "INTERNAL": Internal,
    }.items()
}
