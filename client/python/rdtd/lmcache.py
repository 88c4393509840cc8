# SPDX-License-Identifier: Apache-2.0
"""LMCache (multi-process mode) over rdtd: an L2 adapter, loaded as a plug-in.

    lmcache server ... --l2-adapter '{"type": "plugin", "module_path": "rdtd.lmcache", "class_name": "L2"}'

What LMCache stores in its L2 becomes evictable objects of this node's daemon, one for each key. They are copied once, from
LMCache's memory into the daemon's, and once back. Every LMCache of this user on the node finds them, and they outlive it.

adapter_params: socket (of the daemon; null: $RDT_SOCKET or the default), space ("lmcache", begins the id of each block),
lease_for (seconds for which a lookup protects what it has found; 120), nodes (seconds for which the daemons of the node table are
asked for blocks that this node does not have; null: they are not), max_capacity_gb (0: the daemon alone evicts; otherwise
what LMCache's own eviction takes for the capacity of this adapter).

Tested with lmcache 0.5.6. Source: its v1/distributed/l2_adapters, plugin_l2_adapter.py and base.py."""
# mypy: disable-error-code="import, misc, no-any-unimported, no-untyped-call, override"
from __future__ import annotations

import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

from ._engines import Engine
from ._kv import Blocks, id_of, options, space_of

_ENGINE = Engine("rdtd.lmcache", ("lmcache",), "0.5.6")

try:
    from lmcache.lmcache_native import Bitmap
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.distributed.internal_api import L2StoreResult
    from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
    from lmcache.v1.platform import create_event_notifier
except ImportError as error:
    raise _ENGINE.other(error) from None

__all__ = ["L2"]

_log = logging.getLogger("lmcache.rdtd")
_PARAMS = {"socket": None, "space": "lmcache", "lease_for": 120.0, "nodes": None, "max_capacity_gb": 0}


class _Lane:
    """One kind of task: a thread that does them in their order, their results by task id, and the eventfd that says so."""

    def __init__(self, name: str) -> None:
        self.results: dict[int, Any] = {}
        self.event = create_event_notifier()
        self.thread = ThreadPoolExecutor(1, f"rdtd-{name}")

    def submit(self, task: int, run: Callable[[], Any], failed: Any) -> int:
        self.thread.submit(self._run, task, run, failed)
        return task

    def _run(self, task: int, run: Callable[[], Any], failed: Any) -> None:
        try:
            result = run()
        except Exception:  # LMCache waits for every task
            _log.exception("rdtd.lmcache: a task failed")
            result = failed
        self.results[task] = result
        self.event.notify()

    def close(self) -> None:
        self.thread.shutdown(wait=True)
        self.event.close()


