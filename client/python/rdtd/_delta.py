# SPDX-License-Identifier: Apache-2.0
"""Weights as deltas: each step publishes the changes beside the whole, and readers on other nodes fetch only the changes."""
from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Mapping, Optional, Union

from . import _rdt
from ._arrays import kind_of
from ._check import checked, shown
from ._connection import Connection
from ._errors import Error, Freed, NotFound
from ._requests import MODES, Ref, Visible, ref_of
from ._targets import Targets, check_memory
from ._versions import Published

_SUFFIX = ".delta"  # of the name under which the delta to the newest version is published


def _check(key: str, value: Any) -> None:
    """Raises TypeError or ValueError for what cannot have a delta."""
    kind = kind_of(value)
    if not kind or kind in "bB":
        raise TypeError(f"{key!r} is a {type(value).__name__}; a delta has tensors only")
    if kind == "t" and value.device.type != "cpu":
        raise TypeError(f"{key!r} is on {value.device}; deltas are of tensors in host memory")
    if not (value.is_contiguous() if kind == "t" else getattr(getattr(value, "flags", None), "c_contiguous", True)):
        raise ValueError(f"{key!r} is not contiguous")


def _check_all(tensors: Any) -> None:
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a dict of tensors, not {shown(tensors)}")
    for key, value in tensors.items():
        _check(key, value)


def _check_connection(connection: Any) -> None:
    if not isinstance(connection, Connection):
        raise TypeError(f"connection must be a Connection, not {shown(connection)}")


