# SPDX-License-Identifier: Apache-2.0
"""rdtd.sglang.HiCache as SGLang's cache controller calls it: made by SGLang's factory where sglang is installed, otherwise with a
fake of the two classes that it needs. The host pool is a stand-in in both cases."""
import importlib.util
import sys
import types
from abc import ABC, abstractmethod
from types import SimpleNamespace

import rdtd

from nodes import LONG, Node, cluster, main, raises, required, until

torch = required("torch")
REAL = importlib.util.find_spec("sglang") is not None
if REAL:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
else:
    print("with a fake of sglang's interface: it is not installed")

    class HiCacheStorage(ABC):
        def register_mem_pool_host(self, mem_pool_host):
            self.mem_pool_host = mem_pool_host

    for method in "get", "batch_get", "set", "batch_set", "exists":
        setattr(HiCacheStorage, method, abstractmethod(lambda self: None))
    HiCacheStorage.__abstractmethods__ = frozenset(("get", "batch_get", "set", "batch_set", "exists"))
    for name in "sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.hicache_storage":
        sys.modules[name] = types.ModuleType(name)
    sys.modules["sglang.srt.mem_cache.hicache_storage"].HiCacheStorage = HiCacheStorage
    HiCacheStorageConfig = SimpleNamespace

TOKENS, WIDTH = 16, 256  # of a page, and the bytes of a token in one of its two parts
V1 = {"interface_v1": 1}


class Pool:
    """Host memory of 32 pages of two parts, keys and values, as SGLang describes it."""

    page_size, layout, dtype = TOKENS, "page_first", torch.uint8

    def __init__(self):
        self.kv_buffer = torch.zeros((2, 32 * TOKENS, WIDTH), dtype=torch.uint8)

    def get_page_buffer_meta(self, indices):
        starts = indices.tolist()[::TOKENS]
        addresses = [self.kv_buffer[part, start].data_ptr() for start in starts for part in range(2)]
        return addresses, [TOKENS * WIDTH] * len(addresses)

    def indices(self, pages):
        return torch.cat([torch.arange(page * TOKENS, (page + 1) * TOKENS) for page in pages])

    def fill(self, page, number):
        self.kv_buffer[0, page * TOKENS:(page + 1) * TOKENS] = number
        self.kv_buffer[1, page * TOKENS:(page + 1) * TOKENS] = number + 100

    def filled(self, page):
        keys, values = (set(self.kv_buffer[part, page * TOKENS:(page + 1) * TOKENS].flatten().tolist()) for part in range(2))
        number = min(keys)
        assert keys == {number} and values == {number + 100 if number else 0}
        return number


def backend(node, pool=None, model="org/model", tp_rank=0, mla=False, **extra):
    config = HiCacheStorageConfig(
        tp_rank=tp_rank, tp_size=2, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=mla,
        enable_storage_metrics=False, is_page_first_layout=True, model_name=model,
        extra_config={"backend_name": "rdtd", "module_path": "rdtd.sglang", "class_name": "HiCache",
                      "rdtd": {"socket": node.socket, **extra.pop("rdtd", {})}, **extra})
    if REAL:
        made = StorageBackendFactory.create_backend("dynamic", config, pool)
    else:
        from rdtd.sglang import HiCache
        made = HiCache(config, {})
    made.register_mem_pool_host(pool or Pool())
    return made


def keys(numbers):
    return [f"{number:064x}" for number in numbers]


def test_pages_of_one_engine_are_loaded_by_another():
    with Node() as node, rdtd.connect(node.socket) as c:
        one, two = backend(node, Pool(), **V1), backend(node, Pool(), **V1)
        for page in range(8):
            one.mem_pool_host.fill(page, page + 1)
        assert one.batch_set_v1(keys(range(8)), one.mem_pool_host.indices(range(8))) == [True] * 8
        one.close()
        assert two.batch_exists(keys([0, 1, 2, 99, 3])) == 3 and two.batch_exists(keys([99, 0])) == 0
        assert two.exists(keys([5])[0]) and not two.exists(keys([99])[0])
        assert two.batch_get_v1(keys([0, 2, 99, 7]), two.mem_pool_host.indices([10, 3, 4, 12])) == [True, True, False, True]
        assert [two.mem_pool_host.filled(page) for page in (10, 3, 4, 12)] == [1, 3, 0, 8]
        assert two.batch_get_v1([], torch.zeros(0)) == [] and two.batch_exists([]) == 0
        assert c.cache()["owners"][0]["objects"] == 8, "one object for each page"
        two.clear()
        assert two.batch_exists(keys([0])) == 0
        two.close()


def test_pages_of_another_node():
    with cluster(2) as (nodes, (c, other)):
        for v1 in V1, {}:
            near, alone, far = [backend(node, Pool(), rdtd=rdtd_options, **v1) for node, rdtd_options in
                                ((nodes[0], {"nodes": LONG}), (nodes[0], {}), (nodes[1], {}))]
            if v1:
                far.mem_pool_host.fill(3, 7)
                assert far.batch_set_v1(keys([0]), far.mem_pool_host.indices([3])) == [True]
            else:
                page = torch.full((2, TOKENS, 8), 7, dtype=torch.bfloat16)
                assert far.set(keys([0])[0], page)
            assert alone.batch_exists(keys([0])) == 0 and near.batch_exists(keys([0, 1])) == 1
            for one in near, alone:  # the second time from this node
                if v1:
                    assert one.batch_get_v1(keys([0]), one.mem_pool_host.indices([5])) == [True] and one.mem_pool_host.filled(5) == 7
                else:
                    assert torch.equal(one.get(keys([0])[0], torch.zeros_like(page)), page)
            for one in near, alone, far:
                one.clear()
                one.close()


