# SPDX-License-Identifier: Apache-2.0
"""ray_overlap.py SOURCE_SOCKET READER_SOCKET: one ray.get of many objects from another node's daemon, measured alternately
with as many calls for one object each. All objects exist before, and each is new to the reader's node."""
import os
import sys
import time

source, reader = sys.argv[1:3]
os.environ["RDT_SOCKET"] = reader
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
import torch

import rdtd.ray

rdtd.ray.register(hooked=True)  # Ray looks the transport up when it reads the class

ROUNDS = 5
SHAPES = {"100K": (100_000, 64), "1M": (1_000_000, 32), "10M": (10_000_000, 8)}


@ray.remote(num_cpus=0)
class Source:
    @ray.method(tensor_transport="rdtd")
    def ones(self, count):
        return torch.ones(count, dtype=torch.int8)


def seconds_of(take, actor, count, many):
    refs = [actor.ones.remote(count) for _ in range(many)]
    ray.wait(refs, num_returns=many)
    start = time.perf_counter()
    take(refs)
    return time.perf_counter() - start


def at_once(refs):
    ray.get(refs)


def one_by_one(refs):
    for ref in refs:
        ray.get(ref)


def main():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20,
             runtime_env={"worker_process_setup_hook": "rdtd.ray.register"})
    actor = Source.options(runtime_env={"env_vars": {"RDT_SOCKET": source}}).remote()
    for size, (count, many) in SHAPES.items():
        for i in range(ROUNDS + 1):
            ours, reference = (seconds_of(take, actor, count, many) * 1e3 for take in (at_once, one_by_one))
            if i:  # the first warms up
                print(f"ray_get_{many}_of_{size}_at_once", "ms", "lower", 1, f"{ours:.4f}", f"{reference:.4f}", sep="\t", flush=True)


if __name__ == "__main__":
    main()
