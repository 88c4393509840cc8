# SPDX-License-Identifier: Apache-2.0
"""Four engines on two nodes in network namespaces, each in a process of its own: rdtd.vllm on models of a few tensors, with a
stand-in for vLLM. Trainers are killed while they publish, and engines while they load. ROUNDS: of each (3)."""
from __future__ import annotations

import os
import random
from typing import Any, Optional

import namespaces
from nodes import Node, main, until
from processes import Process, calls
from vllm_toys import NAMES, Nobody, Toy, child, load, session, trainer

import rdtd

ROUNDS = int(os.environ.get("ROUNDS", "3"))


class Engine:
    """pid: of a process in its namespace. socket: of its daemon. address: of the trainer's node."""

    def __init__(self, end: Any, pid: int, socket: str, address: str) -> None:
        namespaces.enter(pid)
        os.environ["RDT_SOCKET"] = socket
        self.end, self.address, self.stop = end, address, ""
        self.model = Toy()
        self.model.at_tensor = self._at
        self.session = session(self.model, address=address)

    def _at(self, name: str) -> None:
        if name == self.stop:
            self.end.send((None, name))
            self.end.recv()

    def update(self, version: int, stop: Optional[str] = None) -> float:
        """The step that the model is of afterwards. stop: the tensor before which the process waits to be killed."""
        self.stop = stop or ""
        self.session.start_weight_update()
        self.session.update_weights({"version": version})
        self.session.finish_weight_update()
        return self.model.step()

    def step(self) -> float:
        return self.model.step()

    def cold(self) -> float:
        """The step of a model that `--load-format rdtd` starts."""
        model = Toy()
        load(model, name="policy", address=self.address)
        return model.step()


def test_four_engines_on_two_nodes() -> None:
    with namespaces.two() as spaces:
        a, b = nodes = [Node(listen=True, port=7171, namespace=one) for one in spaces]
        with rdtd.connect(a.socket) as c:
            address = c.node["address"]
            assert address == "10.79.1.1:7171"

            def start(i: int) -> Process:
                return Process(Engine, spaces[i].pid, nodes[i].socket, address)

            engines = [start(i) for i in (0, 0, 1, 1)]
            trains = trainer(a.socket, Nobody())
            for number in range(ROUNDS):
                version = trains.publish()
                assert calls(engines, "update", version) == [trains.source.step] * 4

                killed = child("publish", a.socket)  # a trainer, when it has added half of the tensors
                killed.kill()
                killed.wait()
                until(lambda: a.log().count("did not become a version") > number, "the daemon notices the death")
                assert calls(engines, "step") == [trains.source.step] * 4
                assert [engines[0].call("cold"), engines[3].call("cold")] == [trains.source.step] * 2
                version = trains.publish()
                assert calls(engines, "update", version) == [trains.source.step] * 4

                victim = random.randrange(4)
                version = trains.publish()
                engines[victim].start("update", version, random.choice(NAMES))
                engines[victim].step()
                others = [one for one in engines if one is not engines[victim]]
                for one in others:
                    one.start("update", version)
                engines[victim].kill()
                assert [one.result() for one in others] == [trains.source.step] * 3
                engines[victim] = start(victim // 2)
                assert engines[victim].call("cold") == trains.source.step
                assert calls(engines, "update", version) == [trains.source.step] * 4, "the one that was started again, too"
            for one in engines:
                one.close()
            trains.shutdown()
            c.unpublish("policy")
        for node in nodes:
            node.fds = node.open_fds()  # the transports between the nodes stay connected


if __name__ == "__main__":
    main(globals())
