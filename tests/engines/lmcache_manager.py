# SPDX-License-Identifier: Apache-2.0
"""LMCache's storage manager, with its controllers and its own memory, over rdtd.lmcache: what one LMCache has stored, another
finds, and loads only its longest prefix. Needs lmcache."""
import sys

from nodes import LONG, Node, main, required, until

import rdtd

torch = required("torch")
required("lmcache")
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec  # noqa: E402
from lmcache.v1.distributed.config import (  # noqa: E402
    EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig)
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig  # noqa: E402
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig  # noqa: E402
from lmcache.v1.distributed.storage_manager import StorageManager  # noqa: E402

LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([2, 2, 16, 512])], dtypes=[torch.bfloat16])  # 64 KiB


def keys(numbers):
    return [ObjectKey(chunk_hash=number.to_bytes(32, "big"), model_name="org/model", kv_rank=0) for number in numbers]


def manager(node):
    return StorageManager(StorageManagerConfig(
        l1_manager_config=L1ManagerConfig(memory_config=L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False, shm_name="")),
        eviction_config=EvictionConfig(eviction_policy="LRU"),
        l2_adapter_config=L2AdaptersConfig([PluginL2AdapterConfig.from_dict(
            {"module_path": "rdtd.lmcache", "class_name": "L2", "adapter_params": {"socket": node.socket}})])))


def store(lmcache, numbers):
    reserved = lmcache.reserve_write(keys(numbers), LAYOUT)
    assert len(reserved) == len(numbers)
    for number, one in zip(numbers, keys(numbers)):
        reserved[one].tensor.fill_(number)
    lmcache.finish_write(keys(numbers))


def prefetch(lmcache, numbers):
    """The hits that came from L2, and the values of all hits."""
    handle = lmcache.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys(numbers), 0, LAYOUT)]))
    assert lmcache.wait_prefetch_status(handle, LONG)
    result = lmcache.query_prefetch_status(handle)
    hits = result.hit_cells[0].popcount()
    values = []
    if hits:
        good, objects = lmcache.unsafe_read(keys(numbers[:hits]))
        assert good == keys(numbers[:hits])
        values = [set(one.tensor.flatten().tolist()) for one in objects]
        lmcache.finish_read_prefetched(keys(numbers[:hits]))
    return result.l2_hit_cells[0].popcount(), values


def test_another_lmcache_loads_the_longest_prefix():
    with Node() as node, rdtd.connect(node.socket) as c:
        def objects():
            rows = c.cache()["owners"]
            return rows[0] if rows else {"objects": 0}
        first = manager(node)
        store(first, list(range(1, 41)))
        until(lambda: objects()["objects"] == 40, "all are stored", LONG)
        first.close()
        second = manager(node)
        assert prefetch(second, [*range(1, 31), 99, 31]) == (30, [{float(number)} for number in range(1, 31)])
        assert prefetch(second, [40, 39]) == (2, [{40.0}, {39.0}])
        until(lambda: objects()["idle_objects"] == objects()["objects"] == 40, "nothing is locked", LONG)
        c.flush_cache()
        assert prefetch(second, [40]) == (0, [])
        second.close()
        c.flush_cache()


if __name__ == "__main__":
    main(globals())
