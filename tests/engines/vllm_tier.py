# SPDX-License-Identifier: Apache-2.0
"""rdtd.vllm.Tier as vLLM's tiering manager calls it, made by vLLM's own factory over a region as its primary tier has it. Needs
vLLM's classes: there is no fake of them."""
import sys
from types import SimpleNamespace

import rdtd

from nodes import LONG, Node, cluster, main, raises, required, until

try:
    import numpy as np
except ImportError:
    print("no numpy here")
    sys.exit(77)

required("vllm")
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.tiering.base import TransferJob  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402

SIZE = 64 << 10
HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY


def spec(model="org/model", tp_size=1, dtype="bfloat16"):
    """What a tier reads of vLLM's OffloadingSpec."""
    return SimpleNamespace(blocks_per_chunk=1, config=SimpleNamespace(
        groups=(SimpleNamespace(tokens_per_block=16, layer_names=("a", "b")),), canonical_layout=False, kv_cache_layout=None,
        replicated_layout=False, model=SimpleNamespace(name=model, dtype=dtype),
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=SimpleNamespace(rank=0, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False)))


class Engine:
    """A scheduler with a primary tier of 16 chunks."""

    def __init__(self, node, of=None, **options):
        self.memory = np.zeros((16, SIZE), dtype=np.int8)
        self.tier = SecondaryTierFactory.create_secondary_tier(
            {"type": "Tier", "module_path": "rdtd.vllm", "socket": node.socket, **options}, memoryview(self.memory), of or spec())
        self.jobs = 0
        self.done = {}

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.tier.shutdown()

    def job(self, numbers, chunks, promotion):
        self.jobs += 1
        return TransferJob(self.jobs, [key(number) for number in numbers], np.array(chunks), promotion, ReqContext("r"))

    def finish(self, job):
        def there():
            self.done.update({one.job_id: one for one in self.tier.get_finished_jobs()})
            return job in self.done
        until(there, "the job has ended", LONG)
        return self.done[job]

    def store(self, numbers, chunks):
        for number, chunk in zip(numbers, chunks):
            self.memory[chunk] = number % 127
        self.tier.submit_store(self.job(numbers, chunks, False))
        return self.finish(self.jobs)

    def load(self, numbers, chunks):
        self.tier.submit_load(self.job(numbers, chunks, True))
        return self.finish(self.jobs)

    def lookup(self, numbers, request="r"):
        """Steps of the scheduler until all are known."""
        context = ReqContext(request)
        self.tier.on_new_request(context)
        found = []

        def known():
            found[:] = [self.tier.lookup(key(number), context) for number in numbers]
            self.tier.on_schedule_end(None)
            return RETRY not in found
        until(known, "the look-up has ended", LONG)
        return found


def key(number):
    return make_offload_key(number.to_bytes(32, "big"), number % 2)


def test_chunks_of_one_engine_are_loaded_by_another():
    with Node() as node, rdtd.connect(node.socket) as c:
        with Engine(node) as one:
            context = ReqContext("first")
            assert one.tier.lookup(key(1), context) is RETRY, "the scheduler does not wait"
            one.tier.on_request_finished(context)
            result = one.store(range(8), range(8))
            assert result.success and result.transfer_bytes == 8 * SIZE and result.successful_keys is None
            one.memory[:] = 0
        with Engine(node) as two:
            assert two.lookup([0, 3, 7, 9]) == [HIT, HIT, HIT, MISS]
            assert two.load([7, 3, 0], [4, 5, 6]).success
            assert [set(two.memory[chunk]) for chunk in (4, 5, 6, 7)] == [{7}, {3}, {0}, {0}]
            until(lambda: c.cache()["owners"][0]["idle_objects"] == 8, "nothing is locked when it was loaded")
            assert c.free(prefix="vllm/org--model/", force=True) == 8


