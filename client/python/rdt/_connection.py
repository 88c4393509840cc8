"""A connection to the daemon of this node, with what a Python program does with it."""
from __future__ import annotations

import asyncio
import threading
from functools import partial
from operator import index
from os import PathLike
from typing import Any, AsyncIterator, ContextManager, Iterator, Literal, Optional, Sequence, Union, overload

from . import _rdt
from ._aio import AGAIN, Hub
from ._arrays import ITEM_BYTES, NUMBERS, dtype_text, gpu_of, kind_of, stream_number, to_numpy, to_torch, torch_uses_gpus
from ._errors import Unsupported
from ._gpu import TorchPools
from ._groups import GroupCalls
from ._requests import HOLD, MODES, Fetched, Held, How, Ref, Request, is_open
from ._structure import Layout, bare, encode, encode_nested, flatten

Visible = Literal["owner", "tenant", "all"]
As = Literal["auto", "numpy", "torch", "tensor", "list"]
Mode = Literal["auto", "share", "copy", "cow"]

_VISIBILITY = {"owner": 0, "tenant": 1, "all": 2}
_SNAPSHOT, _DETACHED = 1, 2
AUTO, COW = MODES["auto"], MODES["cow"]
_PUT, _FREED, _FREED_RANGE = 0, 1, 2
_SIMPLE = frozenset(("mode", "as_"))  # options of get that need no Request
ALIGN = 64  # of arrays that share an allocation


def _choice(choices: dict[str, int], value: str, what: str) -> int:
    try:
        return choices[value]
    except KeyError:
        raise ValueError(f"{what} is one of {', '.join(choices)}, not {value!r}") from None


def _box(index_: Any) -> Optional[tuple[tuple[int, int], ...]]:
    """(start, count) in every dimension."""
    if index_ is None:
        return None
    box = []
    for one in index_ if isinstance(index_, tuple) else (index_,):
        if not isinstance(one, slice) or one.stop is None or one.step not in (None, 1):
            raise ValueError("a slice names start and stop in every dimension of the tensor, with no step: numpy.s_[0:10, 5:6]")
        start = one.start or 0
        box.append((start, one.stop - start))
    return tuple(box)


def _number_of(listed: Sequence[Any], how_many: Any) -> int:
    number = {"all": len(listed), "any": min(1, len(listed))}.get(how_many) if isinstance(how_many, str) else how_many
    if not isinstance(number, int) or number < -1 or number > len(listed):
        raise ValueError(f"how_many is \"all\", \"any\" or 0 to {len(listed)}, not {how_many!r}")
    return len(listed) if number == -1 else number


