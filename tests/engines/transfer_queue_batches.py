# SPDX-License-Identifier: Apache-2.0
"""rdtd.transferqueue's client: what is put comes back, one object for a call, and when it ends. And TransferQueue itself with
the backend, with a producer that ends."""
from __future__ import annotations

import asyncio
import os
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import rdtd
from nodes import LONG, Node, end, main, raises, required, until

torch = required("torch")
np = required("numpy")
required("transfer_queue")
import transfer_queue as tq
from rdtd.transferqueue import Client
from transfer_queue.storage.clients.base import StorageClientFactory


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and a == b


def keys_of(values: list[Any]) -> list[str]:
    return [f"{i}@field" for i in range(len(values))]


def test_what_is_put_comes_back() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        client = StorageClientFactory.create("RdtdClient", {"socket": node.socket})
        assert isinstance(client, Client)
        batch = torch.arange(60.).reshape(5, 3, 4)
        jagged = torch.nested.nested_tensor([torch.arange(float(n)) for n in (3, 0, 5, 1)], layout=torch.jagged)
        batches = [list(batch), list(jagged.unbind()), [torch.tensor(i) for i in range(4)], list(torch.arange(5)),
                   ["a", {"b": 1}, None, 5],
                   [batch[0], batch[2], "text", batch[3], batch[4]], list(batch.transpose(1, 2)),
                   list(batch.to(torch.bfloat16)),
                   [torch.zeros(0, 3), torch.ones(2, 3)], [torch.ones(3, requires_grad=True)], [batch[0]], []]
        for values in [*batches, [value for values in batches for value in values]]:
            before = len(c.objects())
            metas = client.put(keys_of(values), values)
            assert len(c.objects()) == before + bool(values)
            metas = pickle.loads(pickle.dumps(metas))
            found = client.get(keys_of(values), custom_backend_meta=metas)
            assert len(found) == len(values) and all(same(a, b) for a, b in zip(values, found)), (values, found)
            some = list(range(len(values)))[::-2]
            found = client.get([keys_of(values)[i] for i in some], custom_backend_meta=[metas[i] for i in some])
            assert all(same(values[i], b) for i, b in zip(some, found))
            for value in found:  # each process has its own
                if isinstance(value, torch.Tensor):
                    value.detach().zero_()
            found = client.get(keys_of(values), custom_backend_meta=metas)
            assert all(same(a, b) for a, b in zip(values, found))
            client.clear(keys_of(values), metas)
            assert len(c.objects()) == before
        client.close()


def test_rows_that_lie_side_by_side_and_are_not_alike() -> None:
    with Node() as node:
        client = Client({"socket": node.socket})
        complexes, floats, array = torch.tensor([[1 + 2j], [3 - 4j]]), torch.ones(4), np.arange(4.)
        for values in ([complexes[0].conj(), complexes[1]], [complexes[0], complexes[1].conj()],
                       [torch._neg_view(floats[:2]), floats[2:]],
                       [torch.from_numpy(array[:1]), torch.from_numpy(array)[1:]]):  # two storages begin at one address
            found = client.get(keys_of(values), custom_backend_meta=client.put(keys_of(values), values))
            assert all(same(a, b) for a, b in zip(values, found)), (values, found)
        with rdtd.connect(node.socket) as c:
            c.free(prefix="tq.")
        client.close()


def test_a_key_that_is_cleared_twice_counts_once() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        client = Client({"socket": node.socket})
        metas = client.put(["0@a", "1@a"], list(torch.arange(2)))
        for _ in range(3):
            client.clear(["0@a"], metas[:1])
        assert client.get(["1@a"], custom_backend_meta=metas[1:]) == [torch.tensor(1)]
        client.clear(["1@a"], metas[1:])
        assert not c.objects()
        client.close()


def test_after_a_fork_and_after_a_restart() -> None:
    with Node() as node:
        client = Client({"socket": node.socket})
        metas = client.put(["0@a"], [torch.tensor(7)])
        pid = os.fork()
        if pid == 0:
            os._exit(client.get(["0@a"], custom_backend_meta=metas) != [torch.tensor(7)])
        assert os.waitpid(pid, 0)[1] == 0
        node.kill()
        node.start()
        metas = client.put(["0@a"], [torch.tensor(8)])
        assert client.get(["0@a"], custom_backend_meta=metas) == [torch.tensor(8)]
        client.clear(["0@a"], metas)
        client.close()


