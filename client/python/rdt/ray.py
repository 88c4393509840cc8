"""Ray Direct Transport over rdtd: `tensor_transport="rdtd"` for torch tensors, `"rdtd_numpy"` for numpy arrays.

    import ray, rdt.ray

    rdt.ray.register(hooked=True)                          # before the actors are created; twice is harmless
    ray.init(runtime_env={"worker_process_setup_hook": "rdt.ray.register"})   # also for actors that restart: see register

    @ray.remote
    class Trainer:
        @ray.method(tensor_transport="rdtd")
        def weights(self): return self.model.state_dict()

What a task returns, or ray.put(..., _tensor_transport="rdtd") puts, becomes an object of the node's daemon, held by the process that made
it. Readers on the node map it privately (copy on write), in constant time; on other nodes the daemons move it. The copy into the daemon's
memory is made when the object is, so its producer may write on; tensors from `rdt.default().empty(...)` are not copied but stay live, as
Ray's are. Nothing here ever kills an actor: a transfer that fails or stalls is an error of who wanted it.

Ray's interface is alpha; this follows it from 2.56 on.
"""
# mypy: disable-error-code="import, misc, type-arg, no-untyped-call"
from __future__ import annotations

import os
import threading
import uuid
import weakref
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count, groupby
from typing import Any, Iterable, Optional, Sequence, Union

from ray.experimental import (
    CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata, register_tensor_transport)
from ray.experimental.rdt import util
from ray.experimental.rdt.tensor_transport_manager import FetchRequest

from . import Connection, default
from ._arrays import convert, numpy, torch
from ._daemon import ensure, wish
from ._errors import Cancelled, Disconnected, Error, Exists, Restarted, ShuttingDown, SystemFailed
from ._requests import MODES, Ref, Request

__all__ = ["register", "RdtdTransport", "RdtdNumpyTransport"]

_SNAPSHOT_UNLESS_OURS = 0x10000  # transfer.c
# A transfer ends before Ray gives up on it: an error that comes when its task has given up is found by the next task that gets the object.
SOONER = 0.8
PATIENCE = 0.02  # seconds that a receive waits for its bytes before it can be aborted: most have come by then
HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # of a worker that has one


def register(start_daemon: Union[bool, Sequence[str]] = False, *, hooked: bool = False) -> None:
    """Makes Ray know the transports in this process. Once more changes nothing.

    In the driver, before actors are created, it is enough for them: Ray hands the transports on to each actor it creates. What Ray does not reach so
    are an actor that restarts, and a process that was lent a handle or a ref and calls a method with such a transport itself: for
    them name this function as the hook of all workers, `ray.init(runtime_env={"worker_process_setup_hook": "rdt.ray.register"})` (it imports
    torch in each, where torch is), or call it in the actor's `__init__`. A process that only receives needs neither.

    hooked: all workers have that hook, say so in the driver. Ray then hands nothing over, and its first call of an actor does not wait until the
    actor's background thread has taken it: for as long as that thread is busy, for ever if it waits for the caller. Workers see by themselves that they were
    hooked.
    start_daemon: where no daemon serves the socket ($RDT_SOCKET, else /run/rdtd/rdtd.sock, else one in this user's own folder below the
    temporary one), start one, with these flags if it is a list of rdtd's flags. It ends by itself when it has had no client for a minute.
    Processes started from this one, Ray's workers too, do the same ($RDT_START_DAEMON).
    Errors: SystemFailed, FileNotFoundError (there is no program rdtd)."""
    if start_daemon:
        wish(() if start_daemon is True else tuple(start_daemon))
        ensure()
    hooked = hooked or os.environ.get(HOOK_VARIABLE) == f"{__name__}.register"
    with _registering:
        others = util.has_custom_transports
        _once("rdtd_numpy", RdtdNumpyTransport, "numpy", "ndarray")
        _once("rdtd", RdtdTransport, "torch", "Tensor")
        if hooked:
            util.has_custom_transports = others


_registering = threading.Lock()
_NAMES = frozenset(("RDTD", "RDTD_NUMPY"))


def _once(name: str, manager: type, module: str, kind: str) -> None:
    try:
        data_type = getattr(import_module(module), kind)
    except ImportError:
        return
    if name.upper() not in util.transport_manager_info:
        register_tensor_transport(name, ["cpu"], manager, data_type)


def _patience() -> float:
    """Seconds that Ray waits for a transfer."""
    try:
        from ray._private.ray_constants import RDT_FETCH_FAIL_TIMEOUT_SECONDS
        return float(RDT_FETCH_FAIL_TIMEOUT_SECONDS)
    except ImportError:
        return 60.0


def _failed(what: str, error: BaseException) -> BaseException:
    from ray.exceptions import RayDirectTransportError
    made: BaseException = RayDirectTransportError(f"{what}: {type(error).__name__}: {error}")
    return made


# ---- what travels ----

class _Shapes(list):
    """[(shape, dtype)], which travels as runs of equal ones: ten thousand like tensors are one."""

    def __reduce__(self) -> Any:
        return _shapes_from, ([(shape, dtype, sum(1 for _ in run)) for (shape, dtype), run in groupby(self)],)


def _shapes_from(runs: Iterable[tuple[Any, Any, int]]) -> _Shapes:
    if not util.transport_manager_info.keys() >= _NAMES:
        register()  # who reads this in a worker that Ray told nothing is about to look for the transport
    made = _Shapes()
    for shape, dtype, count in runs:
        made += [(shape, dtype)] * count
    return made


