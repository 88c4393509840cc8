"""A trainer and two samplers: weights go through rdtd, on this node without a copy. Prints what the samplers saw.

    rdtd --socket ~/.rdtd/sock --state-dir '' &  RDT_SOCKET=~/.rdtd/sock python3 ray_weights.py

or, without a daemon, rdtd.ray.register(start_daemon=True)."""
import ray
import torch

import rdtd
import rdtd.ray

rdtd.ray.register(hooked=True)
ray.init(num_cpus=1, runtime_env={"worker_process_setup_hook": "rdtd.ray.register"})  # actors that restart know the transport too


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(1000, 1000)

    @ray.method(tensor_transport="rdtd")
    def step(self, number):
        with torch.no_grad():
            self.model.weight.fill_(number)
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}  # a snapshot: the next step may begin


@ray.remote(num_cpus=0, enable_tensor_transport=True)  # without it Ray may queue the transfer behind the task that waits for it
class Sampler:
    def __init__(self):
        self.model = torch.nn.Linear(1000, 1000)

    def load(self, weights):
        self.model.load_state_dict(weights)
        return self.model.weight.mean().item()


trainer, samplers = Trainer.remote(), [Sampler.remote() for _ in range(2)]
for number in range(1, 4):
    weights = trainer.step.remote(number)
    print(number, ray.get([sampler.load.remote(weights) for sampler in samplers]))
