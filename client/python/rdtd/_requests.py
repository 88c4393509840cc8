# SPDX-License-Identifier: Apache-2.0
"""Refs, requests, and what a fetch brought."""
from __future__ import annotations

import contextlib
import threading
import time
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Generator, Literal, NamedTuple, Optional, Union

from . import _rdt
from ._aio import AGAIN, OK, in_thread
from ._arrays import DTYPES, kind_of
from ._check import a_text, checked
from ._errors import Cancelled, Error, TimedOut, Unsupported, printable, status_name
from ._structure import Layout
from ._targets import Targets

if TYPE_CHECKING:
    from ._connection import Connection

FREED, INVALID = _rdt.STATUSES["FREED"], _rdt.STATUSES["INVALID"]
HOLD, TAKE_OVER = _rdt.WAIT_HOLD, _rdt.WAIT_TAKE_OVER
HOLD_SECONDS = 1.0  # how long implicit holds (unpickling) are waited for

_opened: list[weakref.ref[Connection]] = []


def is_open(connection: Connection) -> None:
    """Registers an open connection of this process."""
    _opened.append(weakref.ref(connection, _opened.remove))


def opened() -> list[Connection]:
    """The open connections of this process, oldest first."""
    alive = [one() for one in list(_opened)]  # a copy: connections may end meanwhile
    return [connection for connection in alive if connection is not None and not connection.closed]


def forked() -> None:
    """In a child after a fork: the registered connections belong to the parent."""
    _opened.clear()


MODES = {"auto": _rdt.RDT_FETCH_AUTO, "share": _rdt.RDT_FETCH_SHARE, "copy": _rdt.RDT_FETCH_COPY, "cow": _rdt.RDT_FETCH_COW}
VISIBILITY = {"owner": _rdt.RDT_VISIBLE_TO_OWNER, "tenant": _rdt.RDT_VISIBLE_TO_TENANT, "all": _rdt.RDT_VISIBLE_TO_ALL}
Visible = Literal["owner", "tenant", "all"]


