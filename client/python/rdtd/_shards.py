# SPDX-License-Identifier: Apache-2.0
"""Connection's calls about versions that consist of many parts: publishing a part, and plans that read any boxes."""
from __future__ import annotations

import contextlib
import re
import time
from typing import (TYPE_CHECKING, Any, Callable, Container, Iterable, Iterator, Literal, Mapping, NamedTuple, Optional,
                    Sequence, Union)

from . import _rdt
from ._check import a_number, a_text, checked, shown
from ._errors import Error
from ._part_deltas import Before, changes_between, contiguous
from ._requests import MODES, VISIBILITY, Ref, Request, Visible, ref_of

if TYPE_CHECKING:
    from ._rdt import Plan as _Plan

_MOVES = {"auto": _rdt.RDT_PLAN_AUTO, "whole": _rdt.RDT_PLAN_WHOLE, "slices": _rdt.RDT_PLAN_SLICES}


class Box(NamedTuple):
    """A tensor that is the box [start, start + its shape) of a larger one. start None: it begins at 0 in every
    dimension. global_shape: of the larger tensor; None: it is the whole tensor, or for a plan, with a start, a box of
    a tensor of any shape."""

    tensor: Any
    global_shape: Optional[Sequence[int]] = None
    start: Optional[Sequence[int]] = None


class Shard(NamedTuple):
    """A tensor of a part in a Manifest."""

    key: str
    dtype: str
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]


class Part(NamedTuple):
    ref: Ref
    shards: list[Shard]


class Manifest(NamedTuple):
    """What a version consists of."""

    version: int
    step: int
    parts: list[Part]


class PlanRun(NamedTuple):
    """What `Plan.run` did. planned: the pieces were computed anew. bytes: written to the targets. bytes_moved:
    came from other nodes for this run."""

    version: int
    step: int
    planned: bool
    parts: int
    pieces: int
    bytes: int
    bytes_moved: int
    wait_s: float
    fetch_s: float
    copy_s: float


@contextlib.contextmanager
def _naming(keys: Iterable[str]) -> Iterator[None]:
    """Errors that name a tensor by its number name its key."""
    try:
        yield
    except (TypeError, ValueError) as error:
        found = re.match(r"((?:part|plan): )?tensor (\d+)(.*)", str(error), re.DOTALL)
        if not found:
            raise
        raise type(error)(f"{found[1] or ''}tensor {list(keys)[int(found[2])]!r}{found[3]}") from error


def _dims(numbers: Any, what: str) -> Optional[tuple[int, ...]]:
    if numbers is None:
        return None
    if isinstance(numbers, (str, bytes, dict)) or not hasattr(numbers, "__iter__"):
        raise TypeError(f"{what} must be a list of numbers, not {shown(numbers)}")
    return tuple([a_number(n, what, 0, 2**63 - 1) for n in numbers])


def _box(value: Any, what: str) -> Box:
    box = value if isinstance(value, Box) else Box(value)
    return Box(box.tensor, _dims(box.global_shape, f"global_shape of {what}"), _dims(box.start, f"start of {what}"))


def _boxes(listed: Any, what: str) -> list[tuple[str, Box]]:
    """Keys and boxes, with tuples of numbers; a key has several if its value is a list of them. what: the parameter."""
    if not isinstance(listed, Mapping):
        raise TypeError(f"{what} must be a dict of tensors, not {shown(listed)}")
    made = []
    for key, value in listed.items():
        a_text(key, f"a key of {what}")
        if isinstance(value, list) and value and all([isinstance(one, Box) for one in value]):
            made += [(key, _box(one, f"{what}[{key!r}][{i}]")) for i, one in enumerate(value)]
        else:
            made.append((key, _box(value, f"{what}[{key!r}]")))
    return made


def check_padded(padded: Any, keys: Container[str]) -> dict[str, int]:
    if padded is None:
        return {}
    if not isinstance(padded, Mapping):
        raise TypeError(f"padded must be a dict of numbers, not {shown(padded)}")
    for key, dim in padded.items():
        if key not in keys:
            raise ValueError(f"padded has the key {key!r}, and there is no such tensor")
        a_number(dim, f"padded[{key!r}]", 0, 31)
    return dict(padded)


