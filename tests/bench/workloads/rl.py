# SPDX-License-Identifier: Apache-2.0
"""RL: Ray actors, one trainer and four samplers. In each step the trainer's weights (64 MiB of f32, 291 tensors) go down to the samplers, which
read every byte, and each sends up a trajectory of 1,000 tensors of 1 kB, of which the trainer reads every byte.

    s/step    the median of the steps after the first; 20 of them, or as many as fit into half a minute"""
import statistics

from harness import Side, now

SAMPLERS, STEPS, TRAJECTORY, EACH, SECONDS = 4, 20, 1000, 250, 30


class Trainer:
    def __init__(self, size):
        from weights import model
        self.model = model(size, "float32")

    def step(self, number):
        from weights import write
        write(self.model, number)
        return self.model

    def learn(self, number, *trajectories):
        for trajectory in trajectories:
            total = sum(float(tensor.sum()) for tensor in trajectory)
            if total != number * EACH * TRAJECTORY:
                raise RuntimeError(f"the trajectories of step {number} arrived with the sum {total}")


class Sampler:
    def sample(self, number, weights):
        import torch
        from weights import read
        if read(weights) != number:
            raise RuntimeError(f"the weights of step {number} arrived as others")
        return [torch.full((EACH,), float(number)) for _ in range(TRAJECTORY)]


def with_transport(ray, cls, method, transport):
    if transport == "store":
        return ray.remote(num_cpus=0)(cls)
    function = getattr(cls, method)
    body = {method: ray.method(tensor_transport=transport)(lambda self, *args: function(self, *args))}
    return ray.remote(num_cpus=0, enable_tensor_transport=True)(type(cls.__name__ + "_", (cls,), body))


def by(transport):
    def side(bench):
        import os
        os.environ["RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"] = "1"
        if transport == "rdtd":
            os.environ["RDT_SOCKET"] = bench.daemon().socket
        ray = bench.ray(1 << 30)
        trainer = with_transport(ray, Trainer, "step", transport).remote(bench.size(64 << 20, 8 << 20))
        samplers = [with_transport(ray, Sampler, "sample", transport).remote() for _ in range(SAMPLERS)]
        if transport == "gloo":
            from ray.experimental.collective import create_collective_group
            create_collective_group([trainer, *samplers], backend="gloo")
        times, began = [], now()
        for number in range(1, STEPS + 2):
            start = now()
            weights = trainer.step.remote(number)
            up = [sampler.sample.remote(number, weights) for sampler in samplers]
            ray.get(trainer.learn.remote(number, *up), timeout=100)
            del weights, up
            times.append(now() - start)
            if len(times) > 2 and now() - began > SECONDS:
                break
        return {("one trainer, four samplers", "s/step"): statistics.median(times[1:])}
    return side


def sides():
    return [Side(name, by(transport), note) for name, transport, note in (
        ("rdtd", "rdtd", "tensor_transport='rdtd'"),
        ("Ray object store", "store", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=1"),
        ("Ray RDT over gloo", "gloo", "tensor_transport='gloo', one group"),
        ("Ray RDT over nixl", "nixl", "tensor_transport='nixl'"))]
