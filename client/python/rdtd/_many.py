# SPDX-License-Identifier: Apache-2.0
"""Connection's calls for many objects or names at once."""
from __future__ import annotations

from typing import Any, Iterable, Union, overload

from . import _rdt
from ._check import checked, shown


class ManyCalls(_rdt.Conn):
    """The part of Connection for many things at once: thousands take one message each way."""

    @overload
    def exists(self, names: Union[str, _rdt.Ref]) -> bool: ...  # type: ignore[misc]

    @overload
    def exists(self, names: Iterable[Union[str, _rdt.Ref]]) -> list[bool]: ...

    @checked
    def exists(self, names: Any) -> Any:
        """Whether a published name, or the object of a Ref, could be fetched now: True or False, or a list of them for a
        list. Text is a name; for an id, pass `Ref.from_id`. A Ref of a name asks for a version above its `after`.

        Moves and holds nothing, so the object may end right after the answer. A name is looked for at all nodes of the
        node table, and each other node is asked about its own in one message.
        Errors, if that cannot be found out for one of them: PeerLost, TimedOut (a node does not answer), Denied (an
        object that its user does not show), Unsupported (an older daemon)."""
        if isinstance(names, (str, _rdt.Ref)):
            return self._exists([names])[0]
        if isinstance(names, bytes) or not isinstance(names, Iterable):
            raise TypeError(f"names must be a name, a Ref or a list of them, not {shown(names)}")
        return self._exists(list(names))
