# SPDX-License-Identifier: Apache-2.0
"""Processes for the tests of engines: each holds an object and answers calls, one at a time, until it is killed or closed."""
from __future__ import annotations

import atexit
import contextlib
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import traceback
from typing import Any

atexit.register(multiprocessing.forkserver._forkserver._stop)  # type: ignore[attr-defined]  # waits for the server's end

LONG = 240.0  # a busy machine takes minutes to import torch and an engine


def _serve(end: Any, module: str, name: str, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            served = getattr(importlib.import_module(module), name)(end, *arguments)
            end.send((True, None))
            while True:
                method, given = end.recv()
                try:
                    end.send((True, getattr(served, method)(*given)))
                except Exception:
                    end.send((False, traceback.format_exc()))
        except (EOFError, ConnectionError):
            raise
        except BaseException:
            end.send((False, traceback.format_exc()))
    os._exit(0)  # without the destructors of libraries


class Process:
    """cls: its objects are made as cls(end, *arguments), where end.send((None, word)) reports a step of a call."""

    def __init__(self, cls: type, *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")  # importing torch takes longer than most tests
        context.set_forkserver_preload(["torch", *(name for name in ("rdtd.verl",) if name in sys.modules)])
        self._end, theirs = context.Pipe()
        module = cls.__module__
        if module == "__main__":  # its name there, where the main program does not run again
            module = os.path.splitext(os.path.basename(sys.modules["__main__"].__file__ or ""))[0]
        self._process = context.Process(target=_serve, args=(theirs, module, cls.__name__, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.result()

    def start(self, method: str, *arguments: Any) -> None:
        self._end.send((method, arguments))

    def step(self) -> Any:
        """Waits until the process reports a step of the call."""
        assert self._end.poll(LONG), "the process reports no step"
        fine, value = self._end.recv()
        assert fine is None, value
        return value

    def result(self) -> Any:
        assert self._end.poll(LONG), "the process does not answer"
        fine, value = self._end.recv()
        assert fine is not None, "a step was not awaited"
        if not fine:
            raise RuntimeError(value)
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        self.start(method, *arguments)
        return self.result()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._end.close()

    def close(self) -> None:
        self._end.close()
        self._process.join(LONG)
        assert self._process.exitcode == 0, f"the process ended with {self._process.exitcode}"


def calls(processes: list[Process], method: str, *arguments: Any) -> list[Any]:
    for process in processes:
        process.start(method, *arguments)
    return [process.result() for process in processes]
