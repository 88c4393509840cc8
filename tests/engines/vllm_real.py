# SPDX-License-Identifier: Apache-2.0
"""vLLM itself on the CPU, with a model of two layers: the tokens after an update are those of an engine that has loaded the
same weights from a file, whatever the parallelism, and deaths cost nobody else. An engine starts in half a minute on an idle
machine, so a test has several subjects."""
from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from nodes import LONG, Killed, Node, main, raises, required

import rdtd

required("vllm")
from vllm.distributed.weight_transfer import base, factory  # type: ignore[import]  # noqa: E402

import rdtd.vllm  # noqa: E402
from vllm_process import PROMPTS, Engine, model_folder, weights  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())


class Source(base.WeightSource):  # type: ignore[misc]
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def metadata(self) -> list[Any]:
        return [base.ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights(self.seed).items()]

    def __iter__(self) -> Any:
        return iter(weights(self.seed).items())


class Engines:
    """Several engines as one client."""

    def __init__(self, *engines: Engine) -> None:
        self.engines = engines

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            for engine in self.engines:
                getattr(engine, name)(*arguments)
        return call


def trainer(socket: str, client: Any, seed: int, **info: Any) -> Any:
    init_info = rdtd.vllm.TrainerInitInfo(name="policy", socket=socket, rank=0, **info)
    return factory.WeightTransferTrainerFactory.trainer_init(init_info=init_info, client=client, source=Source(seed))


def tokens_from_files() -> dict[int, list[list[int]]]:
    """By seed, those of an engine that has loaded the weights from a file."""
    found = {}
    for seed in 1, 2:
        engine = Engine(model_folder(FOLDER, seed), "", load_format="safetensors").ready()
        found[seed] = engine.tokens()
        engine.kill()
    assert found[1] != found[2] and [len(row) for row in found[1]] == [16] * len(PROMPTS), found
    return found


def test_versions_back_and_forth_with_and_without_tensor_parallelism() -> None:
    expected = tokens_from_files()
    with Node(listen=True) as a, Node(listen=True) as b:
        with rdtd.connect(a.socket) as c:
            address = c.node["address"]
        one = Engine(model_folder(FOLDER), b.socket, load_format="dummy")
        two = Engine(model_folder(FOLDER), a.socket, load_format="dummy", tensor_parallel_size=2)
        both = Engines(one.ready(), two.ready())
        dummy = one.tokens()
        assert dummy not in expected.values()
        trains = trainer(a.socket, both, 1, address=address)
        for seed in 1, 2, 1:
            trains.source.seed = seed
            version = trains.publish()
            before = one.tokens()
            trains.update(version)
            assert one.tokens() == expected[seed] != before, seed
            assert two.tokens() == expected[seed], seed
            assert one.call("get_weight_version") == two.call("get_weight_version") == str(version)
        assert " 3 " in a.ctl("followers") and " 3 " in b.ctl("followers")

        # A trainer is killed within a publish, and another one within its update.
        killed = subprocess.Popen([sys.executable, __file__, "child", a.socket], stdout=subprocess.PIPE, text=True)
        assert killed.stdout is not None and killed.stdout.readline() == "there\n"
        killed.kill()
        killed.wait()
        both.start_weight_update()
        with raises(RuntimeError, "no newer version is whole on this node"):
            one.init_weight_transfer_engine({"name": "nobody", "timeout": 0.2})
            one.update_weights({"version": 1})
        one.init_weight_transfer_engine({"name": "policy", "address": address})
        assert one.tokens() == two.tokens() == expected[1]
        one.start_weight_update()
        trains.source.seed = 2
        trains.send_weights()
        assert one.tokens() == two.tokens() == expected[2]

        # An engine is killed within an update, and started again from the name.
        trains.source.seed = 1
        version = trains.publish()
        two.start_weight_update()
        two.begin("update_weights", {"update_info": {"version": version}})
        two.kill()
        trains.client = one
        trains.update(version)
        assert one.tokens() == expected[1]
        two = Engine(model_folder(FOLDER), a.socket, load_format="rdtd", tensor_parallel_size=2,
                     model_loader_extra_config={"name": "policy"}).ready()
        assert two.tokens() == expected[1]
        one.kill()
        two.kill()
        trains.shutdown()
        with rdtd.connect(a.socket) as c:
            c.unpublish("policy")
        a.fds, b.fds = a.open_fds(), b.open_fds()  # the transports between the nodes stay connected


def test_daemon_killed_under_its_keeper_is_only_a_pause() -> None:
    rounds = int(os.environ.get("ROUNDS", "5"))
    expected = {}
    with Killed() as killed:
        engine = Engine(model_folder(FOLDER), killed.node.socket, load_format="dummy").ready()
        trains = trainer(killed.node.socket, engine, 1)
        for seed in 1, 2:
            trains.source.seed = seed
            trains.send_weights()
            expected[seed] = engine.tokens()
        assert expected[1] != expected[2]
        over = threading.Event()

        def kill() -> None:
            for _ in range(rounds):
                time.sleep(random.random())
                killed.kill()
            over.set()

        killer = threading.Thread(target=kill)
        killer.start()
        updates = lost = 0
        while not over.is_set() or updates < 3:
            trains.source.seed = 1 + updates % 2
            try:
                version = trains.publish()
            except rdtd.Error:  # the daemon died with a version that was not complete
                lost += 1
                continue
            trains.update(version)
            assert engine.tokens() == expected[trains.source.seed]
            updates += 1
        killer.join()
        print(f"{killed.kills} kills, {updates} updates, {lost} versions lost")
        engine.kill(signal.SIGTERM)
        trains.shutdown()
        with rdtd.connect(killed.node.socket) as c:
            c.unpublish("policy")


def publish_half(socket: str) -> None:
    class Half(Source):
        def __iter__(self) -> Any:
            yield from list(weights(self.seed).items())[:9]
            print("there", flush=True)
            signal.pause()

    with rdtd.connect(socket) as c:
        with c.publishing("policy") as version:
            for key, tensor in Half(2):
                version.add(key, tensor)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        publish_half(sys.argv[2])
    else:
        main(globals())