def test_a_child_after_a_fork_puts_and_ends() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        client = Client({"socket": node.socket, "prefix": "tq.fork."})
        program = rdtd.transferqueue._Program(node.socket, "tq.fork.")
        client.put(["0@a"], [torch.tensor(0)])
        pid = os.fork()
        if pid == 0:
            try:
                client.put(["1@a"], [torch.tensor(1)])
                client.put(["2@a"], [torch.tensor(2)])
                program._end()  # as at the child's exit
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        for number in 3, 4, 5:
            client.put([f"{number}@a"], [torch.tensor(number)])
        assert len(c.objects(prefix="tq.fork.")) == 6
        program._end()
        assert not c.objects(prefix="tq.fork.")
        client.close()


def test_a_process_may_have_the_number_of_one_that_ended() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        client = Client({"socket": node.socket})
        for number in range(2):  # a child after the other, from the same state
            pid = os.fork()
            if pid == 0:
                try:
                    rdtd.transferqueue.os = SimpleNamespace(getpid=lambda: 7)
                    client.put(["0@a"], [torch.tensor(number)])
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
        assert len(c.objects(prefix="tq.")) == 2
        c.free(prefix="tq.")
        client.close()


def test_a_lost_node_is_no_obstacle_to_the_end_of_others() -> None:
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as c:
        near, far = Client({"socket": a.socket}), Client({"socket": b.socket})
        metas = [*far.put(["0@a"], [torch.tensor(0)]), *near.put(["1@a"], [torch.tensor(1)])]
        assert near.get(["0@a"], custom_backend_meta=metas[:1]) == [torch.tensor(0)]
        b.kill()
        with raises(rdtd.PeerLost):
            near.clear(["0@a", "1@a"], metas)
        assert not c.objects(prefix="tq.")
        near.close()


def test_clear_without_a_daemon_tries_once() -> None:
    with Node() as node:
        client, tries = Client({"socket": node.socket}), []
        metas = [client.put(["0@a"], [torch.tensor(number)])[0] for number in range(5)]
        node.kill()
        connect = rdtd.connect
        rdtd.connect = lambda socket: tries.append(socket) or connect(socket)
        try:
            with raises(rdtd.Disconnected):
                client.clear(["0@a"] * 5, metas)
        finally:
            rdtd.connect = connect
        assert len(tries) <= 1


def test_objects_that_ttl_has_ended_are_forgotten() -> None:
    """Also if other processes have cleared the rest of their keys."""
    with Node() as node, rdtd.connect(node.socket) as c:
        client = Client({"socket": node.socket, "ttl": 0.1})
        for number in range(5):
            metas = client.put(["0@a", "1@a"], [torch.tensor(number)] * 2)
            client.clear(["0@a"], metas[:1])
        until(lambda: not c.objects(prefix="tq."), "ttl has ended them")
        ended, metas = set(client._cleared), client.put(["0@a", "1@a"], [torch.tensor(5)] * 2)

        def forgotten() -> bool:
            client.clear(["0@a"], metas[:1])
            return not ended & set(client._cleared)
        until(forgotten, "nothing of them is known")
        until(lambda: not c.objects(prefix="tq."), "ttl has ended them")
        client.close()


def test_rows_of_a_batch_are_one_tensor() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        client = Client({"socket": node.socket})
        batch = torch.arange(6000.).reshape(1000, 6)
        more = torch.nested.nested_tensor([torch.ones(1 + i % 3) for i in range(1000)], layout=torch.jagged)
        client.put(keys_of([0] * 2000), [*batch, *more.unbind()])
        (row,) = c.objects()
        assert row["tensors"] == 2 and row["snapshot"] and row["detached"], row
        assert 0 < row["ttl_left"] <= 86400
        c.free(prefix="tq.")
        client.close()


def test_a_put_that_is_cancelled_leaves_all_or_nothing() -> None:
    from tensordict import TensorDict
    from rdtd.transferqueue import Manager
    with Node() as node, rdtd.connect(node.socket) as c:
        begun, goes_on = threading.Event(), threading.Event()
        told: list[Any] = []

        class Slow(Client):
            def put(self, *given: Any) -> Any:
                begun.set()
                assert goes_on.wait(LONG)
                return super().put(*given)

        async def notify(*given: Any) -> None:
            begun.set()
            await asyncio.to_thread(goes_on.wait, LONG)
            told.append(given)

        async def put(cancels: bool) -> None:
            begun.clear()
            running = asyncio.ensure_future(manager.put_data(data, metadata))
            await asyncio.to_thread(begun.wait, LONG)
            if cancels:
                running.cancel()
                with raises(asyncio.CancelledError):
                    await running
            goes_on.set()
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
            await asyncio.get_running_loop().shutdown_default_executor()
            goes_on.clear()

        data = TensorDict({"a": torch.ones(2, 3), "b": torch.arange(2)}, batch_size=2)
        metadata = SimpleNamespace(global_indexes=[0, 1], _custom_backend_meta=[{}, {}], partition_ids=["p", "p"])
        manager = object.__new__(Manager)
        manager.notify_data_update = notify
        manager.storage_client = Slow({"socket": node.socket})
        asyncio.run(put(True))
        assert not c.objects(prefix="tq.") and not told, "cancelled before the controller was told"
        manager.storage_client.close()
        manager.storage_client = Client({"socket": node.socket})
        for number, cancels in enumerate((False, True), 1):
            asyncio.run(put(cancels))
            assert len(c.objects(prefix="tq.")) == 1 and len(told) == number, "what the samples had before is cleared"
        manager.storage_client.clear(["0@a", "1@a", "0@b", "1@b"], [metadata._custom_backend_meta[i][field] for field in "ab"
                                                                    for i in (0, 1)])
        assert not c.objects(prefix="tq.")
        manager.close()


