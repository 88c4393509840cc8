# SPDX-License-Identifier: Apache-2.0
"""Weights of torch models by name, from and into any sharding.

    rdtd.torch.publish(model, "policy")     # every rank of the trainer
    rdtd.torch.update(model, "policy")      # every sampler, whatever its own sharding

A parameter that is a DTensor (tensor parallel, FSDP2) describes itself which box of the whole tensor its rank has. For
Megatron-style layers, whose parameters are plain tensors, `layout` describes it: a mapping, or a function of name and
tensor, to (dim, rank, size), where `size` ranks each have an equal piece along `dim`. Every other plain tensor is
whole and equal on all ranks, and rank 0 publishes it; (0, 0, 1) means that this rank publishes it, as a pipeline stage
does. A tensor that some rank has and none publishes is an error, and so is one whose whole shape differs between trainer
and sampler.

A trainer's tensors on GPUs are copied once, to pinned host memory of the daemon, all of a model's behind one another in
the current stream of their GPU; the connection keeps that memory for later versions. For deltas, or if the package was
built without cuda.h, they are copied to pinned memory of torch first. A sampler's tensors on GPUs are written, when the
work in the current stream of their GPU has ended, through 16 MiB of pinned host memory for each GPU; if the package was
built without cuda.h, through a copy of the model in pinned host memory."""
from __future__ import annotations

import contextlib
import os
import threading
from itertools import combinations
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Union

import torch  # type: ignore[import]
from torch.multiprocessing.reductions import StorageWeakRef  # type: ignore[import]

import rdtd

from ._arrays import to_torch
from ._arrays import torch as load_torch
from ._check import a_number, checked, shown
from ._follow import Committed, Follower, Prepared
from ._requests import Ref, ref_of
from ._shards import Box, Plan, PlanRun, _said, check_padded
from ._shared import Shared, viewed

Split = tuple[int, int, int]
Layout = Union[Mapping[str, Split], Callable[[str, torch.Tensor], Optional[Split]], None]

__all__ = ["publish", "update", "plan", "follow", "boxes", "ModelPlan", "ModelFollower"]


class _Local(NamedTuple):
    key: str
    tensor: torch.Tensor  # this rank's memory
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    mine: bool  # no lower rank has the same box


def _state(model: Any) -> Mapping[str, Any]:
    """The tensors of a model or state dict. What is none is refused, except for extra state of modules."""
    state = model.state_dict() if isinstance(model, torch.nn.Module) else model
    if not isinstance(state, Mapping):
        raise TypeError(f"model must be a module or its state_dict(), not {shown(state)}")
    tensors = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_nested:
                raise TypeError(f"tensor {key!r} has the layout {'nested' if value.is_nested else value.layout}, and only "
                                "strided tensors can be published or updated")
            tensors[key] = value
        elif not str(key).endswith("_extra_state"):  # get_extra_state of a module: anything that it needs
            raise TypeError(f"{key!r} is a {type(value).__name__}, not a tensor: give a module or its state_dict()")
    return tensors


def _with_memory(local: _Local) -> _Local:
    if local.tensor.device.type == "meta":
        raise ValueError(f"tensor {local.key!r} is on the meta device, so it has no memory: call the model's "
                         "to_empty(device=...) first")
    return local


