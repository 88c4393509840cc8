# SPDX-License-Identifier: Apache-2.0
"""torch tensors in the daemon's GPU memory: the pools behind `Connection.torch_pool`."""
from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator

from . import _rdt
from ._arrays import gpu_of, torch
from ._errors import Unsupported

if TYPE_CHECKING:
    from ._connection import Connection

PROBE_BYTES = 2 << 20

# torch's allocator object around rdt_torch_alloc and rdt_torch_free: one for each process.
_allocator: Any = None


def _need_torch() -> Any:
    module = torch()
    if module is None:
        raise Unsupported("torch_pool: torch is not installed")
    if not module.cuda.is_available():
        why = "it was built without CUDA"
        if module.version.cuda is not None:
            why = "it finds no usable GPU (torch.cuda.is_available() is false)"
        raise Unsupported(f"torch_pool: this torch is {module.__version__}, and {why}")
    if not hasattr(module.cuda, "MemPool") or not hasattr(module.cuda, "use_mem_pool"):
        raise Unsupported(f"torch_pool: torch {module.__version__} has no torch.cuda.use_mem_pool; it needs "
                          "torch 2.6 or later")
    return module


class TorchPools:
    """One MemPool for each GPU. Its blocks are memory of the connection, which torch keeps and reuses for
    later tensors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pools: dict[int, Any] = {}

    def _pool(self, module: Any, gpu: int) -> Any:
        global _allocator
        if gpu not in self._pools:
            # This raises the daemon's reason if it cannot allocate there.
            _rdt.Memory(self._connection, PROBE_BYTES, None, ("cuda", self._connection._gpu(gpu)))
            if _allocator is None:
                _allocator = module.cuda.memory.CUDAPluggableAllocator(_rdt.__file__, "rdt_torch_alloc",
                                                                       "rdt_torch_free")
            self._pools[gpu] = module.cuda.MemPool(_allocator.allocator())
        return self._pools[gpu]

    @contextmanager
    def use(self, device: Any) -> Iterator[Any]:
        module = _need_torch()
        gpu = gpu_of("cuda" if device is None else device)
        if gpu is None or isinstance(gpu, str):
            raise ValueError(f"torch_pool needs a GPU as torch numbers them (\"cuda:0\"), not {device!r}")
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
