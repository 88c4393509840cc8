# SPDX-License-Identifier: Apache-2.0
"""Starts real daemons for the tests of the Python package, each in a folder of its own below $TMPDIR, and
ends them with the test."""
from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

BUILD = Path(os.environ["RDT_BUILD_DIR"])
SLOWER = 3 if os.environ.get("RDT_VARIANT") == "asan" else 1
LONG = 60.0
KEY = "cmR0ZCB0ZXN0cyBzaGFyZSB0aGlzIGtleSBvZiAzMiBieXRlcw==\n"


def until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Waits for a condition that no event reports."""
    deadline = time.monotonic() + seconds * SLOWER
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


nodes: list[Node] = []


class Node:
    def __init__(self, *flags: str, listen: bool = False, port: int = 0, table: bool = False,
                 keeps_identity: bool = False, namespace: Any = None) -> None:
        """namespace: in which the daemon runs (namespaces.py)."""
        self.dir = Path(tempfile.mkdtemp(prefix="n"))
        self.socket = str(self.dir / "s")
        state_dir = str(self.dir) if keeps_identity else ""
        self.command = [*(namespace.command if namespace else []), str(BUILD / "rdtd"), "--socket", self.socket,
                        "--state-dir", state_dir, "--backend-dir", str(BUILD / "backends"),
                        "--set", "daemon.pool_idle=100ms", *flags]
        if listen:
            (self.dir / "key").write_text(KEY)
            (self.dir / "key").chmod(0o600)
            address, interface = (namespace.address, "eth0") if namespace else ("127.0.0.1", "lo")
            self.command += ["--listen", f"{address}:{port}", "--key-file", str(self.dir / "key"),
                             "--trusted-network", "yes", "--interfaces", interface]
        if table:
            (self.dir / "nodes").write_text("")
            self.command += ["--nodes", str(self.dir / "nodes")]
        self.start()
        nodes.append(self)

    def start(self) -> None:
        """Starts the daemon, also again after it was killed."""
        (self.dir / "notify").unlink(missing_ok=True)
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(self.dir / "notify"))
        notify.settimeout(60)
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        environment["NOTIFY_SOCKET"] = str(self.dir / "notify")
        with open(self.dir / "log", "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            env=environment)
        while b"READY=1" not in notify.recv(4096):
            pass
        notify.close()
        self.fds = self.open_fds()

    def log(self) -> str:
        return (self.dir / "log").read_text(errors="replace")

    def open_fds(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def ctl(self, *arguments: str, may_fail: bool = False) -> str:
        environment = {**os.environ, "RDT_SOCKET": self.socket}
        environment.pop("LD_PRELOAD", None)
        done = subprocess.run([str(BUILD / "rdtctl"), *arguments], env=environment, capture_output=True,
                              text=True, timeout=LONG)
        assert done.returncode == 0 or may_fail, done.stderr
        return done.stdout

    def waiters(self) -> int:
        """How many requests of its clients wait."""
        clients = json.loads(self.ctl("limits", "--all", "--json"))["clients"]
        return sum(usage["used"] for client in clients for usage in client["usage"] if usage["what"] == "waiters")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LONG)

    def end(self) -> None:
        """Ends the daemon, which must have nothing left of its clients and exit with 0."""
        if self.process.poll() is not None:
            return
        until(lambda: '"generation"' not in self.ctl("objects", "--json"), "objects are gone")
        until(lambda: self.open_fds() <= self.fds + 1, f"fds are closed: {self.open_fds()} of {self.fds}")
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LONG)
        assert status == 0, f"rdtd ended with {status}:\n{self.log()}"

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *ignored: object) -> None:
        pass  # main() ends the daemon when the test's variables are gone


class Killed:
    """A daemon with a keeper. `kill_every` kills and starts it in a thread of its own."""

    def __init__(self, *flags: str) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="k"))
        self.keeper = subprocess.Popen([str(BUILD / "rdtd-keeper"), "--socket", str(self.dir / "keeper")],
                                       stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._keeper_serves, "the keeper listens")
        self.node = Node("--keeper", str(self.dir / "keeper"), *flags, keeps_identity=True)
        self.kills = 0

    def _keeper_serves(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.dir / "keeper")) == 0

    def kill(self, by: int = signal.SIGKILL) -> None:
        self.node.process.send_signal(by)
        self.node.process.wait(LONG)
        self.node.start()
        self.kills += 1

    @contextmanager
    def kill_every(self, seconds: float, by: int = signal.SIGKILL) -> Iterator[None]:
        over = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                while not over.wait(seconds):
                    self.kill(by)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if failures:
            raise failures[0]

    def __enter__(self) -> Killed:
        return self

    def __exit__(self, *ignored: object) -> None:
        if not ignored[0]:
            gc.collect()
            self.node.end()
        self.keeper.terminate()
        self.keeper.wait(LONG)


@contextmanager
def raises(kind: type[BaseException], text: str = "") -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert text in str(error), f"{kind.__name__} says {str(error)!r}, not {text!r}"
        return
    raise AssertionError(f"no {kind.__name__} ({text})")


def times_out(text: str, call: Callable[[], object]) -> None:
    """The call must raise TimedOut and say what it waited for. A machine that stood still makes librdt say it in words of its
    own: then once more."""
    for _ in range(5):
        try:
            call()
        except TimeoutError as error:
            said = str(error)
        else:
            raise AssertionError(f"no TimedOut ({text})")
        if not re.search(r"did not say how it ended|rdtd did not answer|has not said why", said):
            break
    assert text in said, f"TimedOut says {said!r}, not {text!r}"


class Skipped(Exception):
    """Why this test cannot run here."""


def optional(name: str) -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def required(name: str) -> Any:
    """The module; where it is not installed, the whole file is skipped."""
    module = optional(name)
    if module is None:
        print(f"no {name} here")
        sys.exit(77)
    return module


def need(module: Any, name: str) -> None:
    """Skips the test if an optional module is missing."""
    if module is None:
        raise Skipped(f"no {name} here")


def change_a_byte_of(value: bytes) -> None:
    """In librdt's memory, where nobody but a broken program writes."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            ends, access, *_ = line.split()
            start, end = [int(number, 16) for number in ends.split("-")]
            if access == "rw-s" and "memfd" in line and ctypes.string_at(start, end - start).startswith(value):
                ctypes.memset(start + 1000, value[1000] ^ 1, 1)
                return
    raise AssertionError("librdt does not have the bytes")


