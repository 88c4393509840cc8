# SPDX-License-Identifier: Apache-2.0
"""What all workloads share: processes that take part in one (Actor), daemons, network namespaces, and the rounds.

A workload is a module with `sides(bench)`, a list of Side. A side is one tool: its function sets everything up, measures, and returns
figures, {(case, figure): number}; the harness ends all that it started. Rounds call the sides in turn, so that each round has every tool
within minutes. The clock is CLOCK_MONOTONIC, which all processes share. Set-up and warm-up are on nobody's clock."""
import contextlib
import ctypes
import importlib
import multiprocessing
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field

now = time.perf_counter
HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("RDT_BUILD_DIR") or os.path.join(HERE, "../../../build/release")
PATIENCE = 120  # seconds that any one call of an actor may take


class CannotRun(Exception):
    """A side cannot run here; the text is its row."""


# ---- actors ----

CLONE_NEWNET, CLONE_NEWNS, MS_REC_PRIVATE = 0x40000000, 0x00020000, 0x44000


def _enter(pid):
    """Enters the network namespace of a process, with the /sys of that namespace, where UCX looks for interfaces."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as net:
        done = libc.setns(net.fileno(), CLONE_NEWNET)
    done = done or libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None)
    if done or libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None):
        raise OSError(ctypes.get_errno(), "a network namespace could not be entered")


def _serve(end, cls, args, node_pid):
    """The main function of an actor's process: answers calls until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if node_pid:
            _enter(node_pid)
        module, name = cls
        actor = getattr(importlib.import_module(module), name)(*args)
        end.send((True, None))
        while True:
            method, arguments = end.recv()
            try:
                end.send((True, getattr(actor, method)(*arguments)))
            except Exception:
                end.send((False, traceback.format_exc()))
    except EOFError:
        pass
    except Exception:
        with contextlib.suppress(OSError):
            end.send((False, traceback.format_exc()))


class Actor:
    """A process that holds an object of a class and answers calls, one at a time. `start` and `result` are the halves of `call`."""

    def __init__(self, cls, *args, node=None):
        context = multiprocessing.get_context("spawn")
        self._end, theirs = context.Pipe()
        self._name = cls.__name__
        self._process = context.Process(target=_serve, daemon=False,
                                        args=(theirs, (cls.__module__, cls.__name__), args, node.pid if node else None))
        self._process.start()
        theirs.close()
        self.pid = self._process.pid

    def ready(self, seconds=PATIENCE):
        self.result(seconds)
        return self

    def start(self, method, *args):
        self._end.send((method, args))

    def result(self, seconds=PATIENCE):
        if not self._end.poll(seconds):
            raise TimeoutError(f"{self._name} did not answer within {seconds} s")
        try:
            fine, value = self._end.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(f"{self._name} ended (exit status {self._process.exitcode})") from None
        if not fine:
            raise RuntimeError(f"{self._name}: {value}")
        return value

    def call(self, method, *args, seconds=PATIENCE):
        self.start(method, *args)
        return self.result(seconds)

    def kill(self):
        self._process.kill()
        self._process.join()

    def close(self):
        self._end.close()
        self._process.join(5)
        if self._process.is_alive():
            self.kill()


def call_all(actors, method, *args, seconds=PATIENCE):
    for actor in actors:
        actor.start(method, *args)
    return [actor.result(seconds) for actor in actors]


# ---- nodes ----

class Node:
    """A network namespace, which lives as long as its process, with the interface eth0 at 10.79.0.NUMBER on a bridge."""

    def __init__(self, number, rate):
        self.number, self.address = number, f"10.79.0.{number}"
        self.process = subprocess.Popen(["unshare", "-n", "sleep", "86400"])
        self.pid = self.process.pid
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{self.pid}/ns/net") != own, 10, "a network namespace")
        outer = self.outer = f"rdtw{number}"
        shape = f"tc qdisc add dev %s root tbf rate {rate} burst 512k latency 50ms" if rate else "true"
        sh(f"ip link add {outer} type veth peer name eth0 netns {self.pid} && ip link set {outer} master rdtw up && "
           f"nsenter -t {self.pid} -n sh -c 'ip link set lo up && ip address add {self.address}/24 dev eth0 && ip link set eth0 up && "
           f"{shape % 'eth0' if rate else shape}' && {shape % outer if rate else shape}")

    def command(self):
        """What a command begins with to run on this node, with the /sys of its namespace, where UCX looks for interfaces."""
        return ["nsenter", "-t", str(self.pid), "-n", "unshare", "-m", "sh", "-c", 'mount -t sysfs none /sys && exec "$@"', "sh"]

    def close(self):
        sh(f"ip link del {self.outer}")  # at once, and not when the kernel comes to the end of the namespace
        self.process.kill()
        self.process.wait()