class Plan:
    """Reads the same boxes of version after version: see Connection.plan."""

    def __init__(self, connection: PartCalls, name: Ref, plan: _Plan, keys: list[str]) -> None:
        self._connection = connection
        self._name = name
        self._plan = plan
        self._keys = keys
        self._order: Sequence[Any] = ()  # after let_go: a target on each GPU, whose stream the next run waits for
        self.version = 0  # that was read last

    @checked
    def run(self, after: Optional[int] = None, *, timeout: Optional[float] = None) -> PlanRun:
        """Waits for a version above `after` (None: the one that was read last) and writes its boxes into the
        targets, all from that one version. Targets on GPUs are written when the work in their streams has ended: torch's
        current ones, for others those that DLPack or __cuda_array_interface__ name; they have their bytes when this returns.
        After an error the targets have what they had, but for a GPU that fails meanwhile. One thread at a time.
        Errors: TimedOut, NotFound (no such tensor), Mismatch (a tensor of another shape, also in a later version; the sentence
        names both shapes; tensors that differ, whose targets are in the same memory), ValueError (the memory of a target has
        been freed or moved), Unsupported (a cast that does not exist), and those of a fetch."""
        with _naming(self._keys):
            run = PlanRun(**self._plan.run(self.version if after is None else after, timeout, self._order))
        self.version = run.version
        return run


def _said(error: BaseException) -> str:
    """Of an exception, for the other ranks and for rdtctl."""
    return f"{type(error).__name__}: {error}".replace("\0", "").encode(errors="replace").decode()


class Publishing:
    """A version to which this process adds its tensors one after the other: see Connection.publishing."""

    def __init__(self, steps: dict[str, int], raw: _rdt.Publishing, name: Ref, step: int, timeout: Optional[float]) -> None:
        self._steps = steps  # the connection's
        self._raw = raw
        self._name = name
        self._timeout = timeout
        self._given_up = False
        self._starts: dict[str, set[Any]] = {}  # of the boxes that were added, by key
        self.step = step
        self.version = 0
        """The number of the version, once it is complete."""

    def __enter__(self) -> Publishing:
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is None:
            if self.version == 0 and not self._given_up:
                self.end()
            return
        with contextlib.suppress(Error):  # a lost connection has the same effect
            self._raw.give_up(_said(error))

    def __repr__(self) -> str:
        return f"<rdtd.Publishing of {self._name!s}, step {self.step}: {self.tensors} tensors, {self.bytes} bytes>"

    def add(self, key: str, tensor: Any) -> None:
        """Copies a tensor, or a Box, into the version; the tensor may be changed when the call has returned. A torch tensor on
        a GPU is copied through host memory. A key may come again with another box of the same tensor. One thread at a time.
        Errors: TypeError, ValueError (the key was added already; no tensor that `put` takes), Invalid, LimitReached, NoMemory
        and TimedOut (there is no room for the tensor): the version goes on without the tensor. All other errors end the version
        (Exists: another process publishes this rank; OwnerDied: another rank has given up)."""
        if isinstance(tensor, (list, tuple)) and not isinstance(tensor, Box):
            raise TypeError(f"add takes one tensor or Box, not {shown(tensor)}: call it for each box")
        ((_, box),) = _boxes({key: tensor}, "tensors")
        shape, start = box.global_shape, box.start if any(box.start or ()) else None
        known = self._starts.get(key)
        if known is not None and start in known:
            raise ValueError(f"tensor {key!r} was added to step {self.step} already")
        value = box.tensor
        if getattr(value, "is_cuda", False) is True and hasattr(value, "cpu"):
            value = value.detach().cpu()
        with _naming([key]):
            self._raw.add([value], [key], [None if shape is None else tuple(shape)], [None if start is None else tuple(start)])
        self._starts.setdefault(key, set()).add(start)

    def leave(self, key: str) -> None:
        """Says that this rank has the tensor, too, and leaves it to another rank: the version fails if none adds it."""
        a_text(key, "key")
        self._raw.leave([key])

    def end(self) -> int:
        """Says that all tensors of this rank were added, waits until the version is complete, and returns its number. The end
        of a `with` block does this. Errors: those of `publish_part`; Invalid (the only rank has added nothing)."""
        self.version = self._raw.end(self._timeout)
        self._steps[str(self._name)] = self.step
        return self.version

    def give_up(self, why: str = "its publisher gave it up") -> None:
        """Ends the version without publishing it: nothing of it is left, and the other ranks are told why."""
        a_text(why, "why")
        self._raw.give_up(why)
        self._given_up = True

    @property
    def tensors(self) -> int:
        """How many tensors were added."""
        return self._raw.info()[2]

    @property
    def pieces(self) -> int:
        """How many objects they are in. A tensor that was added last may be in none yet."""
        return self._raw.info()[3]

    @property
    def bytes(self) -> int:
        """Of the tensors that were added."""
        return self._raw.info()[4]


