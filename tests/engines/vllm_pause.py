# SPDX-License-Identifier: Apache-2.0
"""Measures how long vLLM stands still for an update by rdtd.vllm, beside loading the same tensors when they lie in the worker's own
process already, which is the bound: both through the loaders of the same model, in turn, by the worker's clock. With one engine and
with several of one node at once; all have their own copy of the tensors for the bound.

    RDT_BUILD_DIR=build/release PYTHONPATH=build/release/python:tests/python:tests/engines \\
        build/engines/bin/python tests/engines/vllm_pause.py [ENGINES ...]
"""
from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import vllm_process

ROUNDS = 7
LARGE = dict(LAYERS=8, HIDDEN=1024, HEADS=16, KV_HEADS=8, MIDDLE=4096, WORDS=32000)  # about 0.4 GB in bfloat16


class Extension:
    """Methods of the worker."""

    def timed_update(self, version: int) -> float:
        began = time.perf_counter()
        self.start_weight_update()  # type: ignore[attr-defined]
        self.update_weights({"version": version})  # type: ignore[attr-defined]
        self.finish_weight_update()  # type: ignore[attr-defined]
        return time.perf_counter() - began

    def timed_bound(self) -> float:
        from vllm.config import set_current_vllm_config  # type: ignore[import]
        from vllm.model_executor.model_loader.reload import (  # type: ignore[import]
            finalize_layerwise_reload, initialize_layerwise_reload)
        if not hasattr(self, "own_tensors"):
            vars(vllm_process).update(LARGE)
            self.own_tensors = vllm_process.weights(1)
        model = self.model_runner.model  # type: ignore[attr-defined]
        with set_current_vllm_config(self.vllm_config):  # type: ignore[attr-defined]
            began = time.perf_counter()
            initialize_layerwise_reload(model)
            model.load_weights(iter(self.own_tensors.items()))
            finalize_layerwise_reload(model, self.model_config)  # type: ignore[attr-defined]
            return time.perf_counter() - began


def together(engines: list[Any], method: str, *arguments: Any) -> float:
    """The longest time of an engine, all at once."""
    for engine in engines:
        engine.begin("collective_rpc", method, None, arguments)
    return max(engine.end()[0] for engine in engines)


def main(counts: list[int]) -> None:
    from nodes import Node

    import rdtd
    vars(vllm_process).update(LARGE)
    folder = Path(tempfile.mkdtemp())
    node = Node()
    engines: list[Any] = []
    with rdtd.connect(node.socket) as c:
        for count in counts:
            while len(engines) < count:
                engines.append(vllm_process.Engine(
                    vllm_process.model_folder(folder), node.socket, load_format="dummy", dtype="bfloat16",
                    worker_extension_cls="vllm_pause.Extension").ready())
                engines[-1].init_weight_transfer_engine({"name": "policy"})
            state = vllm_process.weights(2)
            size = sum(tensor.nbytes for tensor in state.values())
            together(engines, "timed_bound")
            ours, bound = [], []
            for _ in range(ROUNDS):
                with c.publishing("policy") as version:
                    for key, tensor in state.items():
                        version.add(key, tensor)
                ours.append(together(engines, "timed_update", version.version))
                bound.append(together(engines, "timed_bound"))
            print(f"{count} engines, {size / 1e6:.0f} MB: update {statistics.median(ours):.3f} s, "
                  f"bound {statistics.median(bound):.3f} s, ratio {statistics.median(ours) / statistics.median(bound):.2f}; "
                  f"updates {[round(t, 3) for t in ours]}, bounds {[round(t, 3) for t in bound]}", flush=True)
    for engine in engines:
        engine.kill()
    node.kill()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1, 4])
