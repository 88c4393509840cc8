# SPDX-License-Identifier: Apache-2.0
"""SGLang loads published weights from its node's one copy, in every process of an engine, whatever its parallelism.

    sglang.launch_server ... --custom-weight-loader rdtd.sglang.update

    import rdtd.sglang                                     # where the trainer is
    version = c.publish("policy", model.state_dict())      # or rdtd.torch.publish, or c.publishing
    engine.update_weights_from_tensor(rdtd.sglang.request("policy", version), load_format="rdtd.sglang.update")

The request has no weights, only their name. The first one makes the daemon of the engine's node follow it, so that
later versions are there before they are asked for. Source: sglang 0.5.23,
srt/model_executor/model_runner_components/weight_updater.py, which calls the loader as loader(model, named_tensors).

`HiCache` is another thing: a storage backend of SGLang's hierarchical cache, which keeps KV pages in the cache of the node."""
from __future__ import annotations

import json
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Iterable, Optional

try:
    import torch  # type: ignore[import]
except ImportError as error:
    raise ImportError(f"rdtd.sglang needs torch, which SGLang installs: {error}") from error

from ._check import a_number, checked
from ._errors import Mismatch
from ._requests import Ref
from ._weights import Weights

if TYPE_CHECKING:
    from ._sglang_cache import HiCache

__all__ = ["request", "update", "HiCache"]

_KEY = "rdtd.request"
_followed: dict[str, Weights] = {}  # by the name's Ref as text
_lock = threading.Lock()


@checked
def request(name: str, version: int, *, address: Optional[str] = None, timeout: Optional[float] = 60
            ) -> list[tuple[str, torch.Tensor]]:
    """What SGLang's update_weights_from_tensor takes for a version of a name: one tensor of bytes ([n], uint8, CPU), which says
    what `update` is to load. address: "host:port" of the publisher's node, where the nodes have no table. timeout: seconds
    that each process of the engine waits for the version; None: no limit."""
    number = a_number(version, "version", 1, 2**64 - 1)
    text = json.dumps({"name": name, "version": number, "address": address, "timeout": timeout})
    return [(_KEY, torch.tensor(list(text.encode()), dtype=torch.uint8))]


def update(model: Any, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Loads the version that `request` describes, by model.load_weights, which gets pairs of a name and a whole torch tensor
    on the CPU: the node's own copy, which must not be written. SGLang calls it in each process of an engine. Errors: those of
    Follower.prepare, among them TimedOut; Mismatch (a newer version took the place of the one that was asked for, which could
    give other processes of the engine another version: ask for the newer one); ValueError (the tensors are not of `request`).
    After each of these the model is unchanged."""
    tensors = dict(named_tensors)
    if list(tensors) != [_KEY]:
        raise ValueError(f"load_format rdtd.sglang.update takes the result of rdtd.sglang.request, not tensors named "
                         f"{', '.join(list(tensors)[:3]) or 'nothing'}")
    wanted = json.loads(bytes(tensors[_KEY].cpu().tolist()))
    name = Ref.from_name(wanted["name"], address=wanted["address"])
    with _lock:
        weights = _followed.get(str(name))
        if weights is None:
            weights = _followed[str(name)] = Weights(name)
    version, value = weights.read(wanted["version"], wanted["timeout"])
    if version != wanted["version"]:
        raise Mismatch(f"version {wanted['version']} of {wanted['name']!r} was asked for, and version {version} has taken its "
                       "place: ask for that one, and publish the next when all engines have loaded it")
    model.load_weights(value.items())


def __getattr__(name: str) -> Any:
    if name != "HiCache":
        raise AttributeError(f"module 'rdtd.sglang' has no attribute {name!r}")
    return import_module("rdtd._sglang_cache").HiCache
