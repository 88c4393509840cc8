# SPDX-License-Identifier: Apache-2.0
"""rdtd.vllm.Tier: a secondary tier of vLLM's KV offloading. Imports vLLM: see vllm.py.

Source: vllm 0.32.0, v1/kv_offload/tiering: base.py, factory.py and async_lookup.py."""
# mypy: disable-error-code="import, misc, no-any-unimported"
from __future__ import annotations

import dataclasses
import json
import queue
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ClassVar

from ._kv import Blocks, id_of, options, space_of
from .vllm import ENGINE

_ENGINE = dataclasses.replace(ENGINE, module="rdtd.vllm.Tier")
_OPTIONS = {"socket": None, "space": "vllm", "lease_for": 30.0, "nodes": None}

try:
    from vllm.v1.kv_offload.base import Locality, LookupResult, Medium
    from vllm.v1.kv_offload.file_mapper import FileMapper
    from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
    from vllm.v1.kv_offload.tiering.base import JobResult, RequestOffloadingContext, SecondaryTierManager
except ImportError as error:
    raise _ENGINE.other(error) from None


class _Lookups(AsyncLookupManager):
    """vLLM's look-ups of one scheduler step, in a thread. What is found is leased until it was loaded, which vLLM begins at
    once, or until the lease ends."""

    def __init__(self, tier_type: str, blocks: Blocks, ids: Callable[[Iterable[bytes]], list[str]]) -> None:
        self._blocks, self._ids = blocks, ids
        super().__init__(tier_type=tier_type)

    def batch_lookup(self, keys: list[Any], req_context: Any) -> list[bool]:
        return self._blocks.lookup(self._ids(keys), True)


class Tier(SecondaryTierManager):
    """Chunks of vLLM's primary tier as evictable objects of this node's daemon. vLLM makes it from an entry of its
    configuration's secondary_tiers, {"type": "Tier", "module_path": "rdtd.vllm"}, with the options of its other keys: socket (of
    the daemon), space ("vllm", begins the id of each chunk), lease_for (seconds for which a look-up protects what it has
    found) and nodes (seconds for which other nodes are asked for chunks that this one does not have; None: never). All engines
    with the same model, type of KV cache, block sizes and layout have one name space, {space}/{model}/{layout}/. Errors:
    ValueError (an option), ImportError (another vLLM), and those of `rdtd.connect`."""

    medium: ClassVar[Any] = Medium.CPU

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None,
                 **given: Any) -> None:
        chosen = options("the secondary tier of rdtd.vllm", given, _OPTIONS)
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality.LOCAL
        layout = FileMapper.from_offloading_spec(root_dir="", offloading_spec=offloading_spec, parallel_agnostic=True,
                                                 blocks_per_file=offloading_spec.blocks_per_chunk)
        text = json.dumps({**layout.get_run_config(), "rank": layout.rank, "bytes": self.block_size_bytes}, sort_keys=True)
        self._space = space_of(chosen["space"], layout.get_run_config()["model_name"], layout=text)
        self._blocks = Blocks(chosen["socket"], chosen["lease_for"], chosen["nodes"])
        self._lookups = _Lookups(tier_type, self._blocks, self._ids)
        self._stores, self._loads = ThreadPoolExecutor(1, "rdtd-store"), ThreadPoolExecutor(1, "rdtd-load")
        self._running: set[Future[None]] = set()
        self._finished: queue.SimpleQueue[tuple[Any, list[Any]]] = queue.SimpleQueue()  # with the keys that were not loaded

    def _ids(self, keys: Iterable[bytes]) -> list[str]:
        return [id_of(self._space, key) for key in keys]

    # ---- look-up ----

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> Any:
        found = self._lookups.lookup(key, req_context)
        return LookupResult.RETRY if found is None else LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.cleanup(req_context.req_id)

    # ---- transfers ----

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(self._stores, job_metadata, self._blocks.store)

    def submit_load(self, job_metadata: Any) -> None:
        def load(ids: list[str], chunks: list[memoryview]) -> list[bool]:
            loaded = self._blocks.load(ids, chunks)
            self._blocks.unlock(ids)
            return loaded
        self._submit(self._loads, job_metadata, load)

    def _submit(self, thread: ThreadPoolExecutor, job: Any, move: Callable[[list[str], list[memoryview]], list[bool]]) -> None:
        keys: Collection[Any] = list(job.keys)
        numbers = [int(number) for number in job.chunk_ids]

        def run() -> None:
            began, moved = time.monotonic(), [False] * len(keys)
            try:
                size, view = self.block_size_bytes, self._primary_kv_view.cast("B")
                moved = move(self._ids(keys), [view[number * size:(number + 1) * size] for number in numbers])
            finally:  # vLLM waits for every job
                good = [key for key, whole in zip(keys, moved) if whole]
                bad = [key for key, whole in zip(keys, moved) if not whole]
                self._finished.put((JobResult(
                    job_id=job.job_id, success=not bad, successful_keys=tuple(good) if bad and good and job.is_promotion else None,
                    transfer_time=time.monotonic() - began, transfer_bytes=len(good) * self.block_size_bytes),
                    bad if job.is_promotion else []))
        future = thread.submit(run)
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    def get_finished_jobs(self) -> list[Any]:
        done: list[Any] = []
        while True:
            try:
                result, missing = self._finished.get_nowait()
            except queue.Empty:
                return done
            self._lookups.mark_miss(missing)  # or vLLM tries the same again
            done.append(result)

    def drain_jobs(self) -> None:
        wait(list(self._running))

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._stores.shutdown(wait=True)
        self._loads.shutdown(wait=True)
        self._blocks.close()


_ENGINE.check(Tier)