class Ref(_rdt.Ref):
    """The portable name of an object, or of the versions that are published under a name.

    `Ref("rdt:...")` parses one from text, and str() writes it. It pickles, hashes and compares as a plain
    value, so any channel can carry it.

    A Ref may hold its object. The hold ends when that Ref is deleted, when `free()` or `drop()` is called,
    when its `with` block ends, or when its connection ends.

    - The Ref that `put` returned holds the object as its producer. An object that was put under an id of your
      choice is held by the connection, since others know it by that id; `free()` and `drop()` end that hold
      too.
    - A Ref of one object that is unpickled takes a hold of its own at once, on this node or another. It uses
      the oldest open connection of the process or, if none is open yet, the first connection that fetches
      with the Ref. All unpickled Refs of one object in a process share one hold. Unpickling waits for it for
      at most one second and never fails: if the object has ended, or this user may not fetch it, the fetch
      raises `Freed` or `Denied`. `holds` tells whether the Ref has the hold. `Connection.hold` takes a hold
      or raises why it cannot.
    - A Ref made from text, from a name or from an id, and a Ref that a call returned as information, has no
      hold until `Connection.hold`.

    Passing a Ref on: pickling a Ref that holds its object gives the object a grace period (`put(grace=)`, 10
    seconds): the daemon holds it until the other process has unpickled the Ref and holds the object itself,
    or until the time has passed, whatever happens to this Ref and this process. So `return c.put(x)` in a pool's
    worker and `queue.put(c.put(x))` just work. Each pickling is for one receiver. The grace period is for
    objects of this user, on this node or another; for another node's object, pickling makes a round trip to
    that node. If the Ref may take longer to arrive, keep yours, or put with `detached=True` and a `ttl`.
    A Ref inside a value that is put is passed on by the put, as if it were pickled, and whoever reads the value within the
    grace period gets a Ref that holds the object (of a producer that is not trusted, TRUST IN CODE in rdt-network(7), only
    when it is fetched). For later readers keep the Ref, or the objects have been freed.
    `keep()` passes the hold to the connection. A fetched value holds its memory by itself, whatever happens
    to the Ref. """

    __slots__ = ()

    @checked
    def __new__(cls, text: str) -> Any:
        return super().__new__(cls, text)

    @checked
    def at(self, address: str) -> Ref:
        """The same on the node at that address ("host:port", or its name in the nodes file)."""
        made: Ref = super().at(address)
        return made

    @checked
    def free(self, *, force: bool = False) -> None:
        """Drops the hold now. The object ends when its last holder has released it. With force=True no process on any node can
        fetch it any more. Does nothing if this Ref has no hold (Connection.free takes any ref). Errors: PeerLost,
        Disconnected."""
        super().free(force=bool(force))

    @staticmethod  # static, so that a pickle names it by its path; a class method would need two look-ups
    def _unpickle(packed: bytes, hint: int = 0) -> Ref:
        return Ref._unpickle_as(packed, hint)

    @classmethod
    def _unpickle_as(cls, packed: bytes, hint: int = 0) -> Ref:
        made = cls._unpack(packed, hint)
        made._take(packed, TAKE_OVER)
        return made

    @classmethod
    def _inside(cls, packed: bytes, hint: int = 0) -> Ref:
        """The Ref in a value that was put as a pickle. Others may read that value, too, so the grace period goes on."""
        made = cls._unpack(packed, hint)
        made._take(packed, HOLD, 0.0)
        return made

    @classmethod
    def _named(cls, text: str, trusted: Callable[[], bool]) -> Ref:
        """The Ref in a value of plain parts. If the producer is not trusted, its hold waits for a fetch: others could have
        written a thousand addresses there."""
        made = cls(text)
        if not made.is_name and made.generation:
            if trusted():
                made._take(made.pack(), HOLD, 0.0)
            else:
                made._wanting = HOLD
        return made

    def __init_subclass__(cls, **rest: Any) -> None:
        """Makes pickles of the subclass refer to the subclass."""
        super().__init_subclass__(**rest)
        if "_unpickle" not in vars(cls):
            setattr(cls, "_unpickle", cls._unpickle_as)

    def _take(self, packed: bytes, how: int, patience: float = HOLD_SECONDS) -> None:
        """Starts to take a hold on the object, without failing, and waits for it for `patience` seconds. how: HOLD or
        TAKE_OVER."""
        if self.is_name or not self.generation:
            return
        for connection in opened():
            shared = connection._shared(packed)
            if shared is not None and shared._state() in (OK, AGAIN):
                self._hold = shared
                try:
                    if how == TAKE_OVER:  # this ends the hold in transit, and then ends itself
                        connection._start(TAKE_OVER, self, 0, 0, None, HOLD_SECONDS)
                except Error:
                    pass  # the grace period ends it
                return
            try:
                self._hold = request = connection._start(how, self, 0, 0, None, patience)
            except Error:  # the connection was closed, is lost, or belongs to another process
                continue
            request._share(packed)
            return
        self._wanting = how

    @property
    def holds(self) -> bool:
        """Whether this Ref holds the object: put returned it, or it took a hold later. A hold that was
        refused, or that ended with its connection, does not count. If the daemon has not yet answered, this
        waits for at most one second and then returns False; it returns True once the daemon has answered."""
        hold = self._hold
        if hold is not None:
            _settle(hold)
        return super().holds

    def keep(self) -> Ref:
        """Passes the hold to the connection: the object outlives this Ref, until a process frees it or the
        connection ends. Returns the Ref."""
        hold = self._hold
        # The hold may be shared with other Refs: the connection needs one of its own.
        if hold is not None and self.holds:
            own = hold.connection._start(HOLD, self, 0, 0, None, HOLD_SECONDS)
            if own._state() == OK:
                self._hold = own
        return super().keep()

    @classmethod
    @checked
    def from_id(cls, id: str | bytes) -> Ref:
        """A Ref of the object that this user has put, or will put, under this id on this node. A fetch waits
        until it is put."""
        return cls._from_id(id)

    @classmethod
    @checked
    def from_name(cls, name: str, after: int = 0, *, near: Optional[_rdt.Ref] = None,
                  address: Optional[str] = None) -> Ref:
        """A Ref of the newest version above `after` of a published name. A fetch waits for such a version.

        near: any Ref of an object on the node that has the name. address: that node's "host:port" or its name
        in the nodes file. Neither: the node that has the name, this one or any of the node table
        (rdt-network(7), DIRECTORY)."""
        made = cls._from_name(name, after, near)
        return made.at(address) if address is not None else made

    def __repr__(self) -> str:
        if not self.is_name:
            what = f"object {self.id.decode('utf-8', 'backslashreplace')}"
        else:
            what = f"name {self.id.decode('utf-8', 'backslashreplace')}" + (f" after version {self.after}"
                                                                            if self.after else "")
        where = f" at {self.address}" if self.address else ""
        return printable(f"<{type(self).__name__} of {what}{where}{', holds it' if super().holds else ''}>")

    def __copy__(self) -> Ref:
        """A copy in this process, with a hold of its own: no pickle, so no grace period."""
        packed = self.pack()
        made = type(self)._unpack(packed, self._hint)
        made._take(packed, HOLD)
        return made

    def __deepcopy__(self, memo: Any) -> Ref:
        return self.__copy__()

    def __enter__(self) -> Ref:
        return self

    def __exit__(self, kind: object = None, *ignored: object) -> None:
        if kind is None:
            self.free()
        else:  # Ctrl-C, for instance, beside a daemon that does not answer, or that has ended
            with contextlib.suppress(Error):
                self.drop()


