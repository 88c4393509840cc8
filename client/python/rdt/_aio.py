"""Requests in event loops: the connection's descriptor is a reader of every loop that waits for something of it.

Whichever loop is woken reads the answers and looks at what all loops wait for; a thread that waits without a loop may read them too, and then
the descriptor stays readable until a loop has looked. So several loops and threads share one connection.

The loops have a descriptor of their own for it, which ends when no loop has it any more: they let go of it some time after the connection was
closed, when the next connection may have the number that it had.
"""
from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any

from . import _rdt
from ._errors import Error

AGAIN = _rdt.STATUSES["AGAIN"]
OK = _rdt.STATUSES["OK"]

_Waiting = dict["asyncio.Future[None]", _rdt.Request]


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Hub:
    """Who waits for what of one connection."""

    def __init__(self, connection: _rdt.Conn) -> None:
        self._connection = weakref.ref(connection)
        self._fd = os.dup(connection.fileno())
        weakref.finalize(self, os.close, self._fd).atexit = False
        # What the garbage collector finds may end while this very thread has the lock: a coroutine that waited here, or who closes the connection.
        self._lock = threading.RLock()
        self._waiting: dict[asyncio.AbstractEventLoop, _Waiting] = {}

    async def ended(self, request: _rdt.Request, *, cancels: bool = True) -> None:
        """Until the request has ended, well or not. Who is cancelled here cancels the request, unless told otherwise."""
        if request._state() != AGAIN:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            mine = self._waiting.setdefault(loop, {})
            mine[future] = request
            self._waiting[loop] = mine  # whence the last other one, that has just ended, may have taken it
            if len(mine) == 1:
                loop.add_reader(self._fd, self._readable)
        try:
            if request._state() == AGAIN:  # it may have ended before it was in the list
                await future
        except asyncio.CancelledError:
            if cancels:
                request.cancel()
            raise
        finally:
            with self._lock:
                mine.pop(future, None)
                if not mine and self._waiting.get(loop) is mine:
                    self._waiting.pop(loop, None)
                    loop.remove_reader(self._fd)

    def _readable(self) -> None:
        connection = self._connection()
        if connection is None:
            return
        try:
            connection.dispatch()
        except Error:
            pass  # every request has ended, and says so
        self._look()

    def _look(self) -> None:
        try:
            here: Any = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        with self._lock:
            ended = [(loop, future) for loop, mine in self._waiting.copy().items() for future, request in mine.copy().items()
                     if request._state() != AGAIN]
        for loop, future in ended:
            if loop is here:
                _finish(future)
            else:
                try:
                    loop.call_soon_threadsafe(_finish, future)
                except RuntimeError:
                    pass  # that loop was closed, and nobody waits there any more

    def closed(self) -> None:
        """After it was closed: all requests have ended."""
        self._look()