class L2(L2AdapterInterface):
    """The adapter. Its name spaces are {space}/{model}/ and, for keys with a cache_salt, {space}/{model}/{salt}/, with "--" for
    the slashes of the model: `rdtctl cache` shows them, and c.free(prefix=...) drops one at once. A lookup leases what it finds,
    in the step in which it finds it; unlock ends that lease. It ends by itself after lease_for if LMCache is killed.
    Errors: ValueError (adapter_params), and those of `rdtd.connect`."""

    def __init__(self, params: Any, l1_memory_desc: Any = None) -> None:
        chosen = options("adapter_params of rdtd.lmcache", params, _PARAMS)
        capacity = chosen["max_capacity_gb"]
        if isinstance(capacity, bool) or not isinstance(capacity, (int, float)) or capacity < 0:
            raise ValueError(f"adapter_params of rdtd.lmcache: max_capacity_gb must be a number >= 0, not {capacity!r}")
        super().__init__(max_capacity_bytes=int(capacity * (1 << 30)))
        self._space = chosen["space"]
        self._blocks = Blocks(chosen["socket"], chosen["lease_for"], chosen["nodes"])
        self._tasks = itertools.count(1)
        self._stores, self._lookups, self._loads = _Lane("store"), _Lane("lookup"), _Lane("load")
        self._sizes: dict[ObjectKey, int] = {}  # of what this process has stored and not seen gone: LMCache's accounting
        self._lock = threading.Lock()

    def _ids(self, keys: list[ObjectKey]) -> list[str]:
        spaces = {}
        for names in {(key.model_name, key.cache_salt) for key in keys}:
            spaces[names] = space_of(self._space, *[name for name in names if name])
        return [id_of(spaces[key.model_name, key.cache_salt], key.model_name.encode(), key.cache_salt.encode(), key.chunk_hash,
                      b"%d.%d" % (key.kv_rank, key.object_group_id)) for key in keys]

    # ---- events ----

    def get_store_event_fd(self) -> int:
        return int(self._stores.event.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._lookups.event.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._loads.event.fileno())

    # ---- store ----

    def submit_store_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        def store() -> L2StoreResult:
            stored = self._blocks.store(self._ids(keys), [one.byte_array for one in objects])
            whole = [(key, one.get_size()) for key, one, there in zip(keys, objects, stored) if there]
            with self._lock:
                gone = [(key, self._sizes[key]) for key, _ in whole if key in self._sizes]
                self._sizes.update(whole)
            self._say(self._notify_keys_deleted, gone)
            self._say(self._notify_keys_stored, whole)
            self._look_at_oldest(2 * len(whole))
            return L2StoreResult(all(stored), sum(size for _, size in whole))
        return self._stores.submit(next(self._tasks), store, L2StoreResult(False, 0))

    @staticmethod
    def _say(notify: Callable[[list[ObjectKey], list[int]], None], sized: list[tuple[ObjectKey, int]]) -> None:
        if sized:
            notify([key for key, _ in sized], [size for _, size in sized])

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        results = {}
        while self._stores.results:
            task, result = self._stores.results.popitem()
            results[task] = result
        return results

    # ---- lookup ----

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], group_layout_descs: Any = None) -> int:
        def lookup() -> Bitmap:
            found = self._blocks.lookup(self._ids(keys), True)
            self._forget([key for key, there in zip(keys, found) if not there])
            return _bitmap(found)
        return self._lookups.submit(next(self._tasks), lookup, Bitmap(len(keys)))

    def _forget(self, keys: list[ObjectKey]) -> None:
        """Tells LMCache what was stored here and is gone."""
        with self._lock:
            gone = [(key, self._sizes.pop(key)) for key in keys if key in self._sizes]
        self._say(self._notify_keys_deleted, gone)

    def _look_at_oldest(self, count: int) -> None:
        """Forgets those that the daemon has evicted, which LMCache may never look up. With twice as many as each store adds, about
        half of the keys that are known are there."""
        with self._lock:
            oldest = list(itertools.islice(self._sizes, count))
        there = self._blocks.stay(self._ids(oldest))
        with self._lock:
            for key, stays in zip(oldest, there):
                if stays and key in self._sizes:
                    self._sizes[key] = self._sizes.pop(key)  # behind the others
        self._forget([key for key, stays in zip(oldest, there) if not stays])

    def query_lookup_and_lock_result(self, task_id: int) -> Optional[Bitmap]:
        return self._lookups.results.pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        self._lookups.thread.submit(self._blocks.unlock, self._ids(keys))

    # ---- load ----

    def submit_load_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        def load() -> Bitmap:
            loaded = self._blocks.load(self._ids(keys), [one.byte_array for one in objects])
            there = [key for key, whole in zip(keys, loaded) if whole]
            if there:
                self._notify_keys_accessed(there)
            return _bitmap(loaded)
        return self._loads.submit(next(self._tasks), load, Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Optional[Bitmap]:
        return self._loads.results.pop(task_id, None)

    # ---- the rest ----

    def delete(self, keys: list[ObjectKey]) -> None:
        """Frees the blocks, and returns when they are gone; what is locked goes with its last lock."""
        self._blocks.delete(self._ids(keys))
        self._forget(keys)

    def report_status(self) -> dict[str, Any]:
        return {"is_healthy": self._blocks.connected, "type": "rdtd.lmcache.L2", "space": self._space}

    def close(self) -> None:
        """Waits for the tasks that were submitted. The blocks stay for the next LMCache."""
        for lane in (self._loads, self._lookups, self._stores):
            lane.close()
        self._blocks.close()


def _bitmap(of: list[bool]) -> Bitmap:
    bits = Bitmap(len(of))
    for i, one in enumerate(of):
        if one:
            bits.set(i)
    return bits


_ENGINE.check(L2)