def test_an_object_ends_with_its_last_key() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        client = Client({"socket": node.socket})
        values = list(torch.arange(10.))
        metas = client.put(keys_of(values), values)
        client.clear(keys_of(values)[:6], metas[:6])
        assert len(c.objects()) == 1 and len(client.get(["9@field"], custom_backend_meta=metas[9:])) == 1
        client.clear(keys_of(values)[6:], metas[6:])
        assert not c.objects() and not client._cleared
        with raises(KeyError, "cleared"):
            client.get(["9@field"], custom_backend_meta=metas[9:])
        with raises(KeyError, "nothing was put for '1@field' and 1 other keys"):
            client.get(["0@field", "1@field", "2@field"], custom_backend_meta=[metas[0], None, None])
        with raises(ValueError, "2 keys and 1 values"):
            client.put(["a", "b"], [1])
        client.clear(["1@field"], [None])
        client.close()


def test_values_of_other_nodes() -> None:
    with Node(listen=True) as a, Node(listen=True) as b:
        client, far = Client({"socket": a.socket}), Client({"socket": b.socket})
        values = [*torch.arange(60.).reshape(5, 12), "text", {"a": [1]}]
        metas = client.put(keys_of(values), values)
        found = far.get(keys_of(values), custom_backend_meta=metas)
        assert all(same(x, y) for x, y in zip(values, found))
        odd = [complex(1, 2), {1, 2}, Ellipsis, os.stat_result(range(10))]  # the last needs a pickle
        metas2 = client.put(keys_of(odd), odd)
        with raises(rdtd.PickleRefused, "allow_pickle"):
            far.get(keys_of(odd), custom_backend_meta=metas2)
        trusting = Client({"socket": b.socket, "allow_pickle": True})
        assert trusting.get(keys_of(odd), custom_backend_meta=metas2) == odd
        del found
        far.clear(keys_of(values), metas)
        far.clear(keys_of(odd), metas2)
        for one in client, far, trusting:
            one.close()
        end(b, a)


def test_the_data_outlive_their_producer() -> None:
    import ray
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    with Node() as node, rdtd.connect(node.socket) as c:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, namespace="rdtd",
                 runtime_env={"worker_process_setup_hook": "rdtd.transferqueue.register",
                              "env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
        try:
            tq.init(OmegaConf.create({"controller": {"polling_mode": True},
                                      "backend": {"storage_backend": "rdtd", "rdtd": {"socket": node.socket}}}))

            @ray.remote(num_cpus=0, max_retries=0)
            def produce(value: float, dies: bool) -> None:
                tq.init()
                rows = TensorDict({"a": torch.full((4, 3), value), "b": torch.arange(4)}, batch_size=4)
                tq.kv_batch_put(keys=[f"k{i}" for i in range(4)], partition_id="p", fields=rows)
                if dies:
                    os.kill(os.getpid(), 9)

            with raises(ray.exceptions.WorkerCrashedError):
                ray.get(produce.remote(1.0, True), timeout=3 * LONG)
            found = tq.kv_batch_get(keys=["k0", "k3"], partition_id="p")
            assert torch.equal(torch.stack(list(found["a"].unbind())), torch.ones(2, 3)) and found["b"].tolist() == [0, 3]
            ray.get(produce.remote(2.0, False), timeout=3 * LONG)  # the same keys again: what they had ends
            found = tq.kv_batch_get(keys=["k0", "k3"], partition_id="p")
            assert torch.equal(torch.stack(list(found["a"].unbind())), torch.full((2, 3), 2.0))
            del found
            until(lambda: len(c.objects(prefix="tq.")) == 1, "the earlier values were freed")
            tq.kv_clear(keys=[f"k{i}" for i in range(4)], partition_id="p")
            until(lambda: not c.objects(prefix="tq."), "all values were freed")
            ray.get(produce.remote(3.0, False), timeout=3 * LONG)
            tq.close()  # frees what is left
            until(lambda: not c.objects(prefix="tq."), "close has freed all")
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main(globals())