def sh(command):
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def wait_until(condition, seconds, what):
    deadline = now() + seconds
    while not condition():
        if now() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds} s")
        time.sleep(0.01)


class Daemon:
    def __init__(self, directory, name, node=None, settings=()):
        self.socket = os.path.join(directory, f"{name}.sock")
        self.address = f"{node.address if node else '127.0.0.1'}:7171"
        key = os.path.join(directory, "key")
        if not os.path.exists(key):
            with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write("c2Vjb25kcyBhcmUgYmVzdCBtZWFzdXJlZCBieSB0d28K\n")
        command = [f"{BUILD}/rdtd", "--config=", "--socket", self.socket, "--state-dir", "", "--backend-dir", f"{BUILD}/backends",
                   "--log-level", "warn", "--memory-limit", str(memory_available() * 3 // 4)]
        if node:
            command += ["--listen", self.address, "--key-file", key, "--trusted-network", "yes", "--interfaces", "eth0"]
            command = node.command() + command
        for key_value in settings:
            command += ["--set", key_value]
        self.log = os.path.join(directory, f"{name}.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._answers, 15, f"rdtd ({open(self.log).read()[-300:]})")

    def _answers(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"rdtd ended: {open(self.log).read()[-1000:]}")
        return self.ctl("ping", "-q", "--timeout", "1s") is not None

    def ctl(self, *args):
        done = subprocess.run([f"{BUILD}/rdtctl", *args, "--socket", self.socket], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """What outlives its parent, as some of Ray's actors do, becomes a child of this process, and ends with the round."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children():
    """Kills what is left of a round's processes."""
    from multiprocessing import resource_tracker
    keep = resource_tracker._resource_tracker._pid  # it serves all rounds
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            left = [int(pid) for pid in file.read().split() if int(pid) != keep]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


# ---- the machine ----

def memory_available():
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable: *(\d+)", file.read())[1]) << 10


def shm_left():
    """(entries, bytes) of /dev/shm, which as root is the run's own."""
    if os.environ.get("BENCH_NETWORK") != "inside":
        raise CannotRun("only in a /dev/shm of its own can be counted what is left, and that needs root")
    entries = [os.path.join(folder, name) for folder, _, names in os.walk("/dev/shm") for name in names]
    size = 0
    for entry in entries:
        with contextlib.suppress(OSError):
            size += os.stat(entry).st_blocks * 512
    return len(entries), size


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def ray_workers():
    """Ray's runtime_env: its workers know rdtd's transport."""
    return {"worker_process_setup_hook": "rdtd.ray.register", "env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}


# ---- rounds ----

@dataclass
class Side:
    """One tool of a workload. function(bench) is one round. note: its settings, for the table. settings: of rdtd, SECTION.KEY=VALUE, for
    ablations."""
    name: str
    function: object
    note: str = ""
    settings: tuple = ()


@dataclass
class Bench:
    """What a side may use. Everything that it starts ends with the round."""
    scale: float = 1.0
    quick: bool = False
    settings: tuple = ()  # of rdtd, SECTION.KEY=VALUE
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    dir: str = ""

    def size(self, count, quick):
        return quick if self.quick else max(1, int(count * self.scale))

    def actor(self, cls, *args, node=None):
        return self.actors([(cls, *args)], [node])[0]

    def actors(self, many, nodes=None):
        """Starts actors [(class, argument, ...), ...] at the same time."""
        made = []
        for i, (cls, *args) in enumerate(many):
            made.append(Actor(cls, *args, node=nodes[i] if nodes else None))
            self.stack.callback(made[-1].close)
        return [actor.ready() for actor in made]

    def daemon(self, name="a", node=None):
        daemon = Daemon(self.dir, name, node, self.settings)
        self.stack.callback(daemon.close)
        return daemon

    def network(self, count, rate=None):
        """`count` nodes on one switch, all links with this rate of tc (None: as fast as the processors)."""
        if os.geteuid() or os.environ.get("BENCH_NETWORK") != "inside":
            raise CannotRun("network namespaces need root")
        sh("ip link add rdtw type bridge && ip link set rdtw up")
        self.stack.callback(lambda: sh("ip link del rdtw"))
        nodes = []
        for number in range(1, count + 1):
            nodes.append(Node(number, rate))
            self.stack.callback(nodes[-1].close)
        return nodes

    def ray(self, store_bytes):
        """Ray with rdtd's transports registered, until the round ends."""
        try:
            import ray
            import rdtd.ray
        except ImportError as error:
            raise CannotRun(f"{error.name} is not installed") from None
        rdtd.ray.register(hooked=True)
        ray.init(num_cpus=2, object_store_memory=int(store_bytes), include_dashboard=False, log_to_driver=False,
                 logging_level="error", _node_ip_address="127.0.0.1", _temp_dir=os.path.join(self.dir, "ray"), runtime_env=ray_workers())
        self.stack.callback(ray.shutdown)
        return ray

    def ray_cluster(self, nodes, store_bytes, environments):
        """Ray with one of its nodes on each node, until the round ends. Each has the resource "nodeNUMBER", and its workers have the
        variables of its element of `environments`. Returns the address at which a driver on nodes[0] finds it."""
        ray = os.path.join(os.path.dirname(sys.executable), "ray")
        if not os.path.exists(ray):
            raise CannotRun("ray is not installed")
        address = f"{nodes[0].address}:6379"
        for node, environment in zip(nodes, environments):
            command = [*node.command(), ray, "start", "--block", "--disable-usage-stats", "--node-ip-address", node.address, "--num-cpus", "1",
                       "--object-store-memory", str(int(store_bytes)), "--resources", f'{{"node{node.number}": 16}}']
            command += ["--address", address] if node != nodes[0] else \
                       ["--head", "--port", "6379", "--include-dashboard", "false", "--temp-dir", os.path.join(self.dir, "ray")]
            log = os.path.join(self.dir, f"ray{node.number}.log")
            with open(log, "wb") as file:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, **environment})
            self.stack.callback(process.wait)
            self.stack.callback(process.terminate)

            def started():
                if process.poll() is not None:
                    raise RuntimeError(f"ray start ended: {open(log).read()[-1000:]}")
                return "Ray runtime started" in open(log).read()
            wait_until(started, 60, f"Ray on node {node.number}")
        return address

    def inner(self):
        """For a part of a round that ends by itself: what a side started in it ends before the next part."""
        return Bench(self.scale, self.quick, self.settings).round()

    @contextlib.contextmanager
    def round(self):
        self.dir = tempfile.mkdtemp(prefix="rdtw.", dir="/tmp")
        try:
            with self.stack:
                yield self
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)
            if os.environ.get("BENCH_NETWORK") == "inside":
                sh("rm -rf /dev/shm/*")  # what this round left in the run's own


def run_sides(sides, rounds, scale, quick):
    """Calls each side once a round, in turn. Returns the rows: {case, figure, side, values, note} or {side, failed}."""
    adopt_orphans()
    values, failed, cases_failed, note = {}, {}, {}, {side.name: side.note for side in sides}
    for number in range(rounds):
        for side in sides:
            if side.name in failed:
                continue
            began = now()
            try:
                with Bench(scale, quick, side.settings).round() as bench:
                    figures = side.function(bench)
            except CannotRun as error:
                failed[side.name] = f"not run: {error}"
            except Exception as error:
                traceback.print_exc()
                failed[side.name] = f"failed: {str(error).strip().splitlines()[-1][:200] if str(error).strip() else type(error).__name__}"
            else:
                for (case, figure), value in figures.items():
                    if figure == "failed":
                        cases_failed[side.name, case] = value
                    else:
                        values.setdefault((case, figure, side.name), []).append(value)
            end_children()
            print(f"  round {number + 1} of {rounds}: {side.name}: {failed.get(side.name, f'{now() - began:.0f} s')}", file=sys.stderr, flush=True)
    rows = [{"case": case, "figure": figure, "side": side, "median": statistics.median(found), "least": min(found), "most": max(found),
             "rounds": len(found), "note": note[side]} for (case, figure, side), found in values.items()]
    rows += [{"case": case, "side": side, "failed": f"{case}: {why}", "note": note[side]} for (side, case), why in cases_failed.items()]
    return rows + [{"side": side, "failed": why, "note": note[side]} for side, why in failed.items()]
