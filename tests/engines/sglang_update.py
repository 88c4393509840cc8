# SPDX-License-Identifier: Apache-2.0
"""rdtd.sglang.update as SGLang calls it, loader(model, named_tensors), with a model of torch. No engine runs."""
from __future__ import annotations

import contextlib
import gc
import importlib
import os
from pathlib import Path
from typing import Any, Iterable, Iterator

import torch
from nodes import LONG, Node, main, raises
from processes import Process, calls

import rdtd
import rdtd.sglang
import rdtd.torch


class Model(torch.nn.Module):
    """Has a slice of each weight, as in one process of a tensor parallel engine, and takes it from whole weights."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.up = torch.nn.Linear(64, 256 // size, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(256 // size, 64, dtype=torch.bfloat16)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        with torch.no_grad():
            for key, weight in weights:
                mine = parameters.pop(key)
                dim = 0 if key.startswith("up") else weight.dim() - 1
                mine.copy_(weight if mine.shape == weight.shape else weight.chunk(self.size, dim)[self.rank])
        assert not parameters, f"no weights came for {list(parameters)}"

    def values(self) -> set[float]:
        return {float(end) for parameter in self.parameters() for end in (parameter.detach().min(), parameter.detach().max())}


def weights(number: int) -> dict[str, torch.Tensor]:
    return {key: torch.full_like(value, number) for key, value in Model().state_dict().items()}


def load(model: Any, request: Any) -> None:
    """Finds the loader as SGLang does, by its import path."""
    module, _, function = "rdtd.sglang.update".rpartition(".")
    getattr(importlib.import_module(module), function)(model, request)


class Rank:
    def __init__(self, end: Any, socket: str, rank: int, size: int) -> None:
        os.environ["RDT_SOCKET"] = socket
        self.model = Model(rank, size)

    def load(self, request: Any) -> list[float]:
        load(self.model, request)
        return sorted(self.model.values())


@contextlib.contextmanager
def default_at(node: Node) -> Iterator[None]:
    os.environ["RDT_SOCKET"] = node.socket
    rdtd.sglang._followed.clear()
    yield
    rdtd.sglang._followed.clear()
    gc.collect()
    rdtd.default().close()


def test_versions() -> None:
    with Node() as node, default_at(node), rdtd.connect(node.socket) as trainer:
        model = Model()
        before = model.up.weight.data_ptr()
        for number in 1, 2, 3:
            load(model, rdtd.sglang.request("policy", trainer.publish("policy", weights(number))))
            assert model.values() == {number} and model.up.weight.data_ptr() == before
        load(model, rdtd.sglang.request("policy", 3))
        assert model.values() == {3}, "the same once more"
        version = rdtd.torch.publish(weights(4), "policy", connection=trainer)
        load(model, rdtd.sglang.request("policy", version))
        assert model.values() == {4}, "a version in parts"
        with trainer.publishing("policy") as streamed:
            for key, tensor in weights(5).items():
                streamed.add(key, tensor)
        load(model, rdtd.sglang.request("policy", streamed.version))
        assert model.values() == {5}
        trainer.unpublish("policy")


class Engine:
    """Has the method of SGLang's Engine that the page calls."""

    def __init__(self) -> None:
        self.model = Model()

    def update_weights_from_tensor(self, named_tensors: Any, load_format: str) -> None:
        assert load_format == "rdtd.sglang.update"
        load(self.model, named_tensors)


def test_the_example_of_the_page() -> None:
    text = (Path(__file__).resolve().parents[2] / "client/python/rdt-engines.7.scd").read_text()
    program = text.split("\n# SGLANG\n")[1].split("; python")[1].split("```\n")[1]
    with Node() as node, default_at(node):
        trained, engine = Model(), Engine()
        exec(program, {"model": trained, "engine": engine})
        assert engine.model.values() == trained.values()
        rdtd.default().unpublish("policy")


def test_processes_of_an_engine_on_another_node() -> None:
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as trainer:
        engine = [Process(Rank, b.socket, rank, 2) for rank in range(2)]
        for number in 1, 2, 3:
            version = trainer.publish("policy", weights(number))
            request = rdtd.sglang.request("policy", version, address=trainer.node["address"])
            assert calls(engine, "load", request) == [[number]] * 2
        engine.pop().kill()
        engine.append(Process(Rank, b.socket, 1, 2))
        version = trainer.publish("policy", weights(4))
        request = rdtd.sglang.request("policy", version, address=trainer.node["address"])
        assert calls(engine, "load", request) == [[4]] * 2
        for process in engine:
            process.close()
        trainer.unpublish("policy")
        a.fds, b.fds = a.open_fds(), b.open_fds()  # the transports between the nodes stay connected


def test_errors_leave_the_model_as_it_was() -> None:
    with Node() as node, default_at(node), rdtd.connect(node.socket) as trainer:
        model = Model()
        load(model, rdtd.sglang.request("policy", trainer.publish("policy", weights(1))))
        trainer.publish("policy", weights(2))
        trainer.publish("policy", weights(3))
        with raises(rdtd.Mismatch, "version 2 of 'policy' was asked for, and version 3 has taken its place"):
            load(model, rdtd.sglang.request("policy", 2))
        with raises(rdtd.TimedOut, "no newer version is whole on this node"):
            load(model, rdtd.sglang.request("policy", 4, timeout=0.1))
        with raises(ValueError, "takes the result of rdtd.sglang.request, not tensors named up.weight"):
            load(model, list(weights(9).items()))
        with raises(ValueError, "not tensors named nothing"):
            load(model, [])
        assert model.values() == {1}
        load(model, rdtd.sglang.request("policy", 3))
        assert model.values() == {3}
        trainer.publish("policy", [torch.ones(3)])
        with raises(rdtd.Invalid, "version 4 of 'policy' is a list, not a dict"):
            load(model, rdtd.sglang.request("policy", 4))
        trainer.publish("policy", {})
        with raises(rdtd.Invalid, "version 5 of 'policy' is an empty dict"):
            load(model, rdtd.sglang.request("policy", 5, timeout=None))
        assert model.values() == {3}
        for wrong in {"name": 5}, {"version": 0}, {"version": "1"}, {"address": 5}, {"timeout": -1}:
            (key, _), = wrong.items()
            with raises((TypeError, ValueError), key):  # type: ignore[arg-type]
                rdtd.sglang.request(**{"name": "policy", "version": 1, **wrong})
        trainer.unpublish("policy")


if __name__ == "__main__":
    main(globals())
