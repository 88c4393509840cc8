"""Groups: actors on several nodes whose daemons are connected with one another, by a transport that moves bytes only so."""
from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Union

from . import _rdt

if TYPE_CHECKING:
    from ._requests import Request


class Member(NamedTuple):
    """An actor of a group."""

    client: str
    """The name that it connects with (`connect(name=)`)."""
    node: Optional[str] = None
    """Where it is: "host:port", a name in the nodes file, or the node's uuid in hex; None: on this node."""
    device: Optional[str] = None
    """Where its tensors are: the uuid of a GPU of its node, which the transport moves memory of; None: host memory."""


class Group(NamedTuple):
    """What a group is now."""

    name: str
    transport: str
    state: str
    """"forming", "ready", "rebuilding", "down" or "ending"."""
    why: str
    """It is not ready."""
    epoch: int
    """Grows each time it is formed anew."""
    members: int
    ranks: int


def _member(one: Any) -> tuple[str, Optional[str], Optional[str]]:
    made = Member(one) if isinstance(one, str) else Member(*one)
    return made.client, made.node, made.device


class GroupCalls(_rdt.Conn):
    """What Connection does with groups."""

    def create_group(self, name: str, transport: str, members: Sequence[Union[str, Member, tuple[Any, ...]]], *,
                     timeout: Optional[float] = None) -> None:
        """Forms a group of the members, in rank order; all of them must be connected now, as this user's. Returns when each of their nodes is
        ready; on an error there is no group. It stays, whoever created it, until it is destroyed or the daemon of this node ends; when a node
        is lost, or the transport fails, it is formed anew by itself.

        name: 1 to 64 bytes. transport: "gloo", "nccl", or another that needs groups. members: 2 to 1,024, each a Member, a tuple of the same, or the
        name of a client of this node. timeout: seconds until every member's node is connected; None: a minute. Ctrl-C is answered when it has ended.
        Errors: Exists (the name), NotFound (a member is not there), Unsupported (the transport is not loaded, not available, or needs no
        group), Invalid (fewer than two members, or one twice), PeerLost, TransportFailed, TimedOut, LimitReached."""
        self._group_create(name, transport, [_member(one) for one in members], timeout)

    async def create_group_async(self, name: str, transport: str, members: Sequence[Union[str, Member, tuple[Any, ...]]], *,
                                 timeout: Optional[float] = None) -> None:
        """`create_group` for event loops: waited for in a thread of the loop's executor."""
        await asyncio.get_running_loop().run_in_executor(None, partial(self.create_group, name, transport, members, timeout=timeout))

    def destroy_group(self, name: str) -> None:
        """Ends a group for all its members; transfers in it fail. Errors: NotFound, TransportFailed, PeerLost."""
        self._group_destroy(name)

    def groups(self) -> list[Group]:
        """This user's groups that this node is in, or has created."""
        return [Group(*one) for one in self._groups()]

    def when_broadcast(self, ref: _rdt.Ref, group: str, *, timeout: Optional[float] = None) -> Request:
        """A Request that ends when every other node of the group has a copy of the snapshot, which then serves whoever fetches the ref there, in
        constant time, until the object ends or the daemon's copies_max wants the room. ref: of a snapshot on this node. timeout: seconds; None: without end.

        Errors, from the request: Invalid (the object is live), Unsupported (it is another node's, or memory that the transport does not
        read), NotFound (the object, or the group on this node), Denied, Freed, NoPath (the group is down), PeerLost (names the node; the others keep what they have),
        TransportFailed, LimitReached, NoMemory, TimedOut."""
        return self._broadcast(ref, group, timeout)

    def broadcast(self, ref: _rdt.Ref, group: str, *, timeout: Optional[float] = None) -> None:
        """`when_broadcast`, waited for. Errors: the same."""
        self.when_broadcast(ref, group, timeout=timeout).result()
