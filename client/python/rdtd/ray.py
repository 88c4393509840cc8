# SPDX-License-Identifier: Apache-2.0
"""Ray Direct Transport over rdtd: `tensor_transport="rdtd"` for torch tensors in host memory and on CUDA
GPUs, `"rdtd_numpy"` for numpy arrays.

    import ray, rdtd.ray

    rdtd.ray.register(hooked=True)                         # before the actors are created; twice is harmless
    # The hook is for actors that restart: see register.
    ray.init(runtime_env={"worker_process_setup_hook": "rdtd.ray.register"})

    @ray.remote
    class Trainer:
        @ray.method(tensor_transport="rdtd")
        def weights(self): return self.model.state_dict()

The return value of a task, or ray.put(..., _tensor_transport="rdtd"), becomes an object of the node's daemon,
held by the process that made it. Readers on the node map it privately (copy on write), in constant time; for
other nodes the daemons move it. The tensors are copied into the daemon's memory when the object is made, so
the producer may write to them afterwards. Tensors from `rdtd.default().empty(...)` are not copied and stay
live, as with Ray's own transports. A transfer that fails or stalls raises an error in its reader and never
kills an actor.

Tensors on GPUs are copied on their GPU, in torch's current stream, and arrive on the reader's current GPU; a
reader that sees no GPU gets them in host memory.

Ray's interface is alpha; this module follows it from Ray 2.56 on.
"""
# mypy: disable-error-code="import, misc, type-arg, no-untyped-call"
from __future__ import annotations

import functools
import os
import threading
import uuid
import warnings
import weakref
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count, groupby
from typing import Any, Iterable, Optional, Sequence, Union

from ray import ObjectRef
from ray.actor import ActorHandle
from ray.experimental import (
    CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata, register_tensor_transport)
from ray.experimental.rdt.tensor_transport_manager import FetchRequest

from . import Connection, _rdt, default
from ._arrays import convert, numpy, torch
from ._daemon import ensure, wish
from ._errors import Cancelled, Disconnected, Error, Exists, Restarted, ShuttingDown, SystemFailed
from ._requests import MODES, VISIBILITY, Ref, Request

try:
    from ray.experimental.rdt import util
except ImportError:
    util = None

__all__ = ["register", "RdtdTransport", "RdtdNumpyTransport"]

# A transfer's deadline, as a fraction of Ray's. It must be earlier: an error that arrives after the task gave
# up would hit the next task that gets the object.
SOONER = 0.8
PATIENCE = 0.02  # seconds that a receive waits before it can be aborted; most transfers end sooner
HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # set in workers that have a setup hook


def register(start_daemon: Union[bool, Sequence[str]] = False, *, hooked: bool = False) -> None:
    """Registers the transports with Ray in this process. A second call does nothing.

    A call in the driver, before it creates actors, is enough for those actors: Ray passes the transports on
    to every actor that it creates. Ray does not reach actors that restart, nor processes that got a handle or
    a ref from elsewhere and call a method with such a transport themselves. For them, name this function as
    the setup hook of all workers, `ray.init(runtime_env={"worker_process_setup_hook": "rdtd.ray.register"})`
    (it imports torch in each worker, if torch is installed), or call it in the actor's `__init__`. A process
    that only receives needs neither.

    hooked: pass True in the driver if all workers have that hook. Ray then passes nothing on, so its first
    call of an actor does not wait for the actor's background thread, which can be busy for long, or for ever
    if it waits for the caller. Workers detect the hook by themselves.
    start_daemon: if no daemon serves the socket ($RDT_SOCKET, else /run/rdtd/rdtd.sock, else one in this
    user's folder below the temporary folder), start one, with these flags if it is a list of rdtd flags. It
    exits when it has had no client for a minute. Processes that this one starts, Ray's workers included, do
    the same ($RDT_START_DAEMON).
    Errors: SystemFailed, FileNotFoundError (the program rdtd was not found)."""
    if start_daemon:
        wish(() if start_daemon is True else tuple(start_daemon))
        ensure()
    hooked = hooked or os.environ.get(HOOK_VARIABLE) == f"{__name__}.register"
    with _registering:
        others = getattr(util, "has_custom_transports", None)
        _once("rdtd_numpy", RdtdNumpyTransport, "numpy", "ndarray")
        _once("rdtd", RdtdTransport, "torch", "Tensor")
        if hooked and others is not None:
            util.has_custom_transports = others


_registering = threading.Lock()
_NAMES = frozenset(("RDTD", "RDTD_NUMPY"))
_registered: set[str] = set()  # by this module


