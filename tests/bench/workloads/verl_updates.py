# SPDX-License-Identifier: Apache-2.0
"""verl's updates: a trainer yields tensor after tensor of its weights, and three rollouts, processes on its node, get them.

    received   seconds from the first tensor until the last rollout has been handed all tensors
    loaded     the same until all rollouts have copied them into memory of their own

Beside rdtd.verl: what verl's `naive` does where memory cannot be shared by CUDA, each rank of the trainer fills buckets of
shared memory for the rollout beside it (verl's own BucketedWeightSender and BucketedWeightReceiver, all three
at once). The first
update warms up; each rollout checks what it has loaded."""
import asyncio
import importlib.util
import os
import sys

from harness import CannotRun, Side, call_all, now

TENSORS = 64
BUCKET_MB = 128
ROLLOUTS = 3


def names():
    return [f"layers.{i}.weight" for i in range(TENSORS)]


def empty(size):
    import torch
    return {name: torch.zeros(max(size // TENSORS // 2, 1), dtype=torch.bfloat16) for name in names()}


def make_engine(path):
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engines"))
    import fake_verl
    fake_verl.install()  # unless verl is there
    from rdtd.verl import RdtdCheckpointEngine
    return RdtdCheckpointEngine(name="policy", socket=path, timeout=100)


class Weights:
    def __init__(self, size):
        self.weights = empty(size)

    def fill(self, number):
        for tensor in self.weights.values():
            tensor.fill_(number)

    def check(self, number):
        wrong = {float(end) for tensor in self.weights.values() for end in (tensor.min(), tensor.max())} - {number}
        if wrong:
            raise RuntimeError(f"values of {wrong} came with version {number}")


class RdtdTrainer(Weights):
    def __init__(self, path, size):
        super().__init__(size)
        self.engine = make_engine(path)

    def prepare(self):
        sender = self.engine.prepare()
        self.engine.init_process_group("sender", **sender)
        return sender

    def send(self):
        start = now()
        asyncio.run(self.engine.send_weights(iter(self.weights.items())))
        return start


class RdtdRollout(Weights):
    def __init__(self, path, size):
        super().__init__(size)
        self.engine = make_engine(path)

    def prepare(self, sender):
        self.engine.init_process_group("receiver", **sender)

    def receive(self, load):
        async def receive():
            async for name, tensor in self.engine.receive_weights():
                if load:
                    self.weights[name].copy_(tensor)
        asyncio.run(receive())
        return now()


def buckets():
    """verl's module, which needs no vLLM, without its package, which demands one. Without GPUs torch waits for nothing."""
    import torch
    import verl
    path = os.path.join(verl.__path__[0], "workers/rollout/vllm_rollout/bucketed_weight_transfer.py")
    spec = importlib.util.spec_from_file_location("bucketed_weight_transfer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not torch.cuda.is_available():
        module.get_torch_device = lambda: torch.cpu
        module.is_support_ipc = lambda: False
        torch.cpu.empty_cache = lambda: None
    return module


class NaiveTrainer(Weights):
    def send(self, handle):
        module = buckets()
        start = now()
        asyncio.run(module.BucketedWeightSender(handle, BUCKET_MB, use_shm=True).async_send_weights(iter(self.weights.items())))
        return start


class NaiveRollout(Weights):
    def receive(self, handle, load):
        import torch
        module = buckets()

        def bucket(weights, is_last):
            for name, tensor in weights if load else ():
                self.weights[name].copy_(tensor)
        module.BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True).receive_weights(bucket)
        return now()


def rdtd(bench):
    if importlib.util.find_spec("torch") is None:
        raise CannotRun("torch is not installed")
    size = bench.size(int(500e6), 1_000_000)
    path = bench.daemon().socket
    trainer, *rollouts = bench.actors([(RdtdTrainer, path, size)] + [(RdtdRollout, path, size)] * ROLLOUTS)

    def update(load):
        sender = trainer.call("prepare")
        call_all(rollouts, "prepare", sender)
        for rollout in rollouts:
            rollout.start("receive", load)
        start = trainer.call("send")
        return max(rollout.result() for rollout in rollouts) - start
    return figures(bench, size, [trainer], rollouts, update)


def naive(bench):
    if importlib.util.find_spec("verl") is None:
        raise CannotRun("verl is not installed")
    size = bench.size(int(500e6), 1_000_000)
    trainers = bench.actors([(NaiveTrainer, size)] * ROLLOUTS)
    rollouts = bench.actors([(NaiveRollout, size)] * ROLLOUTS)
    handles = [f"ipc://{bench.dir}/{i}" for i in range(ROLLOUTS)]

    def update(load):
        for rollout, handle in zip(rollouts, handles):
            rollout.start("receive", handle, load)
        for trainer, handle in zip(trainers, handles):
            trainer.start("send", handle)
        start = min(trainer.result() for trainer in trainers)
        return max(rollout.result() for rollout in rollouts) - start
    return figures(bench, size, trainers, rollouts, update)


def figures(bench, size, trainers, rollouts, update):
    taken = {"received": [], "loaded": []}
    for number in range(1, 3 if bench.quick else 6):
        for figure, times in taken.items():
            call_all(trainers, "fill", number)
            times.append(update(figure == "loaded"))
        call_all(rollouts, "check", number)
    return {(f"{size / 1e6:.0f} MB, {ROLLOUTS} rollouts", f"{figure}, s"): min(times[1:]) for figure, times in taken.items()}


def sides():
    return [Side("rdtd, rdtd.verl", rdtd, "streams while the trainer yields; one copy for the node"),
            Side("verl, naive", naive, f"verl's buckets of {BUCKET_MB} MB in shared memory, one sender for each rollout")]