def test_chunks_of_another_node():
    with cluster(2) as (nodes, (c, other)):
        with Engine(nodes[1]) as far, Engine(nodes[0], nodes=LONG) as near, Engine(nodes[0]) as alone:
            assert far.store(range(4), range(4)).success
            assert alone.lookup([2]) == [MISS] and near.lookup([0, 3, 9]) == [HIT, HIT, MISS]
            assert near.load([0, 3], [5, 6]).success and [near.memory[chunk, 0] for chunk in (5, 6)] == [0, 3]
            assert alone.lookup([0, 3, 1], "s") == [HIT, HIT, MISS], "what was loaded is on this node now"
            assert alone.load([3], [1]).success and (alone.memory[1] == 3).all()
        for connection in c, other:
            connection.flush_cache()


def test_a_chunk_that_is_gone_is_a_miss_from_then_on():
    with Node() as node, rdtd.connect(node.socket) as c, Engine(node) as engine:
        engine.store([1, 2], [0, 1])
        assert engine.lookup([1, 2]) == [HIT, HIT]
        c.free(prefix="vllm/", force=True)
        engine.store([2], [1])
        result = engine.load([1, 2], [4, 5])
        assert not result.success
        assert engine.lookup([1])[0] is MISS, "vLLM would try the same again otherwise"
        engine.tier.on_request_finished(ReqContext("r"))
        assert engine.lookup([2]) == [HIT]
        result = engine.load([1, 2], [4, 5])
        assert not result.success and result.successful_keys == (key(2),) and set(engine.memory[5]) == {2}
        c.free(prefix="vllm/", force=True)


def test_what_was_looked_up_stays_until_it_is_loaded():
    with Node("--set", "daemon.cache_limit=4MiB") as node, rdtd.connect(node.socket) as c, Engine(node) as engine:
        engine.store([1], [0])
        assert engine.lookup([1]) == [HIT]
        for first in range(10, 170, 16):
            engine.store(range(first, first + 16), range(16))
        assert engine.load([1], [3]).success and set(engine.memory[3]) == {1}
        until(lambda: c.cache()["owners"][0]["idle_objects"] == c.cache()["owners"][0]["objects"], "no lock is left")
        c.flush_cache()


def test_layouts_share_nothing():
    with Node() as node, rdtd.connect(node.socket) as c, Engine(node) as one:
        one.store([1], [0])
        for other in spec("org/model2"), spec(tp_size=2), spec(dtype="float32"):
            with Engine(node, other) as engine:
                assert engine.lookup([1]) == [MISS]
        with Engine(node, space="mine") as engine:
            assert engine.lookup([1]) == [MISS]
        with Engine(node, spec()) as engine:
            assert engine.lookup([1]) == [HIT]
        c.free(prefix="vllm/", force=True)


def test_models_with_long_names():
    path = f"/mnt/models/{'m' * 60}/snapshots/{'0' * 39}"
    with Node() as node, rdtd.connect(node.socket) as c, \
            Engine(node, spec(path + "1")) as one, Engine(node, spec(path + "2")) as two:
        assert one.store([1], [3]).success and two.store([2], [3]).success
        assert one.lookup([1, 2]) == [HIT, MISS] and two.lookup([1, 2]) == [MISS, HIT]
        assert one.load([1], [5]).success and set(one.memory[5]) == {1}
        assert two.load([2], [5]).success and set(two.memory[5]) == {2}
        c.free(prefix="vllm/", force=True)


def test_jobs_are_drained():
    with Node() as node, rdtd.connect(node.socket) as c, Engine(node) as engine:
        for number in range(16):
            engine.tier.submit_store(engine.job([number], [number], False))
        engine.tier.drain_jobs()
        assert {one.job_id for one in engine.tier.get_finished_jobs()} == set(range(1, 17))
        c.free(prefix="vllm/", force=True)


def test_without_the_daemon():
    node = Node()
    with Engine(node) as engine:
        node.kill()
        assert not engine.store([1], [0]).success
        assert engine.lookup([1]) == [MISS] and not engine.load([1], [0]).success


def test_wrong_options():
    with Node() as node:
        with raises(ValueError, "sockets"):
            Engine(node, sockets="x")
        with raises(ValueError, "space"):
            Engine(node, space="")


if __name__ == "__main__":
    main(globals())