def test_tensors():
    with Node() as node:
        cache = backend(node)
        pages = [torch.full((2, 4, TOKENS, 8), number, dtype=torch.bfloat16) for number in range(4)]
        assert cache.batch_set(keys(range(4)), pages) and cache.set(keys([9])[0], pages[3].transpose(1, 3))
        into = [torch.zeros_like(pages[0]) for _ in range(5)]
        got = cache.batch_get(keys([3, 2, 77, 1]), into[:4])
        assert got[2] is None and got[0] is into[0]
        assert all(torch.equal(into[i], pages[number]) for i, number in ((0, 3), (1, 2), (3, 1)))
        sparse = torch.zeros((8, TOKENS, 4, 2), dtype=torch.bfloat16).permute(3, 2, 1, 0)
        assert cache.get(keys([3])[0], sparse) is sparse and torch.equal(sparse, pages[3])
        assert cache.get(keys([3])[0], torch.zeros(5)) is None, "a page of another size"
        with raises(ValueError, "target_locations"):
            cache.get(keys([3])[0])
        cache.clear()
        cache.close()


def test_what_exists_stays_until_it_is_loaded():
    with Node("--set", "daemon.cache_limit=4MiB") as node, rdtd.connect(node.socket) as c:
        cache = backend(node, **V1)
        pool = cache.mem_pool_host
        pool.fill(0, 1)
        cache.batch_set_v1(keys([1]), pool.indices([0]))
        assert cache.batch_exists(keys([1, 2])) == 1
        for first in range(100, 1300, 30):
            cache.batch_set_v1(keys(range(first, first + 30)), pool.indices(range(1, 31)))
        assert cache.batch_get_v1(keys([1]), pool.indices([31])) == [True] and pool.filled(31) == 1
        until(lambda: c.cache()["owners"][0]["idle_objects"] == c.cache()["owners"][0]["objects"], "no lease is left")
        cache.close()
        c.flush_cache()


def test_who_shares_pages():
    """Ranks have pages of their own, unless the model's pages are the same on each; models and layouts share nothing."""
    with Node() as node, rdtd.connect(node.socket) as c:
        made = backend(node, **V1)
        pool = made.mem_pool_host
        made.batch_set_v1(keys([1]), pool.indices([0]))
        other = Pool()
        other.layout = "layer_first"
        for one, there in ((backend(node, **V1), True), (backend(node), False), (backend(node, tp_rank=1, **V1), False),
                           (backend(node, model="org/other", **V1), False), (backend(node, other, **V1), False),
                           (backend(node, rdtd={"space": "mine"}, **V1), False)):
            assert one.exists(keys([1])[0]) == there
            one.close()
        mla = backend(node, mla=True, **V1)
        mla.batch_set_v1(keys([2]), pool.indices([0]))
        assert backend(node, mla=True, tp_rank=1, **V1).exists(keys([2])[0])
        assert c.free(prefix="sglang/org--model/", force=True) == 2


def test_models_with_long_and_with_similar_names():
    """All of a model's name counts, and ids have at most 128 bytes however long it is."""
    path = f"/mnt/models/{'m' * 60}/snapshots/{'0' * 39}"
    with Node() as node, rdtd.connect(node.socket) as c:
        made = {name: backend(node, model=name, **V1) for name in (path + "1", path + "2", "org/model", "org--model")}
        for number, one in enumerate(made.values()):
            one.mem_pool_host.fill(0, number + 1)
            assert one.batch_set_v1(keys([1]), one.mem_pool_host.indices([0])) == [True]
        for number, (name, one) in enumerate(made.items()):
            assert one.batch_get_v1(keys([1]), one.mem_pool_host.indices([1])) == [True]
            assert one.mem_pool_host.filled(1) == number + 1, name
        for left, one in zip((3, 2, 1, 0), made.values()):
            one.clear()
            assert sum(owner["objects"] for owner in c.cache()["owners"]) == left, "the pages of this model and no others"
            one.close()


def test_without_the_daemon():
    node = Node()
    cache = backend(node, **V1)
    node.kill()
    indices = cache.mem_pool_host.indices([0])
    assert cache.batch_set_v1(keys([1]), indices) == [False] and cache.batch_get_v1(keys([1]), indices) == [False]
    assert cache.batch_exists(keys([1])) == 0
    cache.close()


def test_wrong_options():
    with Node() as node:
        with raises(ValueError, "sockets"):
            backend(node, rdtd={"sockets": 1})
        several = Pool()
        several.kv_buffer = None
        with raises(ValueError, "several"):
            backend(node, several)


if __name__ == "__main__":
    main(globals())
