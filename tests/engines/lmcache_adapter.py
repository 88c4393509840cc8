# SPDX-License-Identifier: Apache-2.0
"""rdtd.lmcache as LMCache's controllers call it: through its plug-in loader where lmcache is installed, with its keys and memory
objects; otherwise with a fake of its interface (fake_lmcache.py)."""
import importlib.util
import multiprocessing
import os
import select
import subprocess
import sys
from contextlib import contextmanager

import rdtd

from nodes import LONG, Killed, Node, cluster, main, raises, until

try:
    import numpy as np
except ImportError:
    print("no numpy here")
    sys.exit(77)

REAL = importlib.util.find_spec("lmcache") is not None
if REAL:
    import torch
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig, _create_plugin_adapter
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
else:
    print("with a fake of lmcache's interface: make test-engines installs lmcache")
    import fake_lmcache
    fake_lmcache.install()
    from fake_lmcache import ObjectKey

KIB = 1 << 10


def key(number, model="org/model", salt="", rank=1, group=0):
    return ObjectKey(chunk_hash=number.to_bytes(32, "big"), model_name=model, kv_rank=rank, object_group_id=group, cache_salt=salt)


class Page:
    """What a fake LMCache passes for a page of its memory."""

    def __init__(self, array):
        self.array, self.byte_array = array, memoryview(array)

    def get_size(self):
        return self.array.nbytes


def page(part):
    """A page that is this array of bytes."""
    if not REAL:
        return Page(part)
    return TensorMemoryObj(torch.from_numpy(part), MemoryObjMetadata(
        shape=torch.Size([part.nbytes]), dtype=torch.uint8, address=0, phy_size=part.nbytes, fmt=MemoryFormat.KV_2LTD, ref_count=1),
        parent_allocator=None)


def pages(numbers, bytes=64 * KIB):
    """Pages of one region, each filled with its number."""
    region = np.repeat(np.array([number % 251 for number in numbers], dtype=np.uint8), bytes)
    return [page(region[i * bytes:(i + 1) * bytes]) for i in range(len(numbers))]


def filled(page):
    """The number that fills it, or None."""
    found = set(bytes(page.byte_array))
    return found.pop() if len(found) == 1 else None


@contextmanager
def adapter(node, **params):
    params = {"socket": node.socket, **params}
    if REAL:
        one = _create_plugin_adapter(PluginL2AdapterConfig.from_dict(
            {"module_path": "rdtd.lmcache", "class_name": "L2", "adapter_params": params}))
    else:
        from rdtd.lmcache import L2
        one = L2(params)
    try:
        yield one
    finally:
        one.close()


