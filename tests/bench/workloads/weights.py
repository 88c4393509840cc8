# SPDX-License-Identifier: Apache-2.0
"""Weights: a trainer publishes every step of a model's state dict (the shapes of a Llama with 32 layers: 291 tensors), and four samplers
follow. On one node; and on three nodes, two samplers on each of two others.

    handed   from the moment at which the trainer's step is ready until all four samplers have all its tensors
    read     the same until all have read every byte; each checks that all elements of all tensors are of the step
    trainer  how long the publishing kept the trainer from its next step
    memory   what less is available on the machine than before the side began, weights of the trainer included
    mixed    steps of which a sampler saw parts of two, in a phase in which the trainer waits for nobody (where the tool has such)

The trainer writes all weights before each step, on nobody's clock. The first step warms up."""
import os
import time

from harness import PATIENCE, CannotRun, Side, call_all, memory_available, now, ray_workers, wait_until

SAMPLERS, LAYERS, VOCABULARY = 4, 32, 32000
PORT = 29551
UCX_OF_NIXL = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0", "UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "256k"}  # between nodes
FREE = 1001  # the first step of the phase in which the trainer waits for nobody; odd, as the last one before is even


def shapes(size, itemsize):
    """Names and shapes of the state dict, of about `size` bytes."""
    hidden = 64
    while True:
        ffn = -(-8 * hidden // 3 // 64) * 64
        vocabulary = min(VOCABULARY, 16 * hidden)
        total = LAYERS * (4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden) + 2 * vocabulary * hidden + hidden
        if total * itemsize >= size:
            break
        hidden += 64
    made = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name in "qkvo":
            made[f"{layer}self_attn.{name}_proj.weight"] = (hidden, hidden)
        made[f"{layer}mlp.gate_proj.weight"] = made[f"{layer}mlp.up_proj.weight"] = (ffn, hidden)
        made[f"{layer}mlp.down_proj.weight"] = (hidden, ffn)
        made[f"{layer}input_layernorm.weight"] = made[f"{layer}post_attention_layernorm.weight"] = (hidden,)
    return made


def torch_or_none():
    """Where torch is missing, numpy arrays of as many bytes stand for the tensors; only rdtd's sides run there."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    return torch


def model(size, dtype):
    torch = torch_or_none()
    itemsize = {"bfloat16": 2, "float32": 4}[dtype]
    if torch:
        return {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, shape in shapes(size, itemsize).items()}
    import numpy as np
    return {name: np.empty(shape, f"u{itemsize}") for name, shape in shapes(size, itemsize).items()}


def write(weights, step):
    torch = torch_or_none()
    for tensor in weights.values():
        if torch:
            tensor.view(torch.int16).fill_(step)
        else:
            tensor.view("i2").fill(step)


def read(weights):
    """Reads every byte. Returns the step that all elements have, or None if they are of several."""
    torch = torch_or_none()
    least = most = None
    for tensor in weights.values():
        if torch:
            low, high = map(int, torch.aminmax(tensor.view(torch.int16)))
        else:
            low, high = int(tensor.view("i2").min()), int(tensor.view("i2").max())
        least, most = (low, high) if least is None else (min(least, low), max(most, high))
    return least if least == most else None


class Trainer:
    """A subclass says how one step is published."""

    def __init__(self, size, dtype):
        self.weights = model(size, dtype)

    def step(self, step):
        self.write(step)
        start = now()
        self.publish(step)
        return start, now() - start

    def write(self, step):
        write(self.weights, step)


class Sampler:
    """A subclass has get(step), which returns the tensors of that step."""

    def receive(self, step):
        weights = self.get(step)
        handed = now()
        seen = read(weights)
        return handed, now(), seen


def measure(trainer, samplers, steps, case, before, asked=None):
    """Steps in turn: the samplers wait, the trainer publishes. Medians of the steps."""
    handed, whole, trainers = [], [], []
    for step in range(1, steps + 2):
        for sampler in samplers:
            sampler.start("receive", step)
        time.sleep(0.05)  # until they wait
        start, kept = trainer.call("step", step)
        got = [sampler.result() for sampler in samplers]
        seen = {one[2] for one in got}
        if seen != {step}:
            raise RuntimeError(f"step {step} arrived as {seen}")
        if step > 1:
            handed.append(max(one[0] for one in got) - start)
            whole.append(max(one[1] for one in got) - start)
            trainers.append(kept)
    return figures(case, handed, whole, trainers, before)


def figures(case, handed, whole, trainers, before):
    from statistics import median
    return {(case, "handed, ms"): median(handed) * 1e3, (case, "read, ms"): median(whole) * 1e3,
            (case, "trainer, ms"): median(trainers) * 1e3, (case, "memory, GiB"): (before - memory_available()) / (1 << 30)}


# ---- rdtd ----

class InPlaceTrainer(Trainer):
    """Two copies of the weights in the daemon's memory, written in turn and put as immutable: nothing is copied."""

    def __init__(self, socket, size, dtype):
        import rdtd
        self.c = rdtd.connect(socket)
        self.buffers = [self.c.empty_like(model(size, dtype)) for _ in range(2)]

    def write(self, step):
        self.weights = self.buffers[step % 2]
        self.c.wait_freed(next(iter(self.weights.values())), timeout=60)  # until no sampler reads the step before the last
        write(self.weights, step)

    def publish(self, step):
        self.c.publish("weights", self.weights, immutable=True)

    def free(self, steps):
        for step in range(FREE, FREE + steps):
            self.step(step)


class SnapshotTrainer(Trainer):
    """The weights are ordinary memory, of which the daemon takes a snapshot."""

    def __init__(self, socket, size, dtype):
        import rdtd
        self.c = rdtd.connect(socket)
        super().__init__(size, dtype)

    def publish(self, step):
        self.c.publish("weights", self.weights)

    free = InPlaceTrainer.free


class RdtdSampler(Sampler):
    def __init__(self, socket, address, mode):
        import rdtd
        self.versions = rdtd.connect(socket).versions("weights", address=address, mode=mode, as_="torch" if torch_or_none() else "numpy", timeout=60)
        self.weights = None

    def get(self, step):
        _, self.weights = next(self.versions)
        return self.weights

    def follow(self, last):
        """Reads what it gets until step `last`. Returns (steps seen, of which mixed)."""
        seen = mixed = 0
        while True:
            step = read(self.get(None))
            seen, mixed = seen + 1, mixed + (step is None)
            if step == last:
                return seen, mixed


def by_rdtd(trainer_class, mode):
    def side(bench, size, dtype, case, nodes=None, steps=3):
        before = memory_available()
        if nodes:
            daemons = [bench.daemon(f"n{node.number}", node) for node in nodes]
            address, sockets = daemons[0].address, [daemons[1 + i // 2].socket for i in range(SAMPLERS)]
        else:
            daemons = [bench.daemon()]
            address, sockets = None, [daemons[0].socket] * SAMPLERS
        actors = bench.actors([(trainer_class, daemons[0].socket, size, dtype)] + [(RdtdSampler, socket, address, mode) for socket in sockets])
        trainer, samplers = actors[0], actors[1:]
        found = measure(trainer, samplers, steps, case, before)
        if not nodes:
            for sampler in samplers:
                sampler.start("follow", FREE + 4)
            trainer.call("free", 5)
            found[case, "mixed"] = sum(mixed for _, mixed in (sampler.result() for sampler in samplers))
        return found
    return side


# ---- torch.multiprocessing ----

class SharedTrainer(Trainer):
    """Two copies in torch's shared memory, written in turn; each step's state dict goes through a queue."""

    def __init__(self, address, size, dtype):
        from multiprocessing.connection import Listener
        import torch.multiprocessing  # noqa: F401  registers how tensors are pickled
        self.buffers = [model(size, dtype) for _ in range(2)]
        for buffer in self.buffers:
            for tensor in buffer.values():
                tensor.share_memory_()
        self.listener = Listener(address, "AF_UNIX")

    def accept(self):
        self.ends = [self.listener.accept() for _ in range(SAMPLERS)]

    def write(self, step):
        self.weights = self.buffers[step % 2]
        write(self.weights, step)

    def publish(self, step):
        from multiprocessing.reduction import ForkingPickler
        for end in self.ends:
            end.send_bytes(ForkingPickler.dumps(self.weights))


class SharedSampler(Sampler):
    def __init__(self):
        import torch.multiprocessing  # noqa: F401

    def connect(self, address):
        from multiprocessing.connection import Client
        self.end = Client(address, "AF_UNIX")

    def get(self, step):
        return self.end.recv()


def by_torch_multiprocessing(bench, size, dtype, case, steps=3):
    before = memory_available()
    address = os.path.join(bench.dir, "tensors")
    trainer, *samplers = bench.actors([(SharedTrainer, address, size, dtype)] + [(SharedSampler,)] * SAMPLERS)
    trainer.start("accept")
    call_all(samplers, "connect", address)
    trainer.result()
    return measure(trainer, samplers, steps, case, before)


# ---- gloo ----

def join_gloo(address, rank, interface):
    import torch.distributed
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{address}:{PORT}", rank=rank, world_size=1 + SAMPLERS)


def broadcast(weights):
    import torch.distributed
    works = [torch.distributed.broadcast(tensor, 0, async_op=True) for tensor in weights.values()]
    for work in works:
        work.wait()


class GlooTrainer(Trainer):
    def join(self, address, interface):
        join_gloo(address, 0, interface)

    def publish(self, step):
        broadcast(self.weights)


class GlooSampler(Sampler):
    def __init__(self, size, dtype):
        self.weights = model(size, dtype)
        write(self.weights, 0)

    def join(self, address, rank, interface):
        join_gloo(address, rank, interface)

    def get(self, step):
        broadcast(self.weights)
        return self.weights


def by_gloo(bench, size, dtype, case, nodes=None, steps=3):
    before = memory_available()
    places = [nodes[0]] + [nodes[1 + i // 2] for i in range(SAMPLERS)] if nodes else None
    actors = bench.actors([(GlooTrainer, size, dtype)] + [(GlooSampler, size, dtype)] * SAMPLERS, places)
    address, interface = (nodes[0].address, "eth0") if nodes else ("127.0.0.1", "lo")
    actors[0].start("join", address, interface)
    for rank, actor in enumerate(actors[1:], 1):
        actor.start("join", address, rank, interface)
    for actor in actors:
        actor.result()
    return measure(actors[0], actors[1:], steps, case, before)


# ---- files ----

class FileTrainer(Trainer):
    """Writes a safetensors file and renames it, so that no reader sees half of it."""

    def __init__(self, path, size, dtype):
        self.path = path
        super().__init__(size, dtype)

    def publish(self, step):
        from safetensors.torch import save_file
        save_file(self.weights, self.path + ".new")
        os.rename(self.path + ".new", f"{self.path}.{step}")
        if step > 1:
            os.unlink(f"{self.path}.{step - 1}")


class FileSampler(Sampler):
    """load_file maps the file. The sampler looks for it each millisecond."""

    def __init__(self, path):
        self.path = path

    def get(self, step):
        from safetensors.torch import load_file
        while not os.path.exists(f"{self.path}.{step}"):
            time.sleep(0.001)
        return load_file(f"{self.path}.{step}")


def by_file(folder=None):
    def side(bench, size, dtype, case, steps=3):
        before = memory_available()
        where = folder or bench.dir
        path = os.path.join(where, "weights")
        trainer, *samplers = bench.actors([(FileTrainer, path, size, dtype)] + [(FileSampler, path)] * SAMPLERS)
        return measure(trainer, samplers, steps, case, before)
    return side


def by_shared_disk(bench):
    raise CannotRun("nodes that are namespaces of one machine share its page cache, so a file on a shared disk would not travel")


# ---- Ray ----

class RayTrainer(Trainer):
    def write(self, step):
        write(self.weights, step)

    def put(self):
        import ray
        return [ray.put(self.weights)]

    def tensors(self):
        return self.weights


class RaySampler(Sampler):
    def take(self, weights):
        handed = now()
        seen = read(weights)
        return handed, now(), seen

    def take_ref(self, refs):
        import ray
        return self.take(ray.get(refs[0]))


def ray_steps(transport, size, dtype, steps, places=()):
    """Lists of the times of each step after the first: handed, read, trainer. places: the trainer's and the samplers' resources."""
    import ray
    bases = (RayTrainer,)
    body = {} if transport == "store" else {"tensors": ray.method(tensor_transport=transport)(lambda self: self.weights)}
    Trainers = ray.remote(num_cpus=0, enable_tensor_transport=transport != "store")(type("RayTrainer_", bases, body))
    Samplers = ray.remote(num_cpus=0, enable_tensor_transport=transport != "store")(RaySampler)
    options = [{"resources": {place: 1}} for place in places] or [{}] * (1 + SAMPLERS)
    trainer = Trainers.options(**options[0]).remote(size, dtype)
    samplers = [Samplers.options(**option).remote() for option in options[1:]]
    handed, whole, trainers = [], [], []
    for step in range(1, steps + 2):
        ray.get(trainer.write.remote(step), timeout=120)
        start = now()
        if transport == "store":
            ref = ray.get(trainer.put.remote(), timeout=120)
            kept = now() - start
            got = ray.get([sampler.take_ref.remote(ref) for sampler in samplers], timeout=120)
        else:
            ref = trainer.tensors.remote()
            got = ray.get([sampler.take.remote(ref) for sampler in samplers], timeout=120)
            kept = max(one[0] for one in got) - start  # the weights must not change before
        del ref
        if {one[2] for one in got} != {step}:
            raise RuntimeError(f"step {step} arrived as {[one[2] for one in got]}")
        if step > 1:
            handed.append(max(one[0] for one in got) - start)
            whole.append(max(one[1] for one in got) - start)
            trainers.append(kept)
    return handed, whole, trainers


class RayDriver:
    """The driver of a cluster, a process on its first node."""

    def __init__(self, address, nodes, environment):
        import ray
        import rdtd.ray
        os.environ.update(environment)
        rdtd.ray.register(hooked=True)
        ray.init(address=address, _node_ip_address=address.split(":")[0], log_to_driver=False, logging_level="error", runtime_env=ray_workers())
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == nodes, 60, f"{nodes} nodes of Ray")

    def steps(self, *args):
        return ray_steps(*args)


def by_ray(transport):
    def side(bench, size, dtype, case, nodes=None, steps=3):
        before = memory_available()
        environment = {"RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1", "RAY_AUTH_MODE": "disabled"}
        store = 2.3 * size + (200 << 20) if transport == "store" else 100 << 20
        if nodes:
            environment.update(UCX_OF_NIXL if transport == "nixl" else {})
            sockets = [bench.daemon(f"n{node.number}", node).socket if transport == "rdtd" else "" for node in nodes]
            environments = [{**environment, "RDT_SOCKET": socket} for socket in sockets]
            address = bench.ray_cluster(nodes, store, environments)
            driver = bench.actor(RayDriver, address, len(nodes), environments[0], node=nodes[0])
            places = ["node1"] + [f"node{2 + i // 2}" for i in range(SAMPLERS)]
            times = driver.call("steps", transport, size, dtype, steps, places, seconds=5 * PATIENCE)
        else:
            os.environ.update(environment)
            if transport == "rdtd":
                os.environ["RDT_SOCKET"] = bench.daemon().socket
            bench.ray(store)
            times = ray_steps(transport, size, dtype, steps)
        return figures(case, *times, before)
    return side


# ---- NIXL between nodes ----

class NixlTrainer(Trainer):
    def __init__(self, size, dtype):
        from blocks import nixl_agent
        super().__init__(size, dtype)
        self.agent = nixl_agent("trainer", progress=True)
        self.registered = self.agent.register_memory(list(self.weights.values()))

    def metadata(self):
        return self.agent.get_agent_metadata(), self.agent.get_serialized_descs(self.registered.trim())

    def publish(self, step):
        for sampler in range(SAMPLERS):
            self.agent.send_notif(f"sampler{sampler}", str(step).encode())

    def know(self, metadata):
        for one in metadata:
            self.agent.add_remote_agent(one)


class NixlSampler(Sampler):
    def __init__(self, number, size, dtype):
        from blocks import nixl_agent
        self.weights = model(size, dtype)
        write(self.weights, 0)
        self.agent = nixl_agent(f"sampler{number}", progress=False)
        self.registered = self.agent.register_memory(list(self.weights.values()))

    def metadata(self):
        return self.agent.get_agent_metadata()

    def prepare(self, metadata, descriptors):
        self.agent.add_remote_agent(metadata)
        self.handle = self.agent.initialize_xfer("READ", self.registered.trim(), self.agent.deserialize_descs(descriptors), "trainer")

    def get(self, step):
        from blocks import nixl_wait
        deadline = now() + 60
        while not any(self.agent.get_new_notifs().values()):
            if now() > deadline:
                raise TimeoutError("no notification")
            time.sleep(0.001)
        nixl_wait(self.agent, self.handle)
        return self.weights


def by_nixl(bench, size, dtype, case, nodes, steps=3):
    before = memory_available()
    os.environ.update(UCX_OF_NIXL)
    bench.stack.callback(lambda: [os.environ.pop(key) for key in UCX_OF_NIXL])
    trainer, *samplers = bench.actors([(NixlTrainer, size, dtype)] + [(NixlSampler, i, size, dtype) for i in range(SAMPLERS)],
                                      [nodes[0]] + [nodes[1 + i // 2] for i in range(SAMPLERS)])
    trainer.call("know", call_all(samplers, "metadata"))
    call_all(samplers, "prepare", *trainer.call("metadata"))
    return measure(trainer, samplers, steps, case, before)


# ---- the sides ----

def variants():
    """(size, dtype) of one node, from $WEIGHTS: '2G:bfloat16 4G:float32'."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    text = os.environ.get("WEIGHTS", "2G:bfloat16")
    return [(int(float(size[:-1]) * units[size[-1]]), dtype) for size, dtype in (one.split(":") for one in text.split())]


def on_one_node(function, needed):
    """needed: about how many copies of the weights the side has at the same time."""
    def side(bench):
        found = {}
        for size, dtype in variants():
            size = bench.size(size, 8 << 20)
            if memory_available() < needed * size + (2 << 30):
                raise CannotRun(f"{needed} times {size >> 20} MiB do not fit into this machine's memory")
            found.update(function(bench, size, dtype, f"one node, {size >> 20} MiB {dtype}", steps=1 if bench.quick else 3))
        return found
    return side


def on_three_nodes(function):
    def side(bench):
        found = {}
        size = bench.size(256 << 20, 8 << 20)
        for rate in (None,) if bench.quick else (None, os.environ.get("RATE", "2gbit")):
            with bench.inner() as inner:
                nodes = inner.network(3, rate)
                found.update(function(inner, size, "bfloat16", f"three nodes, {size >> 20} MiB, {rate or 'unshaped'}", nodes=nodes, steps=1 if bench.quick else 3))
        return found
    return side


def sides():
    two, one = "two copies in daemon memory, written in turn", "a snapshot of ordinary memory each step"
    return [
        Side("rdtd, in place", on_one_node(by_rdtd(InPlaceTrainer, "share"), 3), two),
        Side("rdtd, snapshots", on_one_node(by_rdtd(SnapshotTrainer, None), 4), one),
        Side("torch.multiprocessing", on_one_node(by_torch_multiprocessing, 2), "two copies in shared memory, written in turn; file_descriptor"),
        Side("gloo broadcast", on_one_node(by_gloo, 5), "asynchronous, all tensors at once, lo"),
        Side("safetensors in /dev/shm", on_one_node(by_file("/dev/shm"), 3), "save_file, rename, load_file"),
        Side("safetensors on disk", on_one_node(by_file(), 1), "the same in /tmp, without fsync: pages come from the page cache"),
        Side("Ray object store", on_one_node(by_ray("store"), 4), "ray.put; RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=1"),
        Side("Ray RDT over nixl", on_one_node(by_ray("nixl"), 5), "tensor_transport='nixl'"),
        Side("Ray RDT over rdtd", on_one_node(by_ray("rdtd"), 3), "tensor_transport='rdtd'"),
        Side("rdtd, in place, nodes", on_three_nodes(by_rdtd(InPlaceTrainer, None)), two + "; trusted_network = yes"),
        Side("rdtd, snapshots, nodes", on_three_nodes(by_rdtd(SnapshotTrainer, None)), one + "; trusted_network = yes"),
        Side("gloo broadcast, nodes", on_three_nodes(by_gloo), "asynchronous, all tensors at once"),
        Side("nixl READ, nodes", on_three_nodes(by_nixl), "each sampler reads; UCX over TCP, segments of 256k, a progress thread at the trainer"),
        Side("Ray object store, nodes", on_three_nodes(by_ray("store")), "ray.put; a node of Ray on each node"),
        Side("Ray RDT over nixl, nodes", on_three_nodes(by_ray("nixl")), "tensor_transport='nixl'; UCX over TCP, segments of 256k"),
        Side("safetensors on a shared disk, nodes", by_shared_disk),
        Side("Ray RDT over rdtd, nodes", on_three_nodes(by_ray("rdtd")), "tensor_transport='rdtd'; trusted_network = yes"),
    ]
