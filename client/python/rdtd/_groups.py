# SPDX-License-Identifier: Apache-2.0
"""Groups of actors on several nodes, for transports that move bytes only within a group (NCCL, Gloo)."""
from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Union

from . import _rdt
from ._aio import in_thread
from ._check import a_text, checked, shown

if TYPE_CHECKING:
    from ._requests import Request


class Member(NamedTuple):
    """A member of a group: an actor, by the name of its connection."""

    client: str
    """The name of its connection (`connect(name=)`)."""
    node: Optional[str] = None
    """Its node: "host:port", a name in the nodes file, or the node's uuid in hex; None: this node."""
    device: Optional[str] = None
    """The uuid of the GPU of its node that its tensors are on, for transports that move GPU memory; None:
    host memory."""


class Group(NamedTuple):
    """The current state of a group."""

    name: str
    transport: str
    state: str
    """"forming", "ready", "rebuilding", "down" or "ending"."""
    why: str
    """Why the group is not ready; "" if it is."""
    epoch: int
    """Increases each time the group is rebuilt."""
    members: int
    ranks: int


def _members(listed: Any) -> list[tuple[str, Optional[str], Optional[str]]]:
    if isinstance(listed, (str, bytes)) or not hasattr(listed, "__iter__"):
        raise TypeError(f"members must be a list of members, not {shown(listed)}")
    found = []
    for i, one in enumerate(listed):
        fields = (one,) if isinstance(one, str) else one
        if not isinstance(fields, tuple) or not 1 <= len(fields) <= 3:
            raise TypeError(f"members[{i}] must be a Member, a tuple with its fields, or a client's name, not {shown(one)}")
        made = Member(*fields)
        for field, text in made._asdict().items():
            if text is not None or field == "client":
                a_text(text, f"{field} of members[{i}]")
        found.append((made.client, made.node, made.device))
    return found


class GroupCalls(_rdt.Conn):
    """The part of Connection that deals with groups."""

    @checked
    def create_group(self, name: str, transport: str, members: Sequence[Union[str, Member, tuple[Any, ...]]],
                     *,
                     timeout: Optional[float] = None) -> None:
        """Forms a group of the members, in rank order. All of them must be connected now, as clients of this
        user. Returns when every member's node is ready; after an error there is no group. The group lasts
        until it is destroyed or the daemon of this node ends, whoever created it. When a node is lost or the
        transport fails, the group is rebuilt without further calls.

        name: 1 to 64 bytes. transport: "gloo", "nccl", or another that needs groups. members: 2 to 1,024,
        each a Member, a tuple with the same fields, or the name of a client of this node. timeout: seconds
        until every member's node must be connected; None: a minute. Ctrl-C is handled after the call has
        ended.
        Errors: Exists (the name), NotFound (a member is not connected), Unsupported (the transport is not
        loaded, not available, or needs no group), Invalid (fewer than two members, or a member twice),
        PeerLost, TransportFailed, TimedOut, LimitReached."""
        self._group_create(name, transport, _members(members), timeout)

    @checked
    async def create_group_async(self, name: str, transport: str,
                                 members: Sequence[Union[str, Member, tuple[Any, ...]]], *,
                                 timeout: Optional[float] = None) -> None:
        """Like `create_group`, for event loops: a thread of the loop's executor waits."""
        await in_thread(partial(self.create_group, name, transport, members, timeout=timeout))

    @checked
    def destroy_group(self, name: str) -> None:
        """Destroys a group for all its members. Its transfers fail. Errors: NotFound, TransportFailed,
        PeerLost."""
        self._group_destroy(name)

    def groups(self) -> list[Group]:
        """The groups of this user that this node is a member of or has created."""
        own = self._node()
        return [Group(row["name"], row["transport"], row["state"], row["why"], row["epoch"], len(row["members"]), row["ranks"])
                for row in json.loads(self._json("groups", None, None, None, 0, 0))
                if (row["uid"], row["tenant"]) == (own["uid"], own["tenant"])]  # root sees those of all

    @checked
    def when_broadcast(self, ref: _rdt.Ref, group: str, *, timeout: Optional[float] = None) -> Request:
        """A Request that ends when every other node of the group has a replica of the snapshot. The replica
        serves fetches on its node in constant time, until the object ends or the daemon evicts it. ref: a
        snapshot on this node. timeout: seconds; None: no limit.

        Errors, from the request: Invalid (the object is live), Unsupported (the object is on another node, or
        in memory of a device), NotFound (the object, or the group on this node), Denied, Freed, NoPath (the
        group is down, or no transport connects the named node), PeerLost (names the node; the other nodes keep their replicas),
        TransportFailed, LimitReached, NoMemory, TimedOut."""
        return self._broadcast(ref, group, timeout)

    @checked
    def broadcast(self, ref: _rdt.Ref, group: str, *, timeout: Optional[float] = None) -> None:
        """Waits for `when_broadcast`. Errors: the same."""
        self.when_broadcast(ref, group, timeout=timeout)._result_or_cancel()
