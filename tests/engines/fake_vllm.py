# SPDX-License-Identifier: Apache-2.0
"""Stands in for the parts of vLLM that rdtd.vllm derives from and calls, where vLLM is not installed. `install` puts them where
rdtd.vllm imports them from. tests/engines/vllm_real.py checks that the real ones are called in the same way."""
from __future__ import annotations

import abc
import sys
import types
from dataclasses import dataclass, field
from typing import Any, ClassVar


class InitBase:
    pass


class UpdateBase:
    pass


@dataclass
class TrainerInitInfo:
    backend: ClassVar[str]
    rank: int = field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class WeightTransferEngine(abc.ABC):
    init_info_cls: type
    update_info_cls: type

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.config, self.vllm_config, self.device = config, vllm_config, device
        self.model_config = vllm_config.model_config
        self.model = self._default_model = model

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        try:
            return self.init_info_cls(**init_dict)
        except TypeError as error:
            raise ValueError(f"Invalid init_info for {type(self).__name__}: {error}") from error

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        try:
            return self.update_info_cls(**update_dict)
        except TypeError as error:
            raise ValueError(f"Invalid update_info for {type(self).__name__}: {error}") from error


class TrainerWeightTransferEngine(abc.ABC):
    def __init__(self, *, client: Any, source: Any, is_sender: bool = True) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender


class BaseModelLoader(abc.ABC):
    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config


class Factory:
    def __init__(self) -> None:
        self._registry: dict[str, tuple[str, str]] = {}

    def register_engine(self, name: str, module: str, class_: str) -> None:
        if name in self._registry:
            raise ValueError(f"{name} is already registered")
        self._registry[name] = module, class_


class Session:
    """What vLLM's worker does with an engine: a session of start, update and finish, which an error ends. It is the client of a
    trainer half, too."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.active = False
        self.weight_version = "default"

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.worker.init_transfer_engine(self.worker.parse_init_info(init_info))

    def start_weight_update(self) -> None:
        if self.active:
            raise RuntimeError("start_weight_update called while a weight update is already active")
        self.worker.start_weight_update()
        self.active = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        if not self.active:
            raise RuntimeError("start_weight_update must be called before update_weights")
        try:
            self.worker.update_weights(update_info)
        except BaseException:
            self.active = False
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        if not self.active:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update")
        self.worker.finish_weight_update()
        self.active = False
        self.weight_version = weight_version or self.weight_version


def install(ranks: int = 1, group: Any = None) -> None:
    def module(name: str, **names: Any) -> types.ModuleType:
        made = sys.modules[name] = types.ModuleType(name)
        vars(made).update(names)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)
        return made

    reloading: set[int] = set()

    def initialize(model: Any) -> None:
        assert id(model) not in reloading
        reloading.add(id(model))

    def finalize(model: Any, model_config: Any) -> None:
        reloading.remove(id(model))

    formats: dict[str, Any] = {}

    def register_model_loader(name: str) -> Any:
        return lambda cls: formats.setdefault(name, cls)

    module("vllm")
    module("vllm.distributed")
    module("vllm.distributed.parallel_state", get_world_group=lambda: types.SimpleNamespace(world_size=ranks, cpu_group=group))
    module("vllm.distributed.weight_transfer")
    module("vllm.distributed.weight_transfer.base", WeightTransferInitInfo=InitBase, WeightTransferUpdateInfo=UpdateBase,
           TrainerInitInfo=TrainerInitInfo, WeightTransferEngine=WeightTransferEngine,
           TrainerWeightTransferEngine=TrainerWeightTransferEngine)
    module("vllm.distributed.weight_transfer.factory", WeightTransferEngineFactory=Factory(),
           WeightTransferTrainerFactory=Factory())
    module("vllm.model_executor")
    module("vllm.model_executor.model_loader", _LOAD_FORMAT_TO_MODEL_LOADER=formats,
           register_model_loader=register_model_loader)
    module("vllm.model_executor.model_loader.base_loader", BaseModelLoader=BaseModelLoader)
    module("vllm.model_executor.model_loader.reload", initialize_layerwise_reload=initialize,
           finalize_layerwise_reload=finalize)