@dataclass
class RdtdMetadata(TensorTransportMetadata):
    """ref: the packed Ref of the daemon's object; None: there are no tensors in it."""

    ref: Optional[bytes] = None

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass
class RdtdCommunicator(CommunicatorMetadata):
    """Names one transfer, so that an abort ends that one, and no other of the same object."""

    transfer: str = ""


@dataclass
class RdtdFetchRequest(FetchRequest):
    """request: None, when there is nothing to fetch, or it was. Dropping this cancels it. aborted: somebody said so, perhaps before there was a
    request."""

    request: Optional[Request] = field(default=None, repr=False)
    into: Optional[list[Any]] = field(default=None, repr=False)
    aborted: bool = False

    __hash__ = object.__hash__


# ---- the transports ----

_PROCESS = uuid.uuid4().hex  # whose transfers they are
_transfers = count()


class RdtdTransport(TensorTransportManager):
    """torch tensors in host memory. Any thread may call."""

    NAME = "RDTD"
    KIND = "t"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Ref] = {}  # object id: what this process put
        self._running: weakref.WeakValueDictionary[str, RdtdFetchRequest] = weakref.WeakValueDictionary()
        self._ends_with: Any = None  # Ray's manager whose shutdown ends what is held
        _ = torch() if self.KIND == "t" else numpy()  # what it knows of their tensors it must know before it takes one

    def tensor_transport_backend(self) -> str:
        return self.NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True  # each actor has; asking it would cost a task at every call

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: Optional[str] = None) -> RdtdCommunicator:
        return RdtdCommunicator(f"{_PROCESS}.{os.getpid()}.{next(_transfers)}")

    # the source

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> RdtdMetadata:
        if not rdt_object:
            return RdtdMetadata(tensor_meta=[])
        known: dict[Any, Any] = {}  # like tensors share an entry: thousands that stay would have Python look for garbage
        shapes = _Shapes([known.setdefault(entry, entry) for entry in ((tensor.shape, tensor.dtype) for tensor in rdt_object)])
        with self._lock:
            ref = self._held.get(obj_id)  # a task that is tried again describes what it put before
        if ref is None:
            ref = self._put(obj_id, rdt_object)
            with self._lock:
                ref = self._held.setdefault(obj_id, ref)
            self._end_with_ray()
        return RdtdMetadata(tensor_meta=shapes, tensor_device="cpu", ref=ref.pack())

    def _put(self, obj_id: str, tensors: list[Any]) -> Ref:
        # Under Ray's id, so that it is found by it too. Ids of several clusters' drivers can be the same: then the ref alone names it.
        key: Optional[bytes] = _key(obj_id)
        again = 2
        while True:
            connection = _connect()
            try:
                ref: Optional[Ref] = connection._put(tensors, key, None, 0, None, _SNAPSHOT_UNLESS_OURS, _patience(), None, None)
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
        """A driver may outlive its cluster: what it put goes with ray.shutdown()."""
        from ray._private.worker import global_worker
        manager = getattr(global_worker, "_rdt_manager", None)
        if manager is None or manager is self._ends_with:
            return
        self._ends_with = manager
        shutdown = manager.shutdown

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

    # the destination

    def fetch_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
                               target_buffers: Optional[list[Any]] = None) -> RdtdFetchRequest:
        return self._start(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers, 0)

    def _start(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any, target_buffers: Optional[list[Any]],
               patience: float) -> RdtdFetchRequest:
        started = RdtdFetchRequest(obj_id, [])
        shapes = tensor_transport_metadata.tensor_meta
        if not shapes:
            return started
        packed = getattr(tensor_transport_metadata, "ref", None)
        ref = Ref.from_id(_key(obj_id)) if packed is None else Ref._unpack(packed)
        started.into = list(target_buffers) if target_buffers else None
        transfer = getattr(communicator_metadata, "transfer", "")
        if transfer:
            self._running[transfer] = started
        try:
            (started.request,) = _connect()._fetch([ref], MODES["auto" if target_buffers else "cow"], _patience() * SOONER, None, None, None,
                                                   [started.into] if started.into else None, None, None, patience)
        except Error as error:
            raise _failed(f"object {obj_id} cannot be fetched", error) from error
        if started.aborted:
            started.request.cancel()
        return started

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
            raise _failed(f"object {started.obj_id} did not come. The source actor may have died during the transfer", error) from error
        started.request = None
        return list(started.tensors)

    def _arrived(self, started: RdtdFetchRequest, request: Request) -> list[Any]:
        if started.into is not None:
            return started.into
        return convert(request._take().tensors(), self.KIND, "auto")

    def recv_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
                              target_buffers: Optional[list[Any]] = None) -> list[Any]:
        started = self._start(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers, PATIENCE)
        try:
            return self.wait_fetch_complete(started)
        except TimeoutError as error:
            raise _failed(f"object {obj_id} did not come in time", error) from error

    def send_multiple_tensors(self, tensors: list[Any], tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        raise NotImplementedError("rdtd's readers fetch: there is nothing to be sent")

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        started = self._running.get(getattr(communicator_metadata, "transfer", ""))
        if started is None:
            return
        started.aborted = True  # before it is looked for, as who starts it makes it before it looks here
        request = started.request
        if request is not None:
            request.cancel()


class RdtdNumpyTransport(RdtdTransport):
    """The same for numpy arrays."""

    NAME = "RDTD_NUMPY"
    KIND = "n"


def _key(obj_id: str) -> bytes:
    return b"ray:" + obj_id.encode()


def _connect() -> Connection:
    try:
        return default()
    except (SystemFailed, Disconnected, ShuttingDown):  # there is no daemon, or it is just going
        if not ensure():
            raise
        return default()


def _free(ref: Ref) -> None:
    try:
        ref.drop()
    except Error:
        pass  # it went with its connection