def _known() -> Iterable[str]:
    """The transports that Ray has in this process."""
    found: Iterable[str] = getattr(util, "transport_manager_info", _registered)
    return found


def _once(name: str, manager: type[RdtdTransport], module: str, kind: str) -> None:
    try:
        data_type = getattr(import_module(module), kind)
    except ImportError:
        return
    if name.upper() not in _known():
        register_tensor_transport(name, list(manager.DEVICES), manager, data_type)
        _registered.add(name.upper())


def _patience() -> float:
    """Ray's time limit for a transfer, in seconds."""
    try:
        from ray._private.ray_constants import RDT_FETCH_FAIL_TIMEOUT_SECONDS
        return float(RDT_FETCH_FAIL_TIMEOUT_SECONDS)
    except ImportError:
        return 60.0


def _failed(what: str, error: BaseException) -> BaseException:
    from ray.exceptions import RayDirectTransportError
    made: BaseException = RayDirectTransportError(f"{what}: {type(error).__name__}: {error}")
    return made


# ---- calls that Ray would let wait ----
# Ray accepts these calls, and their tensors do not arrive before its time limit of 60 seconds. So the call
# that passes an object of ours fails instead. Every process that passes one has imported this module.

def _origin_of(manager: Any, value: Any) -> Any:
    """What Ray knows of an object with one of our transports; None: it is something else."""
    if not isinstance(value, ObjectRef):
        return None
    meta = manager.get_rdt_metadata(value.hex())
    return meta if getattr(meta, "tensor_transport_backend", None) in _NAMES else None


def _is_among(ref: ObjectRef, values: Iterable[Any]) -> bool:
    return any(isinstance(one, ObjectRef) and one == ref for one in values)  # an array compares as one of bools


def _refuse_calls_that_would_wait() -> None:
    """Makes calls of actors check their arguments first. Raises ImportError or AttributeError, and changes nothing, if this
    Ray calls these things by other names."""
    call = ActorHandle._actor_method_call
    from ray._private.worker import global_worker
    from ray.experimental.rdt.rdt_manager import RDTManager
    trigger, _ = RDTManager.queue_or_trigger_out_of_band_tensor_transfer, RDTManager.get_rdt_metadata

    @functools.wraps(trigger)
    def checked_trigger(self: Any, dst_actor: Any, task_args: Any, *more: Any, **options: Any) -> Any:
        if not getattr(dst_actor, "_ray_enable_tensor_transport", True):
            for i, value in enumerate(task_args):
                meta = _origin_of(self, value)
                if meta is not None:
                    raise ValueError(
                        f"argument {i} has the tensor transport {meta.tensor_transport_backend}, and "
                        f"{dst_actor!r} cannot receive it while it runs a method: declare its class with "
                        "@ray.remote(enable_tensor_transport=True)")
        return trigger(self, dst_actor, task_args, *more, **options)

    @functools.wraps(call)
    def checked_call(self: Any, method_name: str, args: Any = None, kwargs: Any = None, *more: Any,
                     **options: Any) -> Any:
        manager = getattr(global_worker, "_rdt_manager", None)
        if kwargs and manager is not None:
            for name, value in kwargs.items():
                meta = _origin_of(manager, value)
                if meta is not None and not _is_among(value, args or ()) and getattr(
                        meta.src_actor, "_actor_id", None) != self._actor_id:
                    raise ValueError(
                        f"{method_name}({name}=...) has the tensor transport "
                        f"{meta.tensor_transport_backend}, and Ray moves such tensors for positional "
                        "arguments only: pass it by position")
        return call(self, method_name, args, kwargs, *more, **options)

    RDTManager.queue_or_trigger_out_of_band_tensor_transfer = checked_trigger
    ActorHandle._actor_method_call = checked_call


try:
    _refuse_calls_that_would_wait()
except (ImportError, AttributeError) as error:
    warnings.warn(f"rdtd does not know the inside of this Ray ({error}): a call that passes a tensor where Ray cannot bring it "
                  "waits for Ray's time limit, instead of failing at once", RuntimeWarning, stacklevel=2)


# ---- metadata ----

class _Shapes(list):
    """A list of (shape, dtype) that is pickled as runs of equal entries: ten thousand equal tensors are one
    entry."""

    def __reduce__(self) -> Any:
        return _shapes_from, ([(shape, dtype, sum(1 for _ in run)) for (shape, dtype), run in groupby(self)],)


def _shapes_from(runs: Iterable[tuple[Any, Any, int]]) -> _Shapes:
    if not _NAMES <= set(_known()):
        register()  # a worker that Ray passed nothing to is about to look up the transport
    made = _Shapes()
    for shape, dtype, count in runs:
        made += [(shape, dtype)] * count
    return made