class DeltaPublisher:
    """Publishes the versions of a dict of tensors under a name, each as a snapshot, and beside it the delta from
    the previous version, under the name with ".delta" added. `DeltaFollower` reads both.

        weights = rdtd.DeltaPublisher(c, "policy")
        weights.publish(model.state_dict())  # after each step

    A delta lists the values that changed. It is published if it is at most `most` of the bytes of the whole: one
    step of reinforcement learning changes about a hundredth of the values of a bf16 model, pre-training changes
    nearly all. The snapshot of the version before stays in the daemon's memory until the next `publish`. One
    thread of one process publishes under a name. Tensors are contiguous and in host memory."""

    @checked
    def __init__(self, connection: Connection, name: str, *, visible: Visible = "owner", most: float = 0.5) -> None:
        _check_connection(connection)
        if isinstance(most, bool) or not isinstance(most, (int, float)) or not 0 <= most <= 1:
            raise ValueError(f"most must be a number from 0 to 1, not {shown(most)}")
        self.name = name
        self.delta_bytes: Optional[int] = None
        """The bytes of the delta to the version published last; None: it has none."""
        self._connection = connection
        self._visible: Visible = visible
        self._most = most
        self._last: Optional[tuple[Ref, dict[str, Any]]] = None  # the version before, and its tensors

    def publish(self, tensors: Mapping[str, Any]) -> Published:
        """Publishes the next version, and returns it as `Connection.publish` does. Errors: those of `put` and
        `publish`; TypeError and ValueError name a tensor that cannot have a delta."""
        _check_all(tensors)
        c = self._connection
        ref = c.put(dict(tensors), snapshot="unsealed", visible=self._visible)
        try:
            values: dict[str, Any] = c.get(ref, as_="tensor")
            delta = self._delta(values)
            how = json.dumps({"base": str(self._last[0]) if self._last and delta is not None else None, "next": str(ref)})
            c.publish(self.name + _SUFFIX, {"how": how, "deltas": delta or {}}, visible=self._visible)
            version = c.publish(self.name, ref, visible=self._visible)
        except BaseException:
            c._drop(ref)
            raise
        self.delta_bytes = None if delta is None else sum(len(tensor) for tensor in delta.values())
        before, self._last = self._last, (ref, values)
        if before is not None:
            before[0].free()
        return version

    def unpublish(self) -> None:
        """Removes both names, and frees the snapshot of the last version. After Ctrl-C the names may be left: call it again.
        Error: NotFound (nothing is published)."""
        last, self._last = self._last, None
        try:
            try:
                self._connection.unpublish(self.name)
            except Error:
                with contextlib.suppress(Error):
                    self._connection.unpublish(self.name + _SUFFIX)
                raise
            with contextlib.suppress(NotFound):
                self._connection.unpublish(self.name + _SUFFIX)
        finally:
            if last is not None:
                last[0].drop()

    def _delta(self, values: dict[str, Any]) -> Optional[dict[str, bytearray]]:
        if self._last is None:
            return None
        before = self._last[1]
        if list(before) != list(values) or any(
                (before[key].shape, before[key].dtype) != (values[key].shape, values[key].dtype) for key in values):
            return None
        left = int(self._most * sum(value.nbytes for value in values.values()))
        found = {}
        for key, value in values.items():
            # A delta ends early if it is longer than the rest of what all together may be.
            room = bytearray(min(left, value.nbytes + value.nbytes // 2 + 64) & ~7)
            used = _rdt.delta_encode(before[key], value, room) if len(room) >= 56 else None
            if used is None:
                return None
            del room[used:]
            found[key] = room
            left -= used
        return found


class DeltaFollower:
    """Keeps a dict of tensors of this process at the newest version of a name that a `DeltaPublisher` publishes.

        weights = rdtd.DeltaFollower(c, c.name("policy", address="trainer:7000"), model.state_dict())
        while True:
            version = weights.update()   # waits for a version that is newer than the last

    The tensors are written in place. They are changed by the delta if they hold the version before it, and
    otherwise fetched whole: the first time, after a version was missed, and when the tensors were written by
    somebody else, which a hash of the result detects. Tensors share no memory, except that several may have the very
    same, as tied weights: then the version must have the same for all of them."""

    @checked
    def __init__(self, connection: Connection, name: Union[str, _rdt.Ref], tensors: Mapping[str, Any]) -> None:
        _check_connection(connection)
        _check_all(tensors)
        self.version = 0
        """The version that the tensors hold; 0: none."""
        self.by_delta = False
        """Whether the last update came as a delta."""
        self.bytes_fetched = 0
        """The bytes that the last update fetched."""
        self._connection = connection
        self._name = ref_of(name)
        self._tensors = dict(tensors)
        targets = Targets(self._tensors, "tensors")
        check_memory([targets])
        keys = list(self._tensors)
        self._twins = [(keys[first], keys[second]) for first, second in targets.twins]
        self._holds: Optional[str] = None  # the object whose bytes the tensors hold

    @checked
    def update(self, timeout: Optional[float] = None) -> int:
        """Waits for a version newer than `version`, brings the tensors to the newest one, and returns it.

        timeout: seconds, None: no limit. After TimedOut while it waits for a version, the tensors are as before.
        After any other error they may hold parts of two versions, and the next update fetches them whole.
        Errors: those of `fetch`; Mismatch if the object has other tensors."""
        end = None if timeout is None else time.monotonic() + timeout

        def left() -> Optional[float]:
            return None if end is None else max(0.0, end - time.monotonic())

        base, seen = self._holds, self.version
        while True:
            newest = self._newest(seen, left())
            ref, seen, self._holds = newest.info()["ref"], newest.version, None
            self.by_delta = base is not None and self._by_delta(base, str(ref), left())
            if self.by_delta:
                break
            base = None
            try:
                fetched = self._connection.get_fetched(ref, into=self._tensors, timeout=left())
            except Freed:  # a newer version has taken its place
                continue
            self.bytes_fetched = sum(tensor.nbytes for tensor in fetched.tensors)
            break
        self._holds, self.version = str(ref), seen
        return self.version

    def _newest(self, after: int, timeout: Optional[float]) -> _rdt.Object:
        """Waits for a version above `after`. Brings no bytes and holds nothing."""
        name = Ref.from_name(self._name.id.decode(), after, near=self._name)
        (request,) = self._connection._fetch([name], MODES["auto"], timeout, None, None, None, None, None, None, 0.0, True)
        request._wait(None)
        return request._take()

    def _by_delta(self, base: str, ref: str, timeout: Optional[float]) -> bool:
        """Changes the tensors, which hold object `base`, to object `ref`. False if they have to be fetched."""
        c = self._connection
        name = Ref.from_name(self._name.id.decode() + _SUFFIX, near=self._name)
        try:
            delta = c.stat(name)["ref"]  # a fetch of the name would wait where no delta is published, or no longer
            found = c.get(delta, as_="tensor", timeout=timeout)
            how = json.loads(found["how"])
            deltas = found["deltas"]
            if (how["base"], how["next"]) != (base, ref) or deltas.keys() != self._tensors.keys():
                return False
            if any(bytes(deltas[first]) != bytes(deltas[second]) for first, second in self._twins):
                return False
            for key, value in self._tensors.items():
                _rdt.delta_apply(value, deltas[key])
        except (Freed, LookupError, TypeError, ValueError):  # NotFound, Invalid and Mismatch among them: no delta of ours
            return False
        self.bytes_fetched = sum(len(delta) for delta in found["deltas"].values())
        return True
