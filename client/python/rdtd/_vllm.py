# SPDX-License-Identifier: Apache-2.0
"""The classes of rdtd.vllm, which derive from vLLM's: Worker and Trainer move new weights, Loader starts an engine."""
# mypy: disable-error-code="import, misc, type-arg, no-untyped-call"
from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Iterator, Mapping, Optional

from ._check import a_number, a_text, seconds
from ._connection import Connection
from ._errors import Invalid
from ._requests import Ref
from ._weights import Weights
from .vllm import ENGINE

try:
    from vllm.distributed.parallel_state import get_world_group
    from vllm.distributed.weight_transfer.base import TrainerInitInfo as TrainerInfo
    from vllm.distributed.weight_transfer.base import (
        TrainerWeightTransferEngine, WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo)
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
    import torch
except ImportError as error:
    raise ENGINE.other(error) from None


@dataclass
class InitInfo(WeightTransferInitInfo):
    """What a worker is told once, and what `--model-loader-extra-config` has. name: of the weights. socket: of the worker's
    daemon; None: $RDT_SOCKET. address: "host:port" of the node that has the name, where nodes have no table of each other.
    timeout: seconds that an update waits for its version."""

    name: str
    socket: Optional[str] = None
    address: Optional[str] = None
    timeout: float = 300.0

    def __post_init__(self) -> None:
        a_text(self.name, "name")
        for field in "socket", "address":
            if getattr(self, field) is not None:
                a_text(getattr(self, field), field)
        seconds(self.timeout, "timeout")

    def follow(self) -> Weights:
        return Weights(Ref.from_name(self.name, address=self.address), self.socket, _gather)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What a worker is told for each update. version: this one, or a later one that has replaced it, is loaded; 0: the newest
    that is whole on the node."""

    version: int = 0

    def __post_init__(self) -> None:
        self.version = a_number(self.version, "version", 0, 2**63 - 1)


def _gather(mine: Any) -> list[Any]:
    group = get_world_group()
    all_ = [mine] * group.world_size
    if group.world_size > 1:
        torch.distributed.all_gather_object(all_, mine, group=group.cpu_group)
    return all_


def _check_whole(model: Any, model_config: Any, loaded: Any, what: str) -> None:
    """Raises Invalid if the weights left parameters of the model as they were. Models that are quantized have others."""
    if loaded is None or model_config.quantization is not None:
        return
    left = sorted({name for name, _ in model.named_parameters()} - set(loaded))
    if left:
        raise Invalid(f"{what} has nothing for {len(left)} of the model's parameters, which are as they were: "
                      f"{', '.join(left[:3])}")


class Worker(WeightTransferEngine):
    """The half in each worker of an engine: follows the name, and loads its versions. vLLM's base class has the parameters."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _weights: Optional[Weights] = None
    _info: InitInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """From now on the daemon of this node fetches each version of the name. A second call follows another name. Errors:
        those of `rdtd.connect` and `Connection.follow`."""
        self.shutdown()
        self._weights = init_info.follow()
        self._info = init_info

    def start_weight_update(self) -> None:
        """Changes nothing: the model has its weights until `update_weights` has the next version."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Waits until the version is whole on this node, and copies it into the model. Until then the model has what it had,
        also after an error. Tensors of the version are in host memory, have the names and shapes of the model's checkpoint, and
        are cast to the dtypes of the model. Errors: those of `receive_weights`; ValueError (update_info)."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Errors: TimedOut (the version is not whole here in time), RuntimeError (no init_info came before; another worker has
        no version), Invalid (the version does not have the tensors of the model), those of Follower.prepare, and those of the
        model's own loaders: after these and Invalid the model has a part of the version, and the next update replaces it."""
        if self._weights is None:
            raise RuntimeError("rdtd has no name to load weights from: call init_weight_transfer_engine with "
                               "init_info={\"name\": ...} first")
        version, tensors = self._weights.read(update_info.version, self._info.timeout)
        try:
            initialize_layerwise_reload(self.model)
            try:
                loaded = self.model.load_weights(iter(tensors.items()))
            finally:
                finalize_layerwise_reload(self.model, self.model_config)
            if self.model is self._default_model:  # a draft model has some of its parameters from the other one
                _check_whole(self.model, self.model_config, loaded, f"version {version} of {self._info.name!r}")
        finally:
            tensors.clear()  # an error's traceback may stay

    def finish_weight_update(self) -> None:
        """Changes nothing: the model has been finished with its last tensor."""

    def shutdown(self) -> None:
        if self._weights is not None:
            self._weights.close()
        self._weights = None