def ready(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(LONG * 1000), "the eventfd says nothing"
    os.eventfd_read(fd)


def store(l2, keys, objects):
    task = l2.submit_store_task(keys, objects)
    ready(l2.get_store_event_fd())
    done = l2.pop_completed_store_tasks()
    assert list(done) == [task] and l2.pop_completed_store_tasks() == {}
    return done[task]


def lookup(l2, keys):
    task = l2.submit_lookup_and_lock_task(keys, {})
    ready(l2.get_lookup_and_lock_event_fd())
    bits = l2.query_lookup_and_lock_result(task)
    assert l2.query_lookup_and_lock_result(task) is None, "each result is given once"
    return [bits.test(i) for i in range(len(keys))]


def load(l2, keys, into):
    task = l2.submit_load_task(keys, into)
    ready(l2.get_load_event_fd())
    bits = l2.query_load_result(task)
    assert l2.query_load_result(task) is None
    return [bits.test(i) for i in range(len(keys))]


class Listener:
    def __init__(self):
        self.stored, self.accessed, self.deleted = [], [], []

    def on_l2_keys_stored(self, keys, sizes):
        self.stored += keys

    def on_l2_keys_accessed(self, keys):
        self.accessed += keys

    def on_l2_keys_deleted(self, keys):
        self.deleted += keys


def test_a_store_is_found_and_loaded():
    with Node() as node, adapter(node) as l2:
        fds = {l2.get_store_event_fd(), l2.get_lookup_and_lock_event_fd(), l2.get_load_event_fd()}
        assert len(fds) == 3
        keys = [key(number) for number in range(20)]
        assert lookup(l2, keys) == [False] * 20
        result = store(l2, keys, pages(range(20)))
        assert result.is_successful() and result.bytes_transferred() == 20 * 64 * KIB
        assert lookup(l2, keys + [key(99)]) == [True] * 20 + [False]
        into = pages([200] * 21)
        assert load(l2, keys + [key(99)], into) == [True] * 20 + [False]
        assert [filled(page) for page in into] == [*range(20), 200]
        l2.submit_unlock(keys)
        assert load(l2, keys[:1], pages([0])) == [True], "also what is not locked is loaded"
        assert load(l2, keys[:2], [*pages([7], 100), *pages([7])]) == [False, True], "a page of another size is not written"
        assert l2.query_load_result(12345) is None and l2.report_status()["is_healthy"]
        l2.delete(keys)


def test_nothing_of_the_region_is_kept():
    with Node() as node, adapter(node) as l2:
        page = pages([5])
        store(l2, [key(1)], page)
        page[0].byte_array.cast("B")[:] = bytes(64 * KIB)
        into = pages([9])
        assert load(l2, [key(1)], into) == [True] and filled(into[0]) == 5
        l2.delete([key(1)])


def test_name_spaces():
    """Each field of a key tells blocks apart, and a model or a user of one is dropped at once."""
    with Node() as node, adapter(node) as l2, adapter(node, space="other") as other, rdtd.connect(node.socket) as c:
        keys = [key(1), key(1, salt="ann"), key(1, salt="bob"), key(1, rank=2), key(1, group=1), key(1, "org/model/ann"),
                key(1, "m" * 200), key(1, "m" * 201), key(1, "é" * 100, "x" * 128)]
        store(l2, keys, pages(range(len(keys))))
        assert lookup(other, keys) == [False] * len(keys)
        into = pages([99] * len(keys))
        assert load(l2, keys, into) == [True] * len(keys)
        assert [filled(page) for page in into] == list(range(len(keys)))
        assert c.free(prefix="lmcache/org--model/ann/", force=True) == 1
        assert lookup(l2, keys) == [True, False] + [True] * 7
        l2.submit_unlock(keys)
        assert c.free(prefix="lmcache/org--model/", force=True) == 4
        assert lookup(l2, keys) == [False] * 5 + [True] * 4
        l2.submit_unlock(keys)
        l2.delete(keys)


def test_locked_blocks_stay():
    with Node("--set", "daemon.cache_limit=4MiB") as node, adapter(node) as l2, rdtd.connect(node.socket) as c:
        keys = [key(number) for number in range(8)]
        store(l2, keys, pages(range(8)))
        assert all(lookup(l2, keys[:4])) and all(lookup(l2, keys[:2]))  # the first two twice
        l2.submit_unlock(keys[:2])

        def flood():
            for first in range(100, 300, 20):
                store(l2, [key(number) for number in range(first, first + 20)], pages(range(20)))
        flood()
        into = pages([99] * 8)
        assert load(l2, keys, into)[:4] == [True] * 4 and [filled(page) for page in into[:4]] == [0, 1, 2, 3]
        l2.submit_unlock(keys[:4])
        until(lambda: c.cache()["owners"][0]["idle_objects"] == c.cache()["owners"][0]["objects"], "no lock is left")
        l2.submit_unlock(keys[:4])  # what is not locked is passed over
        c.flush_cache()
        assert lookup(l2, keys) == [False] * 8


def test_the_accounting_of_lmcache():
    with Node() as node, adapter(node, max_capacity_gb=1) as l2, rdtd.connect(node.socket) as c:
        listener = Listener()
        l2.register_listener(listener)
        store(l2, [key(1), key(2)], pages([1, 2]))
        store(l2, [key(1)], pages([3]))
        assert l2.get_usage().total_bytes_used == 2 * 64 * KIB and l2.get_usage().total_capacity_bytes == 1 << 30
        into = pages([0])
        load(l2, [key(1), key(9)], into + pages([0]))
        assert filled(into[0]) == 3 and listener.accessed == [key(1)], "a later store of a key takes its place"
        l2.delete([key(1), key(1), key(9)])
        assert l2.get_usage().total_bytes_used == 64 * KIB
        c.flush_cache()
        assert lookup(l2, [key(2)]) == [False]
        assert l2.get_usage().total_bytes_used == 0 and listener.deleted[-1] == key(2), "what was evicted is no longer counted"


def test_what_was_evicted_is_forgotten_without_a_lookup():
    with Node("--set", "daemon.cache_limit=2MiB") as node, adapter(node) as l2, rdtd.connect(node.socket) as c:
        listener = Listener()
        l2.register_listener(listener)
        for number in range(300):
            assert store(l2, [key(number)], pages([number])).is_successful()
        there = c.cache()["owners"][0]["objects"]
        assert there < 40 and l2.get_usage().total_bytes_used <= (2 * there + 2) * 64 * KIB, (there, l2.get_usage())
        assert set(listener.deleted) == {key(number) for number in range(len(listener.deleted))}, "those that are there stay"
        l2.delete([key(number) for number in range(300)])
        assert l2.get_usage().total_bytes_used == 0


def test_tasks_at_the_same_time():
    with Node() as node, adapter(node) as l2:
        tasks = {l2.submit_store_task([key(number)], pages([number])): number for number in range(50)}
        done = {}
        while len(done) < 50:
            ready(l2.get_store_event_fd())
            done.update(l2.pop_completed_store_tasks())
        assert done.keys() == tasks.keys() and all(one.is_successful() for one in done.values())
        assert all(lookup(l2, [key(number) for number in range(50)]))
        l2.submit_unlock([key(number) for number in range(50)])
        l2.delete([key(number) for number in range(50)])


def _stores_until_killed(socket, started):
    class At:
        pass
    At.socket = socket
    with adapter(At) as l2:
        store(l2, [key(1)], pages([1]))
        lookup(l2, [key(1)])
        started.set()
        while True:
            store(l2, [key(number) for number in range(2, 40)], pages(range(2, 40)))


def test_a_process_killed_in_a_store_leaves_whole_blocks():
    with Node() as node, adapter(node) as l2:
        context = multiprocessing.get_context("spawn")
        for _ in range(3):
            started = context.Event()
            process = context.Process(target=_stores_until_killed, args=(node.socket, started))
            process.start()
            assert started.wait(LONG)
            process.kill()
            process.join()
            keys = [key(number) for number in range(1, 40)]
            into = pages([250] * 39)
            for number, (whole, page) in enumerate(zip(load(l2, keys, into), into), 1):
                assert filled(page) == (number if whole else 250)
            assert filled(into[0]) == 1
        with rdtd.connect(node.socket) as c:
            c.free(prefix="lmcache/", force=True)


def _loads_until_killed(socket, started):
    class At:
        pass
    At.socket = socket
    with adapter(At, lease_for=1) as l2:
        keys = [key(number) for number in range(40)]
        while True:
            lookup(l2, keys)
            load(l2, keys, pages([0] * 40))
            started.set()


def test_a_process_killed_in_a_load_locks_nothing_for_long():
    with Node() as node, adapter(node) as l2, rdtd.connect(node.socket) as c:
        keys = [key(number) for number in range(40)]
        store(l2, keys, pages(range(40)))
        context = multiprocessing.get_context("spawn")
        started = context.Event()
        process = context.Process(target=_loads_until_killed, args=(node.socket, started))
        process.start()
        assert started.wait(LONG)
        process.kill()
        process.join()
        until(lambda: c.cache()["owners"][0]["idle_objects"] == 40, "its locks have ended")
        into = pages([99] * 40)
        assert load(l2, keys, into) == [True] * 40 and [filled(page) for page in into] == list(range(40))
        l2.delete(keys)


def test_without_the_daemon_nothing_is_found_and_nothing_fails():
    """With a keeper the blocks are there again after the daemon was killed; without, the cache is empty, and works on."""
    with Killed("--set", "daemon.cache_limit=64MiB") as killed:
        with adapter(killed.node) as l2:
            keys = [key(number) for number in range(10)]
            store(l2, keys, pages(range(10)))
            killed.kill()
            into = pages([99] * 10)
            assert all(lookup(l2, keys)) and load(l2, keys, into) == [True] * 10
            assert [filled(page) for page in into] == list(range(10))
            l2.submit_unlock(keys)
            l2.delete(keys)
    node = Node()
    with adapter(node) as l2:
        store(l2, [key(1)], pages([1]))
        node.kill()
        assert not store(l2, [key(2)], pages([2])).is_successful()
        assert lookup(l2, [key(1)]) == [False] and load(l2, [key(1)], pages([1])) == [False]
        assert not l2.report_status()["is_healthy"]
        l2.submit_unlock([key(1)])
        l2.delete([key(1)])
        node.start()
        until(lambda: store(l2, [key(2)], pages([2])).is_successful(), "the daemon is there again")
        assert lookup(l2, [key(1), key(2)]) == [False, True] and l2.report_status()["is_healthy"]
        l2.submit_unlock([key(2)])
        l2.delete([key(2)])


def test_a_full_cache_fails_what_it_cannot_take():
    """Blocks that are locked leave no room: the store says so, and what was stored is there whole."""
    with Node("--set", "daemon.cache_limit=2MiB") as node, adapter(node) as l2:
        keys = [key(number) for number in range(24)]
        assert store(l2, keys, pages(range(24))).is_successful() and all(lookup(l2, keys))
        result = store(l2, [key(100)], pages([7], 1 << 20))
        assert not result.is_successful() and result.bytes_transferred() == 0
        assert lookup(l2, [key(100)]) == [False]
        into = pages([250] * 24)
        assert load(l2, keys, into) == [True] * 24 and [filled(page) for page in into] == list(range(24))
        l2.submit_unlock(keys)
        until(lambda: store(l2, [key(100)], pages([7], 1 << 20)).is_successful(), "there is room again")
        l2.delete([*keys, key(100)])


def test_blocks_of_another_node():
    with cluster(2) as (nodes, (c, other)):
        with adapter(nodes[1]) as far, adapter(nodes[0], nodes=LONG) as near, adapter(nodes[0]) as alone:
            names = [key(number) for number in range(4)]
            assert store(far, names[:3], pages(range(1, 4))).is_successful()
            assert lookup(alone, names) == [False] * 4 and lookup(near, names) == [True] * 3 + [False]
            into = pages([0] * 4)
            assert load(near, names, into) == [True] * 3 + [False] and [filled(page) for page in into] == [1, 2, 3, 0]
            near.submit_unlock(names[:3])
            assert lookup(alone, names) == [True] * 3 + [False], "what was loaded is on this node now"
            alone.submit_unlock(names[:3])
        for connection in c, other:
            until(lambda: connection.flush_cache() and not connection.cache()["owners"], "nothing is leased")


def test_another_lmcache_is_one_sentence():
    code = "import sys; sys.modules['lmcache'] = sys.modules['lmcache.lmcache_native'] = None; import rdtd.lmcache"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 1 and "rdtd.lmcache " in done.stderr.splitlines()[-1] and "0.5.6" in done.stderr, done.stderr


def test_wrong_parameters():
    with Node() as node:
        for params, text in (({"sockets": "x"}, "sockets"), ({"lease_for": "x"}, "lease_for"), ({"space": "x" * 40}, "32 bytes"),
                             ({"max_capacity_gb": -1}, "max_capacity_gb"), ({"nodes": 61}, "nodes")):
            with raises(ValueError, text):
                with adapter(node, **params):
                    pass
        with raises(rdtd.Disconnected, ""):
            with adapter(node, socket=node.socket + "x"):
                pass


if __name__ == "__main__":
    main(globals())