@dataclass
class RdtdMetadata(TensorTransportMetadata):
    """tensor_device: "cuda" if any tensor is on a GPU. ref: the packed Ref of the object in the daemon; None:
    it has no tensors."""

    ref: Optional[bytes] = None

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass
class RdtdCommunicator(CommunicatorMetadata):
    """Identifies one transfer, so that an abort ends only this transfer of the object."""

    transfer: str = ""


@dataclass
class RdtdFetchRequest(FetchRequest):
    """request: None if there is nothing to fetch, or it was fetched. Deleting this object cancels the
    request. aborted: the transfer was aborted, perhaps before the request existed."""

    request: Optional[Request] = field(default=None, repr=False)
    into: Optional[list[Any]] = field(default=None, repr=False)
    targets: Optional[list[Any]] = field(default=None, repr=False)  # what the request writes: see _targets
    aborted: bool = False

    __hash__ = object.__hash__


# ---- the transports ----

_PROCESS = uuid.uuid4().hex  # part of every transfer's id
_transfers = count()


class RdtdTransport(TensorTransportManager):
    """torch tensors in host memory and on GPUs. Any thread may call."""

    NAME = "RDTD"
    KIND = "t"
    DEVICES: tuple[str, ...] = ("cpu", "cuda")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Ref] = {}  # by object id: what this process put
        self._running: weakref.WeakValueDictionary[str, RdtdFetchRequest] = weakref.WeakValueDictionary()
        self._ends_with: Any = None  # the Ray manager whose shutdown frees what is held
        # This imports the module now, because rdtd must know its tensor type before the first put.
        _ = torch() if self.KIND == "t" else numpy()

    def tensor_transport_backend(self) -> str:
        return self.NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True  # every actor has it; asking would cost a task for every call

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any,
                                  backend: Optional[str] = None) -> RdtdCommunicator:
        return RdtdCommunicator(f"{_PROCESS}.{os.getpid()}.{next(_transfers)}")

    # on the source

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> RdtdMetadata:
        if not rdt_object:
            return RdtdMetadata(tensor_meta=[])
        # Equal entries are shared: thousands of long-lived tuples would slow down the garbage collector.
        known: dict[Any, Any] = {}
        entries = ((tensor.shape, tensor.dtype) for tensor in rdt_object)
        shapes = _Shapes([known.setdefault(entry, entry) for entry in entries])
        with self._lock:
            ref = self._held.get(obj_id)  # a retried task describes what it has already put
        if ref is None:
            ref = self._put(obj_id, rdt_object)
            with self._lock:
                ref = self._held.setdefault(obj_id, ref)
            self._end_with_ray()
        on_gpu = self.KIND == "t" and not all([tensor.is_cpu for tensor in rdt_object])
        return RdtdMetadata(tensor_meta=shapes, tensor_device="cuda" if on_gpu else "cpu", ref=ref.pack())

    def _put(self, obj_id: str, tensors: list[Any]) -> Ref:
        # Put under Ray's id, so that it can be found by that id too. Drivers of several clusters can have
        # equal ids; then only the Ref names the object.
        key: Optional[bytes] = _key(obj_id)
        again = 2
        while True:
            connection = _connect()
            try:
                ref: Optional[Ref] = connection._put(tensors, key, None, VISIBILITY["owner"], None,
                                                     _rdt.PUT_SNAPSHOT_UNLESS_OURS, _patience(), None, None)
                assert ref is not None
                return ref
            except Exists:
                key = None
            except (Disconnected, Restarted):
                again -= 1
                if not again:
                    raise

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        with self._lock:
            ref = self._held.pop(obj_id, None)
        if ref is not None:
            _free(ref)

    def _end_with_ray(self) -> None:
        """Makes ray.shutdown() free what this process put, since a driver may outlive its cluster."""
        try:
            from ray._private.worker import global_worker
        except ImportError:
            return
        manager = getattr(global_worker, "_rdt_manager", None)
        shutdown = getattr(manager, "shutdown", None)  # not there if Ray has renamed it: what was put ends with the process
        if manager is None or shutdown is None or manager is self._ends_with:
            return
        self._ends_with = manager

        def shutdown_and_free() -> None:
            try:
                shutdown()
            finally:
                self._free_all()

        manager.shutdown = shutdown_and_free

    def _free_all(self) -> None:
        with self._lock:
            held, self._held = self._held, {}
        for ref in held.values():
            _free(ref)

    # on the destination

    def fetch_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
                               target_buffers: Optional[list[Any]] = None) -> RdtdFetchRequest:
        return self._start(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers, 0)

    def _start(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
               target_buffers: Optional[list[Any]],
               patience: float) -> RdtdFetchRequest:
        started = RdtdFetchRequest(obj_id, [])
        shapes = tensor_transport_metadata.tensor_meta
        if not shapes:
            return started
        packed = getattr(tensor_transport_metadata, "ref", None)
        ref = Ref.from_id(_key(obj_id)) if packed is None else Ref._unpack(packed)
        transfer = getattr(communicator_metadata, "transfer", "")
        if transfer:
            self._running[transfer] = started
        try:
            connection = _connect()
            place = targets = None
            if target_buffers:
                started.into = list(target_buffers)
                started.targets = self._targets(connection, started.into)
                targets = [started.targets]
            elif getattr(tensor_transport_metadata, "tensor_device", None) == "cuda":
                place = self._own_gpu(connection)
            (started.request,) = connection._fetch([ref], MODES["auto" if target_buffers else "cow"],
                                                   _patience() * SOONER, None, None, None,
                                                   targets, place, None,
                                                   patience)
        except Error as error:
            raise _failed(f"object {obj_id} cannot be fetched", error) from error
        if started.aborted:
            started.request.cancel()
        return started

    @staticmethod
    def _own_gpu(connection: Connection) -> Any:
        """Where an object with tensors on a GPU goes in this process: those to its current GPU, and its other
        tensors to host memory."""
        module = torch()
        if not module.cuda.is_available():
            return connection._place("host")
        memory, device = connection._place(module.cuda.current_device())
        return memory, device, True

    def _targets(self, connection: Connection, into: list[Any]) -> list[Any]:
        """What a fetch into these buffers writes: the daemon writes all of them or none itself, so beside
        buffers on a GPU those in host memory are replaced with memory that it knows."""
        if self.KIND == "n" or all([buffer.is_cpu for buffer in into]):
            return into
        return [connection.empty(buffer.shape, buffer.dtype) if buffer.is_cpu else buffer for buffer in into]

    def wait_fetch_complete(self, fetch_request: Any, timeout: float = -1) -> list[Any]:
        started: RdtdFetchRequest = fetch_request
        request = started.request
        if request is None:
            return list(started.tensors)
        try:
            request._wait(None if timeout < 0 else timeout)
            started.tensors = self._arrived(started, request)
        except TimeoutError:
            raise
        except Cancelled as error:
            raise _failed(f"the transfer of object {started.obj_id} was aborted", error) from error
        except Error as error:
            raise _failed(f"object {started.obj_id} did not arrive. The source actor may have died during "
                          "the transfer", error) from error
        started.request = None
        return list(started.tensors)

    def _arrived(self, started: RdtdFetchRequest, request: Request) -> list[Any]:
        if started.into is not None and started.targets is not None:
            request._take()
            for buffer, target in zip(started.into, started.targets):
                if buffer is not target:
                    buffer.copy_(target)
            return started.into
        return convert(request._take().tensors(), self.KIND, "auto")

    def recv_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
                              target_buffers: Optional[list[Any]] = None) -> list[Any]:
        started = self._start(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers,
                              PATIENCE)
        try:
            return self.wait_fetch_complete(started)
        except TimeoutError as error:
            raise _failed(f"object {obj_id} did not arrive in time", error) from error

    def send_multiple_tensors(self, tensors: list[Any], tensor_transport_metadata: Any,
                              communicator_metadata: Any) -> None:
        raise NotImplementedError("rdtd is one-sided: readers fetch, and nothing is sent")

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        started = self._running.get(getattr(communicator_metadata, "transfer", ""))
        if started is None:
            return
        # This is set before the request is read: _start sets the request before it reads this flag.
        started.aborted = True
        request = started.request
        if request is not None:
            request.cancel()


class RdtdNumpyTransport(RdtdTransport):
    """Like RdtdTransport, for numpy arrays."""

    NAME = "RDTD_NUMPY"
    KIND = "n"
    DEVICES = ("cpu",)


def _key(obj_id: str) -> bytes:
    return b"ray:" + obj_id.encode()


def _connect() -> Connection:
    try:
        return default()
    except (SystemFailed, Disconnected, Restarted, ShuttingDown) as error:  # there is no daemon, or it is shutting down
        if not ensure():
            error.args = (f"{error}; or let Ray's workers start one by rdtd.ray.register(start_daemon=True)",)
            raise
        return default()


def _free(ref: Ref) -> None:
    try:
        ref.drop()
    except Error:
        pass  # the connection has ended, and the hold with it
