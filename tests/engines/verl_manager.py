# SPDX-License-Identifier: Apache-2.0
"""verl's own CheckpointEngineManager, worker groups, workers and configuration over actors of Ray, with the backend rdtd: two
ranks of a trainer, and three rollouts that come, go and die. Only the model and what verl calls a server adapter are toys."""
from __future__ import annotations

import gc
import os
import sys
from contextlib import ExitStack
from typing import Any, Iterator

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
try:
    import ray
    import torch
    from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
    from verl.single_controller.base import Worker
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.utils.import_utils import import_external_libs
    from verl.workers.config import CheckpointEngineConfig, RolloutConfig
    from verl.workers.rollout import BaseRollout, RolloutReplica
except ImportError as missing:
    print(f"{missing}: make test-engines installs what this needs")
    sys.exit(77)
from nodes import Node, main, raises, until  # noqa: E402

import rdtd  # noqa: E402

SHAPES = {**{f"layers.{i}.weight": (600, 400 + i) for i in range(8)}, "scale": (), "bias": (7,)}
CONFIG = CheckpointEngineConfig(backend="rdtd", custom_backend_module="rdtd.verl", update_weights_bucket_megabytes=64,
                                engine_kwargs={"rdtd": {"timeout": 60}})


class Trainer(Worker):
    """As verl's ActorRolloutRefWorker makes and uses the engine."""

    def __init__(self) -> None:
        super().__init__()
        import_external_libs(CONFIG.custom_backend_module)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            CONFIG.backend, is_master=self.rank == 0, bucket_size=CONFIG.update_weights_bucket_megabytes << 20,
            **CONFIG.engine_kwargs.get(CONFIG.backend, {}))
        self.yielded = 0

    def _params(self, number: int) -> Iterator[tuple[str, torch.Tensor]]:
        for key, shape in SHAPES.items():
            self.yielded += 1
            yield key, torch.full(shape, number if self.rank == 0 else -1, dtype=torch.bfloat16)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: Any = None, mode: str = "auto") -> dict[str, float]:
        assert mode == "rdtd"
        return await self.checkpoint_engine.send_weights(self._params(global_steps), global_steps=global_steps) or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def count(self) -> int:
        return self.yielded


class ToyAdapter(BaseRollout):
    def __init__(self, config: Any) -> None:
        super().__init__(config, None, device_mesh=None)
        self.values: dict[str, Any] = {}

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **kwargs: Any) -> None:
        assert wire_format == "named_tensors"
        self.values = {key: weight.clone() async for key, weight in weights}


class ToyRollout(CheckpointEngineWorker):
    def __init__(self, rollout_config: Any) -> None:
        super().__init__(rollout_config, None, ToyAdapter(rollout_config))

    def _seen(self, values: dict[str, torch.Tensor]) -> list[float]:
        assert {key: tuple(value.shape) for key, value in values.items()} == SHAPES
        return sorted({float(end) for value in values.values() for end in (value.min(), value.max())})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seen(self) -> list[float]:
        return self._seen(self.server_adapter.values)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def cached(self) -> list[float]:
        """As verl means it for rollouts that take new weights when they are ready."""
        await self.server_adapter.update_weights(self.checkpoint_engine.get_weights())
        return self._seen(self.server_adapter.values)


class ToyReplica(RolloutReplica):
    called: list[str]

    def get_ray_class_with_init_args(self) -> Any:
        raise NotImplementedError

    async def launch_servers(self) -> None: ...

    async def abort_all_requests(self, **kwargs: Any) -> None:
        self.called = ["abort"]

    async def release_kv_cache(self) -> None:
        self.called.append("release")

    async def resume_kv_cache(self) -> None:
        self.called.append("restore")

    async def resume_generation(self) -> None:
        self.called.append("resume")


def group(cls: Any, count: int, *args: Any) -> Any:
    pool = RayResourcePool([count], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(ray.remote(cls), *args), device_name="cpu")


def replicas(config: Any, count: int) -> tuple[Any, list[ToyReplica]]:
    rollouts = group(ToyRollout, count, config)
    made = [ToyReplica(rank, config, None, gpus_per_node=1) for rank in range(count)]
    for replica in made:
        replica.workers = [rollouts.workers[replica.replica_rank]]
    return rollouts, made


def test_manager() -> None:
    with Node() as node, ExitStack() as stack:
        os.environ["RDT_SOCKET"] = node.socket
        ray.init(num_cpus=8, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
        stack.callback(ray.shutdown)
        config = RolloutConfig(name="vllm", tensor_model_parallel_size=1, checkpoint_engine=CONFIG)
        trainer, later = group(Trainer, 2), group(Trainer, 1)  # an actor takes seconds to import verl, so all start at once
        rollouts, made = replicas(config, 4)
        manager = CheckpointEngineManager(CONFIG, trainer, made[:3])

        def seen() -> list[list[float]]:
            return ray.get([worker.seen.remote() for worker in rollouts.workers if worker is not killed])
        killed = None
        for number in 1, 2:
            metrics = manager.update_weights(global_steps=number)
            assert metrics == {"rdtd/version": number, "rdtd/bytes": sum(2 * torch.Size(s).numel() for s in SHAPES.values())}
            assert ray.get([worker.seen.remote() for worker in rollouts.workers[:3]]) == [[number]] * 3
            assert all(replica.called == ["abort", "release", "restore", "resume"] for replica in made[:3])
        assert trainer.count() == [2 * len(SHAPES)] * 2, "each rank has run the generator, whose collectives need it"
        names = rdtd.default().names()
        assert len(names) == 1 and names[0]["name"].startswith("verl/"), names

        manager.add_replicas(made[3:])  # no group is built again for it
        manager.update_weights(global_steps=3)
        assert seen() == [[3]] * 4
        manager.remove_replicas(made[:1])
        manager.update_weights(global_steps=4)
        assert seen() == [[3], [4], [4], [4]]
        assert rollouts.cached() == [[4]] * 4, "the first was not in the update, and its node has the version"

        killed = rollouts.workers[1]
        ray.kill(killed)
        with raises(ray.exceptions.RayActorError):
            manager.update_weights(global_steps=5)
        manager.remove_replicas(made[1:2])
        manager.update_weights(global_steps=6)
        assert seen() == [[4], [6], [6]]

        for worker in trainer.workers:
            ray.kill(worker)
        assert ray.get(rollouts.workers[0].cached.remote()) == [6], "the trainer is not needed for what the node has"
        manager = CheckpointEngineManager(CONFIG, later, manager.replicas)
        manager.update_weights(global_steps=7)
        assert seen() == [[6], [7], [7]]
        rdtd.default().unpublish(names[0]["name"])
        for worker in later.workers + rollouts.workers:
            ray.kill(worker)
        del rollouts, made, manager, trainer, later, killed, worker
        gc.collect()
        stack.close()
        rdtd.default().close()
        until(lambda: node.ctl("clients", "--json").count('"pid"') <= 1, "Ray's processes have gone", 60)


if __name__ == "__main__":
    main(globals())
