# SPDX-License-Identifier: Apache-2.0
"""Published names: what `publish` returns, and the iteration over the versions of a name."""
from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, AsyncIterator, Iterator, Optional

from . import _rdt
from ._aio import in_thread
from ._errors import (Disconnected, Freed, NotFound, OwnerDied, PeerLost, Restarted, ShuttingDown,
                      SystemFailed, TimedOut, printable)
from ._requests import Fetched, Ref, Request

if TYPE_CHECKING:
    from ._connection import Connection


class Published(int):
    """The version that `Connection.publish` returned; `ref` is the Ref of the name, for other nodes and
    users."""

    ref: Ref

    def __new__(cls, version: int, ref: Ref) -> Published:
        made = super().__new__(cls, version)
        made.ref = ref
        return made

    def __reduce__(self) -> Any:
        return Published, (int(self), self.ref)


class Versions(Iterator[tuple[int, Any]], AsyncIterator[tuple[int, Any]]):
    """See Connection.versions. The iteration never ends by itself; it raises what the fetch of a version
    raises."""

    def __init__(self, connection: Connection, name: _rdt.Ref, after: int, reconnect: bool,
                 options: dict[str, Any]) -> None:
        self.after = after
        self._given = self._connection = connection
        self._name = name
        self._reconnect = reconnect
        self._options = options
        self._last: Optional[_rdt.Ref] = None  # the object that was returned last

    def __repr__(self) -> str:
        name = self._name.id.decode("utf-8", "backslashreplace")
        where = f" at {self._name.address}" if self._name.address else ""
        return printable(f"<rdtd.Versions of name {name}{where} after version {self.after}>")

    def _next(self, timeout: Optional[float]) -> Request:
        options = dict(self._options, timeout=timeout)
        request: Request = self._connection.fetch(self._newer_than(self.after), **options)
        return request

    def _newer_than(self, after: int) -> Ref:
        return Ref.from_name(self._name.id.decode(), after, near=self._name)

    def _got(self, got: Fetched) -> tuple[int, Any]:
        self.after = got.version
        self._last = got.ref
        return got.version, got.value

    def __iter__(self) -> Versions:
        return self

    def __next__(self) -> tuple[int, Any]:
        attempt = _Attempt(self, self._options.get("timeout"))
        while True:
            if not attempt.renew():
                time.sleep(attempt.pause())
                continue
            try:
                return self._got(self._next(attempt.left())._result_or_cancel(True))
            except TimedOut as error:
                raise error from attempt.failure
            except attempt.errors as error:
                attempt.failed(error)
                time.sleep(attempt.pause())

    def __aiter__(self) -> Versions:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        attempt = _Attempt(self, self._options.get("timeout"))
        while True:
            if attempt.errors and not await in_thread(attempt.renew):
                await asyncio.sleep(attempt.pause())
                continue
            try:
                return self._got(await self._next(attempt.left()).fetched_async())
            except TimedOut as error:
                raise error from attempt.failure
            except attempt.errors as error:
                attempt.failed(error)
                await asyncio.sleep(attempt.pause())


class _Attempt:
    """One step of Versions: what it tries again, and when."""

    def __init__(self, versions: Versions, timeout: Optional[float]) -> None:
        self.errors = (PeerLost, Disconnected, Restarted, ShuttingDown, OwnerDied) if versions._reconnect else ()
        self._versions = versions
        self._end = None if timeout is None else time.monotonic() + timeout
        self._pause = 0.05
        self.failure: Optional[Exception] = None  # of the last attempt

    def left(self) -> Optional[float]:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def failed(self, error: Exception) -> None:
        self.failure = error

    def pause(self) -> float:
        """How long to wait before the next attempt. Raises TimedOut if no time is left, and the last error if the program
        closed its connection."""
        left = self.left()
        if self.failure and self._versions._given.closed:
            raise self.failure
        if self.failure and left is not None and left <= 0:
            raise TimedOut(f"no version above {self._versions.after} came in time: {self.failure}") from self.failure
        self._pause = min(2 * self._pause, 2.0)
        return self._pause if left is None else min(self._pause, left)

    def renew(self) -> bool:
        """Before each attempt: connects anew if the connection is lost, and finds out from where the versions are
        counted now. The publisher's node may have restarted since the last version came, without any error here, and
        then counts from 1. False: that cannot be found out yet."""
        versions = self._versions
        if not self.errors or versions._given.closed or (versions._last is None and self.failure is None):
            return True
        try:
            if not versions._connection._is_alive():
                versions._connection = versions._given._reopened()
            if self._is_other():
                versions.after = 0
        except (*self.errors, SystemFailed, TimedOut) as error:
            self.failed(error)
            return False
        return True

    def _is_other(self) -> bool:
        """Whether the numbers are not those of the version that came last: then the newest version is new."""
        versions = self._versions
        try:
            return bool(versions._connection.stat(versions._newer_than(0))["ref"] != versions._last)
        except NotFound:
            if self.failure is not None:
                return True  # whatever comes next is new
        try:
            versions._connection.stat(versions._newer_than(versions.after))
        except NotFound:
            return True  # nobody there knows the name
        except (Freed, OwnerDied):
            pass  # it has ended, as the fetch will say
        return False
