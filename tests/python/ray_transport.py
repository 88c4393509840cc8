# SPDX-License-Identifier: Apache-2.0
"""Ray over rdtd, on a real Ray cluster of this machine: values, lifetimes, and faults. Needs ray, torch and
numpy."""
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_rdt_fetch_fail_timeout_milliseconds"] = "8000"

from nodes import LONG, Node, main, raises, until  # noqa: E402

try:
    import numpy as np
    import ray
    import torch
except ImportError as missing:
    print(f"{missing}: `make test-ray` installs what this needs")
    sys.exit(77)
import rdtd  # noqa: E402
import rdtd.ray  # noqa: E402
from ray.exceptions import GetTimeoutError, RayActorError, RayDirectTransportError, RayTaskError  # noqa: E402
from ray.experimental import set_target_for_ref, wait_tensor_freed  # noqa: E402
from ray.experimental.rdt import util  # noqa: E402
from ray.experimental.rdt.util import get_tensor_transport_manager  # noqa: E402

rdtd.ray.register()
rdtd.ray.register()
node = None


class Cluster:
    """A daemon, and a Ray cluster whose processes find the daemon by $RDT_SOCKET."""

    def __init__(self, *flags, hook=False, **options):
        global node
        node = self.node = Node(*flags)
        os.environ["RDT_SOCKET"] = self.node.socket
        util.has_custom_transports = not hook
        environment = {"worker_process_setup_hook": "rdtd.ray.register"} if hook else {}
        ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False,
                 runtime_env=environment, **options)

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        gc.collect()
        ray.shutdown()
        rdtd.default().close()
        # rdtctl itself is the one client that is left.
        until(lambda: self.node.ctl("clients", "--json").count('"pid"') <= 1, "Ray's processes have gone")


def driver_put(value):
    """Calls ray.put in a driver. Returns None, and prints why, if this version of Ray lets only actors do
    that: the refusal can crash it."""
    if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60):
        print(f"Ray {ray.__version__}: a driver may not ray.put with a transport; that is left out")
        return None
    return ray.put(value, _tensor_transport="rdtd")


def objects():
    return node.ctl("objects", "--json").count('"generation"')


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Actor:
    @ray.method(tensor_transport="rdtd")
    def echo(self, value):
        return value

    @ray.method(tensor_transport="rdtd_numpy")
    def arrays(self, value):
        return value

    @ray.method(tensor_transport="rdtd")
    def ones(self, *shape):
        return torch.ones(*shape)

    @ray.method(tensor_transport="rdtd")
    def kept(self):
        self.tensor = torch.zeros(50000)
        return self.tensor

    @ray.method(tensor_transport="rdtd")
    def live(self):
        self.tensor = rdtd.default().empty((300, 300), torch.float32)
        return self.tensor

    @ray.method(tensor_transport="rdtd")
    def lazy(self):
        return [torch.full((5,), 2.0, requires_grad=True), torch.tensor([1 + 2j, 3 - 4j]).conj()]

    def fill(self, number):
        self.tensor.fill_(number)

    def total(self, value):
        return float(sum(tensor.sum() for tensor in value) if isinstance(value, (list, tuple))
                     else value.sum())

    def scaled(self, factors, value):
        return float(value.sum() * factors.sum())

    def total_of_refs(self, refs):
        return sum(float(tensor.sum()) for tensor in ray.get(refs))

    def add(self, value):
        value += 1
        return float(value.sum())

    def put(self, *shape):
        return [ray.put(torch.ones(*shape), _tensor_transport="rdtd")]

    def put_and_free(self):
        tensor = torch.ones(10000)
        ref = ray.put(tensor, _tensor_transport="rdtd")
        with raises(TimeoutError):
            wait_tensor_freed(tensor, timeout=0.2)
        del ref
        wait_tensor_freed(tensor, timeout=LONG)
        return True

    def into(self, refs):
        mine = [torch.zeros(50000)]
        set_target_for_ref(refs[0], mine)
        got = ray.get(refs[0])
        return got is mine[0] or got[0] is mine[0], float(mine[0].sum())

    def into_all(self, refs):
        mine = [torch.zeros(50000), torch.zeros(7)]
        set_target_for_ref(refs[0], mine)
        got = ray.get(refs[0])
        return all(one is other for one, other in zip(got, mine)), float(mine[0].sum()), float(mine[1].sum())

    def lent(self, other, n):
        return float(ray.get(other.ones.options(tensor_transport="rdtd").remote(n)).sum())

    def pid(self):
        return os.getpid()

    def end(self):
        os._exit(1)


