# SPDX-License-Identifier: Apache-2.0
"""Requests in event loops: every loop that waits for a request watches the connection's descriptor.

Whichever loop wakes up reads the answers and completes the futures of all loops. A thread that waits without
a loop may read answers too; the descriptor then stays readable until somebody has looked: a loop, or whoever calls
dispatch(). So several loops and threads can share one connection.

The loops watch a duplicate of the descriptor, which is closed when no loop uses it any more. They remove it
some time after the connection was closed, and by then a new connection may have the number of the original.
"""
from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import weakref
from typing import Any, Callable, Optional, TypeVar

from . import _rdt
from ._errors import Cancelled, Error

AGAIN = _rdt.STATUSES["AGAIN"]
OK = _rdt.STATUSES["OK"]

_Waiting = dict["asyncio.Future[None]", Any]  # the values are Requests


_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()


def forked() -> None:
    """In a child after a fork, before any other code of it: closes the duplicates there."""
    for hub in list(_hubs):
        hub._close()


def _close(fd: int) -> None:
    """Closes the duplicate, unless this process has closed it by its number and has another file there."""
    try:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("[eventpoll]"):
            os.close(fd)
    except OSError:
        pass


_ENDS_SECONDS = 1.0  # all threads of the executor may be at work, so that a call which was given up has not begun
_T = TypeVar("_T")


async def in_thread(call: Callable[[], _T], undo: Optional[Callable[[_T], None]] = None) -> _T:
    """Makes a call in a thread of the loop's executor. If this coroutine is cancelled, as after Ctrl-C, the call ends within a
    tenth of a second: asyncio.run waits for its thread. undo: gets what the call has returned nevertheless."""
    given_up = bytearray(1)

    def run() -> _T:
        _rdt.give_up_by(given_up)
        try:
            if given_up[0]:
                raise Cancelled("the call was given up before it began")
            return call()
        finally:
            _rdt.give_up_by(None)

    def end(done: asyncio.Future[_T]) -> None:
        if not done.cancelled() and done.exception() is None and undo is not None:
            undo(done.result())

    running = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        given_up[0] = 1
        running.add_done_callback(end)
        await asyncio.wait([running], timeout=_ENDS_SECONDS)
        raise
    finally:
        del running  # its exception refers to this frame


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Hub:
    """The futures of all event loops that wait for requests of one connection."""

    def __init__(self, connection: _rdt.Conn) -> None:
        self._connection = weakref.ref(connection)
        self._fd = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        self._close = weakref.finalize(self, _close, self._fd)
        self._close.atexit = False
        _hubs.add(self)
        # Reentrant: the garbage collector may end a waiting coroutine, or close the connection, in the thread
        # that holds the lock.
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self.interrupted = False  # look() is running, or was ended by an exception such as Ctrl-C
        self._waiting: dict[asyncio.AbstractEventLoop, _Waiting] = {}

    async def ended(self, request: _rdt.Request, *, cancels: bool = True) -> None:
        """Waits until the request has ended, with a result or an error. With `cancels`, cancelling this
        coroutine cancels the request."""
        if request._state() != AGAIN:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        mine: _Waiting = {}
        try:
            with self._lock:
                mine = self._waiting.setdefault(loop, mine)
                mine[future] = request
                self._waiting[loop] = mine  # the last other waiter may have removed the entry just now
                if len(mine) == 1:
                    loop.add_reader(self._fd, self._readable)
            if request._state() == AGAIN:  # it may have ended before it was registered
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
            connection.dispatch()  # and looks
        except Error:
            pass  # every request has ended with this error

    def look(self) -> None:
        """Completes the futures of the requests that have ended: after each dispatch() that reports one, whoever called it,
        and after the connection was closed. Does nothing in a child after a fork, where nobody may hold the lock."""
        if os.getpid() != self._pid:
            return
        try:
            here: Any = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        self.interrupted = True
        with self._lock:
            waiting = [(loop, future, request) for loop, mine in self._waiting.copy().items()
                       for future, request in mine.copy().items()]
        for loop, future, request in waiting:
            if request._state_if_free() == AGAIN:  # which may start another step, and run any code
                continue
            if loop is here:
                _finish(future)
            else:
                try:
                    loop.call_soon_threadsafe(_finish, future)
                except RuntimeError:
                    pass  # that loop was closed, so nobody waits in it
        self.interrupted = False