class PartCalls(_rdt.Conn):
    _parts_before: dict[tuple[str, int], Before]

    @checked
    def put_part(self, boxes: Mapping[str, Union[Box, tuple[Any, ...], Any]], *,
                 visible: Visible = "owner", timeout: Optional[float] = None, checksum: bool = False) -> Ref:
        """Puts a snapshot, in host memory, of tensors that are boxes of larger tensors, each under the larger
        tensor's key. A value is a Box, a list of boxes of one tensor, or a whole tensor. Tensors on GPUs are copied as by
        `put` with device="host". checksum, errors: as `put`."""
        return self._put_boxes(_boxes(boxes, "boxes"), visible, timeout, checksum)

    def _put_boxes(self, listed: list[tuple[str, Box]], visible: Visible, timeout: Optional[float], checksum: bool,
                   *note: _rdt.Ref) -> Ref:
        keys = [key for key, _ in listed]
        with _naming(keys):
            return self._put_part([box.tensor for _, box in listed], keys, [box.global_shape for _, box in listed],
                                  [box.start for _, box in listed], VISIBILITY[visible], timeout, checksum, *note)

    def _put_changed(self, listed: list[tuple[str, Box]], before: Optional[Before], visible: Visible, timeout: Optional[float],
                     checksum: bool) -> Before:
        """Puts boxes and, if there is a part before, the deltas from that."""
        places = [(key, box.global_shape, box.start) for key, box in listed]
        changes = None
        if before is not None and before.places == places:
            with contextlib.suppress(Error):  # the daemon has restarted, for instance, and has that part no longer
                (request,) = self._fetch([before.part], MODES["auto"], timeout, None, None, None, None, None, None)
                request._wait(None)
                changes = changes_between(request._take().tensors(True), [box.tensor for _, box in listed])
        if before is None or changes is None:
            return Before(self._put_boxes(listed, visible, timeout, checksum), places)
        deltas = self._put_part([memoryview(changes)], ["deltas"], [None], [None], VISIBILITY[visible], timeout)
        return Before(self._put_boxes(listed, visible, timeout, checksum, before.part, deltas), places, (deltas, before.part))

    def _forget_parts(self, name: Ref, rank: int) -> None:
        before = self._parts_before.pop((str(name), rank), None)
        if before is not None:
            before.free(self)

    def _forget_ended(self, has_ended: Callable[[bytes], bool]) -> None:
        """Frees the parts that are kept for names that were unpublished, however their Refs were written."""
        for key in [key for key in self._parts_before if has_ended(Ref(key[0]).id)]:
            self._parts_before.pop(key).free(self)

    @checked
    def start_part(self, name: Union[str, Ref], step: int, rank: int, of: int, part: _rdt.Ref, *,
                   others: Sequence[str] = (), visible: Visible = "owner", timeout: Optional[float] = None) -> Request:
        """Starts `publish_part` for a Ref of `put_part` and returns the Request. Cancelling or deleting it
        before it has ended withdraws the part, and the version fails for all its publishers."""
        if not isinstance(part, _rdt.Ref):
            raise TypeError(f"part must be a Ref that put_part returned, not {shown(part)}")
        return self._publish_part(ref_of(name), step, rank, of, part, VISIBILITY[visible], timeout, list(others))

    @checked
    def publish_part(self, name: Union[str, Ref], step: int, rank: int, of: int,
                     part: Union[_rdt.Ref, Mapping[str, Any]], *, others: Sequence[str] = (),
                     visible: Visible = "owner", timeout: Optional[float] = None, checksum: bool = False,
                     delta: bool = False) -> int:
        """Publishes a Ref of `put_part`, or boxes, which are put first, as the part of `rank` (below `of`) of
        the version `step` of a name. Returns the version's number when all parts have been published and cover
        every tensor once: only then can anybody see the version. Each step must be greater than the one before.
        name: a string, or a Ref with an address, which publishers on several nodes need where there is no node
        table. others: keys of tensors that this rank has, too, and leaves to other ranks: the version fails if none
        of them publishes one. timeout: seconds, including the wait of the daemon for room for the boxes; TimedOut
        says which ranks are missing, and which of them are at other steps. If boxes cannot be put, the other ranks
        are told at once. checksum: of boxes, see `put_part`. delta: of boxes: readers on other nodes that have this rank's part
        of the version before receive only what has changed since; the daemon keeps that part, too, until the next
        version, `unpublish` or the end of this connection. Errors: those of `put_part`, Invalid (names the tensor and
        the box), Exists (this rank has published, or another node has the name), OwnerDied (another publisher
        ended, gave up, or could not put its part: the message says why), Freed (a later step became complete first),
        Restarted (the daemon has, and the version was not complete: all ranks publish it again), PeerLost (the name's node
        has ended; the same Ref may be published once more, and returns the version if that is complete), TimedOut,
        LimitReached."""
        if isinstance(part, _rdt.Ref):
            request = self.start_part(name, step, rank, of, part, others=others, visible=visible, timeout=timeout)
            request._result_or_cancel()
            return self._part_version(request)
        if not isinstance(part, Mapping):
            raise TypeError(f"part must be a Ref that put_part returned, or a dict of boxes, not {shown(part)}")
        at = ref_of(name)
        end = None if timeout is None else time.monotonic() + timeout
        before = self._parts_before.get((str(at), rank))
        if before is not None:
            before = self._parts_before[str(at), rank] = before.free_rest(self)
        try:
            listed = _boxes(part, "boxes")
            if delta:
                listed = [(key, box._replace(tensor=contiguous(box.tensor))) for key, box in listed]
            put = self._put_changed(listed, before if delta else None, visible, timeout, checksum)
        except BaseException as error:
            with contextlib.suppress(Error):  # a lost connection tells them, too
                self._give_up_part(at, step, rank, of, _said(error))
            raise
        try:
            left = None if end is None else max(0.0, end - time.monotonic())
            version = self.publish_part(at, step, rank, of, put.part, others=others, visible=visible, timeout=left)
        except BaseException:
            put.part.drop()
            for ref in put.rest[:1]:  # its base is kept
                ref.drop()
            raise
        if not put.rest:
            self._forget_parts(at, rank)
        if delta:
            self._parts_before[str(at), rank] = put.kept()
        else:
            put.part.free()
        return version

    @checked
    def manifest(self, name: Union[str, Ref], *, timeout: Optional[float] = None) -> Manifest:
        """Returns what the newest version of a name consists of; waits for the first one. Errors: Invalid (the
        version is an ordinary object), TimedOut."""
        version, step, parts = self._manifest(ref_of(name), timeout)
        return Manifest(version, step, [Part(ref, [Shard(*row) for row in rows]) for ref, rows in parts])

    @checked
    def plan(self, name: Union[str, Ref], targets: Mapping[str, Union[Box, Any]], *,
             move: Literal["auto", "whole", "slices"] = "auto", padded: Optional[Mapping[str, int]] = None,
             strict: bool = False, verify: bool = False) -> Plan:
        """Prepares to read boxes of the versions of a name. targets: by the key of the larger tensor, the
        writable tensor, in host memory or on a GPU, that receives the whole tensor, a Box of it, or a list of boxes; there is
        at least one.
        `run` raises Mismatch if the published tensor has another shape than the target, or than the Box's
        global_shape; a Box with a start and no global_shape is a box of a tensor of any shape. Another dtype than
        the published one is a cast on the way: f32, f16 and bf16 to each other, to
        f8_e4m3fn and f8_e5m2. Strides are the target's. The targets are borrowed as long as the Plan lives: numpy does not
        resize them meanwhile, and `run` raises ValueError if torch has freed or moved one. They share no memory, except that
        several may have the very same, as tied weights: then the version must have the same for all of them.
        move: "whole": parts of other nodes come whole, once for all processes of this node; "slices": only what
        this plan wants; "auto": whole if it is at least half.
        padded: by key, the dimension in which this reader's tensor is longer or shorter than the published one on
        purpose, such as a vocabulary that is padded for the number of ranks. What the target has beyond the
        published tensor stays as it is. strict: a version with a tensor that is not among the targets is a
        Mismatch, too. verify: each part is compared with its publisher's checksum on this node before the first target is
        written, and comes whole for that: `run` raises Damaged if its bytes are not those that were put."""
        at = ref_of(name)
        listed = _boxes(targets, "targets")
        if not listed:
            raise ValueError("targets must not be empty: a plan needs at least one target")
        keys = [key for key, _ in listed]
        boxes: list[Any] = [box for _, box in listed]
        dims = check_padded(padded, keys)
        with _naming(keys):
            plan = self._plan(at, [box.tensor for box in boxes], keys, [box.start for box in boxes],
                              [box.global_shape for box in boxes], [dims.get(key, -1) for key in keys], strict, _MOVES[move],
                              verify)
        return Plan(self, at, plan, keys)