@ray.remote(num_cpus=0)
class Plain:
    """An actor whose class lacks enable_tensor_transport."""

    def total(self, value):
        return float(value.sum())

    def pass_on(self, other, refs):
        try:
            other.total.remote(refs[0])
        except ValueError as error:
            return str(error)
        return "it was accepted"


def sizes_of(value):
    return [tuple(tensor.shape) for tensor in value]


def test_everything_goes_through_and_nothing_stays():
    with Cluster():
        a, b = Actor.remote(), Actor.remote()
        grown, conjugated = ray.get(Actor.remote().lazy.remote())  # its first call
        assert grown.sum() == 10 and not grown.requires_grad and conjugated.tolist() == [1 - 2j, 3 + 4j]
        value = {"w": torch.arange(6).reshape(2, 3), "t": torch.arange(12.0).reshape(3, 4).t(),
                 "half": torch.ones(3, dtype=torch.bfloat16),
                 "scalar": torch.tensor(2.5), "none": torch.zeros(0, 3), "big": torch.arange(100000), "n": 3,
                 "list": [torch.ones(1), "x"]}
        got = ray.get(a.echo.remote(value))
        for name in ("w", "t", "half", "scalar", "none", "big"):
            assert torch.equal(got[name], value[name]) and got[name].dtype == value[name].dtype, name
        assert got["n"] == 3 and got["list"][1] == "x"
        assert ray.get(a.echo.remote(17)) == 17 and ray.get(b.echo.remote([])) == []  # no tensors: no object
        assert ray.get(b.total.remote(a.ones.remote(100, 1000))) == 1e5
        assert ray.get([b.total.remote(a.ones.remote(10)) for _ in range(20)]) == [10.0] * 20
        arrays = {"a": np.arange(50000.0), "b": [np.ones(3, "u1")]}
        seen = ray.get(a.arrays.remote(arrays))
        assert (seen["a"] == arrays["a"]).all() and seen["b"][0].dtype == np.uint8
        assert seen["a"].flags.writeable
        assert ray.get(b.total.remote(a.arrays.remote(np.ones(1000)))) == 1000
        nested = ray.get(a.put.remote(1000, 100))  # a list with a ref that the actor owns
        assert ray.get(b.total_of_refs.remote(nested)) == 1e5 and float(ray.get(nested[0]).sum()) == 1e5
        mine = [driver_put(torch.full((50000,), float(i))) for i in range(3)]  # put by the driver
        if mine[0] is not None:
            assert ray.get(b.total_of_refs.remote(mine)) == 150000
            assert ray.get(b.total.remote(mine[2])) == 100000
        many = ray.get(a.echo.remote([torch.full((7,), float(i)) for i in range(2000)]))
        assert len(many) == 2000 and float(many[1999][6]) == 1999
        assert ray.get(a.put_and_free.remote())
        del grown, conjugated, got, seen, nested, mine, many
        gc.collect()
        until(lambda: objects() == 0, f"Ray freed them: {node.ctl('objects')}")