def ref_of(name: Any, what: str = "name") -> Ref:
    """The Ref of a name that may be given as a Ref already."""
    if not isinstance(name, Ref):
        a_text(name, what)
    return name if isinstance(name, Ref) else Ref.from_name(name)


def _settle(hold: _rdt.Request) -> None:
    """Waits until a hold was granted or refused, for at most HOLD_SECONDS."""
    if hold._state() == AGAIN:
        try:
            hold.connection._wait([hold], 1, HOLD_SECONDS)
        except Error:
            pass  # the fetch will raise it


def parts_refused(ref: Any, option: str) -> Unsupported:
    return Unsupported(f"{ref!r} has a version of many parts, which cannot be fetched with {option}: Connection.plan reads "
                       "boxes of it into memory of your own, rdtd.torch.update into a model")


class Held(NamedTuple):
    """Used in place of How by a request that takes a hold; its result is a Ref."""

    hint: int
    ref: _rdt.Ref


class How(NamedTuple):
    """The options of a fetch that decide how its result is read."""

    as_: str
    mode: Optional[str]
    into: Any
    allow_pickle: Optional[bool]
    again: tuple[Any, ...]  # what Connection._again needs to start the same fetch in another mode
    steps: Optional[Steps] = None  # of a FetchInto
    verify: bool = False
    targets: Optional[Targets] = None  # if there is an `into`


@dataclass
class Steps:
    """The two steps of a FetchInto."""

    number: int  # of the mode
    deadline: Optional[float]
    found: Optional[_rdt.Ref] = None  # the object, from the first step; None: that has not ended
    version: int = 0
    failure: Optional[Exception] = None  # why no further step could be started
    freed: Optional[tuple[_rdt.Ref, Error]] = None  # the version that ended between the steps
    # Requests of earlier steps, for which a thread may still be waiting.
    earlier: list[Any] = field(default_factory=list)
    starting: bool = False  # a step is being started, by code that may ask for the state again
    missed: bool = False  # Hub.look found the lock taken: the thread that has it looks again
    lock: Any = field(default_factory=threading.RLock)

    def left(self) -> Optional[float]:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


