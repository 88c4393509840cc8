# SPDX-License-Identifier: Apache-2.0
"""Network namespaces with a link between them, for tests whose daemons are on nodes that share no interface. Needs root."""
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import Iterator


class Namespace:
    """Has the interface eth0, and lasts as long as its process. Daemons run in it by `command`, which shows them the /sys of
    its interfaces."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._process = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 86400"], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.made = self._process.stdout.readline() == b"\n"
        self.pid = self._process.pid
        self.command = ["nsenter", "-t", str(self.pid), "-n", "unshare", "-m", "sh", "-c",
                        'mount -t sysfs none /sys && exec "$@"', "sh"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def enter(pid: int) -> None:
    """This process has the network of that process from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as file:
        assert libc.setns(file.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


def _made(stack: ExitStack, count: int) -> list[Namespace]:
    spaces = [Namespace(f"10.79.1.{number + 1}") for number in range(count)]
    for one in spaces:
        stack.callback(one.close)
    if os.geteuid() or not all(one.made for one in spaces):
        print("network namespaces need root")
        sys.exit(77)
    return spaces


def _set_up(one: Namespace) -> str:
    return f"nsenter -t {one.pid} -n sh -c 'ip link set lo up && ip address add {one.address}/24 dev eth0 && " \
           "ip link set eth0 up'"


@contextmanager
def two() -> Iterator[list[Namespace]]:
    """Ends the test program as skipped where namespaces cannot be made."""
    with ExitStack() as stack:
        first, second = both = _made(stack, 2)
        script = [f"ip link add eth0 netns {first.pid} type veth peer name eth0 netns {second.pid}", *map(_set_up, both)]
        subprocess.run(["sh", "-c", " && ".join(script)], check=True)
        yield both


@contextmanager
def many(count: int) -> Iterator[list[Namespace]]:
    """The same for more of them, which a bridge in one more connects."""
    with ExitStack() as stack:
        bridge, *spaces = _made(stack, count + 1)
        inside = f"nsenter -t {bridge.pid} -n ip link"
        script = [f"{inside} add bridge type bridge", f"{inside} set bridge up"]
        for i, one in enumerate(spaces):
            script += [f"{inside} add v{i} type veth peer name eth0 netns {one.pid}", f"{inside} set v{i} master bridge up",
                       _set_up(one)]
        subprocess.run(["sh", "-c", " && ".join(script)], check=True)
        yield spaces
