# SPDX-License-Identifier: Apache-2.0
"""The versions of a name for an engine of several processes, which must all load the same one: which one, and its tensors in
the memory that all processes of the node share. _node_weights.py is for processes that load by themselves. Imports torch when a
version is taken."""
from __future__ import annotations

import time
from typing import Any, Callable, Mapping, Optional, Sequence

from ._arrays import torch
from ._check import checked
from ._connection import Connection
from ._errors import Invalid, TimedOut

Gather = Callable[[Any], Sequence[Any]]
"""Gives each process of an engine what all of them have passed, by rank."""


def alone(mine: Any) -> Sequence[Any]:
    """The Gather of an engine of one process."""
    return [mine]


class Weights:
    """Follows a name for one process of an engine, from now on. The node fetches each version once for all of its processes.

    name, address: as for `Connection.follow`. socket: as for `Connection`. timeout: seconds that `take` waits. gather: for an
    engine of several processes, which must all load the same version."""

    @checked
    def __init__(self, name: str, socket: Optional[str] = None, address: Optional[str] = None, *,
                 timeout: Optional[float] = None, gather: Gather = alone) -> None:
        self._connection = Connection(socket, name="engine")
        self._name = name
        self._address = address
        self._follower = self._connection.follow(name, address=address)
        self._timeout = timeout
        self._gather = gather
        self._asked = 0
        self.version = 0
        """That was taken last; 0: none."""
        self.tensors: dict[str, Any] = {}
        """Of that version, until `drop`: by name, torch tensors in host memory, which must not be written."""

    def take(self, asked: int = 0) -> int:
        """Waits until a version is whole on this node, the newest one, and if `asked` is not 0, this one or a later one.
        Returns its number, which is `version`, and `tensors` are its tensors. All processes of an engine call it together,
        and get the same version, or all of them an error.

        Errors: TimedOut (the sentence says what the daemon does), Invalid (the version is no dict of tensors), RuntimeError
        (another process of the engine has no version; says why), and those of Follower.prepare."""
        end = None if self._timeout is None else time.monotonic() + self._timeout
        # A number below the last one that was asked for is of a new count: the trainer's daemon was replaced.
        counted_anew = 0 < asked < self._asked
        least = asked
        while True:
            failure = None
            try:
                self._reconnect()
                self._prepare(least, end, counted_anew)
            except Exception as error:
                failure = error
            all_ = self._gather((self.version, f"{type(failure).__name__}: {failure}" if failure else None))
            if failure is not None:
                raise failure
            said = next((why for _, why in all_ if why is not None), None)
            if said is not None:
                raise RuntimeError(f"another process of this engine has no version of {self._name!r} to load: {said}")
            if len({version for version, _ in all_}) == 1:
                self._asked = asked or self._asked
                return self.version
            counted_anew = False
            least = max(version for version, _ in all_)

    def _reconnect(self) -> None:
        """If the daemon was replaced by one that knows nothing of this process, follows the name there."""
        if self._connection._is_alive():
            return
        self.drop()
        self._connection = self._connection._reopened()
        self._follower, self.version = self._connection.follow(self._name, address=self._address), 0

    def _prepare(self, least: int, end: Optional[float], counted_anew: bool) -> None:
        while True:
            have = 0 < self.version >= least and not counted_anew
            try:
                self._follower.prepare(0 if have else None if end is None else max(0.0, end - time.monotonic()))
            except TimedOut:
                if not have:
                    raise
                if self.tensors:
                    return
                # The version that was dropped, once more.
                again = self._connection.follow(self._name, address=self._address)
                self._follower.close()
                self._follower, self.version = again, 0
                continue
            torch()
            done = self._follower.commit(as_="torch")
            self.tensors = dict_of_tensors(done.value, self._name, done.version)
            self.version = done.version
            counted_anew = False
            if self.version >= least:
                return

    def drop(self) -> None:
        """Ends the use of `tensors`: their memory is the node's again."""
        self.tensors = {}

    def close(self) -> None:
        self.drop()
        self._follower.close()
        self._connection.close()


def dict_of_tensors(value: Any, name: str, version: int) -> dict[str, Any]:
    module = torch()
    if not isinstance(value, Mapping) or not value:
        what = "an empty dict" if isinstance(value, Mapping) else f"a {type(value).__name__}"
        raise Invalid(f"version {version} of {name!r} is {what}, not a dict of tensors by name")
    for key, tensor in value.items():
        if not isinstance(key, str) or not isinstance(tensor, module.Tensor):
            raise Invalid(f"version {version} of {name!r} has a {type(tensor).__name__} as {key!r}: all values must be tensors")
    return dict(value)
