"""What was started and not yet collected, what it brought, and refs."""
from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generator, NamedTuple, Optional, Union

from . import _rdt
from ._aio import AGAIN, OK
from ._errors import Error, TimedOut
from ._structure import Layout

if TYPE_CHECKING:
    from ._connection import Connection

HOLD = 3  # of Conn._start
HOLD_SECONDS = 1.0  # that a hold is waited for where nobody asked to

_opened: list[weakref.ref[Connection]] = []


def is_open(connection: Connection) -> None:
    """It is one more of this process's."""
    _opened.append(weakref.ref(connection, _opened.remove))


def opened() -> list[Connection]:
    """The oldest first."""
    alive = [one() for one in list(_opened)]  # others may end meanwhile
    return [connection for connection in alive if connection is not None and not connection.closed]


def forked() -> None:
    """What was open is the parent's."""
    _opened.clear()


MODES = {"auto": 0, "share": 1, "copy": 2, "cow": 3}


class Ref(_rdt.Ref):
    """The portable name of an object, or of the versions that are published under a name.

    `Ref("rdt:...")` reads one from text, and str() writes it; it pickles, hashes and compares as a plain value, so any channel carries it.

    What it holds, it holds while it lives: until that very Ref is gone, `free()` or `drop()` was called, its `with` block left, or its connection ended.

    - The Ref that `put` returned holds the object as its producer. What was put under an id of yours the connection holds: others know it by
      that id; `free()` and `drop()` end that too.
    - A Ref of one object that was unpickled takes a hold of its own at once, on this node or another: through the connection of this process
      that has been open longest, or, where none is open yet, through the first that fetches with it. Those of one object that live in a process at
      a time share it. Unpickling waits for that a second at most. It never fails by that: if the object is gone, or nobody here may fetch it,
      fetching says so (`Freed`, `Denied`). `holds` tells whether it has the hold; `Connection.hold` takes one for sure, or raises why not.
    - A Ref that was made of text, a name, an id, or one that a call tells of, holds nothing until it was given to `Connection.hold`.

    So that there is no moment between two Refs when nobody holds the object, keep yours until the other process says that its own `holds`, or
    put it with `detached=True` and a `ttl` longer than the way. `keep()` has the connection hold it on when the Ref is gone.
    What a reader fetched it holds by itself: its arrays keep the memory, whatever becomes of the ref.
    """

    __slots__ = ()

    @staticmethod  # named by its path in a pickle: a method would be looked up by two calls
    def _unpickle(packed: bytes, hint: int = 0) -> Ref:
        return Ref._unpickle_as(packed, hint)

    @classmethod
    def _unpickle_as(cls, packed: bytes, hint: int = 0) -> Ref:
        made = cls._unpack(packed, hint)
        made._take(packed)
        return made

    def __init_subclass__(cls, **rest: Any) -> None:
        """Its pickles name it by itself."""
        super().__init_subclass__(**rest)
        if "_unpickle" not in vars(cls):
            setattr(cls, "_unpickle", cls._unpickle_as)

    def _take(self, packed: bytes) -> None:
        """Holds what it names, if it can, soon."""
        if self.is_name or not self.generation:
            return
        for connection in opened():
            shared = connection._shared(packed)
            if shared is not None and shared._state() in (OK, AGAIN):
                self._hold = shared
                return
            try:
                self._hold = request = connection._start(HOLD, self, 0, 0, None, HOLD_SECONDS)
            except Error:  # it was closed, is lost, or is another process's
                continue
            request._share(packed)
            return
        self._wanting = True

    @property
    def holds(self) -> bool:
        """Whether this very Ref holds the object: as put returned it, or by a hold that was taken since. One that was refused, or that the
        connection's end has ended, is none. One that is still on its way is waited for, a second at most: of a daemon that is slower than that this
        says False, and True when it has answered."""
        hold = self._hold
        if hold is not None:
            _settle(hold)
        return super().holds

    def keep(self) -> Ref:
        """The object stays when this Ref is gone, until somebody frees it or the connection ends. Returns the Ref."""
        hold = self._hold
        if hold is not None and self.holds:  # others may have it too: one of its own stays
            own = hold.connection._start(HOLD, self, 0, 0, None, HOLD_SECONDS)
            if own._state() == OK:
                self._hold = own
        return super().keep()

    @classmethod
    def from_id(cls, id: str | bytes) -> Ref:
        """What is, or will be, put under this id on this node by this user: fetching it waits until it is put."""
        return cls._from_id(id)

    @classmethod
    def from_name(cls, name: str, after: int = 0, *, near: Optional[_rdt.Ref] = None, address: Optional[str] = None) -> Ref:
        """The newest version above `after` of a published name; fetching it waits for one.

        near: any ref of the node where the name is; address: that node's "host:port" or name. Neither: this node."""
        made = cls._from_name(name, after, near)
        return made.at(address) if address is not None else made

    def __enter__(self) -> Ref:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.free()


