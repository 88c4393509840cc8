# SPDX-License-Identifier: Apache-2.0
"""Processes and forked children that close descriptors by their numbers, as programs do that become daemons."""
from __future__ import annotations

import asyncio
import gc
import os
import select
import socket
import traceback
from typing import Any, Callable

import rdtd
from nodes import LONG, Node, main, raises, required

np = required("numpy")


def in_child(run: Callable[[], None]) -> None:
    """Forks, and runs it in the child."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def open_files(node: Node) -> dict[int, tuple[int, int]]:
    """Takes the lowest free numbers for files of all kinds, each known by its device and inode."""
    opened: list[int] = []
    for _ in range(5):
        with select.epoll() as events:
            opened.append(os.dup(events.fileno()))
        opened += [os.open(node.dir / "log of the child", os.O_CREAT | os.O_WRONLY), *os.pipe(), socket.socket().detach()]
        if hasattr(os, "eventfd"):
            opened.append(os.eventfd(0))
    return {fd: (os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in opened}


def unchanged(files: dict[int, tuple[int, int]], node: Node) -> None:
    for fd, file in files.items():
        assert (os.fstat(fd).st_dev, os.fstat(fd).st_ino) == file, f"descriptor {fd} is another file"
    assert not (node.dir / "log of the child").read_bytes()


def kept_over(c: rdtd.Connection) -> Any:
    """An array of the connection, which also has a descriptor for event loops."""

    async def fetch(ref: rdtd.Ref) -> Any:
        return await c.fetch(ref)
    return asyncio.run(fetch(c.put(np.ones(100000)).keep()))


def test_child_that_closes_descriptors_by_number_keeps_its_own() -> None:
    with Node() as node:
        c = rdtd.connect(node.socket)
        arrays = [kept_over(c)]

        def close_and_open() -> None:
            os.closerange(3, 256)
            files = open_files(node)
            arrays.clear()
            gc.collect()
            c.close()
            unchanged(files, node)

        def close_and_connect() -> None:
            os.closerange(3, 256)
            mine = rdtd.connect(node.socket)
            ref = mine.put(np.ones(1000), id="of the child")
            arrays.clear()
            c.close()
            gc.collect()
            assert mine.get(ref).sum() == 1000
            asyncio.run(mine.put_async(b"x")).free()
            ref.free()
            mine.close()

        def close_nothing() -> None:
            before = len(os.listdir("/proc/self/fd"))
            arrays.clear()
            gc.collect()
            c.close()
            assert len(os.listdir("/proc/self/fd")) < before - 4, "the copies are closed"

        for run in close_and_open, close_and_connect, close_nothing:
            in_child(run)
        assert c.get(c.put(b"y")) == b"y" and arrays[0].sum() == 100000
        arrays.clear()
        c.close()


def test_process_that_closes_descriptors_by_number_keeps_its_own() -> None:
    with Node() as node:
        def run() -> None:
            c, other = rdtd.connect(node.socket), rdtd.connect(node.socket)
            arrays = [kept_over(c), kept_over(other)]
            waiting = c.fetch(rdtd.Ref("never"))
            os.closerange(3, 256)
            files = open_files(node)
            mine = rdtd.connect(node.socket)
            with raises(rdtd.Disconnected, "this process has closed descriptor"):
                c.put(np.ones(1000))
            with raises(rdtd.Disconnected):
                c.dispatch()
            with raises(rdtd.Disconnected):
                waiting.result(LONG)
            arrays.clear()
            gc.collect()
            del waiting
            c.close()
            other.close()
            unchanged(files, node)
            with mine.put(np.ones(10)) as ref:
                assert mine.get(ref).sum() == 10
            mine.close()
        in_child(run)


if __name__ == "__main__":
    main(globals())