@dataclass
class Fetched:
    """The result of a fetch and how it was moved."""

    value: Any
    ref: Ref
    version: int
    """The version, if the ref was of a published name: the next `after`."""
    path: str
    """"local/same", "local/share", "local/cow", "local/copy", "inline", or the transport's name; "plan": put together from
    the parts of a version of many."""
    transfer: int
    """The transfer's number, for `rdtctl explain`; 0: no transfer was needed."""
    bytes_moved: int
    elapsed: float
    """Seconds that the daemon took."""
    writable: bool
    mutable_shared: bool
    """The producer may still write to the memory that you read. Reported once for each object."""
    tensors: list[_rdt.Tensor]
    metadata: bytes


class Request(_rdt.Request):
    """A fetch, a wait or a hold that was started. `await` it or call `result()`; wait for several with
    `Connection.wait`.

    Deleting a Request cancels it. Cancelling a task that awaits it cancels it too."""

    __slots__ = ()

    def __repr__(self) -> str:
        how: Union[How, Held, None] = self._how
        what = "wait"
        if isinstance(how, How):
            what = f"fetch of {how.again[0]!r}"
        elif how is not None:
            what = f"hold of {how.ref!r}"
        state = self._state()
        said = "running" if state == AGAIN else "done" if state == OK else f"ended with {status_name(state)}"
        return f"<rdtd.Request: {what}, {said}>"

    def done(self) -> bool:
        """Whether the request has ended, with a result or an error. Reads the daemon's answers; never
        blocks."""
        if self._state() == AGAIN:
            try:
                self.connection.dispatch()
            except Error:
                pass  # it has ended with this error
        return self._state() != AGAIN

    @checked
    def result(self, timeout: Optional[float] = None) -> Any:
        """Waits for the request and returns its result: the value of a fetch (or `into`), the holding Ref of
        a hold, None for a wait.

        timeout: seconds to wait; None: until the request's own deadline. Raises the error of the request, or
        TimedOut if it is still running after `timeout` (the request then goes on)."""
        self._wait(timeout)
        how: Union[How, Held, None] = self._how
        return self._ref(how) if isinstance(how, Held) else None if how is None else self._value(how)

    def _result_or_cancel(self, fetched: bool = False) -> Any:
        """The result, or with `fetched` a Fetched. If the wait for it fails or is interrupted, the request ends: otherwise it
        would live as long as the exception, whose traceback refers to it, and go on to write its targets."""
        try:
            return self.fetched() if fetched else self.result()
        except BaseException:
            self.cancel()
            raise

    @checked
    def fetched(self, timeout: Optional[float] = None) -> Fetched:
        """Like `result` of a fetch, but returns a Fetched, which also has the path, the version and the bytes
        moved."""
        self._wait(timeout)
        how: How = self._how
        brought = self._take()
        if self._needs_cow(how, brought):
            return self._again(how).fetched()
        if how.verify and not brought.is_manifest:  # the parts of a version are verified when they are put together
            brought.verify()
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
        """Like `fetched`, for event loops. The result of a wait is None."""
        connection: Connection = self.connection
        await connection._hub().ended(self)
        self._check()
        how: Optional[How] = self._how
        if how is None:
            return None
        brought = self._take()
        if self._needs_cow(how, brought):
            return await self._again(how).fetched_async()
        if how.verify and not brought.is_manifest:  # reads all bytes, and asks the daemon
            await in_thread(brought.verify)
        if brought.is_manifest:  # waits for the parts
            return await in_thread(partial(self._tell, how, brought))
        return self._tell(how, brought)

    def _state_if_free(self) -> int:
        """The state; AGAIN if another thread is starting a step, which then looks."""
        return self._state()

    def _wait(self, timeout: Optional[float]) -> None:
        if self._state() != AGAIN:
            self._check()
        elif not self.connection._wait_for([self], 1, timeout)[0]:
            raise _still_running(timeout)

    def _check(self) -> None:
        """Raises the request's error, if it failed."""
        try:
            super()._check()
        except Error as error:
            self._name(error)
            raise

    def _name(self, error: BaseException) -> None:
        """Makes an error of this request that names a target by its number name its place in `into`."""
        how = self._how
        if isinstance(how, How) and how.targets is not None:
            how.targets.name(error)

    def _value(self, how: How) -> Any:
        brought = self._take()
        if how.into is None and self._needs_cow(how, brought):
            return self._again(how).result()
        if how.verify and not brought.is_manifest:
            brought.verify()
        if how.into is not None:
            return self._written(how)
        if brought.is_manifest:
            return self._tell(how, brought).value
        return self._read(how, brought, self._layout(how, brought.metadata, self._tensors(how, brought)))

    @staticmethod
    def _written(how: How) -> Any:
        return how.into if how.targets is None else how.targets.written()

    def _read(self, how: How, brought: _rdt.Object, layout: Layout) -> Any:
        connection: Connection = self.connection
        return layout.value(how.as_, partial(connection._may_unpickle, brought, how.allow_pickle), connection._ref_of(brought),
                            connection._source_of(brought) if layout.form == "pickle" else "")

    @staticmethod
    def _layout(how: How, metadata: bytes, tensors: list[_rdt.Tensor]) -> Layout:
        return Layout(metadata, tensors, how.mode not in ("cow", "copy"))

    @staticmethod
    def _tensors(how: How, brought: _rdt.Object) -> list[_rdt.Tensor]:
        """Whether an array can be written must not depend on where its object lies, nor on its size: without
        a mode it is read-only, also where its memory is this process's own. (Of torch's tensors it is not:
        they ignore this.)"""
        return brought.tensors(how.into is None and how.mode in (None, "auto"))

    def _tell(self, how: How, brought: _rdt.Object) -> Fetched:
        if how.into is None and brought.is_manifest:
            connection: Connection = self.connection
            return connection._put_together(how, brought)
        metadata = brought.metadata
        tensors = self._tensors(how, brought)
        value = self._written(how) if how.into is not None else self._read(how, brought, self._layout(how, metadata, tensors))
        info = brought.info()
        if how.steps is not None:
            info["version"] = how.steps.version
        return Fetched(value, tensors=tensors, metadata=metadata, **info)

    # torch has no read-only tensors, and a write to one would crash the process, or on a GPU change the object. So torch gets
    # private pages, or a copy, unless the caller asked to share.

    def _needs_cow(self, how: How, brought: _rdt.Object) -> bool:
        if how.mode is not None or how.into is not None or brought.private or how.as_ not in ("auto", "torch", "list"):
            return False
        if brought.is_manifest:
            return False
        metadata = brought.metadata
        return how.as_ == "torch" or bool(metadata) and Layout(metadata, brought.tensors()).has_torch

    def _again(self, how: How) -> Request:
        connection: Connection = self.connection
        return connection._again(how)