class Loader(BaseModelLoader):
    """`--load-format rdtd`: starts an engine with the newest version of a name, and waits for the first one.
    `--model-loader-extra-config` has the fields of InitInfo."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        extra = load_config.model_loader_extra_config
        known = ", ".join(field.name for field in fields(InitInfo))
        if not isinstance(extra, Mapping) or "name" not in extra:
            raise ValueError("--load-format rdtd needs the name of the weights: "
                             "--model-loader-extra-config '{\"name\": \"policy\"}'")
        try:
            self._info = InitInfo(**extra)
        except TypeError as error:
            raise ValueError(f"--model-loader-extra-config of the load format rdtd has the fields {known}: {error}") from None

    def download_model(self, model_config: Any) -> None:
        """Waits until a version is whole on this node."""
        with contextlib.closing(self._info.follow()) as weights:
            weights.read(0, self._info.timeout)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Copies the newest version into the model. Errors: those of Worker.receive_weights."""
        with contextlib.closing(self._info.follow()) as weights:
            version, tensors = weights.read(0, self._info.timeout)
            loaded = model.load_weights(iter(tensors.items()))
            _check_whole(model, model_config, loaded, f"version {version} of {self._info.name!r}")


@dataclass
class TrainerInitInfo(TrainerInfo):
    """Of each rank of a trainer. name: of the weights, for the workers, too. socket: of the trainer's daemon; None:
    $RDT_SOCKET. address: for the workers, "host:port" of this node; None: nodes find the name, or are one. rank: rank 0
    publishes; all others only take part in the collectives of the source."""

    backend: ClassVar[str] = "rdtd"
    name: str
    socket: Optional[str] = None
    address: Optional[str] = None


class Trainer(TrainerWeightTransferEngine):
    """The half in each rank of a trainer."""

    init_info_cls = TrainerInitInfo

    def __init__(self, init_info: TrainerInitInfo, *, client: Any, source: Any) -> None:
        if source is None:
            raise ValueError("rdtd publishes whole models: give trainer_init a source")
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self._name = init_info.name
        self._connection = Connection(init_info.socket, name="trainer") if self.is_sender else None

    @classmethod
    def trainer_init(cls, init_info: TrainerInitInfo, *, client: Any, source: Any = None) -> Trainer:
        """Connects rank 0 to the daemon of its node, and tells the workers the name, from when on their nodes fetch its
        versions."""
        made = cls(init_info, client=client, source=source)
        if made.is_sender:
            named = InitInfo(init_info.name, address=init_info.address)
            client.init_weight_transfer_engine({key: value for key, value in asdict(named).items() if value is not None})
        return made

    def publish(self) -> int:
        """Publishes the weights of the source as the next version of the name, on all ranks, and returns its number on rank 0.
        Each tensor is copied once, as the source yields it. The engines go on meanwhile, and their nodes fetch the version.
        Errors, on rank 0 when the source has ended: those of `Connection.publishing`; then there is no version."""
        if self._connection is None:
            for _ in self.source:
                pass
            return 0
        pairs = iter(self.source)
        try:
            if not self._connection._is_alive():  # the daemon was replaced
                self._connection = self._connection._reopened()
            with self._connection.publishing(self._name) as version:
                for key, tensor in pairs:
                    if tensor is None:
                        raise Invalid(f"the source has no tensor {key!r} on rank 0, which publishes for all ranks: gather it")
                    version.add(key, tensor.detach())
        except Exception:
            for _ in pairs:  # the other ranks wait in its collectives
                pass
            raise
        return version.version

    def update(self, version: int = 0) -> None:
        """Has the engines load a version that `publish` has returned, or a later one; 0: the newest that each node has. Only
        this is their pause. vLLM's weight_version is then the number. Rank 0 calls it."""
        try:
            self.client.start_weight_update()
        except Exception as refused:  # a trainer may have been killed within its update, which then has to be ended
            try:
                self.client.finish_weight_update()
            except Exception:
                raise refused from None
            self.client.start_weight_update()
        self.client.update_weights({"version": version})
        self.client.finish_weight_update(str(version) if version else None)

    def send_weights(self) -> None:
        """`publish` on all ranks, then `update` on rank 0."""
        version = self.publish()
        if self.is_sender:
            self.update(version)

    def shutdown(self) -> None:
        if self._connection is not None:
            self._connection.close()


ENGINE.check(Worker, Loader, Trainer)
