# SPDX-License-Identifier: Apache-2.0
"""Starts a daemon for this node on demand, if the user asked for it.

$RDT_START_DAEMON asks for it: its value is a list of rdtd flags, or "1" for none. Such a daemon exits when it
has had no client for a minute. """
from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Sequence

ASKED = "RDT_START_DAEMON"
SYSTEM_SOCKET = "/run/rdtd/rdtd.sock"
IDLE_EXIT = "60s"
READY_SECONDS = 30.0


def wish(flags: Sequence[str]) -> None:
    """Makes `ensure` start a daemon from now on, in this process and in processes that inherit its
    environment."""
    os.environ[ASKED] = shlex.join(flags) if flags else "1"


def ensure() -> bool:
    """Starts a daemon if that was asked for and no daemon serves the socket. Returns when it serves;
    concurrent callers wait for it.

    Returns False if no daemon was asked for."""
    asked = os.environ.get(ASKED)
    if not asked:
        return False
    path = os.environ.get("RDT_SOCKET") or _socket_path()
    os.environ["RDT_SOCKET"] = path
    if _serves(path):
        return True
    flags = [] if asked == "1" else shlex.split(asked)
    folder = Path(path).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_own(folder.resolve())  # whoever can write there could lead the log elsewhere, and serve in the daemon's place
    with open(path + ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _serves(path):
            _start(path, flags)
    return True


def _socket_path() -> str:
    if _serves(SYSTEM_SOCKET):
        return SYSTEM_SOCKET
    folder = Path(tempfile.gettempdir()) / f"rdtd-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_own(folder)
    return str(folder / "rdtd.sock")


def _check_own(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} does not belong to this user alone: set RDT_SOCKET to a path in a "
                              "directory that does")


def _serves(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _program() -> str:
    # In a build tree: build/release/python/rdtd.
    built = Path(__file__).resolve().parent.parent.parent / "rdtd"
    for candidate in (os.environ.get("RDTD"), shutil.which("rdtd"), str(built)):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError("found no program rdtd to start: install it in a folder of PATH, or set $RDTD "
                            "to its path")


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _start(path: str, flags: Sequence[str]) -> None:
    program = _program()
    command = [program, "--socket", path, "--state-dir", "", "--idle-exit", IDLE_EXIT]
    beside = Path(program).parent / "backends"
    if beside.is_dir() and "--backend-dir" not in flags:
        command += ["--backend-dir", str(beside)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RDTD_")
                   and name != "NOTIFY_SOCKET"}
    log_path = path + ".log"
    # A shell that exits at once starts the daemon, because a Ray worker kills its children when it ends.
    with open(log_path, "ab") as log:
        started = subprocess.run(["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command, *flags],
                                 stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=log, env=environment, cwd="/",
                                 start_new_session=True, check=True)
    pid = int(started.stdout)
    deadline = time.monotonic() + READY_SECONDS
    while not _serves(path):
        if not _runs(pid):
            said = Path(log_path).read_text(errors="replace").strip().splitlines()
            raise ChildProcessError(f"rdtd exited at once: {said[-1] if said else 'it printed nothing'}")
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"rdtd did not serve {path} within {READY_SECONDS:g} s: see {log_path}")
        time.sleep(0.01)
