# SPDX-License-Identifier: Apache-2.0
"""Deltas of parts: what publish_part(delta=True) puts beside a part, and keeps for readers of the version before."""
from __future__ import annotations

import contextlib
import mmap
from typing import Any, NamedTuple, Optional, Sequence

from . import _rdt
from ._arrays import kind_of
from ._errors import Error
from ._requests import Ref

MOST = 0.5  # of the bytes of a part: with a longer delta, the whole part travels


def _free(connection: _rdt.Conn, *refs: Ref) -> None:
    for ref in refs:
        with contextlib.suppress(Error):  # the daemon has restarted, and has it no longer
            connection._free(ref, False)


def _kept(ref: Ref) -> Ref:
    """The same without the hold, which the connection gets: a Ref that holds keeps its connection, which has this one."""
    return Ref._unpack(ref.keep().pack())


class Before(NamedTuple):
    """What a rank has published last under a name. The part stays in the daemon's memory as the base of the next delta, and the
    part before it with the deltas between the two for those readers of other nodes that have not fetched them yet."""

    part: Ref
    places: list[Any]  # key, global shape and start of each tensor
    rest: tuple[Ref, ...] = ()

    def kept(self) -> Before:
        return self._replace(part=_kept(self.part), rest=tuple([_kept(ref) for ref in self.rest]))

    def free_rest(self, connection: _rdt.Conn) -> Before:
        _free(connection, *self.rest)
        return self._replace(rest=())

    def free(self, connection: _rdt.Conn) -> None:
        _free(connection, *self.rest, self.part)


def contiguous(value: Any) -> Any:
    """The tensor, or a contiguous copy: deltas are of contiguous tensors."""
    kind = kind_of(value)
    if kind == "t":
        return value.contiguous()
    if kind == "n" and not value.flags.c_contiguous:
        return value.copy(order="C")
    return value


def changes_between(before: Sequence[Any], values: Sequence[Any]) -> Optional[bytearray]:
    """The deltas of all tensors that have elements, one behind the other. None: there is no use in them."""
    found, seen, total = bytearray(), 0, sum([tensor.nbytes for tensor in before])
    left = int(MOST * total)
    rooms = [min(left, tensor.nbytes + tensor.nbytes // 2 + 64) & ~7 for tensor in before]
    with mmap.mmap(-1, max(rooms, default=0) + 64) as scratch, memoryview(scratch) as whole:  # pages come when they are written
        for old, new, room in zip(before, values, rooms):
            if old.nbytes == 0:
                continue
            with whole[:min(room, (left - len(found)) & ~7)] as out:
                try:
                    used = _rdt.delta_encode(old, new, out)
                except (TypeError, ValueError):  # another dtype or shape, or not contiguous
                    return None
                if used is None:
                    return None
                found += out[:used]
            seen += old.nbytes
            if seen >= total // 8 and len(found) > MOST * seen:  # the rest is likely to be the same
                return None
    return found or None