def test_what_comes_is_private_and_what_was_made_does_not_change():
    with Cluster():
        a, b, c = (Actor.remote() for _ in range(3))
        ref = a.kept.remote()
        ray.wait([ref])
        ray.get(a.fill.remote(7.0))  # the daemon has a copy, so the actor may write its tensor
        assert ray.get([b.add.remote(ref), c.add.remote(ref), b.add.remote(ref)]) == [50000.0] * 3
        mine = ray.get(ref)
        mine += 5
        assert float(ray.get(ref).sum()) == 0
        with rdtd.connect() as other:
            fetched = other.get_fetched(rdtd.Ref.from_id(f"ray:{ref.hex()}"), mode="cow", as_="torch")
            assert fetched.path == "local/cow", "nothing is copied"
        live = a.live.remote()  # daemon memory: even the source copies nothing, and the object stays live
        ray.get(a.fill.remote(2.0))
        assert ray.get(b.total.remote(live)) == 180000
        ray.get(a.fill.remote(3.0))
        seen = ray.get(live)
        assert float(seen.sum()) == 270000 and ray.get(b.add.remote(live)) == 360000
        assert float(ray.get(live).sum()) == 270000
        given = driver_put(torch.ones(50000))
        given = a.ones.remote(50000) if given is None else given
        ray.wait([given])
        assert ray.get(b.into.remote([given])) == (True, 50000.0)
        pair = driver_put([torch.ones(50000), torch.full((7,), 2.0)])
        if pair is not None:
            assert ray.get(b.into_all.remote([pair])) == (True, 50000.0, 14.0)
        del pair
        del given
        del mine, fetched, seen


def test_calls_that_ray_would_let_wait_are_refused():
    with Cluster():
        a, b, plain = Actor.remote(), Actor.remote(), Plain.remote()
        ref = a.ones.remote(1000)
        with raises(ValueError, "enable_tensor_transport=True"):
            plain.total.remote(ref)
        with raises(ValueError, "by position"):
            b.total.remote(value=ref)
        assert ray.get(b.total.remote(ref)) == 1000  # from now on the ref can be passed on
        assert "enable_tensor_transport=True" in ray.get(plain.pass_on.remote(plain, [ref]))
        assert ray.get([b.total.remote(ref), a.total.remote(value=ref)]) == [1000.0] * 2
        with raises(ValueError, "by position"):
            b.scaled.remote(np.ones(4), value=ref)
        assert ray.get(a.scaled.remote(np.ones(4), value=ref)) == 4000
        assert ray.get(plain.total.remote(torch.ones(3))) == 3
        del ref


def test_all_fetches_of_one_get_are_under_way_before_any_is_awaited():
    with Cluster() as cluster:
        a = Actor.remote()
        refs = [a.ones.remote(30000) for _ in range(8)]
        ray.wait(refs, num_returns=8)
        transport = get_tensor_transport_manager("RDTD")
        assert float(ray.get(refs[0]).sum()) == 30000
        got = []
        thread = threading.Thread(target=lambda: got.extend(ray.get(refs)))
        os.kill(cluster.node.process.pid, signal.SIGSTOP)
        try:
            thread.start()
            until(lambda: len(transport._running) == 8, "all are under way")
        finally:
            os.kill(cluster.node.process.pid, signal.SIGCONT)
        thread.join(LONG)
        assert [float(tensor.sum()) for tensor in got] == [30000.0] * 8
        del got, refs


def test_abort_touches_only_what_has_begun():
    class Says:  # the metadata of an object that nobody has put yet
        tensor_meta = [(torch.Size([3]), torch.float32)]

    with Cluster():
        transport = get_tensor_transport_manager("RDTD")
        first, second, third = (transport.get_communicator_metadata(None, None) for _ in range(3))
        one = transport.fetch_multiple_tensors("late", Says, first)
        other = transport.fetch_multiple_tensors("late", Says, second)
        transport.abort_transport("late", first)
        transport.abort_transport("late", third)  # the transfer has not begun
        with raises(RayDirectTransportError, "aborted"):
            transport.wait_fetch_complete(one)
        with raises(TimeoutError):
            transport.wait_fetch_complete(other, 0)
        later = transport.fetch_multiple_tensors("late", Says, third)
        meta = transport.extract_tensor_transport_metadata("late", [torch.ones(3)])
        for request in (other, later):
            assert float(transport.wait_fetch_complete(request)[0].sum()) == 3
        transport.abort_transport("late", third)  # the transfer has ended
        received = []

        def receive():
            with raises(RayDirectTransportError, "aborted"):
                transport.recv_multiple_tensors("later", Says, fourth)
            received.append(True)

        patience = rdtd.ray.PATIENCE
        # The abort comes while the library waits, before there is a request that could be cancelled.
        for rdtd.ray.PATIENCE in (0.5, patience):
            fourth = transport.get_communicator_metadata(None, None)
            thread = threading.Thread(target=receive)
            thread.start()
            until(lambda: fourth.transfer in transport._running, "it has begun")
            transport.abort_transport("later", fourth)
            thread.join(LONG)
        assert received == [True, True]
        transport.garbage_collect("late", meta, [])
        del request, other, later, one


