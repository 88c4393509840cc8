"""torch's memory on GPUs, from the daemon: pools for `Connection.torch_pool`."""
from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator

from . import _rdt
from ._arrays import gpu_of, torch
from ._errors import Unsupported

if TYPE_CHECKING:
    from ._connection import Connection

PROBE_BYTES = 2 << 20

_allocator: Any = None  # torch's view of rdt_torch_alloc and rdt_torch_free: one for the process


def _need_torch() -> Any:
    module = torch()
    if module is None:
        raise Unsupported("a pool of torch's: there is no torch here")
    if not module.cuda.is_available():
        why = "it was built without CUDA" if module.version.cuda is None else "it sees no GPU that it can use (torch.cuda.is_available())"
        raise Unsupported(f"a pool of torch's on a GPU: this torch is {module.__version__}, and {why}")
    if not hasattr(module.cuda, "MemPool") or not hasattr(module.cuda, "use_mem_pool"):
        raise Unsupported(f"a pool of torch's: torch {module.__version__} has no torch.cuda.use_mem_pool, which came with 2.6")
    return module


class TorchPools:
    """One MemPool for each GPU, whose blocks are a connection's memory. torch keeps what it has taken for the next tensors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pools: dict[int, Any] = {}

    def _pool(self, module: Any, gpu: int) -> Any:
        global _allocator
        if gpu not in self._pools:
            _rdt.Memory(self._connection, PROBE_BYTES, None, ("cuda", self._connection._gpu(gpu)))  # the daemon has it, or says why not
            if _allocator is None:
                _allocator = module.cuda.memory.CUDAPluggableAllocator(_rdt.__file__, "rdt_torch_alloc", "rdt_torch_free")
            self._pools[gpu] = module.cuda.MemPool(_allocator.allocator())
        return self._pools[gpu]

    @contextmanager
    def use(self, device: Any) -> Iterator[Any]:
        module = _need_torch()
        gpu = gpu_of("cuda" if device is None else device)
        if gpu is None or isinstance(gpu, str):
            raise ValueError(f"a pool of torch's is on a GPU as torch numbers them (\"cuda:0\"), not {device!r}")
        self._connection._place(gpu)
        pool = self._pool(module, gpu)
        self._connection._use_pool()
        before = (_rdt.pool_info() or {})["failures"]
        try:
            with module.cuda.use_mem_pool(pool, device=gpu):
                yield pool
        except module.OutOfMemoryError as error:
            said = _rdt.pool_info() or {}
            if said["failures"] > before and hasattr(error, "add_note"):
                error.add_note(f"rdtd: {said['last']}")
            raise