def _on_gpu(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cuda")


def _in_host_memory(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def _uses_gpus(connection: rdtd.Connection) -> bool:
    """Whether the connection itself reads and writes memory of GPUs."""
    try:
        connection._gpu_open()
    except rdtd.Unsupported:  # built without cuda.h
        return False
    return True


def _like_in_host_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Host memory for the tensor's elements, pinned if the tensor is on a GPU: only then is a copy as fast as the bus, and only
    then does it not wait for the one before."""
    if _on_gpu(tensor):
        try:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        except RuntimeError:  # no more memory can be pinned
            pass
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _to_host_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Begins a copy, which has ended after _await_copies."""
    if not _on_gpu(tensor):
        return tensor.cpu()
    with torch.no_grad():
        return _like_in_host_memory(tensor).copy_(tensor, non_blocking=True)


def _await_copies(tensors: Iterable[torch.Tensor]) -> None:
    for device in {tensor.device for tensor in tensors if _on_gpu(tensor)}:
        torch.cuda.current_stream(device).synchronize()


def _of_dtensor(key: str, value: Any) -> _Local:
    from torch.distributed.tensor import Replicate  # type: ignore[import]
    from torch.distributed.tensor._utils import (  # type: ignore[import]
        compute_local_shape_and_global_offset)

    mesh, placements = value.device_mesh, value.placements
    for placement in placements:
        if placement.is_partial():
            raise ValueError(f"tensor {key!r} is a partial sum ({placement}): redistribute it to Shard or Replicate")
    local = value.to_local()
    shape, start = compute_local_shape_and_global_offset(value.shape, mesh, placements)
    if tuple(local.shape) != tuple(shape):
        raise ValueError(f"tensor {key!r}: this rank has {tuple(local.shape)} of it, and its placements "
                         f"{placements} say {tuple(shape)}")
    at = mesh.get_coordinate()
    if at is None:  # this rank is outside the mesh
        return _Local(key, local, tuple(value.shape), (0,) * value.dim(), False)
    mine = all(not isinstance(placement, Replicate) or at[i] == 0 for i, placement in enumerate(placements))
    return _Local(key, local, tuple(value.shape), tuple(start), mine)


def _of_split(key: str, value: torch.Tensor, split: Split) -> _Local:
    if not isinstance(split, (tuple, list)) or len(split) != 3:
        raise TypeError(f"the layout of tensor {key!r} must be (dim, rank, size), not {shown(split)}")
    dim, rank, size = (a_number(n, f"the layout of tensor {key!r}", -2**31, 2**31 - 1) for n in split)
    if not -value.dim() <= dim < max(value.dim(), 1) or not 0 <= rank < size:
        raise ValueError(f"the layout of tensor {key!r} is (dim {dim}, rank {rank}, size {size}), which cannot be for "
                         f"{value.dim()} dimensions")
    shape, start = list(value.shape), [0] * value.dim()
    if value.dim() > 0:
        start[dim] = rank * shape[dim]
        shape[dim] *= size
    return _Local(key, value, tuple(shape), tuple(start), True)


def _check_layout(layout: Any, state: Mapping[str, Any]) -> None:
    if layout is None or callable(layout):
        return
    if not isinstance(layout, Mapping):
        raise TypeError(f"layout must be a dict or a function, not {shown(layout)}")
    for key in layout:
        if key not in state:
            raise ValueError(f"layout has the key {key!r}, and the model has no such tensor")


def _locals(model: Any, layout: Layout, rank: int) -> Iterator[_Local]:
    state = _state(model)
    _check_layout(layout, state)
    for key, value in state.items():
        split = layout(key, value) if callable(layout) else (layout or {}).get(key)
        if hasattr(value, "placements") and hasattr(value, "to_local"):
            yield _of_dtensor(key, value.detach())
        elif split is not None:
            yield _of_split(key, value.detach(), split)
        else:
            yield _Local(key, value.detach(), tuple(value.shape), (0,) * value.dim(), rank == 0)


def _ranks(rank: Optional[int], world_size: Optional[int]) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError("rank and world_size must be given together, or neither of them")
    if rank is not None and world_size is not None:
        if rank >= world_size:
            raise ValueError(f"rank must be below world_size, and {rank} is not below {world_size}")
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


@checked
def boxes(model: Any, *, layout: Layout = None, rank: Optional[int] = None) -> dict[str, Box]:
    """The boxes that this rank publishes of a model or state dict: those that no lower rank has."""
    rank, _ = _ranks(rank, None if rank is None else rank + 1)
    return _boxes(list(_locals(model, layout, rank)))


def _boxes(locals_: list[_Local], in_place: bool = False) -> dict[str, Box]:
    """in_place: tensors on GPUs stay there, and Connection.put_part copies them."""
    mine = [_with_memory(local) for local in locals_ if local.mine]
    made = {local.key: Box(local.tensor.contiguous() if in_place and _on_gpu(local.tensor) else _to_host_memory(local.tensor),
                           local.global_shape, local.start) for local in mine}
    if not in_place:
        _await_copies(local.tensor for local in mine)
    return made


@checked
def publish(model: Any, name: Union[str, Ref], *, step: Optional[int] = None, layout: Layout = None,
            rank: Optional[int] = None, world_size: Optional[int] = None, visible: Any = "owner",
            timeout: Optional[float] = None, connection: Optional[rdtd.Connection] = None, checksum: bool = False,
            delta: bool = False) -> int:
    """Publishes a model, or a state dict, as the next version of a name; every rank calls it. Returns the version
    when all ranks have published; the tensors have been copied, and may be changed. name: a string, or a Ref with
    its node's address, which ranks on several nodes need where there is no node table. step: a number that grows
    from version to version and is the same on all ranks; None: counted. rank, world_size: of this publisher, both or neither;
    None: torch.distributed's, or 0 of 1. checksum: as for Connection.put. delta: nodes that have the version before receive
    only what has changed, whatever the sharding of their readers, of parts that come whole (`move`) and change little
    (Connection.publish_part). Errors: ValueError (a partial DTensor, a tensor on the meta device, no tensors), TypeError (a
    value that is no tensor), and those of Connection.publish_part, among them Invalid for a tensor of a rank above 0, such as a
    pipeline stage's, that has no layout and is none of rank 0's."""
    load_torch()
    connection = _connection_of(connection)
    rank, world_size = _ranks(rank, world_size)
    at = ref_of(name)
    number = connection._next_step(at) if step is None else step
    try:
        locals_ = list(_locals(model, layout, rank))
        if not locals_ and world_size == 1:
            raise ValueError("the model has no tensors to publish")
        in_place = not delta and any(_on_gpu(local.tensor) for local in locals_ if local.mine) and _uses_gpus(connection)
        made = _boxes(locals_, in_place)
    except BaseException as error:  # no memory for a copy of a GPU's, for instance: the other ranks wait for this one
        with contextlib.suppress(rdtd.Error):
            connection._give_up_part(at, number, rank, world_size, _said(error))
        raise
    version = connection.publish_part(at, number, rank, world_size, made,
                                      others=[local.key for local in locals_ if not local.mine],
                                      visible=visible, timeout=timeout, checksum=checksum, delta=delta)
    connection._steps[str(at)] = number
    return version


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Those of a single element, too, whose stride may be any in a contiguous tensor."""
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements may have one address, as in views by expand and as_strided: rdt_plan_create says the same of
    memory that it writes itself."""
    reach = 0
    for stride, count in sorted((stride, count) for stride, count in zip(tensor.stride(), tensor.shape) if count > 1):
        if stride <= reach:
            return bool(tensor.numel())
        reach += stride * (count - 1)
    return False


def _connection_of(connection: Any) -> rdtd.Connection:
    if connection is None:
        return rdtd.default()
    if not isinstance(connection, rdtd.Connection):
        raise TypeError(f"connection must be a Connection, not {shown(connection)}")
    return connection


class _Group(NamedTuple):
    """Tensors that share memory, and are not all the very same."""

    bytes: int  # of the memory of all
    members: list[tuple[int, torch.Tensor, list[Any]]]  # number, memory for what a version has for it, view of Shared


def _clash(group: _Group) -> Optional[tuple[int, int]]:
    """The numbers of two tensors for which the version has different bytes where they share memory."""
    memory = torch.empty((group.bytes + 15) & ~15, dtype=torch.uint8)
    places = [viewed(memory, dtype, offset, shape, strides, ".") for _, _, (dtype, offset, shape, strides) in group.members]
    for place, (_, staged, _) in zip(places, group.members):
        place.copy_(staged)
    if all(torch.equal(_bytes(place), _bytes(staged)) for place, (_, staged, _) in zip(places, group.members)):
        return None
    if len(group.members) == 2:
        return group.members[0][0], group.members[1][0]
    return next(filter(None, (_clash(_Group(group.bytes, list(pair))) for pair in combinations(group.members, 2))), None)


def _copy_common(start: tuple[int, ...], tensor: torch.Tensor, other_start: tuple[int, ...], other: torch.Tensor) -> int:
    """Copies what two boxes of a larger tensor have in common from the second to the first. Returns how many elements."""
    if tensor.dim() != other.dim():
        return 0
    low = [max(one, two) for one, two in zip(start, other_start)]
    high = [min(one + n, two + m) for one, n, two, m in zip(start, tensor.shape, other_start, other.shape)]
    if any(a >= b for a, b in zip(low, high)):
        return 0
    common = tensor[tuple(slice(a - at, b - at) for a, b, at in zip(low, high, start))]
    common.copy_(other[tuple(slice(a - at, b - at) for a, b, at in zip(low, high, other_start))])
    return int(common.numel())


class ModelPlan:
    """Reads version after version of a name into a model: see `plan`."""

    def __init__(self, connection: rdtd.Connection, name: Union[str, Ref], locals_: list[_Local], move: Any,
                 padded: Mapping[str, int], strict: bool, verify: bool) -> None:
        if not locals_:
            raise ValueError("the model has no tensors to update")
        at = ref_of(name)
        check_padded(padded, {local.key for local in locals_})
        targets: dict[str, Box] = {}
        self._locals: Optional[list[_Local]] = locals_
        # By the numbers of their tensors in locals_:
        self._staged: list[tuple[int, torch.Tensor]] = []
        self._kept: list[tuple[int, torch.Tensor]] = []  # of _staged: what the version does not reach stays
        groups: dict[int, _Group] = {}
        self._storages: list[StorageWeakRef] = []
        first_of: dict[Any, str] = {}
        shared = Shared([local.tensor for local in locals_])
        on_gpus = any(_on_gpu(local.tensor) for local in locals_) and _uses_gpus(connection)
        for i, local in enumerate(locals_):
            target = _with_memory(local).tensor
            if _overlaps_itself(target):
                raise ValueError(f"tensor {local.key!r} overlaps itself: by its strides several elements would be written to "
                                 "one address, as in a view by expand or as_strided")
            first = first_of.setdefault((target.data_ptr(), target.dtype, target.shape, target.stride()), local.key)
            tied = first != local.key and target.numel() > 0
            base, view = shared.of(target) or (target, None)
            if tied:
                target = targets[first].tensor  # Connection.plan sees to it that the version has the same for both
            elif view is not None or not (_in_host_memory(target) or (on_gpus and _on_gpu(target))):
                target = _like_in_host_memory(local.tensor)
                if local.key in padded:
                    self._kept.append((i, target))
                self._staged.append((i, target))
                if view is not None:
                    groups.setdefault(id(base), _Group(base.nbytes, [])).members.append((i, target, view))
            targets[local.key] = Box(target, local.global_shape, local.start)
        self._groups = list(groups.values())
        self._places = [local.tensor.data_ptr() for local in locals_]
        self._plan: Plan = connection.plan(at, targets, move=move, padded=padded, strict=strict, verify=verify)

    @property
    def version(self) -> int:
        """The version that was read last; 0: none."""
        return self._plan.version

    @checked
    def update(self, after: Optional[int] = None, *, timeout: Optional[float] = None) -> PlanRun:
        """Waits for a version above `after` (None: the one that was read last) and writes it into the model. Errors: those of
        `rdtd.torch.update`, and ValueError if the memory of a tensor has been freed or moved since the plan was made."""
        return self._run(self._check_places(), after, timeout)

    def _let_go(self) -> None:
        """From now on `_run` is called with the model's tensors, and the plan does not keep them alive."""
        assert self._locals is not None
        self._storages = [StorageWeakRef(local.tensor.untyped_storage()) for local in self._locals]
        self._locals = None
        self._plan._plan.let_go()

    def _is_of_lost_model(self) -> bool:
        return any(storage.expired() for storage in self._storages)

    def _check_places(self) -> list[_Local]:
        assert self._locals is not None
        for local, place in zip(self._locals, self._places):
            if local.tensor.data_ptr() != place:
                raise ValueError(f"the memory of tensor {local.key!r} has been freed or moved since the plan was made: make a "
                                 "new plan")
        return self._locals

    def _run(self, locals_: list[_Local], after: Optional[int], timeout: Optional[float]) -> PlanRun:
        self._plan._order = list({local.tensor.device: local.tensor for local in locals_
                                  if _on_gpu(local.tensor) and local.tensor.numel() > 0}.values())  # others have no address
        try:
            run: PlanRun = self._write(locals_, lambda: self._plan.run(after, timeout=timeout))
        finally:
            self._plan._order = ()  # does not keep the model alive
        return run

    def _write(self, locals_: list[_Local], write: Callable[[], Any], prepared: Optional[Follower] = None) -> Any:
        """Writes the model. write: has the plan write its targets, and returns what says the version. prepared: which has that
        version, so that tensors are compared before."""
        with torch.no_grad():
            for i, staged in self._kept:
                staged.copy_(locals_[i].tensor)
            if prepared is not None and self._groups:
                self._check(locals_, self._read_prepared(locals_, prepared), prepared.prepared)
        run = write()
        with torch.no_grad():
            self._check(locals_, self._groups, run.version)
            for i, staged in self._staged:
                locals_[i].tensor.copy_(staged, non_blocking=True)
            _await_copies(locals_[i].tensor for i, _ in self._staged)  # the next version goes into the same host memory
        return run

    def _check(self, locals_: list[_Local], groups: Iterable[_Group], version: int) -> None:
        for group in groups:
            clash = _clash(group)
            if clash is not None:
                first, second = [locals_[i].key for i in clash]
                raise rdtd.Mismatch(f"version {version}: tensors {first!r} and {second!r} differ where they share memory in "
                                    "this model")

    def _read_prepared(self, locals_: list[_Local], prepared: Follower) -> list[_Group]:
        """Reads what a prepared version has for the groups. Returns those for which it has everything."""
        staged = {locals_[i].key: (locals_[i].start, memory) for group in self._groups for i, memory, _ in group.members}
        missing = {key: memory.numel() for key, (_, memory) in staged.items()}
        for boxes, part in zip(prepared._follower.parts() or (), prepared._follower.objects()):
            for (key, _, start), tensor in zip(boxes, part.tensors(True)):
                if key in staged:
                    missing[key] -= _copy_common(*staged[key], start, to_torch(tensor))
        return [group for group in self._groups if not any(missing[locals_[i].key] for i, _, _ in group.members)]


@checked
def plan(model: Any, name: Union[str, Ref], *, layout: Layout = None, move: Any = "auto",
         connection: Optional[rdtd.Connection] = None, padded: Optional[Mapping[str, int]] = None,
         strict: bool = True, verify: bool = False) -> ModelPlan:
    """Prepares `update` for a model or state dict, whose tensors stay where they are. A parameter of another dtype than
    the published one is cast (Connection.plan)."""
    load_torch()
    return ModelPlan(_connection_of(connection), name, list(_locals(model, layout, 0)), move, padded or {}, strict, verify)


class ModelFollower:
    """Follows a name for a model: see `follow`."""

    def __init__(self, plan: ModelPlan, follower: Follower) -> None:
        self._plan = plan
        self._follower = follower

    def __enter__(self) -> ModelFollower:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    @property
    def committed(self) -> int:
        """The version that the model has; 0: none was committed."""
        return self._follower.committed

    @property
    def prepared(self) -> int:
        """The version that `prepare` returned last and that is not committed; 0: none."""
        return self._follower.prepared

    @property
    def lag(self) -> int:
        """See Follower.lag."""
        return self._follower.lag

    def prepare(self, timeout: Optional[float] = None) -> Prepared:
        """Waits until a newer version is whole on this node: see Follower.prepare. The model can be used meanwhile."""
        return self._follower.prepare(timeout)

    def commit(self) -> Committed:
        """Copies the prepared version into the model, whose tensors must be where they were. It only copies on this node.
        A commit waits for the work in the current streams of the model's GPUs, and the model has the version when it returns.
        After an error the model has what it had, but for a GPU that fails while it is written, and the version is still
        prepared. If the package was built without cuda.h, the version counts as committed before it is on the GPU.
        Errors: those of `rdtd.torch.update`, ValueError if the memory of a tensor has been freed or moved, Invalid (nothing is
        prepared)."""
        plan = self._plan
        got: Committed = plan._write(plan._check_places(),
                                     lambda: Committed(None, **self._follower._commit_plan(plan._plan)), self._follower)
        return got

    def close(self) -> None:
        self._follower.close()


@checked
def follow(model: Any, name: Union[str, Ref], after: int = 0, *, layout: Layout = None,
           connection: Optional[rdtd.Connection] = None, padded: Optional[Mapping[str, int]] = None,
           strict: bool = True, verify: bool = False) -> ModelFollower:
    """Follows a name for a model or state dict: the daemon of this node fetches each version of `rdtd.torch.publish` while the
    model is used; `prepare` waits until one is whole here, and `commit` copies it into the model's own tensors, which stay where
    they are. Several processes of a node, such as the ranks of an engine, share one copy. Parameters as in `plan`; after: the
    version that the model has already; verify: each commit compares the parts with their checksums, before it writes."""
    load_torch()
    connection = _connection_of(connection)
    made = ModelPlan(connection, name, list(_locals(model, layout, 0)), "whole", padded or {}, strict, verify)
    return ModelFollower(made, connection.follow(name, after))


# Those of update: by what the plan is of, without keeping the model alive.
_plans: dict[tuple[Any, ...], ModelPlan] = {}
_plans_lock = threading.Lock()
_MOST_PLANS = 16


def _forget(connection: rdtd.Connection) -> None:
    """The connection is closed."""
    with _plans_lock:
        ended = [_plans.pop(one) for one in list(_plans) if one[0] is connection]
    del ended


def _after_fork() -> None:
    global _plans_lock
    _plans_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@checked
def update(model: Any, name: Union[str, Ref], *, after: Optional[int] = None, layout: Layout = None,
           timeout: Optional[float] = None, move: Any = "auto",
           connection: Optional[rdtd.Connection] = None, padded: Optional[Mapping[str, int]] = None,
           strict: bool = True, verify: bool = False) -> int:
    """Waits for a version of the name above `after` (None: the one that this model got last) and writes this rank's
    boxes of it into the model's own memory, all from one version. Returns the version. The plan is made in the first
    call, and again when the model's tensors have moved; it does not keep the model alive.

    Model and version must have the same tensors, with the same whole shapes: `layout` says which box this rank has of
    a tensor that is no DTensor. strict=False: the version may have more tensors, as for a stage of a pipeline or some of
    the experts. padded: by key, the dimension in which this model's tensor is longer or shorter on purpose; what it has
    beyond the published tensor stays as it is. verify: nothing is written before all parts of the version have been compared
    with their publishers' checksums (Damaged). Errors: Mismatch (a shape, with strict a tensor that the model lacks, tied
    tensors that differ; names the tensors; after that of tensors that differ where they overlap in part, these have what they
    had, and all others have the version), NotFound (a tensor that the version lacks), ValueError (no tensors, a tensor
    on the meta device), TypeError (a value that is no tensor), and those of Plan.run."""
    load_torch()
    connection = _connection_of(connection)
    locals_ = list(_locals(model, layout, 0))
    padded = check_padded(padded, {local.key for local in locals_})
    key = (connection, str(name), move, tuple(padded.items()), strict, verify,
           tuple((l.key, l.tensor.data_ptr(), l.tensor.dtype, tuple(l.tensor.shape), l.tensor.stride(), l.global_shape, l.start)
                 for l in locals_))
    with _plans_lock:
        prepared = _plans.get(key)
    if prepared is None or prepared._is_of_lost_model():  # another model may have its memory now
        made = ModelPlan(connection, name, locals_, move, padded, strict, verify)
        made._let_go()
        lost = {one[0] for one in list(_plans) if not one[0]._is_alive()}
        with _plans_lock:
            ended = [_plans.pop(one) for one, plan in list(_plans.items()) if one[0] in lost or plan._is_of_lost_model()]
            if len(_plans) >= _MOST_PLANS:
                ended.append(_plans.pop(next(iter(_plans))))
            prepared = _plans.setdefault(key, made)
        del ended  # not within the lock
    return prepared._run(locals_, after, timeout).version