def test_dead_actors_and_stalls_cost_only_themselves():
    with Cluster() as cluster:
        a, b, c = (Actor.remote() for _ in range(3))
        pids = ray.get([b.pid.remote(), c.pid.remote()])
        ref = a.ones.remote(100000)
        assert ray.get(b.total.remote(ref)) == 100000
        ray.kill(a)
        until(lambda: objects() == 0, "it went with its actor")
        with raises(RayTaskError, "The source actor may have died"):
            ray.get(b.total.remote(ref))
        with raises(RayDirectTransportError, "The source actor may have died"):
            ray.get(ref)
        ref = c.ones.remote(100000)
        assert ray.get(b.total.remote(ref)) == 100000
        gone = Actor.remote()
        ray.get(gone.pid.remote())
        os.kill(cluster.node.process.pid, signal.SIGSTOP)
        try:
            stalled = b.total.remote(ref)
            lost = gone.total.remote(ref)
            ray.kill(gone)  # it is receiving
            with raises(GetTimeoutError):
                ray.get(ref, timeout=0.5)
            with raises(RayActorError):
                ray.get(lost)
            with raises(RayTaskError):
                ray.get(stalled, timeout=LONG)
        finally:
            os.kill(cluster.node.process.pid, signal.SIGCONT)
        assert ray.get([b.total.remote(ref), b.total.remote(c.ones.remote(10))]) == [100000.0, 10.0]
        assert ray.get([b.pid.remote(), c.pid.remote()]) == pids, "nobody was killed"


def test_nodes_of_their_own_move_bytes_and_a_frozen_one_is_an_error():
    with Cluster() as cluster:
        here, there = Node(listen=True), Node("--peer-timeout", "1s", listen=True)
        a, b = (Actor.options(runtime_env={"env_vars": {"RDT_SOCKET": n.socket}}).remote()
                for n in (here, there))
        ref = a.ones.remote(1000, 1000)
        assert ray.get(b.total.remote(ref)) == 1e6 and ray.get(b.add.remote(ref)) == 2e6
        live, new = a.live.remote(), a.ones.remote(1000, 1000)
        ray.get(a.fill.remote(2.0))
        assert ray.get(b.total.remote(live)) == 180000
        ray.wait([new])
        pids = ray.get([a.pid.remote(), b.pid.remote()])
        os.kill(here.process.pid, signal.SIGSTOP)
        try:
            with raises(RayTaskError, "PeerLost"):
                ray.get(b.total.remote(new), timeout=LONG)
        finally:
            os.kill(here.process.pid, signal.SIGCONT)

        def again():
            try:
                return ray.get(b.total.remote(new)) == 1e6
            except RayTaskError:
                return False

        until(again, "it comes again")
        assert ray.get([a.pid.remote(), b.pid.remote()]) == pids
        assert cluster.node.process.poll() is None
        del ref, live, new
        gc.collect()
        until(lambda: '"generation"' not in here.ctl("objects", "--json") + there.ctl("objects", "--json"),
              "objects are gone")
        here.kill()  # the link between the daemons keeps descriptors open
        there.kill()


