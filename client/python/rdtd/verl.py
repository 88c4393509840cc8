# SPDX-License-Identifier: Apache-2.0
"""Weights of verl by rdtd, from the trainer to the rollouts of any node.

    actor_rollout_ref.rollout.checkpoint_engine.backend=rdtd
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=rdtd.verl

The trainer's first rank publishes each version tensor by tensor, while verl's generator gathers the next one. The
daemon of each node fetches a version once for all its rollouts, while it is still being added to, and the rollouts
read the node's one copy. A rollout may join, leave or die at any time: there is no group. What a trainer or rollout
that was killed has not finished is never seen. The rollouts of a node that has a version need nobody else for it
(`get_weights`).

engine_kwargs.rdtd may have the parameters of RdtdCheckpointEngine, such as {name: policy, timeout: 120}. Every
process needs a daemon at $RDT_SOCKET (or `socket`), of one user. Source: verl 0.9.1, verl/checkpoint_engine/base.py."""
# mypy: disable-error-code="import, misc, no-untyped-call"
from __future__ import annotations

import inspect
from typing import Any, AsyncIterator, Optional

from ._engines import Engine

_ENGINE = Engine("rdtd.verl", ("verl",), "0.9.1")

try:
    import torch  # type: ignore[import]
    from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWithCache
    if "global_steps" not in inspect.signature(CheckpointEngineWithCache.receive_weights).parameters:
        raise ImportError("receive_weights does not take global_steps")
except ImportError as error:
    raise _ENGINE.other(error) from None

from ._aio import in_thread
from ._check import checked
from ._errors import Freed, Invalid, NotFound
from ._requests import Ref
from ._weights import Weights, connection_at

__all__ = ["RdtdCheckpointEngine"]

_PATIENCE = 60  # seconds that a daemon which restarts may take: no answer must not be taken for "there is no version"


def _name_of_job() -> str:
    """The same in all processes of a Ray job, another for each job that runs."""
    import ray
    if not ray.is_initialized():
        raise ValueError("outside of Ray the weights need a name: set checkpoint_engine.engine_kwargs.rdtd.name")
    context = ray.get_runtime_context()
    return f"verl/{context.gcs_address}/{context.get_job_id()}"


async def _each(weights: Any) -> AsyncIterator[tuple[str, Any]]:
    if hasattr(weights, "__aiter__"):
        async for pair in weights:
            yield pair
    else:
        for pair in weights:
            yield pair


@CheckpointEngineRegistry.register("rdtd")
class RdtdCheckpointEngine(CheckpointEngineWithCache):
    """verl makes one in each process of the trainer and of the rollouts.

    bucket_size, is_master: verl's; not used. name: of the weights; None: one for the Ray job. socket: the daemon's; None:
    $RDT_SOCKET. address: "host:port" of the trainer's node, for a `get_weights` before verl's first update where the nodes
    have no table; None. timeout: seconds that a receiver waits for a version, and the trainer for room for a
    tensor; None: no limit.
    device: to which a receiver copies each tensor before it yields it; "cpu": it does not copy."""

    @checked
    def __init__(self, bucket_size: int = 0, is_master: bool = False, *, name: Optional[str] = None,
                 socket: Optional[str] = None, address: Optional[str] = None, timeout: Optional[float] = 600,
                 device: str = "cpu") -> None:
        self._name = name if name is not None else _name_of_job()
        self._socket = socket
        self._address = address
        self._timeout = timeout
        self._device = torch.device(device)
        self._sends = False
        self._after = 0
        self._weights: Optional[Weights] = None

    def _newest(self) -> int:
        connection = connection_at(self._socket)
        try:
            connection.stat(connection.name(self._name))  # which does not wait for a version
            return connection.manifest(self._name, timeout=_PATIENCE).version
        except (NotFound, Freed):
            return 0
        except Invalid:
            raise Invalid(f"the name {self._name!r} has versions that are not of verl: set "
                          "checkpoint_engine.engine_kwargs.rdtd.name to another") from None

    def prepare(self) -> dict[str, Any]:
        """What build_topology needs to know of this process: name, the address of its node, and the newest version there."""
        address = connection_at(self._socket).node["address"]
        return {"name": self._name, "address": address or None, "version": self._newest()}

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
                       ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The arguments of init_process_group, for each process. metadata: of the trainer's processes, then the rollouts'; that
        of the first counts, which sends."""
        sender = metadata[0]
        return ({"role": ["sender"] + ["idle"] * (actor_wg_world_size - 1), **_same(sender, actor_wg_world_size)},
                {"role": ["receiver"] * rollout_world_size, **_same(sender, rollout_world_size)})

    def init_process_group(self, role: str, name: str, address: Optional[str], version: int) -> None:
        """Begins to follow the weights in a receiver, unless it does already. role: "sender", "idle" (a rank of the trainer
        that does not send) or "receiver". version: the next receive_weights waits for one above it."""
        self._sends = role == "sender"
        self._after = version
        if role == "receiver":
            self._name, self._address = name, address
            self._follow()

    def _follow(self) -> Weights:
        at = Ref.from_name(self._name, address=self._address)
        if self._weights is None or self._weights.name != at:
            self._weights = Weights(at, self._socket)
        self._weights.follow()
        return self._weights

    def finalize(self) -> None:
        """Frees nothing: the nodes keep the newest version for get_weights, and no group has to be ended."""

    async def send_weights(self, weights: Any, global_steps: Optional[int] = None) -> dict[str, float]:
        """Publishes the next version. weights: generator, also an asynchronous one, of (name, torch tensor of any shape, on the
        CPU or a GPU); a tensor is copied at once, so that its memory may be used again. The ranks that do not send only run the
        generator, whose collectives need them. global_steps: not used; versions are counted. Returns what verl may log. If the
        generator raises, or this process ends, nobody sees anything of the version. Errors: those of Connection.publishing,
        when the generator has ended."""
        if not self._sends:
            async for _ in _each(weights):
                pass
            return {}
        pairs = _each(weights)
        try:
            with connection_at(self._socket).publishing(self._name, timeout=self._timeout) as version:
                async for key, tensor in pairs:
                    version.add(key, tensor)
        except Exception:
            async for _ in pairs:  # the other ranks wait in its collectives
                pass
            raise
        return {"rdtd/version": float(version.version), "rdtd/bytes": float(version.bytes)}

    async def receive_weights(self, global_steps: Optional[int] = None) -> AsyncIterator[tuple[str, Any]]:
        """Waits for the version that is being sent, until it is whole on this node, and yields (name, torch tensor on `device`,
        whole, in the published shape and dtype). On the CPU the tensors are the memory that all rollouts of the node share:
        they may be kept, and must not be written. Errors: TimedOut, and those of Follower.prepare; nothing has
        been yielded then."""
        async for pair in self._read(self._after + 1):
            yield pair

    async def get_weights(self) -> AsyncIterator[tuple[str, Any]]:
        """The same for the newest version that is whole on this node, without the trainer. Waits only if there is none yet."""
        async for pair in self._read(0):
            yield pair

    async def _read(self, asked: int) -> AsyncIterator[tuple[str, Any]]:
        def read() -> dict[str, Any]:
            return self._follow().read(asked, self._timeout)[1]
        tensors = await in_thread(read)
        while tensors:
            key = next(iter(tensors))
            yield key, tensors.pop(key).to(self._device)  # which is the tensor itself on the CPU


def _same(sender: dict[str, Any], count: int) -> dict[str, list[Any]]:
    return {key: [sender[key]] * count for key in ("name", "address", "version")}


_ENGINE.check(RdtdCheckpointEngine)
