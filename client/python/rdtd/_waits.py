# SPDX-License-Identifier: Apache-2.0
"""Connection's calls that wait: for requests, in threads and event loops; for puts and the ends of objects; and holds."""
from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Literal, Optional, Sequence, Union

from . import _rdt
from ._aio import AGAIN, Hub
from ._check import checked, shown
from ._errors import Error
from ._requests import HOLD, FetchInto, Held, Ref, Request


def _steps_of(requests: Sequence[Request]) -> int:
    return sum([len(request._how.steps.earlier) for request in requests if isinstance(request, FetchInto)])


def _ended(requests: Sequence[Request]) -> list[bool]:
    """Which requests have ended; starts second steps. Raises the error of one that failed."""
    ended = [request._state() != AGAIN for request in requests]
    for request, yes in zip(requests, ended):
        if yes:
            request._check()
    return ended


def _name(requests: Sequence[Request], error: Error) -> None:
    """Makes the error of one of the requests name the target that it speaks of."""
    for request in requests:
        try:
            _rdt.Request._check(request)
        except Error as own:
            if str(own) == str(error):
                request._name(error)
                return


def _in_first_step(requests: Sequence[Request]) -> bool:
    return any([isinstance(request, FetchInto) and request._how.steps.found is None for request in requests])


def returns_errors(errors: str) -> bool:
    if errors not in ("raise", "return"):
        raise ValueError(f"errors must be \"raise\" or \"return\", not {errors!r}")
    return errors == "return"


def _listed(requests: Any) -> list[Request]:
    if isinstance(requests, (str, bytes)) or not hasattr(requests, "__iter__"):
        raise TypeError(f"requests must be a list of Requests, not {shown(requests)}")
    listed = list(requests)
    for i, request in enumerate(listed):
        if not isinstance(request, Request):
            raise TypeError(f"requests[{i}] must be a Request, not {shown(request)}")
    return listed


def _number_of(listed: Sequence[Any], how_many: Any) -> int:
    number = how_many
    if isinstance(how_many, str):
        number = {"all": len(listed), "any": min(1, len(listed))}.get(how_many)
    if not isinstance(number, int) or isinstance(number, bool) or number < -1 or number > len(listed):
        raise ValueError(f"how_many must be \"all\", \"any\" or 0 to {len(listed)}, not {how_many!r}")
    return len(listed) if number == -1 else number


