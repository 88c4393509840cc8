"""Exceptions: one for each status of rdt_status.h, and each also what Python calls such a thing."""
from __future__ import annotations

import pickle

from . import _rdt

__all__ = [
    "Error", "Invalid", "NoMemory", "LimitReached", "NotFound", "Exists", "Denied", "Freed", "OwnerDied", "PeerLost", "TimedOut",
    "Cancelled", "TransportFailed", "NoPath", "Mismatch", "Unsupported", "ProtocolBroken", "Restarted", "Disconnected", "Forked",
    "ShuttingDown", "Busy", "SystemFailed", "Internal", "PickleRefused",
]


class Error(Exception):
    """What librdt answered; str() is one sentence that names the thing. `status` is the number of rdt_status.h."""

    status: int = 0

    @property
    def status_name(self) -> str:
        """"TIMED_OUT"."""
        return _NAMES.get(self.status, "UNKNOWN")


class Invalid(Error, ValueError):
    """INVALID: an argument is wrong."""


class NoMemory(Error, MemoryError):
    """NO_MEMORY: memory is short, or under the daemon's memory_limit."""


class LimitReached(Error, MemoryError):
    """LIMIT: over a limit of this client or user; the sentence says which and the key that raises it."""


class NotFound(Error, LookupError):
    """NOT_FOUND: no such thing."""


class Exists(Error, FileExistsError):
    """EXISTS: the id is taken."""


class Denied(Error, PermissionError):
    """DENIED: another user's object."""


class Freed(Error, LookupError):
    """FREED: the object was freed, or detached and its time is over."""


class OwnerDied(Error, ConnectionError):
    """OWNER_DIED: the process that put it is gone, and nobody else held it."""


class PeerLost(Error, ConnectionError):
    """PEER_LOST: the other node is dead, frozen, cut off or restarting. Try again."""


class TimedOut(Error, TimeoutError):
    """TIMED_OUT: the deadline passed."""


class Cancelled(Error):
    """CANCELLED: by cancel() or by closing the connection."""


class TransportFailed(Error, ConnectionError):
    """TRANSPORT: the transport failed, with its own text. Try again."""


class NoPath(Error):
    """NO_PATH: no acceptable path; the sentence has every candidate with its reason."""


class Mismatch(Error, ValueError):
    """MISMATCH: a target does not fit; nothing was written."""


class Unsupported(Error, NotImplementedError):
    """UNSUPPORTED: not in this version, or not loaded here."""


class ProtocolBroken(Error, ConnectionError):
    """PROTOCOL: the other end broke the protocol, or speaks another version."""


class Restarted(Error, ConnectionError):
    """RESTARTED: the daemon restarted while the request was in flight."""


class Disconnected(Error, ConnectionError):
    """DISCONNECTED: the daemon is gone, or the connection was closed. connect() anew."""


class Forked(Error, RuntimeError):
    """FORKED: a connection of the parent's was used in a child. connect() in the child, or use rdt.default(), which does."""


class ShuttingDown(Error, ConnectionError):
    """SHUTTING_DOWN: the daemon is going."""


class Busy(Error):
    """BUSY: the thing is in use."""


class SystemFailed(Error, OSError):
    """SYSTEM: the operating system refused; `errno` says why. From connect(): there is no daemon at that socket."""


class Internal(Error):
    """INTERNAL: a bug in rdtd."""


class PickleRefused(Error, pickle.UnpicklingError):
    """The object's structure is a pickle, and the reader does not want pickles of this origin: see allow_pickle."""


_NAMES = {number: name for name, number in _rdt.STATUSES.items()}

BY_STATUS: dict[int, type[Error]] = {
    _rdt.STATUSES[name]: cls
    for name, cls in {
        "INVALID": Invalid, "NO_MEMORY": NoMemory, "LIMIT": LimitReached, "NOT_FOUND": NotFound, "EXISTS": Exists, "DENIED": Denied,
        "FREED": Freed, "OWNER_DIED": OwnerDied, "PEER_LOST": PeerLost, "TIMED_OUT": TimedOut, "CANCELLED": Cancelled,
        "TRANSPORT": TransportFailed, "NO_PATH": NoPath, "MISMATCH": Mismatch, "UNSUPPORTED": Unsupported,
        "PROTOCOL": ProtocolBroken, "RESTARTED": Restarted, "DISCONNECTED": Disconnected, "FORKED": Forked,
        "SHUTTING_DOWN": ShuttingDown, "BUSY": Busy, "SYSTEM": SystemFailed, "INTERNAL": Internal,
    }.items()
}