class Connection(GroupCalls):
    """One session at the rdtd of this node: the lease of what it put and holds.

    socket: a path; None: $RDT_SOCKET, else /run/rdtd/rdtd.sock. name: shown by rdtctl; None: the program's. timeout: seconds to
    connect; None: 10.

    Any thread may make any call. Every call that waits releases the GIL, takes a `timeout` in seconds (None: without end; 0 polls)
    and answers Ctrl-C. After a fork the child gets `Forked` and connects anew (`rdt.default()` does that by itself).

    Errors: SystemFailed (no daemon there), Denied, LimitReached (too many clients), ProtocolBroken, TimedOut."""

    _hub_lock = threading.Lock()

    def __init__(self, socket: Union[str, PathLike[str], None] = None, *, name: Optional[str] = None,
                 timeout: Optional[float] = None) -> None:
        self._own_hub: Optional[Hub] = None
        self._gpus_open = False
        self._own_pools: Optional[TorchPools] = None
        self._kept_live: list[tuple[Request, Any]] = []
        info = self._node()
        self._owner = (info["uid"], info["tenant"])
        is_open(self)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a connection belongs to its process: send refs, and connect there (or use rdt.default())")

    def close(self) -> None:
        """Ends the connection: cancels its requests and frees what it put, but for what is detached or published. Closing twice is fine.

        Arrays and tensors that came from it stay valid: the session lingers, with nothing but their memory, until the last is gone."""
        super().close()
        if self._own_hub:
            self._own_hub.closed()

    def _hub(self) -> Hub:
        if self._own_hub is None:
            with self._hub_lock:
                if self._own_hub is None:
                    self._own_hub = Hub(self)
        return self._own_hub

    def _is_own(self, ref: _rdt.Ref) -> bool:
        return ref.owner is None or ref.owner == self._owner

    # ---- the daemon ----

    @property
    def node(self) -> dict[str, Any]:
        """This node: node and boot_id (16 bytes each), address of its peer link, daemon_version, session, uid, tenant."""
        return self._node()

    def ping(self, timeout: Optional[float] = 10) -> None:
        """One round trip."""
        self._ping(timeout)

    # ---- GPUs ----

    def _place(self, device: Any) -> Optional[tuple[Optional[str], Optional[str]]]:
        """Memory and uuid of what the caller calls a device; None: wherever it lies."""
        if device is None:
            if not self._gpus_open and torch_uses_gpus():
                self._open_gpus(False)
            return None
        gpu = gpu_of(device)
        if gpu is None:
            return "host", None
        self._open_gpus(True)
        return "cuda", gpu if isinstance(gpu, str) else self._gpu(gpu)

    def _open_gpus(self, wanted: bool) -> None:
        try:
            self._gpu_open()
        except Unsupported:
            if wanted:
                raise
        self._gpus_open = True

    def _keep_live(self, ref: Ref, value: Any, snapshot: bool) -> None:
        """Memory of torch's pool that was put: torch gets it back when the object does not need it any more."""
        self.dispatch()
        self._kept_live = [(ends, kept) for ends, kept in self._kept_live if ends._state() == AGAIN]
        self._kept_live.append((self.when_put(ref) if snapshot else self.when_freed(ref), value))

    def torch_pool(self, device: Any = None) -> ContextManager[Any]:
        """`with c.torch_pool("cuda:0"): ...`: the tensors that torch makes in this thread meanwhile lie in the daemon's memory of that GPU (None:
        torch's current one), and putting them copies nothing. Yields torch's MemPool.

        Their memory is torch's to reuse, as always, but for what was put: it stays while its object needs it, and comes back to torch with a later
        put. The same connection must put them (another one copies), and its session lasts until the process ends. One connection of a
        process serves torch's pools at a time: the one whose `torch_pool` was entered last.
        It has never run on a GPU: see the README.
        Errors: Unsupported (no torch, a torch without CUDA, no driver, a daemon that has no such GPU: the sentence says which), NoMemory,
        LimitReached. torch says torch.OutOfMemoryError where the daemon has no room; what the daemon said is in the exception's notes."""
        if self._own_pools is None:
            self._own_pools = TorchPools(self)
        return self._own_pools.use(device)

    # ---- memory ----

    def empty(self, shape: Union[int, Sequence[int]], dtype: Any = "f32", *, as_: As = "auto", timeout: Optional[float] = None,
              device: Any = None) -> Any:
        """A zeroed array in the daemon's memory: putting it copies nothing.

        shape: elements in each dimension. dtype: "f32", "bf16", numpy.float32, torch.bfloat16, float, ...  as_: "numpy" (what "auto" is
        unless dtype is torch's or numpy has none), "torch", "tensor". The memory lives as long as the last array, tensor or view of it, and
        as any object that was put from it. timeout: seconds to wait for room where a limit is reached; None: not at all.
        device: None or "host"; on a GPU ("cuda:0", torch.device, its number here, its UUID) it comes as torch's if dtype is torch's or as_ says so,
        else as rdt.Tensor.
        Errors: NoMemory, LimitReached, TimedOut, TypeError (no such dtype), Unsupported (a GPU that the daemon or this process has not)."""
        text = dtype_text(dtype)
        dims = (shape,) if isinstance(shape, int) else tuple(map(index, shape))
        kind = "t" if as_ == "auto" and str(dtype).startswith("torch.") else as_
        return self._arrays([(dims, text)], [kind], timeout, None if device is None else self._place(device))[0]

    def empty_like(self, value: Any, *, timeout: Optional[float] = None, device: Any = None) -> Any:
        """The same structure of dicts, lists and tuples with an array like each of its tensors, all in one allocation of the daemon's:
        fill it (a model's state dict, say) and put it, step after step, without a copy. device, errors: as in `empty`."""
        leaves = flatten(value)
        shapes = []
        kinds = []
        for leaf in leaves:
            text = leaf.dtype if isinstance(leaf, _rdt.Tensor) else dtype_text(getattr(leaf, "dtype", "u8"))
            shapes.append((tuple(getattr(leaf, "shape", None) or (() if hasattr(leaf, "shape") else (len(leaf),))), text))
            kinds.append("t" if kind_of(leaf) == "t" else "auto")
        made = iter(self._arrays(shapes, kinds, timeout, None if device is None else self._place(device)))

        def rebuild(node: Any) -> Any:
            if kind_of(node):
                return next(made)
            if isinstance(node, dict):
                return {key: rebuild(item) for key, item in node.items()}
            return type(node)([rebuild(item) for item in node])

        return rebuild(value)

    def _arrays(self, shapes: list[tuple[tuple[int, ...], str]], kinds: Sequence[str], timeout: Optional[float],
                place: Optional[tuple[Optional[str], Optional[str]]]) -> list[Any]:
        offsets = []
        end = 0
        for dims, text in shapes:
            count = ITEM_BYTES[text]
            for n in dims:
                if n < 0:
                    raise ValueError(f"a shape has no negative dimensions: {dims}")
                count *= n
            offsets.append(end)
            end += -(-count // ALIGN) * ALIGN
        memory = _rdt.Memory(self, max(end, 1), timeout, place)
        made = []
        for (dims, text), offset, kind in zip(shapes, offsets, kinds):
            tensor = memory.tensor(NUMBERS[text], dims, offset)
            if kind in ("t", "torch"):
                made.append(to_torch(tensor))
            else:
                made.append(tensor if kind == "tensor" else to_numpy(tensor))
        return made

    # ---- put ----

    def put(self, value: Any, *, id: Union[str, bytes, None] = None, snapshot: bool = False, detached: bool = False,
            ttl: Optional[float] = None, visible: Visible = "owner", transport: Optional[str] = None, timeout: Optional[float] = None,
            allow_pickle: bool = True, stream: Any = None) -> Ref:
        """Makes an object of a tensor, or of dicts, lists, tuples, dataclasses, ... that hold tensors, and returns the Ref that holds it.

        Tensors are numpy arrays, torch tensors, and whatever has a buffer, `__dlpack__` or `__cuda_array_interface__`, in host memory or on a GPU
        of CUDA's, of any strides, borrowed during the call. What lies in memory from `empty` (or `torch_pool`) is not copied: the object is that
        memory, live, and what is written there later its readers see (`wait_freed` says when nobody reads any more). Everything else is copied
        once (`Ref.copied` counts it), on its GPU if it is on one.
        What is not a tensor travels as metadata of the object: JSON if it can, else a pickle, which allow_pickle=False refuses (TypeError, naming
        what needs it). A tensor's requires_grad does not travel.

        id: your name for it, 1 to 128 bytes; readers may wait for it before it is put; the connection holds it, also when the Ref is gone, until
        it is freed. snapshot: it never changes; the daemon copies now.
        detached: it outlives this connection by ttl seconds (None: the daemon's detached_ttl), and the Ref holds nothing. visible: who else may
        fetch it. transport: preferred between nodes. timeout: seconds; where a limit is reached it waits so long for room; None: it
        does not wait for room.
        stream: of tensors on GPUs, where what writes them stands: a torch.cuda.Stream or CUDA's number of one; None: torch's current one for
        torch's, what `__cuda_array_interface__` says, the legacy default one for DLPack (whose producer makes it wait) and rdt's own. If all stand in
        one stream, and are torch's or rdt's own, put returns at once, and readers wait for the stream; else put waits for the streams itself.
        Errors: Invalid, TypeError, ValueError (each names the tensor), Exists (id), LimitReached, NoMemory, Unsupported (no driver, say), TimedOut."""
        flags = (_SNAPSHOT if snapshot else 0) | (_DETACHED if detached else 0)
        if ttl is not None and not detached:
            raise ValueError("ttl is for detached=True")
        encoded = encode(value, allow_pickle)
        key = id.encode() if isinstance(id, str) else id
        rest = (_choice(_VISIBILITY, visible, "visible"), transport, flags, timeout, ttl)
        where = None if stream is None else stream_number(stream)
        ref: Optional[Ref] = self._put(encoded.tensors, key, encoded.metadata or None, *rest, encoded.names, where)
        if ref is None:
            encoded = encode_nested(value, allow_pickle)
            ref = self._put(encoded.tensors, key, encoded.metadata or None, *rest, None, where)
            assert ref is not None
        if encoded.has_torch:
            ref._hint = 1
        if ref._live:
            self._keep_live(ref, encoded.tensors, snapshot)
        return ref

    async def put_async(self, value: Any, **options: Any) -> Ref:
        """`put` for event loops: the copying and waiting are done in a thread of the loop's executor."""
        return await asyncio.get_running_loop().run_in_executor(None, partial(self.put, value, **options))

    async def empty_async(self, shape: Union[int, Sequence[int]], dtype: Any = "f32", **options: Any) -> Any:
        """`empty` for event loops, as above."""
        return await asyncio.get_running_loop().run_in_executor(None, partial(self.empty, shape, dtype, **options))

    def free(self, ref: _rdt.Ref, *, force: bool = False) -> None:
        """Drops the producer's hold of an object of this user: it goes when its last reader has let go. With force nobody fetches it any
        more, on no node, from the moment that this returns; who has it keeps it. Errors: NotFound, Freed, Denied, PeerLost."""
        self._free(ref, force)

    # ---- fetch ----

    @overload
    def fetch(self, refs: _rdt.Ref, *, timeout: Optional[float] = None, mode: Optional[Mode] = None, as_: As = "auto", into: Any = None,
              slices: Any = None, transport: Optional[str] = None, least_path: Optional[str] = None,
              allow_pickle: Optional[bool] = None, device: Any = None, group: Optional[str] = None) -> Request: ...

    @overload
    def fetch(self, refs: Sequence[_rdt.Ref], *, timeout: Optional[float] = None, mode: Optional[Mode] = None, as_: As = "auto", into: Any = None,
              slices: Any = None, transport: Optional[str] = None, least_path: Optional[str] = None,
              allow_pickle: Optional[bool] = None, device: Any = None, group: Optional[str] = None) -> list[Request]: ...

    def fetch(self, refs: Union[_rdt.Ref, Sequence[_rdt.Ref]], *, timeout: Optional[float] = None, mode: Optional[Mode] = None, as_: As = "auto", into: Any = None,
              slices: Any = None, transport: Optional[str] = None, least_path: Optional[str] = None,
              allow_pickle: Optional[bool] = None, device: Any = None, group: Optional[str] = None) -> Any:
        """Starts fetching, all of the refs before any is awaited, and returns a Request, or a list of them for a list of refs.

        An id that nobody has put yet, or a name without a new version, is waited for until `timeout` (seconds; None: without end).
        mode: "share": this node's memory itself, in constant time, read-only (to write to a torch tensor of it is a fault: torch knows no
        read-only); "copy": private and writable; "cow": private and writable in constant time (of what was copied; other live memory is copied now);
        "auto": share on this node, copy from another. None is "auto", but torch gets "cow" instead of read-only memory.
        as_: "auto": tensors come as they were put (torch's as torch's where there is torch, others as numpy's where there is numpy);
        "numpy", "torch"; "tensor": as rdt.Tensor, needing neither; "list": without the structure.
        into: tensors (one, or dicts, lists, tuples of them; for a list of refs a list of such) that receive the bytes, of the same
        count, dtypes and shapes, contiguous: the result is `into`. slices: for each tensor of the object None or e.g. numpy.s_[0:10, 5:6]
        (for a list of refs a list of such lists): only that box of it.
        transport, least_path: take only this way; refuse what is slower than "share", "cow", "copy", "inline" or a transport. group: only within
        this group (see `create_group`); None: where a path needs one, the first that both nodes are in.
        allow_pickle: whether a structure that is a pickle may be read; None: if it belongs to this same user. It can run any
        code of who put it.
        device: where the tensors shall be: "host", or a GPU as in `empty`: all of them move there. None: where they lie, if torch has opened a GPU in this process, or this connection was asked for one before; else host memory.
        From another node host memory. as_="numpy" takes "host". On a GPU numpy's come as rdt.Tensor, which DLPack and
        `__cuda_array_interface__` hand on. All bytes are there when the fetch has ended: no stream is to be waited for.
        Errors, here or from the request: Freed, OwnerDied, NotFound, Denied, PeerLost, TransportFailed, NoPath, Mismatch (names the tensor,
        nothing was written), NoMemory, LimitReached, TimedOut, Cancelled, PickleRefused."""
        one = isinstance(refs, _rdt.Ref)
        wanted: list[Any] = [refs] if isinstance(refs, _rdt.Ref) else [refs] if isinstance(refs, (str, bytes)) else list(refs)
        for ref in wanted:
            if not isinstance(ref, _rdt.Ref):
                raise TypeError(f"a Ref is fetched, or a list of them, and not a {type(ref).__name__}: Ref(\"...\") reads one from text")
            if ref._wanting:
                self._hold_too(ref)
        if into is not None:
            into = [into] if one else list(into)
        if slices is not None:
            slices = [slices] if one else list(slices)
        targets = None if into is None else [None if value is None else flatten(value) for value in into]
        boxes = None if slices is None else [None if each is None else [_box(one_) for one_ in each] for each in slices]
        number = MODES["auto"] if mode is None else _choice(MODES, mode, "mode")
        if mode is None and into is None and (as_ == "torch" or as_ == "auto" and wanted and all([ref._hint for ref in wanted])):
            number = MODES["cow"]
        place = ("host", None) if device is None and as_ == "numpy" else self._place(device)
        started = self._fetch(wanted, number, timeout, transport, least_path, boxes, targets, place, group)
        for i, request in enumerate(started):
            again = (wanted[i], timeout, transport, least_path, None if boxes is None else [boxes[i]], place, group)
            request._how = How(as_, mode, None if into is None else into[i], allow_pickle, again)
        return started[0] if one else started

    def _again(self, how: How) -> Request:
        ref, timeout, transport, least_path, boxes, place, group = how.again
        (request,) = self._fetch([ref], MODES["cow"], timeout, transport, least_path, boxes, None, place, group)
        request._how = how._replace(mode="cow")
        return request

    def get(self, refs: Any, **options: Any) -> Any:
        """Fetches and waits: the value of a ref, or the list of values of a list of refs, all or the first failure (the rest is
        cancelled). Options and errors as in `fetch`. The arrays see the daemon's memory and keep it; nothing needs to be closed."""
        if isinstance(refs, _rdt.Ref):
            if options.keys() <= _SIMPLE and not (options and (self._gpus_open or torch_uses_gpus())):
                return self._get_one(refs, **options)
            return self.fetch(refs, **options).result()
        if isinstance(refs, list) and len(refs) == 1 and not options.keys() & {"into", "slices"}:
            return [self.get(refs[0], **options)]
        requests = self.fetch(refs, **options)
        self._wait(requests, -1, None)
        return [request.result() for request in requests]

    def _get_one(self, ref: _rdt.Ref, mode: Optional[str] = None, as_: str = "auto") -> Any:
        """What most programs do most: as `fetch` and its result, with no Request in between."""
        cow = mode is None and (as_ == "torch" or as_ == "auto" and bool(ref._hint))  # see Request._needs_cow
        number = COW if cow else AUTO if mode is None else _choice(MODES, mode, "mode")
        if ref._wanting:
            self._hold_too(ref)
        if not self._gpus_open and torch_uses_gpus():
            self._open_gpus(False)
        brought = self._get(ref, number)
        metadata = brought.metadata
        if not metadata and as_ == "auto":
            return bare(brought.tensors())
        layout = Layout(metadata, brought.tensors())
        if mode is None and not cow and as_ == "auto" and layout.has_torch and not brought.writable:
            brought = self._get(ref, COW)
            layout = Layout(metadata, brought.tensors())
        return layout.value(as_, layout.form == "pickle" and self._is_own(brought.info()["ref"]), Ref)

    def get_fetched(self, ref: _rdt.Ref, **options: Any) -> Fetched:
        """`get` of one ref, with how it came: path, version, bytes moved."""
        return self.fetch(ref, **options).fetched()

    # ---- holding ----

    def when_held(self, ref: _rdt.Ref, *, timeout: Optional[float] = None) -> Request:
        """A Request whose result is a Ref that holds the object, with its generation: of an id that nobody has put yet, or a name without a
        version above `after`, when it is there."""
        request = self._start(HOLD, ref, 0, 0, timeout)
        request._how = Held(ref._hint)
        return request

    def hold(self, ref: _rdt.Ref, *, timeout: Optional[float] = None) -> Ref:
        """`when_held`, waited for: a Ref that holds the object while it lives (`with c.hold(ref) as held:` for a while), on this node or another,
        whatever its producer does. Nothing is brought.

        Errors: Freed, OwnerDied, NotFound, Denied, LimitReached, PeerLost, TimedOut."""
        held: Ref = self.when_held(ref, timeout=timeout).result()
        return held

    def _hold_too(self, ref: Any) -> None:
        ref._hold = self._start(HOLD, ref, 0, 0, None)
        ref._wanting = False

    # ---- waiting ----

    def wait(self, requests: Sequence[Request], how_many: Union[int, Literal["all", "any"]] = "all",
             timeout: Optional[float] = None) -> tuple[list[Request], list[Request]]:
        """Waits until `how_many` of the requests have ended, or the time is over (seconds; None: never; 0 polls): (those that have ended,
        those that go on). Nothing is cancelled when the time is over. If one has failed, or fails meanwhile, that is raised at once."""
        listed = list(requests)
        ended = self._wait(listed, _number_of(listed, how_many), timeout)
        return [r for r, yes in zip(listed, ended) if yes], [r for r, yes in zip(listed, ended) if not yes]

    async def wait_async(self, requests: Sequence[Request], how_many: Union[int, Literal["all", "any"]] = "all",
                         timeout: Optional[float] = None) -> tuple[list[Request], list[Request]]:
        """`wait` for event loops. Being cancelled there cancels none of the requests."""
        listed = list(requests)
        wanted = _number_of(listed, how_many)
        self.dispatch()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        waiting = {loop.create_task(self._hub().ended(r, cancels=False)) for r in listed if r._state() == AGAIN}
        try:
            while True:
                ended = [r._state() != AGAIN for r in listed]
                for request, yes in zip(listed, ended):
                    if yes:
                        request._check()
                left = None if deadline is None else max(0.0, deadline - loop.time())
                if sum(ended) >= wanted or left == 0:
                    return [r for r, yes in zip(listed, ended) if yes], [r for r, yes in zip(listed, ended) if not yes]
                _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def when_put(self, ref: _rdt.Ref, *, timeout: Optional[float] = None) -> Request:
        """A Request that ends when the object is put, or the name has a version above `after`."""
        return self._start(_PUT, ref, 0, 0, timeout)

    def when_freed(self, what: Any, *, timeout: Optional[float] = None) -> Request:
        """A Request that ends when no hold and no transfer of the object is left on any node: its memory may be written again.

        what: a Ref, or an array from `empty` (any view of it): then every object that overlaps it. The producer's own hold counts,
        and that of every Ref which holds, `what` itself too: free them first. An object that is gone already is fine. Errors: Invalid (an array of other memory)."""
        if isinstance(what, _rdt.Ref):
            return self._start(_FREED, what, 0, 0, timeout)
        address, count = self._span(what)
        if count == 0:
            raise ValueError("an array without elements is nobody's")
        return self._start(_FREED_RANGE, None, address, count, timeout)

    def wait_put(self, ref: _rdt.Ref, *, timeout: Optional[float] = None) -> None:
        """`when_put`, waited for. Errors: TimedOut, Freed (a name that was unpublished)."""
        self.when_put(ref, timeout=timeout).result()

    def wait_freed(self, what: Any, *, timeout: Optional[float] = None) -> None:
        """`when_freed`, waited for. Errors: TimedOut."""
        self.when_freed(what, timeout=timeout).result()

    def stat(self, ref: _rdt.Ref) -> dict[str, Any]:
        """What an object is and what keeps it: ref, state, bytes, tensors, metadata_bytes, holds, pins, waiters, age and ttl_left (seconds;
        -1: no end in sight), snapshot, detached. Errors: NotFound, Freed, Denied, PeerLost."""
        return self._stat(ref)

    # ---- published names ----

    def publish(self, name: str, what: Any, *, visible: Visible = "owner", **options: Any) -> int:
        """Makes an object the next version of the name, and returns which: 1, 2, ... The name holds it by itself, past this connection's end,
        until the next version or `unpublish`.

        what: a Ref, or a value, which is put first (options as in `put`; snapshot=True unless you say otherwise).
        Errors: Invalid, NotFound, Freed, Denied, LimitReached, PeerLost."""
        if isinstance(what, _rdt.Ref):
            if options:
                raise TypeError(f"a Ref was put already: {', '.join(options)} come too late")
            return self._publish(name, what, _choice(_VISIBILITY, visible, "visible"))[0]
        options.setdefault("snapshot", True)
        with self.put(what, visible=visible, **options) as ref:
            return self._publish(name, ref, _choice(_VISIBILITY, visible, "visible"))[0]

    def unpublish(self, name: Union[str, _rdt.Ref]) -> None:
        """Ends a name: it lets go of its object; who waits for a version gets `Freed`. Errors: NotFound, Denied, PeerLost."""
        self._unpublish(name if isinstance(name, _rdt.Ref) else Ref.from_name(name))

    def versions(self, name: str, after: int = 0, *, near: Optional[_rdt.Ref] = None, address: Optional[str] = None,
                 **options: Any) -> Versions:
        """The versions of a published name above `after` as they come, newest first of those that piled up: `for version, value in ...`, or
        `async for`. near, address: as in `Ref.from_name`; options as in `fetch`, timeout for each."""
        return Versions(self, name, after, near, address, options)


class Versions(Iterator[tuple[int, Any]], AsyncIterator[tuple[int, Any]]):
    """See Connection.versions. Ends never; raises what fetching the next version raises."""

    def __init__(self, connection: Connection, name: str, after: int, near: Optional[_rdt.Ref], address: Optional[str],
                 options: dict[str, Any]) -> None:
        self.after = after
        self._connection = connection
        self._where = (name, near, address)
        self._options = options

    def _next(self) -> Request:
        name, near, address = self._where
        return self._connection.fetch(Ref.from_name(name, self.after, near=near, address=address), **self._options)

    def __iter__(self) -> Versions:
        return self

    def __next__(self) -> tuple[int, Any]:
        got = self._next().fetched()
        self.after = got.version
        return got.version, got.value

    def __aiter__(self) -> Versions:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        got = await self._next().fetched_async()
        self.after = got.version
        return got.version, got.value