class WaitCalls(_rdt.Conn):
    """The part of Connection that waits."""

    _hub_lock = threading.Lock()
    _own_hub: Optional[Hub] = None

    def _hub(self) -> Hub:
        if self._own_hub is None:
            with self._hub_lock:
                if self._own_hub is None:
                    self._own_hub = Hub(self)
        return self._own_hub

    # ---- holding ----

    @checked
    def when_held(self, ref: _rdt.Ref, *, timeout: Optional[float] = None) -> Request:
        """A Request whose result is a Ref that holds the object, with its generation. For an id that has not
        been put yet, or a name without a version above `after`, the request waits."""
        request = self._start(HOLD, ref, 0, 0, timeout)
        request._how = Held(ref._hint, ref)
        return request

    @checked
    def hold(self, ref: _rdt.Ref, *, timeout: Optional[float] = None) -> Ref:
        """Takes a hold and waits for it. Returns a Ref that holds the object while the Ref exists (`with
        c.hold(ref) as held:`), on this node or another, whatever the producer does. No bytes are moved.

        Errors: Freed, OwnerDied, NotFound, Denied, LimitReached, PeerLost, TimedOut."""
        held: Ref = self.when_held(ref, timeout=timeout)._result_or_cancel()
        return held

    def _hold_too(self, ref: Any) -> None:
        how, ref._wanting = ref._wanting, 0  # only one of several threads takes it
        if not how:
            return
        try:
            ref._hold = self._start(how, ref, 0, 0, None)
        except BaseException:
            ref._wanting = how
            raise

    # ---- waiting ----

    @checked
    def wait(self, requests: Sequence[Request], how_many: Union[int, Literal["all", "any"]] = "all",
             timeout: Optional[float] = None, *,
             errors: Literal["raise", "return"] = "raise") -> tuple[list[Request], list[Request]]:
        """Waits until `how_many` of the requests have ended or `timeout` seconds have passed (None: no limit;
        0: polls).

        Returns (ended requests, running requests). A timeout cancels nothing. If a request has failed or
        fails meanwhile, its error is raised at once. errors="return": a request that failed has ended like any
        other, and only its `result` raises the error."""
        listed = _listed(requests)
        number = _number_of(listed, how_many)
        ended = self._wait_each(listed, number, timeout) if returns_errors(errors) else self._wait_for(listed, number, timeout)
        return [r for r, yes in zip(listed, ended) if yes], [r for r, yes in zip(listed, ended) if not yes]

    def _wait_for(self, requests: list[Request], number: int, timeout: Optional[float]) -> list[bool]:
        """_wait, also for requests of more than one step."""
        if not any([isinstance(request, FetchInto) for request in requests]):
            try:
                return self._wait(requests, number, timeout)
            except Error as error:
                _name(requests, error)
                raise
        end = None if timeout is None else time.monotonic() + timeout
        left = timeout
        while True:
            failure = None
            wanted = number
            if _in_first_step(requests):  # the second step of one must not wait for the others
                wanted = min(number, 1 + sum(_ended(requests)))
            before = _steps_of(requests)
            try:
                self._wait(requests, wanted, left)
            except Error as error:
                failure = error
            ended = _ended(requests)
            if failure is not None and _steps_of(requests) == before:
                _name(requests, failure)
                try:
                    raise failure
                finally:
                    failure = None  # its traceback has this frame, which would keep the requests
            if sum(ended) >= number or left == 0:
                return ended
            left = None if end is None else max(0.0, end - time.monotonic())

    def _wait_each(self, requests: list[Request], number: int, timeout: Optional[float]) -> list[bool]:
        """As _wait_for, but a request that has failed has ended like any other."""
        end = None if timeout is None else time.monotonic() + timeout
        left = timeout
        while True:
            ended = [request._state() != AGAIN for request in requests]
            if sum(ended) >= number:
                return ended
            # the second step of one must not wait for the others
            self._wait(requests, min(number, 1 + sum(ended)) if _in_first_step(requests) else number, left, True)
            if left == 0:
                return [request._state() != AGAIN for request in requests]
            left = None if end is None else max(0.0, end - time.monotonic())

    @checked
    async def wait_async(self, requests: Sequence[Request],
                         how_many: Union[int, Literal["all", "any"]] = "all",
                         timeout: Optional[float] = None) -> tuple[list[Request], list[Request]]:
        """Like `wait`, for event loops. If the waiting task is cancelled, the requests go on."""
        listed = _listed(requests)
        wanted = _number_of(listed, how_many)
        for connection in {self, *[request.connection for request in listed]}:
            connection.dispatch()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        waiting = {loop.create_task(r.connection._hub().ended(r, cancels=False)) for r in listed
                   if r._state() == AGAIN}
        try:
            while True:
                ended = _ended(listed)
                left = None if deadline is None else max(0.0, deadline - loop.time())
                if sum(ended) >= wanted or left == 0:
                    return ([r for r, yes in zip(listed, ended) if yes],
                            [r for r, yes in zip(listed, ended) if not yes])
                _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    @checked
    def when_put(self, ref: _rdt.Ref, *, timeout: Optional[float] = None) -> Request:
        """A Request that ends when the object has been put, or the name has a version above `after`."""
        return self._start(_rdt.WAIT_PUT, ref, 0, 0, timeout)

    @checked
    def when_freed(self, what: Any, *, timeout: Optional[float] = None) -> Request:
        """A Request that ends when the object has no hold and no transfer left on any node. Its memory may
        then be written again.

        what: a Ref; or an array from `empty` or a view of it, which means every object that overlaps it. The
        producer's hold counts, and so does the hold of every Ref, `what` included: free them first. If the
        object has already ended, the request ends at once.
        Errors: Invalid (an array in memory that is not from `empty`)."""
        if isinstance(what, _rdt.Ref):
            return self._start(_rdt.WAIT_FREED, what, 0, 0, timeout)
        try:
            address, count = self._span(what)
        except (TypeError, ValueError) as error:
            raise TypeError(f"what must be a Ref or an array from empty, not {shown(what)}") from error
        if count == 0:
            raise ValueError("the array has no elements, so no object overlaps it")
        return self._start(_rdt.WAIT_FREED_RANGE, None, address, count, timeout)

    @checked
    def wait_put(self, ref: _rdt.Ref, *, timeout: Optional[float] = None) -> None:
        """Waits for `when_put`. Errors: TimedOut, Freed (the name was unpublished)."""
        self.when_put(ref, timeout=timeout)._result_or_cancel()

    @checked
    def wait_freed(self, what: Any, *, timeout: Optional[float] = None) -> None:
        """Waits for `when_freed`. Errors: TimedOut (the message names who holds the object, or for an array one
        object that overlaps it and its holders, as far as this user may see: `stat`)."""
        self.when_freed(what, timeout=timeout)._result_or_cancel()
