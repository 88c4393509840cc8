# SPDX-License-Identifier: Apache-2.0
"""The little of verl 0.9.1 that rdtd.verl is built on, for machines without verl: the registry and the abstract methods of
verl/checkpoint_engine/base.py. `install()` makes it the module "verl" of this process, unless verl is there."""
import importlib.util
import sys
import types
from abc import ABC, abstractmethod

BASE = "verl.checkpoint_engine.base"


class CheckpointEngineRegistry:
    _registry: dict = {}

    @classmethod
    def register(cls, backend):
        def register(engine):
            cls._registry[backend] = engine
            return engine
        return register

    @classmethod
    def get(cls, backend):
        return cls._registry[backend]

    @classmethod
    def new(cls, backend, *args, **kwargs):
        return cls._registry[backend](*args, **kwargs)


class CheckpointEngineWithCache(ABC):
    @abstractmethod
    def prepare(self): ...

    @classmethod
    @abstractmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata): ...

    @abstractmethod
    def init_process_group(self, **kwargs): ...

    @abstractmethod
    def finalize(self): ...

    @abstractmethod
    async def send_weights(self, weights, global_steps=None): ...

    @abstractmethod
    async def receive_weights(self, global_steps=None): ...

    @abstractmethod
    async def get_weights(self): ...


def install():
    """Returns whether it is the real one."""
    if "verl" in sys.modules or importlib.util.find_spec("verl"):
        return sys.modules.get(BASE) is not sys.modules[__name__]
    sys.modules["verl"] = types.ModuleType("verl")
    sys.modules["verl.checkpoint_engine"] = types.ModuleType("verl.checkpoint_engine")
    sys.modules[BASE] = sys.modules[__name__]
    return False
