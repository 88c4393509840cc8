# SPDX-License-Identifier: Apache-2.0
"""A daemon is killed when a version is complete and before its publishers know it: the next daemon tells them."""
from __future__ import annotations

import array
import os
import socket
import struct
import tempfile
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

from nodes import LONG, Killed, main, raises, until

import rdtd

HOLD, PUBLISH_PART = 21, 70


class Between:
    """Stands between clients and a daemon, passes on what they say to each other, and can swallow the answers."""

    def __init__(self, to: str) -> None:
        self.to, self.path = to, os.path.join(tempfile.mkdtemp(prefix="b"), "s")
        self.parts = 0  # messages that have come and publish a part, or may ask for the version of one
        self.swallow_at: Optional[int] = None  # a connection on which the one with this number comes gets no more answers
        self.all_deaf = False  # each connection that publishes a part gets no more answers
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            daemon = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                daemon.connect(self.to)
            except OSError:
                client.close()
                daemon.close()
                continue
            deaf = threading.Event()
            for one, other, look in (client, daemon, self._look(deaf)), (daemon, client, self._pass_unless(deaf)):
                threading.Thread(target=self._pass, args=(one, other, look), daemon=True).start()

    def _look(self, deaf: threading.Event) -> Callable[[bytes], bool]:
        stream = bytearray()

        def look(data: bytes) -> bool:
            stream.extend(data)
            while len(stream) >= 16:
                length, kind = struct.unpack_from("<IH", stream)
                if len(stream) < 16 + length:
                    break
                self.parts += kind in (HOLD, PUBLISH_PART)
                if self.parts == self.swallow_at or (self.all_deaf and kind == PUBLISH_PART):
                    deaf.set()
                del stream[:16 + length]
            return True

        return look

    @staticmethod
    def _pass_unless(deaf: threading.Event) -> Callable[[bytes], bool]:
        return lambda data: not deaf.is_set()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket, may: Callable[[bytes], bool]) -> None:
        try:
            while True:
                data, ancillary, _, _ = one.recvmsg(1 << 16, 1 << 12)
                fds = array.array("i")
                for level, kind, body in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        fds.frombytes(body[:len(body) // 4 * 4])
                passes = may(data)  # counts before the daemon can answer
                if not data:
                    break
                if passes:
                    sent = other.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else [])
                    other.sendall(data[sent:])
                for fd in fds:
                    os.close(fd)
        except OSError:
            pass
        for end in one, other:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@contextmanager
def in_thread(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """What the call returns or raises is in the list when the block has ended."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(call())
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield got
    thread.join(LONG)
    assert got, "it has not returned"


def test_publishing_returns_the_version_that_was_complete() -> None:
    with Killed() as killed:
        between = Between(killed.node.socket)
        with rdtd.connect(between.path) as trainer, rdtd.connect(killed.node.socket) as reader:
            for step in 1, 2:
                between.parts = 0
                version = trainer.publishing("policy", step=step, timeout=LONG)
                version.add("w", bytes([step]) * 3000000)
                until(lambda: between.parts == 2, "its beginning and its piece are there")
                between.swallow_at = 3
                with in_thread(version.end) as got:
                    reader.wait_put(reader.name("policy", step - 1), timeout=LONG)
                    between.swallow_at = 4 if step == 2 else None
                    killed.kill()
                    if step == 2:  # the question about it is lost with the next daemon as well
                        until(lambda: between.parts >= 4, "it asks")
                        killed.node.kill()
                        time.sleep(0.5)  # longer than a call that waits for nothing
                        between.swallow_at = None
                        killed.node.start()
                assert got == [step], got
            assert bytes(reader.get(reader.name("policy"))["w"]) == bytes([2]) * 3000000
        with rdtd.connect(killed.node.socket) as reader:
            reader.unpublish("policy")


def test_parts_of_ranks_are_answered_with_their_version() -> None:
    with Killed() as killed:
        between = Between(killed.node.socket)
        ranks = [rdtd.connect(between.path) for _ in range(2)]
        reader = rdtd.connect(killed.node.socket)
        for step in 1, 2:
            parts = [c.put_part({"w": rdtd.Box(bytes([step]) * 1000, (2000,), (1000 * rank,))})
                     for rank, c in enumerate(ranks)]
            between.parts, between.all_deaf = 0, True
            with in_thread(lambda: ranks[0].publish_part("policy", step, 0, 2, parts[0], timeout=LONG)) as first, \
                    in_thread(lambda: ranks[1].publish_part("policy", step, 1, 2, parts[1], timeout=LONG)) as second:
                reader.wait_put(reader.name("policy", step - 1), timeout=LONG)
                between.all_deaf = False
                killed.kill()
            assert first == second == [step], (first, second)
            assert ranks[1].publish_part("policy", step, 1, 2, parts[1], timeout=LONG) == step, "once more"
            with raises(rdtd.Invalid, "steps must grow"):
                ranks[0].publish_part("policy", step, 0, 2, parts[1], timeout=LONG)
            with raises(rdtd.Invalid, "steps must grow"):
                ranks[0].publish_part("policy", step, 0, 2, {"w": bytes(2000)}, timeout=LONG)
        assert bytes(reader.get(reader.name("policy"))["w"]) == bytes([2]) * 2000
        reader.unpublish("policy")
        for c in ranks:
            c.close()
        reader.close()


def test_parts_of_a_version_that_was_not_complete_are_to_be_published_again() -> None:
    with Killed() as killed, rdtd.connect(killed.node.socket) as c:
        part = c.put_part({"w": rdtd.Box(bytes(1000), (2000,), (0,))})
        with in_thread(lambda: c.publish_part("policy", 1, 0, 2, part, timeout=LONG)) as got:
            until(lambda: "1 of 2" in killed.node.ctl("shards", "policy", may_fail=True) or killed.node.waiters() == 1, "it waits")
            killed.kill()
        assert isinstance(got[0], rdtd.Restarted) and "let all ranks publish it again" in str(got[0]), got
        rest = c.put_part({"w": rdtd.Box(bytes(1000), (2000,), (1000,))})
        request = c.start_part("policy", 1, 0, 2, part, timeout=LONG)
        assert c.publish_part("policy", 1, 1, 2, rest, timeout=LONG) == 1
        request.result()
        c.unpublish("policy")


if __name__ == "__main__":
    main(globals())