def _settle(hold: _rdt.Request) -> None:
    """Until a hold was given or refused, or did not come."""
    if hold._state() == AGAIN:
        try:
            hold.connection._wait([hold], 1, HOLD_SECONDS)
        except Error:
            pass  # fetching will say it


class Held(NamedTuple):
    """In place of How: the request is a hold, whose result is a Ref."""

    hint: int


class How(NamedTuple):
    """What the caller of fetch wanted."""

    as_: str
    mode: Optional[str]
    into: Any
    allow_pickle: Optional[bool]
    again: tuple[Any, ...]  # what Connection._again needs to start the same fetch in another mode


@dataclass
class Fetched:
    """What a fetch brought, and how it came."""

    value: Any
    ref: Ref
    version: int
    """Of the published name, if the ref was one; the next `after`."""
    path: str
    """"local/same", "local/share", "local/cow", "local/copy", "inline", or the transport's name."""
    transfer: int
    """For `rdtctl explain`; 0: nothing was moved."""
    bytes_moved: int
    elapsed: float
    """Seconds in the daemon."""
    writable: bool
    mutable_shared: bool
    """Its producer may still write what you read; said once per object."""
    tensors: list[_rdt.Tensor]
    metadata: bytes


class Request(_rdt.Request):
    """A fetch or a wait that was started. `await` it, or call `result()`; wait for several with `Connection.wait`.

    A request that nobody keeps is cancelled. Awaiting and being cancelled there cancels the request too."""

    __slots__ = ()

    def done(self) -> bool:
        """Whether it has ended, well or not. Reads what the daemon has said; never blocks."""
        if self._state() == AGAIN:
            self.connection.dispatch()
        return self._state() != AGAIN

    def result(self, timeout: Optional[float] = None) -> Any:
        """What it brought: of a fetch the value (or `into`), of a hold the Ref that holds, of a wait None. Waits `timeout` seconds (None: until its own deadline).

        Raises how it failed; TimedOut also if it goes on: then nothing is cancelled."""
        self._wait(timeout)
        how: Union[How, Held, None] = self._how
        return self._ref(how) if isinstance(how, Held) else None if how is None else self._value(how)

    def fetched(self, timeout: Optional[float] = None) -> Fetched:
        """The same of a fetch, with how it came: path, version, bytes moved."""
        self._wait(timeout)
        how: How = self._how
        brought = self._take()
        if self._needs_cow(how, brought):
            return self._again(how).fetched()
        return self._tell(how, brought)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    def _ref(self, how: Held) -> Ref:
        made: Ref = self._held()
        made._hold = self
        made._hint = how.hint
        return made

    async def _result(self) -> Any:
        how = self._how
        if isinstance(how, Held):
            await self.connection._hub().ended(self)
            self._check()
            return self._ref(how)
        fetched = await self.fetched_async()
        return None if fetched is None else fetched.value

    async def fetched_async(self) -> Any:
        """`fetched` for event loops; None of a wait."""
        connection: Connection = self.connection
        await connection._hub().ended(self)
        self._check()
        how: Optional[How] = self._how
        if how is None:
            return None
        brought = self._take()
        if self._needs_cow(how, brought):
            return await self._again(how).fetched_async()
        return self._tell(how, brought)

    def _wait(self, timeout: Optional[float]) -> None:
        if self._state() != AGAIN:
            self._check()
        elif not self.connection._wait([self], 1, timeout)[0]:
            raise _still_running(timeout)

    def _value(self, how: How) -> Any:
        brought = self._take()
        if how.into is not None:
            return how.into
        if self._needs_cow(how, brought):
            return self._again(how).result()
        return self._read(how, brought, Layout(brought.metadata, brought.tensors()))

    def _read(self, how: How, brought: _rdt.Object, layout: Layout) -> Any:
        may_unpickle = how.allow_pickle
        if may_unpickle is None:
            connection: Connection = self.connection
            may_unpickle = layout.form == "pickle" and connection._is_own(brought.info()["ref"])
        return layout.value(how.as_, may_unpickle, Ref)

    def _tell(self, how: How, brought: _rdt.Object) -> Fetched:
        metadata = brought.metadata
        tensors = brought.tensors()
        value = how.into if how.into is not None else self._read(how, brought, Layout(metadata, tensors))
        return Fetched(value, tensors=tensors, metadata=metadata, **brought.info())

    # torch knows no read-only, and writing there would end the process: it gets pages of its own, unless it asked to share.

    def _needs_cow(self, how: How, brought: _rdt.Object) -> bool:
        if how.mode is not None or how.into is not None or brought.writable or how.as_ not in ("auto", "torch"):
            return False
        metadata = brought.metadata
        return how.as_ == "torch" or bool(metadata) and Layout(metadata, brought.tensors()).has_torch

    def _again(self, how: How) -> Request:
        connection: Connection = self.connection
        return connection._again(how)


def _still_running(timeout: Optional[float]) -> TimedOut:
    error = TimedOut(f"the request had not ended after {timeout} s; it goes on")
    error.status = _rdt.STATUSES["TIMED_OUT"]
    return error
