# SPDX-License-Identifier: Apache-2.0
"""rdtd.vllm on models of torch with a few tensors, between real daemons, with a stand-in for vLLM. ROUNDS: how often a
daemon is killed under its keeper (3)."""
from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import types
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Optional

from nodes import LONG, Killed, Node, main, raises, required, until

import rdtd

torch = required("torch")
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import fake_vllm  # noqa: E402

fake_vllm.install()
import rdtd.vllm  # noqa: E402
from rdtd._weights import Weights, connection_at  # noqa: E402

NAMES = [f"layer.{i}.weight" for i in range(8)]


class Toy(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Has the names of a checkpoint, and of each tensor the rows of one of `ranks`."""

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        super().__init__()
        self.rank, self.rows = rank, 64 // ranks
        self.layer = torch.nn.ModuleList(torch.nn.Linear(40, self.rows, bias=False) for _ in NAMES)
        self.at_tensor = lambda name: None

    def load_weights(self, weights: Iterator[tuple[str, Any]]) -> set[str]:
        own, loaded = dict(self.named_parameters()), set()
        for name, tensor in weights:
            self.at_tensor(name)
            own[name].data.copy_(tensor[self.rank * self.rows:(self.rank + 1) * self.rows])
            loaded.add(name)
        return loaded

    def step(self) -> float:
        """The step that all of the model is of."""
        (value,) = {float(value) for tensor in self.state_dict().values() for value in (tensor.min(), tensor.max())}
        return value


@contextmanager
def served() -> Iterator[Node]:
    """A daemon at $RDT_SOCKET, to which the connection of this process's engines ends with the test."""
    with Node() as node:
        os.environ["RDT_SOCKET"] = node.socket
        yield node
        rdtd.default().close()


def source(step: float) -> Any:
    return [(name, torch.full((64, 40), float(step))) for name in NAMES]


def session(model: Any, **init_info: Any) -> fake_vllm.Session:
    config = types.SimpleNamespace(model_config=types.SimpleNamespace(quantization=None))
    made = fake_vllm.Session(rdtd.vllm.Worker(None, config, torch.device("cpu"), model))
    made.init_weight_transfer_engine({"name": "policy", "timeout": LONG, **init_info})
    return made


class Steps:
    """The WeightSource of a trainer."""

    step = 0.0

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        self.step += 1
        return iter(source(self.step))


class Nobody:
    def __getattr__(self, name: str) -> Any:
        return lambda *ignored: None


def trainer(socket: str, client: Any, *, rank: int = 0, weights: Any = None, **info: Any) -> Any:
    info_ = rdtd.vllm.TrainerInitInfo(name="policy", socket=socket, rank=rank, **info)
    return rdtd.vllm.Trainer.trainer_init(info_, client=client, source=Steps() if weights is None else weights)


def test_registered_once_and_by_the_name_rdtd() -> None:
    rdtd.vllm.register()
    rdtd.vllm.register()
    import vllm.distributed.weight_transfer.factory as factory  # type: ignore[import]
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER as formats  # type: ignore[import]
    assert factory.WeightTransferEngineFactory._registry == {"rdtd": ("rdtd._vllm", "Worker")}
    assert factory.WeightTransferTrainerFactory._registry == {"rdtd": ("rdtd._vllm", "Trainer")}
    assert formats == {"rdtd": rdtd.vllm.Loader}
    assert rdtd.vllm.TrainerInitInfo.backend == "rdtd" and "Worker" in dir(rdtd.vllm)


def test_another_vllm_is_a_sentence() -> None:
    environment = {**os.environ, "PYTHONPATH": os.environ["PYTHONPATH"] + f":{HERE}"}
    for program, said in (("import rdtd._vllm", "rdtd.vllm needs vllm, which is not installed"),
                          ("import sys, types; sys.modules['vllm'] = types.ModuleType('vllm'); import rdtd._vllm",
                           "rdtd.vllm "),
                          ("import rdtd.vllm as v, logging; logging.basicConfig(); v.register(); raise SystemExit(1)",
                           "rdtd.vllm needs vllm"),
                          ("import fake_vllm, sys; fake_vllm.install(); "
                           "del sys.modules['vllm.distributed.weight_transfer.base'].TrainerInitInfo; import rdtd._vllm",
                           "TrainerInitInfo"),
                          ("import fake_vllm, sys; fake_vllm.install(); "
                           "del sys.modules['vllm.distributed.weight_transfer.base'].TrainerInitInfo; "
                           "import rdtd.vllm as v, logging; logging.basicConfig(); v.register(); raise SystemExit(1)",
                           "WARNING:vllm.rdtd:rdtd.vllm needs vllm"),
                          ("import abc, fake_vllm; fake_vllm.install(); "
                           "fake_vllm.BaseModelLoader.new = abc.abstractmethod(lambda self: 0); "
                           "fake_vllm.BaseModelLoader.__abstractmethods__ = frozenset(['new']); import rdtd._vllm",
                           "rdtd.vllm.Loader lacks new")):
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 1 and said in done.stderr.splitlines()[-1], done.stderr
    program = "import sys, rdtd.vllm; assert not {'vllm', 'torch', 'numpy'} & set(sys.modules), 'imported'"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_each_update_loads_the_version_that_the_trainer_published() -> None:
    with Node(listen=True) as a, Node(listen=True) as b:
        os.environ["RDT_SOCKET"] = b.socket
        model = Toy()
        engine = session(model)
        with rdtd.connect(a.socket) as c:
            address = c.node["address"]
        trains = trainer(a.socket, engine, address=address)
        for step in 1, 2, 3:
            trains.send_weights()
            assert model.step() == step and engine.weight_version == str(step) and not engine.active
        trains.source.step = 0
        trains.send_weights()
        assert model.step() == 1 and engine.weight_version == "4", "weights of the first step, as a later version"
        trains.update(4)
        trains.update()
        assert model.step() == 1, "the same version, once more"
        shown = b.ctl("followers")
        assert "policy" in shown and " 4 " in shown, shown
        engine.worker.shutdown()
        trains.shutdown()
        with rdtd.connect(a.socket) as c:
            c.unpublish("policy")
        a.fds, b.fds = a.open_fds(), b.open_fds()  # the transports between the nodes stay connected


def test_publishing_needs_no_engine_to_stand_still() -> None:
    with served() as node:
        models = [Toy(rank, 2) for rank in range(2)]
        engines = [session(model) for model in models]
        trains = trainer(node.socket, Nobody())
        assert trains.publish() == 1 and trains.publish() == 2
        for engine, model in zip(engines, models):
            engine.start_weight_update()
            engine.update_weights({"version": 2})  # the newest that is whole here may be 1 for a moment
            engine.finish_weight_update()
            assert model.step() == 2 and engine.weight_version == "default"
            engine.worker.shutdown()
        other = trainer(node.socket, Nobody(), rank=1)
        other.send_weights()
        assert other.source.step == 1, "another rank takes part in the collectives, and publishes nothing"
        trains.shutdown()
        with rdtd.connect(node.socket) as c:
            c.unpublish("policy")


def test_no_daemon_leaves_no_rank_in_a_collective() -> None:
    seen = []

    def weights() -> Iterator[Any]:
        for name, tensor in source(1):
            seen.append(name)  # a collective of the trainer's ranks
            yield name, tensor

    with Node() as node:
        trains = trainer(node.socket, Nobody(), weights=weights())
        node.kill()
        with raises(rdtd.Disconnected):
            trains.publish()
        assert seen == NAMES
        trains.shutdown()


def test_what_does_not_fit_is_named() -> None:
    with served() as node:
        model = Toy()
        with raises(RuntimeError, "call init_weight_transfer_engine"):
            bare = rdtd.vllm.Worker(None, types.SimpleNamespace(model_config=None), torch.device("cpu"), model)
            bare.update_weights({})
        engine = session(model, timeout=0.2)
        for wrong, said in (({"name": 5}, "name must be text"), ({"name": "x", "timeout": -1}, "timeout must be"),
                            ({"nam": "x"}, "nam"), ({}, "name")):
            with raises((TypeError, ValueError), said):  # type: ignore[arg-type]
                engine.init_weight_transfer_engine(wrong)
        for wrong, said in ({"version": -1}, "version must be"), ({"version": "1"}, "version must be"), ({"v": 1}, "'v'"):
            engine.start_weight_update()
            with raises((TypeError, ValueError), said):  # type: ignore[arg-type]
                engine.update_weights(wrong)
        with rdtd.connect(node.socket) as c:
            engine.start_weight_update()
            with raises(rdtd.TimedOut, "no newer version"):
                engine.update_weights({"version": 1})
            c.publish("policy", dict(source(1)))
            engine.start_weight_update()
            engine.update_weights({"version": 1})
            engine.finish_weight_update()
            assert model.step() == 1
            for value, said in (([1], "is a list, not a dict of tensors"), ({"a": 5}, "has a int as 'a'"),
                                (dict(source(2)[:-1]), "has nothing for 1 of the model's parameters, which are as they were: "
                                 "layer.7.weight")):
                c.publish("policy", value)
                engine.start_weight_update()
                with raises(rdtd.Invalid, said):
                    engine.update_weights({})
            c.publish("policy", dict(source(3)))
            engine.start_weight_update()
            engine.update_weights({})
            assert model.step() == 3, "the next update replaces all"
            engine.worker.shutdown()
            c.unpublish("policy")
        with raises(ValueError, "publishes whole models"):
            trainer(node.socket, Nobody(), weights=False).__class__(
                rdtd.vllm.TrainerInitInfo(name="policy", socket=node.socket, rank=0), client=None, source=None)
        with raises(rdtd.Invalid, "no tensor 'b' on rank 0"):
            trainer(node.socket, Nobody(), weights=[("a", torch.ones(3)), ("b", None)]).publish()


def load(model: Any, **extra: Any) -> None:
    config = types.SimpleNamespace(model_loader_extra_config=extra)
    loader = rdtd.vllm.Loader(config)
    loader.download_model(None)
    loader.load_weights(model, types.SimpleNamespace(quantization=None))


def test_load_format_starts_an_engine_with_the_newest_version() -> None:
    with served() as node:
        with raises(ValueError, "needs the name of the weights"):
            load(Toy())
        with raises(ValueError, "has the fields name, socket, address, timeout"):
            load(Toy(), name="policy", nix=1)
        with raises(rdtd.TimedOut):
            load(Toy(), name="policy", timeout=0.1)
        with rdtd.connect(node.socket) as c:
            later = threading.Timer(0.1, lambda: c.publish("policy", dict(source(7))))
            later.start()
            for rank in range(2):
                model = Toy(rank, 2)
                load(model, name="policy", timeout=LONG)
                assert model.step() == 7
            later.join()
            c.publish("policy", dict(source(8)[1:]))
            with raises(rdtd.Invalid, "has nothing for 1 of the model's parameters"):
                load(Toy(), name="policy")
            c.unpublish("policy")


class Ranks:
    """The Gather of engines whose processes are threads."""

    def __init__(self, size: int) -> None:
        self.size, self.said = size, [None] * size
        self.barrier = threading.Barrier(size)

    def of(self, rank: int) -> Any:
        def gather(mine: Any) -> list[Any]:
            self.said[rank] = mine
            self.barrier.wait(LONG)
            all_ = list(self.said)
            self.barrier.wait(LONG)
            return all_
        return gather


def test_all_workers_take_one_version_or_none() -> None:
    with served() as node, rdtd.connect(node.socket) as c:
        ranks = Ranks(4)
        stop = threading.Event()
        seen: list[list[Any]] = [[] for _ in range(4)]

        def publish() -> None:
            step = 0
            while not stop.is_set():
                step += 1
                c.publish("policy", {"w": torch.full((1000,), float(step))})

        def work(rank: int) -> None:
            weights = Weights(rdtd.Ref.from_name("policy"), gather=ranks.of(rank))
            for _ in range(30):
                version, tensors = weights.read(0, LONG)
                seen[rank].append((version, float(tensors["w"].max()), float(tensors["w"].min())))
            weights.close()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
        publisher = threading.Thread(target=publish)
        for thread in threads + [publisher]:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        publisher.join()
        assert len(seen[0]) == 30 and all(one == seen[0] for one in seen), seen
        assert all(version == least == most for version, least, most in seen[0]), seen[0]
        assert len({version for version, _, _ in seen[0]}) > 1
        c.unpublish("policy")

        late, failures = Ranks(2), []
        quick = Weights(rdtd.Ref.from_name("policy"), gather=late.of(0))
        slow = Weights(rdtd.Ref.from_name("other"), gather=late.of(1))
        c.publish("policy", {"w": torch.ones(3)})

        def fails(weights: Weights, timeout: float) -> None:
            try:
                weights.read(0, timeout)
            except Exception as error:
                failures.append(str(error))

        thread = threading.Thread(target=fails, args=(slow, 0.1))
        thread.start()
        fails(quick, LONG)
        thread.join()
        assert len(failures) == 2, failures
        assert any("another process of this engine has no version of 'policy'" in one for one in failures), failures
        quick.close()
        slow.close()
        c.unpublish("policy")


def child(mode: str, socket: str) -> Any:
    """This file as another process; it says "there" when it has come to the place where it is to be killed."""
    made = subprocess.Popen([sys.executable, __file__, "child", mode], env={**os.environ, "RDT_SOCKET": socket},
                            stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    line = made.stdout.readline()
    assert line == "there\n", line
    return made


def children(mode: str) -> None:
    def stay() -> None:
        print("there", flush=True)
        signal.pause()

    def half() -> Iterator[tuple[str, Any]]:
        yield from source(99)[:4]
        stay()

    if mode == "publish":
        trainer(os.environ["RDT_SOCKET"], Nobody(), weights=half()).publish()
    model = Toy()
    model.at_tensor = lambda name: stay() if name == NAMES[4] else None
    engine = session(model)
    engine.start_weight_update()
    engine.update_weights({})


def test_deaths_cost_nobody_else() -> None:
    with served() as node:
        model = Toy()
        engine = session(model)
        trains = trainer(node.socket, engine)
        trains.send_weights()
        killed = child("publish", node.socket)
        killed.kill()
        killed.wait()
        until(lambda: "did not become a version" in node.log(), "the daemon notices the death")
        engine.start_weight_update()  # the trainer that had begun an update was killed, too
        assert model.step() == 1
        trains.send_weights()
        assert model.step() == 2 and engine.weight_version == "2"
        killed = child("update", node.socket)
        trains.send_weights()
        killed.kill()
        killed.wait()
        trains.send_weights()
        assert model.step() == 4
        restarted = Toy()
        load(restarted, name="policy")
        assert restarted.step() == 4
        engine.worker.shutdown()
        trains.shutdown()
        with rdtd.connect(node.socket) as c:
            c.unpublish("policy")


def test_engines_of_other_nodes_wait_for_a_new_count() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Node(listen=True, port=port) as a, Node(listen=True) as b:
        weights = Weights(rdtd.Ref.from_name("policy", address=f"127.0.0.1:{port}"), b.socket)
        with rdtd.connect(a.socket) as c:
            for step in 1, 2, 3:
                c.publish("policy", {"w": torch.full((5,), float(step))})
            assert weights.read(3, LONG)[0] == weights.read(2, LONG)[0] == weights.read(0, LONG)[0] == 3
        a.kill()
        a.start()
        got: list[Any] = []
        waits = threading.Thread(target=lambda: got.append(weights.read(1, LONG)))
        waits.start()
        until(lambda: b.waiters() == 1, "it does not take version 3 of the count before for version 1")
        with rdtd.connect(a.socket) as c:
            c.publish("policy", {"w": torch.full((5,), 7.0)})
            waits.join()
            assert [(version, float(tensors["w"].max())) for version, tensors in got] == [(1, 7.0)], got
            assert weights.read(1, LONG)[0] == weights.read(0, LONG)[0] == 1, "the same once more"
            got.clear()
            weights.close()
            connection_at(b.socket).close()
            c.unpublish("policy")
        a.fds, b.fds = a.open_fds(), b.open_fds()  # the transports between the nodes stay connected


def test_daemon_without_a_keeper_costs_its_versions() -> None:
    with served() as node:
        model = Toy()
        engine = session(model)
        trains = trainer(node.socket, engine)
        for _ in range(3):
            trains.send_weights()
            assert model.step() == trains.source.step
            node.kill()
            node.start()
        engine.worker.shutdown()
        trains.shutdown()


def test_daemon_killed_under_its_keeper_is_only_a_pause() -> None:
    rounds = int(os.environ.get("ROUNDS", "3"))
    with Killed() as killed:
        os.environ["RDT_SOCKET"] = killed.node.socket
        model, other = Toy(), Toy(1, 2)
        engine, beside = session(model), session(other)
        trains = trainer(killed.node.socket, engine)
        failures: list[BaseException] = []
        over = threading.Event()
        lost = updates = 0

        def train() -> None:
            nonlocal lost, updates
            try:
                while not over.is_set() or updates < 3:
                    try:
                        version = trains.publish()
                    except rdtd.Error as error:  # the daemon died with a version that was not complete
                        print(f"lost a version: {type(error).__name__}: {error}")
                        lost += 1
                        continue
                    for one, toy in (engine, model), (beside, other):
                        one.start_weight_update()
                        one.update_weights({"version": version})
                        one.finish_weight_update()
                        assert toy.step() == trains.source.step, (toy.step(), trains.source.step)
                    updates += 1
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=train)
        thread.start()
        seed = random.randrange(2**32)
        moments = random.Random(seed)
        for _ in range(rounds):
            over.wait(moments.random() * 0.2)
            killed.kill()
            if failures:
                break
        over.set()
        thread.join(LONG)
        print(f"{killed.kills} kills, {updates} updates, {lost} versions lost, seed {seed}")
        if failures:
            raise failures[0]
        assert not thread.is_alive() and updates >= 3
        engine.worker.shutdown()
        beside.worker.shutdown()
        trains.shutdown()
        with rdtd.connect(killed.node.socket) as c:
            c.unpublish("policy")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        children(sys.argv[2])
    else:
        main(globals())