def _without_skipped(connection: Connection, structure: _rdt.Object, targets: list[Any], boxes: Any) -> tuple[list[Any], Any]:
    """The targets, and the boxes of a fetch of one object, with boxes of no elements for what is not wanted (None)."""
    ranges = list(boxes[0]) if boxes is not None and boxes[0] is not None else [None] * len(targets)
    made = list(targets)
    scalars = []
    for i in range(min(len(made), len(ranges), structure.count)):
        if made[i] is None:
            made[i] = structure.nothing(i)
            ranges[i] = tuple([(0, 0)] * len(made[i].shape)) or None
            if ranges[i] is None:
                scalars.append(i)
    if scalars:  # of a scalar there is no box, so it comes, to where nobody looks
        memory = _rdt.Memory(connection, 16 * len(scalars), None)
        for at, i in enumerate(scalars):
            made[i] = memory.tensor(DTYPES[made[i].dtype].number, (), 16 * at)
    return made, [ranges]


class FetchInto(Request):
    """A fetch into dicts, lists or tuples of targets. Its first step brings the structure of the object, by
    which each tensor finds its target; the second one writes the targets.

    Whoever asks for the state of the request starts the second step once the first has ended."""

    __slots__ = ()

    def _state(self) -> int:
        steps: Steps = self._how.steps
        with steps.lock:
            state, changed = self._advance(steps)
        self._look_again(steps, changed)
        return state

    def _state_if_free(self) -> int:
        steps: Steps = self._how.steps
        steps.missed = True  # whoever has the lock looks again
        if not steps.lock.acquire(blocking=False):
            return AGAIN
        try:
            steps.missed = False
            state, changed = self._advance(steps)
        finally:
            steps.lock.release()
        self._look_again(steps, changed)
        return state

    def _look_again(self, steps: Steps, changed: bool) -> None:
        """Completes futures that no further answer of the daemon would complete. To be called without the lock."""
        if changed or steps.missed:
            steps.missed = False
            connection: Connection = self.connection
            if connection._own_hub:
                connection._own_hub.look()

    def _advance(self, steps: Steps) -> tuple[int, bool]:
        """With the lock: the state, after the steps that can be started; and whether one was."""
        changed = False
        while steps.failure is None:
            state = super()._state()
            if steps.starting:
                return AGAIN, changed
            if state == AGAIN or state != OK and steps.found is None:
                return state, changed
            if steps.found is not None and not (state == FREED and self._how.again[0].is_name):
                return state, changed
            changed = steps.starting = True
            try:
                if steps.found is None:
                    self._start_second(steps)
                else:
                    self._start_anew(steps, steps.found)
            except Exception as error:
                self._name(error)
                steps.failure = error
            finally:
                steps.starting = False
        return getattr(steps.failure, "status", 0) or INVALID, changed

    def _start_second(self, steps: Steps) -> None:
        how: How = self._how
        connection: Connection = self.connection
        _, _, transport, least_path, boxes, place, group = how.again
        structure = self._take()
        found: _rdt.Ref = structure.info()["ref"]
        if steps.freed is not None and steps.freed[0] == found:
            raise steps.freed[1]
        if structure.is_manifest:
            raise parts_refused(how.again[0], "into")
        may_unpickle = partial(connection._may_unpickle, structure, how.allow_pickle)
        assert how.targets is not None
        targets = how.targets.in_order() if how.as_ == "list" or kind_of(how.into) else \
            how.targets.arrange(structure.metadata, structure.count, may_unpickle, connection._source_of(structure))
        if how.targets.skips:
            targets, boxes = _without_skipped(connection, structure, targets, boxes)
        (request,) = connection._fetch([found], steps.number, steps.left(), transport, least_path, boxes,
                                       [targets], place, group)
        steps.found, steps.version = found, structure.version
        self._go_on(steps, request)

    def _start_anew(self, steps: Steps, found: _rdt.Ref) -> None:
        """Goes on with the version that has taken the place of `found`."""
        ref, _, transport, least_path, _, _, group = self._how.again
        connection: Connection = self.connection
        try:
            super()._check()
        except Error as error:
            steps.freed = found, error
        (request,) = connection._fetch([ref], steps.number, steps.left(), transport, least_path, None, None,
                                       None, group, 0.0, True)
        steps.found = None
        self._go_on(steps, request)

    def _go_on(self, steps: Steps, request: Request) -> None:
        self._continue(request)
        steps.earlier.append(request)

    def _check(self) -> None:
        steps: Steps = self._how.steps
        self._state()
        if steps.failure is not None:
            raise steps.failure
        super()._check()

    def cancel(self) -> None:
        """Ends the request now with Cancelled, unless it has ended."""
        steps: Steps = self._how.steps
        with steps.lock:
            state = super()._state()
            if state == AGAIN:
                super().cancel()
            elif state == OK and steps.found is None and steps.failure is None and not steps.starting:
                steps.failure = Cancelled("the fetch was cancelled")  # before its second step
        self._look_again(steps, True)



def _still_running(timeout: Optional[float]) -> TimedOut:
    return TimedOut(f"the request is still running after {timeout} s; it was not cancelled")