def in_a_line(error: BaseException) -> str:
    """Describes an error in one line: what was raised, and in which line of the tests. A report may show only
    the beginning of a long text."""
    frames = traceback.extract_tb(error.__traceback__)
    at = ([frame for frame in frames if frame.filename == sys.modules["__main__"].__file__] or frames)[-1]
    said = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {said} ({os.path.basename(at.filename)}:{at.lineno}: {at.line})"


def end(*nodes: Node) -> None:
    """Ends daemons, whose link keeps descriptors open while they run."""
    for node in nodes:
        node.process.terminate()
        assert node.process.wait(LONG) == 0, node.log()


@contextmanager
def cluster(count: int, *flags: str, namespaces: Any = None) -> Iterator[tuple[list[Node], list[Any]]]:
    """Nodes n0, n1 ... with one node table. Yields them and a connection to each, when all have met; ends them.
    namespaces: one for each (Node)."""
    rdtd = importlib.import_module("rdtd")
    made = [Node("--set", "network.peer_timeout=20s", *flags, listen=True, table=True,
                 namespace=namespaces[i] if namespaces else None)
            for i in range(count)]
    connections = [rdtd.connect(node.socket) for node in made]
    table = "".join(f"n{i} {c.node['address']}\n" for i, c in enumerate(connections))
    for node in made:
        (node.dir / "nodes").write_text(table)
        node.ctl("reload")
    for c in connections:
        until(lambda: sum(row["state"] == "up" for row in c.nodes()) == count - 1, "all have met")
    try:
        yield made, connections
    finally:
        for c in connections:
            c.close()
    end(*[node for node in made if node.process.poll() is None])


def main(tests: dict[str, object]) -> None:
    """Runs every test_* of a module, or those whose names contain one of the arguments, and prints a line for
    each. Exits with 77 if all were skipped. Ignores $T, by which make chooses test programs."""
    failed = ran = 0
    wanted = sys.argv[1:] or [""]
    skipped = []
    for name, test in list(tests.items()):
        if not name.startswith("test_") or not callable(test) or not any(part in name for part in wanted):
            continue
        started = time.monotonic()
        try:
            test()
            gc.collect()
            for node in nodes:
                node.end()
        except Skipped as why:
            skipped.append(f"{name[5:]}: {why}")
        except BaseException as error:
            failed += 1
            print(f"FAILED {name[5:]}: {in_a_line(error)}")
            traceback.print_exc(file=sys.stdout)
            for node in nodes:
                print(node.log())
        else:
            ran += 1
            print(f"ok {name[5:]} {time.monotonic() - started:.2f} s")
        sys.stdout.flush()
        for node in nodes:
            node.kill()
        nodes.clear()
    for line in skipped:
        print(f"skipped {line}")
    print(f"{ran} ran, {failed} failed, {len(skipped)} skipped")
    if not ran and not failed and not skipped:
        sys.exit(f"no test has {' or '.join(wanted)} in its name")
    sys.exit(1 if failed else 77 if not ran else 0)
