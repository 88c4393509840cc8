# SPDX-License-Identifier: Apache-2.0
"""rdtd.sglang.HiCache: a storage backend of SGLang's hierarchical cache. Imports SGLang: see sglang.py.

Source: sglang 0.5.23, srt/mem_cache/hicache_storage.py, storage/backend_factory.py and srt/managers/cache_controller.py."""
# mypy: disable-error-code="import, misc, no-any-unimported, no-untyped-call"
from __future__ import annotations

import ctypes
import functools
import json
from typing import Any, Optional

import torch

from ._engines import Engine
from ._kv import Blocks, id_of, options, space_of

_ENGINE = Engine("rdtd.sglang.HiCache", ("sglang",), "0.5.23")

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
except ImportError as error:
    raise _ENGINE.other(error) from None

_OPTIONS = {"socket": None, "space": "sglang", "lease_for": 30.0, "nodes": None}
_PARTS = ("tp_size", "pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size", "dcp_rank", "dcp_size", "logical_page_size", "is_mla_model",
          "is_page_first_layout", "should_split_heads", "tp_lcm_size")


@functools.lru_cache(maxsize=64)
def _array(bytes: int) -> Any:
    return ctypes.c_ubyte * bytes  # each of these types stays for ever


def _memory(address: int, bytes: int) -> memoryview:
    return memoryview(_array(bytes).from_address(address)).cast("B")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


class HiCache(HiCacheStorage):
    """Pages of SGLang's host memory as evictable objects of this node's daemon, one for each page. SGLang makes it for
    --hicache-storage-backend dynamic. Its extra_config names this class, and its key "rdtd" has the options: socket (of the
    daemon), space ("sglang", begins the id of each page), lease_for (seconds for which batch_exists protects what it has found)
    and nodes (seconds for which other nodes are asked for pages that this one does not have; None: never). With
    "interface_v1": 1 pages are copied once, straight from and to SGLang's host memory; otherwise SGLang copies each once more.
    The name space is {space}/{model}/{layout}/, for each rank whose pages differ.

    A page that is not there, or cannot be stored, has False or None. Errors: ValueError (an option; a model whose cache has
    several pools), and those of `rdtd.connect`."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = storage_config.extra_config or {}
        chosen = options('"rdtd" in the extra_config of rdtd.sglang.HiCache', extra.get("rdtd") or {}, _OPTIONS)
        self._config, self._begin, self._v1 = storage_config, chosen["space"], bool(extra.get("interface_v1", 0))
        self._space = self._space_for(None)
        self._blocks = Blocks(chosen["socket"], chosen["lease_for"], chosen["nodes"])

    def _space_for(self, pool: Any) -> str:
        layout: dict[str, Any] = {name: getattr(self._config, name, None) for name in _PARTS}
        layout.update(v1=self._v1, tp_rank=None if self._config.is_mla_model else self._config.tp_rank,
                      pool=[str(getattr(pool, name, None)) for name in ("layout", "dtype", "page_size")])
        return space_of(self._begin, self._config.model_name or "model", layout=json.dumps(layout))

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        if getattr(mem_pool_host, "kv_buffer", self) is None:
            raise ValueError("rdtd.sglang.HiCache keeps the pages of one host pool, and the cache of this model has several: "
                             "it needs another storage backend")
        super().register_mem_pool_host(mem_pool_host)
        self._space = self._space_for(mem_pool_host)

    def _ids(self, keys: list[str]) -> list[str]:
        return [id_of(self._space, key.encode()) for key in keys]

    # ---- exists ----

    def exists(self, key: str) -> bool:
        return self._blocks.lookup(self._ids([key]), False)[0]

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        return sum(self._blocks.lookup(self._ids(keys), True, until_missing=True))

    # ---- pages of the host pool, of one part or several ----

    def _pages(self, keys: list[str], host_indices: torch.Tensor) -> list[list[memoryview]]:
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        parts = [_memory(address, size) for address, size in zip(addresses, sizes)]
        each, rest = divmod(len(parts), len(keys))
        if rest or not each:
            raise ValueError(f"the host pool has {len(parts)} buffers for {len(keys)} pages")
        return [parts[i * each:(i + 1) * each] for i in range(len(keys))]

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._blocks.store(self._ids(keys), self._pages(keys, host_indices)) if keys else []

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._load(keys, self._pages(keys, host_indices)) if keys else []

    def _load(self, keys: list[str], into: list[Any]) -> list[bool]:
        ids = self._ids(keys)
        loaded = self._blocks.load(ids, into)
        self._blocks.unlock(ids)
        return loaded

    # ---- tensors ----

    def get(self, key: str, target_location: Optional[torch.Tensor] = None, target_sizes: Any = None) -> Optional[torch.Tensor]:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Optional[torch.Tensor]]:
        targets = list(target_locations or [])
        if len(targets) != len(keys) or not all(isinstance(one, torch.Tensor) for one in targets):
            raise ValueError(f"{len(keys)} keys need as many tensors in target_locations")
        flat = [_flat(one if one.is_contiguous() else torch.empty_like(one, memory_format=torch.contiguous_format)) for one in targets]
        loaded = self._load(keys, flat)
        for target, bytes, there in zip(targets, flat, loaded):
            if there and not target.is_contiguous():
                target.copy_(bytes.view(target.dtype).view(target.shape))
        return [target if there else None for target, there in zip(targets, loaded)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        return all(self._blocks.store(self._ids(keys), [_flat(value.contiguous()) for value in values]))

    # ---- the rest ----

    def clear(self) -> None:
        """Drops the pages of this model and layout, whoever has stored them."""
        self._blocks.clear(self._space)

    def close(self) -> None:
        """The pages stay for the next engine."""
        self._blocks.close()


_ENGINE.check(HiCache)
