# SPDX-License-Identifier: Apache-2.0
"""Batches of TransferQueue, the data plane of verl: one process puts rows of a field, each under a key of its own, and another process of
the node gets them all as one tensor.

    put, get    milliseconds of kv_batch_put and of kv_batch_get

Every row is compared with what was put. The first batch warms up, and the fastest of the others counts."""
import importlib.util
import os

from harness import CannotRun, Side, now

CASES = ((6144, 2 << 10), (1024, 128 << 10), (64, 4 << 20))  # rows, bytes of a row


class Worker:
    """One process with a client of TransferQueue: the producer or the consumer."""

    def __init__(self):
        import torch
        import transfer_queue as tq
        torch.set_num_threads(1)
        tq.init()

    def put(self, rows, size, number):
        import torch
        import transfer_queue as tq
        from tensordict import TensorDict
        batch = TensorDict({"a": torch.arange(rows * (size // 4), dtype=torch.int32).reshape(rows, -1) + number}, batch_size=rows)
        keys = [f"{i}" for i in range(rows)]
        start = now()
        tq.kv_batch_put(keys=keys, partition_id=f"{number}", fields=batch)
        return now() - start

    def get(self, rows, size, number):
        import torch
        import transfer_queue as tq
        keys = [f"{i}" for i in range(rows)]
        start = now()
        found = tq.kv_batch_get(keys=keys, partition_id=f"{number}")["a"]
        took = now() - start
        for i, row in enumerate(found.unbind()):
            first = i * (size // 4) + number
            if not torch.equal(row, torch.arange(first, first + size // 4, dtype=torch.int32)):
                raise RuntimeError(f"row {i} of batch {number} has other values")
        tq.kv_clear(keys=keys, partition_id=f"{number}")
        return took


def by(backend):
    def side(bench):
        if importlib.util.find_spec("transfer_queue") is None:
            raise CannotRun("transferqueue is not installed")
        import ray
        import transfer_queue as tq
        from omegaconf import OmegaConf
        config = {"storage_backend": backend}
        if backend == "rdtd":
            import rdtd.transferqueue
            rdtd.transferqueue.register()
            config["rdtd"] = {"socket": bench.daemon().socket}
        ray.init(num_cpus=4, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False, logging_level="error",
                 _node_ip_address="127.0.0.1", _temp_dir=os.path.join(bench.dir, "ray"),
                 runtime_env={"worker_process_setup_hook": "rdtd.transferqueue.register",
                              "env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
        bench.stack.callback(ray.shutdown)
        tq.init(OmegaConf.create({"controller": {"polling_mode": True}, "backend": config}))
        bench.stack.callback(tq.close)
        producer, consumer = (ray.remote(num_cpus=0)(Worker).remote() for _ in range(2))
        figures, number = {}, 0
        for rows, size in CASES:
            rows = bench.size(rows, 8)
            puts, gets = [], []
            for _ in range(2 if bench.quick else 6):
                number += 1
                puts.append(ray.get(producer.put.remote(rows, size, number), timeout=120))
                gets.append(ray.get(consumer.get.remote(rows, size, number), timeout=120))
            case = f"{rows} x {size >> 10} KiB"
            figures[case, "put, ms"], figures[case, "get, ms"] = min(puts[1:]) * 1e3, min(gets[1:]) * 1e3
        return figures
    return side


def sides():
    return [Side("rdtd", by("rdtd"), "rdtd.transferqueue: one object for each put"),
            Side("TransferQueue, SimpleStorage", by("SimpleStorage"), "its default: two storage units, ZeroMQ")]
