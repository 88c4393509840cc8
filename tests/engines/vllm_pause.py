# SPDX-License-Identifier: Apache-2.0
"""Measures how long vLLM stands still for an update by rdtd.vllm, beside loading the same tensors when they lie in the
worker's own process already, which is the bound: both through the loaders of the same model, in turn, by the worker's clock.
ENGINES of one node update at once, and the slowest counts; each has its own copy of the tensors for the bound, and takes 2
GB and four times GB.

    RDT_BUILD_DIR=build/release PYTHONPATH=build/release/python:tests/python:tests/engines \
        build/engines/bin/python tests/engines/vllm_pause.py 0.1|0.4 ENGINES ...
"""
from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vllm_process import SIZES, Engine, Size, model_folder, weights

ROUNDS = 7


class Extension:
    """Methods of the worker."""

    def timed_update(self, version: int) -> tuple[float, float]:
        """Of all, and until the version was mapped."""
        weights_ = self.weight_transfer_engine._weights  # type: ignore[attr-defined]
        mapped = 0.0

        def read(asked: int, timeout: float) -> Any:
            nonlocal mapped
            got = type(weights_).read(weights_, asked, timeout)
            mapped = time.perf_counter()
            return got

        weights_.read = read
        began = time.perf_counter()
        self.start_weight_update()  # type: ignore[attr-defined]
        self.update_weights({"version": version})  # type: ignore[attr-defined]
        self.finish_weight_update()  # type: ignore[attr-defined]
        return time.perf_counter() - began, mapped - began

    def timed_bound(self, size: list[int]) -> tuple[float, float]:
        from vllm.config import set_current_vllm_config  # type: ignore[import]
        from vllm.model_executor.model_loader.reload import (  # type: ignore[import]
            finalize_layerwise_reload, initialize_layerwise_reload)
        if not hasattr(self, "own_tensors"):
            self.own_tensors = weights(1, Size(*size))
        model = self.model_runner.model  # type: ignore[attr-defined]
        with set_current_vllm_config(self.vllm_config):  # type: ignore[attr-defined]
            began = time.perf_counter()
            initialize_layerwise_reload(model)
            model.load_weights(iter(self.own_tensors.items()))
            finalize_layerwise_reload(model, self.model_config)  # type: ignore[attr-defined]
            return time.perf_counter() - began, 0.0


def together(engines: list[Engine], method: str, *arguments: Any) -> tuple[float, float]:
    """The longest times of an engine, all at once."""
    for engine in engines:
        engine.begin("collective_rpc", method, None, arguments)
    times = [engine.end()[0] for engine in engines]
    return max(all_ for all_, _ in times), max(mapping for _, mapping in times)


def main(size: Size, counts: list[int]) -> None:
    from nodes import Node

    import rdtd
    folder = Path(tempfile.mkdtemp())
    node = Node()
    engines: list[Engine] = []
    state = weights(2, size)
    bytes_ = sum(tensor.nbytes for tensor in state.values())
    with rdtd.connect(node.socket) as c:
        for count in counts:
            while len(engines) < count:
                engines.append(Engine(model_folder(folder, size=size), node.socket, load_format="dummy", dtype="bfloat16",
                                      worker_extension_cls="vllm_pause.Extension").ready())
                engines[-1].init_weight_transfer_engine({"name": "policy"})
            together(engines, "timed_bound", size)
            updates, bounds = [], []
            for _ in range(ROUNDS):
                with c.publishing("policy") as version:
                    for key, tensor in state.items():
                        version.add(key, tensor)
                updates.append(together(engines, "timed_update", version.version))
                bounds.append(together(engines, "timed_bound", size)[0])
            update, bound = statistics.median(all_ for all_, _ in updates), statistics.median(bounds)
            print(f"{count} engines, {bytes_ / 1e6:.0f} MB: update {update:.3f} s, bound {bound:.3f} s, "
                  f"ratio {update / bound:.2f}; mapping {statistics.median(mapping for _, mapping in updates):.4f} s; updates "
                  f"{[round(all_, 3) for all_, _ in updates]}, bounds {[round(t, 3) for t in bounds]}", flush=True)
    for engine in engines:
        engine.kill()
    node.kill()


if __name__ == "__main__":
    main(SIZES[sys.argv[1]], [int(word) for word in sys.argv[2:]])