def test_restarted_actors_and_lent_handles():
    with Cluster(hook=True):
        a = Actor.options(max_restarts=1, max_task_retries=2).remote()
        b = Actor.remote()
        assert ray.get(b.total.remote(a.ones.remote(10))) == 10
        first = ray.get(a.pid.remote())
        a.end.options(max_task_retries=0).remote()

        def restarted():
            try:
                return ray.get(a.pid.remote()) != first
            except RayActorError:
                return False

        until(restarted, "it restarted", 40)
        assert ray.get(b.total.remote(a.ones.remote(20000))) == 20000
        assert ray.get(a.total.remote(b.ones.remote(30000))) == 30000
        assert ray.get(b.lent.remote(a, 5000)) == 5000  # b calls a, and reads the result

        @ray.remote(num_cpus=0)
        def task(other):
            return float(ray.get(other.ones.remote(100)).sum())

        assert ray.get(task.remote(a)) == 100
        assert ray.get(Actor.remote().put_and_free.remote()), "the actor's first call"


def test_receivers_that_restart_need_no_hook():
    with Cluster():
        a, b = Actor.remote(), Actor.options(max_restarts=1, max_task_retries=2).remote()
        first = ray.get(b.pid.remote())
        b.end.options(max_task_retries=0).remote()

        def restarted():
            try:
                return ray.get(b.pid.remote()) != first
            except RayActorError:
                return False

        until(restarted, "it restarted", 40)
        assert ray.get(b.total.remote(a.ones.remote(100000))) == 100000


STARTS = """
import sys, ray, torch, rdtd, rdtd.ray
rdtd.ray.register(start_daemon=["--idle-exit", "2s"])
ray.init(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=0)
class A:
    @ray.method(tensor_transport="rdtd")
    def ones(self):
        return torch.ones(100000)

print(float(ray.get(A.remote().ones.remote()).sum()), rdtd.default().node["session"] > 0)
"""


RENAMED = """
import sys, warnings
import ray.actor
import ray.experimental.rdt.rdt_manager as rdt
from ray.experimental.rdt import util
{renames}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import rdtd.ray
    print([str(w.message)[:45] for w in seen if "rdtd" in str(w.message)])
rdtd.ray.register(hooked=True)
rdtd.ray.register()
print(rdtd.ray._registered == {{"RDTD", "RDTD_NUMPY"}})
"""


def test_a_ray_with_other_inner_names_is_used_without_the_hook():
    for renames, warned in (("", False), ("del ray.actor.ActorHandle._actor_method_call", True),
                            ("del rdt.RDTManager.queue_or_trigger_out_of_band_tensor_transfer", True),
                            ("del rdt.RDTManager", True)):
        done = subprocess.run([sys.executable, "-c", RENAMED.format(renames=renames)], capture_output=True, text=True, timeout=LONG)
        lines = done.stdout.splitlines()
        assert len(lines) == 2 and lines[1] == "True", done.stdout + done.stderr
        assert lines[0].count("rdtd does not know the inside of this Ray") == warned, done.stdout


def test_without_a_daemon_the_error_says_how_to_get_one():
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "RDT_SOCKET": f"{folder}/nobody"}
        ended = subprocess.run([sys.executable, "-c", STARTS.replace('start_daemon=["--idle-exit", "2s"]', "")],
                               env=environment, capture_output=True, text=True, timeout=120)
        assert ended.returncode != 0 and "start_daemon=True" in ended.stderr, ended.stderr


def test_daemon_is_started_where_it_was_asked_for_and_ends_by_itself():
    with Node() as somebody:
        socket = str(somebody.dir / "started")
        environment = {**os.environ, "RDT_SOCKET": socket, "RDTD": os.environ["RDT_BUILD_DIR"] + "/rdtd"}
        done = subprocess.run([sys.executable, "-c", STARTS], env=environment, capture_output=True, text=True,
                              timeout=2 * LONG)
        assert done.stdout.split() == ["100000.0", "True"], done.stdout + done.stderr
        until(lambda: not os.path.exists(socket), "nobody needed it")
        with open(socket + ".log") as log:
            assert "has ended cleanly" in log.read()


if __name__ == "__main__":
    main(globals())
