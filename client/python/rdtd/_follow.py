# SPDX-License-Identifier: Apache-2.0
"""Followers of a name: the node fetches each version while the reader works, and a commit copies it."""
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional

from . import _rdt
from ._aio import in_thread
from ._arrays import convert
from ._check import checked, shown
from ._errors import Invalid, Unsupported, printable
from ._requests import Ref
from ._shards import Plan, _naming
from ._structure import Layout
from ._targets import Targets, check_memory

if TYPE_CHECKING:
    from ._connection import Connection


class Prepared(NamedTuple):
    """A version that is whole on this node. step: of a version in parts, else 0. objects: its parts, or 1. bytes: of all
    tensors. bytes_moved: came from other nodes, for all followers of this node together. skipped: versions between the
    committed one and this one. wait_s: how long `prepare` has waited. fetch_s: how long the daemon needed."""

    version: int
    step: int
    objects: int
    bytes: int
    bytes_moved: int
    skipped: int
    wait_s: float
    fetch_s: float
    in_parts: bool


class Committed(NamedTuple):
    """What a commit did. value: `into`, or the value in the node's shared memory. bytes: were copied. wait_s: of all calls of
    `prepare` since the last commit."""

    value: Any
    version: int
    step: int
    bytes: int
    bytes_moved: int
    wait_s: float
    fetch_s: float
    copy_s: float


class Follower:
    """Follows a name: see Connection.follow. One thread at a time uses it. It ends with `close`, with its `with` block, or
    with the connection."""

    def __init__(self, connection: Connection, name: Ref, follower: _rdt.Follower, after: int) -> None:
        self._connection = connection
        self._name = name
        self._follower = follower
        self._prepared: Optional[Prepared] = None
        self._committed = after

    def __repr__(self) -> str:
        return printable(f"<rdtd.Follower of name {self._name.id.decode('utf-8', 'backslashreplace')}, "
                         f"committed {self._committed}>")

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    @property
    def committed(self) -> int:
        """The version that was committed last; 0: none."""
        return self._committed

    @property
    def prepared(self) -> int:
        """The version that `prepare` returned last and that is not committed; 0: none."""
        return self._prepared.version if self._prepared else 0

    @property
    def lag(self) -> int:
        """How many versions the newest one that the daemon knows of is above the committed one. Asks the daemon."""
        return int(self._follower.info()["lag"])

    def info(self) -> dict[str, Any]:
        """What the daemon says: committed, prepared (whole on this node, asked for or not), newest, lag, lag_s (since when
        the newest one is known), state and failure (of the last attempt to fetch a version)."""
        return self._follower.info()

    @checked
    def prepare(self, timeout: Optional[float] = None) -> Prepared:
        """Waits for a version above the committed one that is whole on this node, and maps it; 0 does not wait. If there are
        several, it is the newest, also in place of one that was prepared and not committed. Errors: TimedOut (the message
        says what the daemon is doing), Freed (the name was unpublished, and no version that was whole here is left to commit;
        the follower goes on with what is published later), Unsupported (the version is no snapshot), Invalid (it cannot be
        read), LimitReached (it does not fit, the message names the limit), NoMemory (the daemon has none for it, and goes on
        trying), Denied."""
        self._prepared = Prepared(**self._follower.prepare(timeout))
        return self._prepared

    @checked
    async def prepare_async(self, timeout: Optional[float] = None) -> Prepared:
        """The same for event loops, in a thread of the loop's executor. If it is cancelled, it ends when the thread no longer
        uses the follower, a tenth of a second later."""
        return await in_thread(partial(self.prepare, timeout))

    @checked
    def commit(self, into: Any = None, *, as_: str = "auto", allow_pickle: Optional[bool] = None) -> Committed:
        """Makes the prepared version the committed one, after it has been copied to `into`. It only copies on this node,
        and asks nobody, but for the checksums that a Plan with verify=True compares before it writes: a part that its publisher
        has no longer has none. After an error `into` has what it had, and the version is still prepared.

        into: targets, in host memory or on GPUs, in the structure of the value that was published, as in `fetch`, but
        with a target for each tensor: there is no None in it. Of a version in parts a Plan, or a dict of targets for some of the
        tensors as for `Connection.plan`, which costs the planning in each commit. None: the value itself, in the memory that
        all readers of this node share; arrays are read-only, and torch tensors must not be written. Of a version in parts
        that is a dict of its tensors, which must then be whole in one part each. as_, allow_pickle: as in `fetch`.
        Errors: Invalid (nothing is prepared), Mismatch, NotFound (the version does not fit; names the tensor)."""
        if self._prepared is None:
            raise Invalid(f"no version of {self._name!r} is prepared: call prepare")
        if self._prepared.in_parts:
            return self._commit_parts(into, as_)
        if into is not None:
            return self._commit_into(into, as_, allow_pickle)
        (brought,) = self._follower.objects()
        connection = self._connection
        layout = Layout(brought.metadata, brought.tensors(True))
        value = layout.value(as_, partial(connection._may_unpickle, brought, allow_pickle), connection._ref_of(brought),
                             connection._source_of(brought) if layout.form == "pickle" else "")
        return Committed(value, **self._note(self._follower.commit_mark()))

    def _note(self, got: dict[str, Any]) -> dict[str, Any]:
        self._committed = got["version"]
        self._prepared = None
        return got

    def _commit_into(self, into: Any, as_: str, allow_pickle: Optional[bool]) -> Committed:
        if isinstance(into, Plan):
            raise Invalid(f"version {self.prepared} of {self._name!r} is one object, not parts: give targets, not a plan")
        found = self._follower.prepared()
        assert found is not None
        metadata, count, trusted, ref = found
        targets = Targets(into)
        check_memory([targets])

        def may_unpickle() -> bool:
            if allow_pickle is not None:
                return allow_pickle
            node = self._connection._node()["node"]
            return ref.owner in (None, self._connection._owner) and (ref.node == node or trusted)

        leaves = targets.in_order() if as_ == "list" else targets.arrange(metadata, count, may_unpickle, "")
        targets.check_ties(lambda: self._follower.objects()[0].tensors(True))
        try:
            got = self._follower.commit_into(leaves)
        except (TypeError, ValueError) as error:
            targets.name(error)
            raise
        return Committed(targets.written(), **self._note(got))

    def _commit_plan(self, plan: Plan) -> dict[str, Any]:
        with _naming(plan._keys):
            got = self._follower.commit_plan(plan._plan, plan._order)
        plan.version = got["version"]
        return self._note(got)

    def _commit_parts(self, into: Any, as_: str) -> Committed:
        if isinstance(into, Plan):
            return Committed(into, **self._commit_plan(into))
        if isinstance(into, Mapping):
            return Committed(into, **self._commit_plan(self._connection.plan(self._name, into)))
        if into is not None:
            raise TypeError(f"into must be a Plan or a dict of targets for a version in parts, not {shown(into)}")
        keys = self._follower.parts()
        assert keys is not None
        for row in keys:
            for key, whole, _ in row:
                if not whole:
                    raise Unsupported(f"tensor {key!r} of version {self.prepared} is split over several parts, so it is not in "
                                      "one piece here: commit into a Plan")
        value = {}
        for row, brought in zip(keys, self._follower.objects()):
            leaves = convert(brought.tensors(True), "n", "auto" if as_ == "list" else as_)
            value.update({key: leaf for (key, _, _), leaf in zip(row, leaves)})
        return Committed(value, **self._note(self._follower.commit_mark()))

    def close(self) -> None:
        """Ends the follower. Values that a commit returned stay valid."""
        self._follower.close()
