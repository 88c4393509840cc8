# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors on a GPU, through real daemons on the machine's driver. There is no fake for this: without a torch
that uses a GPU it is skipped, and says why. `torch_tensors.py SOCKET` runs the part of torch_pool in a process of its
own, because the pool's session stays until the process ends."""
import pickle
import subprocess
import sys

try:
    import torch
except ImportError:
    print(f"there is no torch for {sys.executable}: PYTHON=... names another")
    sys.exit(77)
if not torch.cuda.is_available():
    print(f"torch {torch.__version__} uses no GPU here (torch.cuda.is_available())")
    sys.exit(77)

import rdtd
from nodes import LONG, Node, Skipped, main, until

GPU = torch.device("cuda:0")
SHAPE = (512, 1024)
CYCLES = 1000
SETTLED = 100


def value():
    return torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.float32, device=GPU).reshape(SHAPE)


class Daemon(Node):
    """Its descriptors are not counted: a context has some of the driver's, and UCX keeps its connections."""

    def open_fds(self):
        return 0


class Gpu(Daemon):
    """And two connections, which have used the GPU: the first use makes a context in the daemon, which takes as long as
    what some tests wait for, and memory."""

    def __enter__(self):
        self.c, self.reader = rdtd.connect(self.socket), rdtd.connect(self.socket)
        ref = self.c.put(value())
        assert torch.equal(self.reader.get(ref, device="cuda:0"), value())
        ref.free()
        return self.c, self.reader

    def __exit__(self, *ignored):
        self.c.close()
        self.reader.close()


def test_tensor_goes_through_the_daemon_and_back():
    with Gpu() as (c, reader):
        tensor = value()
        ref = c.put(tensor)
        assert ref.copied == 1
        tensor.zero_()  # the daemon has its own, copied in the order of torch's stream
        there = reader.get(ref, device="cuda:0")
        assert isinstance(there, torch.Tensor) and there.device == GPU and torch.equal(there, value())
        host = reader.get(ref, device="host")
        assert host.device.type == "cpu" and torch.equal(host, value().cpu())
        assert reader.get(ref).device == GPU, "torch uses a GPU: as it lies"
        ref.free()
        assert torch.equal(there, value()), "who has it keeps it"
        up = c.put(host)
        assert torch.equal(reader.get(up, device=GPU), value())


def test_dtypes_strides_and_structure():
    with Gpu() as (c, reader):
        for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool):
            whole = torch.randint(0, 2, (64, 33), device=GPU).to(dtype)
            sent = {"whole": whole, "part": whole[::2, 1:], "turned": whole.t(), "host": torch.arange(5), "step": 3}
            got = reader.get(c.put(sent), device="cuda:0")
            assert got["step"] == 3 and torch.equal(got["host"].cpu(), sent["host"])
            for name in ("whole", "part", "turned"):
                assert got[name].dtype == dtype and torch.equal(got[name], sent[name]), (name, dtype)


def test_readers_wait_for_torchs_stream():
    with Gpu() as (c, reader):
        source, tensor, stream = value(), torch.zeros(SHAPE, device=GPU), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000_000)  # cycles: half a second, about
            tensor.copy_(source)
            ref = c.put(tensor)
        assert not stream.query(), "put has waited for the stream"
        assert torch.equal(reader.get(ref, device="cuda:0"), source)


def test_targets_and_memory_of_the_daemons():
    with Gpu() as (c, reader):
        target = torch.zeros(SHAPE, device=GPU)
        assert reader.get(c.put(value()), into=target) is target and torch.equal(target, value())
        mine = c.empty(SHAPE, torch.float32, device="cuda:0")
        assert isinstance(mine, torch.Tensor) and mine.device == GPU
        mine.copy_(value())
        ref = c.put(mine)
        assert ref.copied == 0 and torch.equal(reader.get(ref, device="cuda:0", mode="share"), value())


def test_versions_of_a_model_on_the_gpu():
    with Gpu() as (c, reader):
        model, mine = ({"w": value(), "b": torch.zeros(7, device=GPU)} for _ in range(2))
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        for step in range(1, 6):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000_000)
                for tensor in model.values():
                    tensor.fill_(step)
                assert c.publish("policy", model) == step
                for tensor in model.values():
                    tensor.fill_(-1)  # the version is a copy, made in the order of the stream
            assert reader.get(reader.name("policy", after=step - 1), into=mine)["w"] is mine["w"]
            assert all((tensor == step).all() for tensor in mine.values()), step
            got = reader.get(reader.name("policy", after=step - 1), device="cuda:0")
            assert all((tensor == step).all() for tensor in got.values()), step
            del got
        c.unpublish("policy")


def test_two_daemons():
    with Daemon(listen=True) as a, Daemon(listen=True) as b, rdtd.connect(a.socket) as here, rdtd.connect(b.socket) as there:
        owned = here.put(value())
        ref = pickle.loads(pickle.dumps(owned))
        got = there.get_fetched(ref, device="cuda:0")
        assert torch.equal(got.value, value()) and not got.path.startswith("local"), got.path
        print(f"between two daemons by {got.path}")
        assert torch.equal(there.get(ref, device="host"), value().cpu())


def test_puts_and_frees_leave_the_device_memory_flat():
    with Gpu() as (c, reader):
        tensor, settled = value(), 0
        for i in range(CYCLES):
            ref = c.put(tensor)
            if i % 10 == 0:
                assert torch.equal(reader.get(ref, device="cuda:0"), tensor)
            ref.free()
            if i == SETTLED:
                settled = torch.cuda.mem_get_info(GPU)[0]
        most = 32 << 20
        until(lambda: torch.cuda.mem_get_info(GPU)[0] >= settled - most, "the GPU has its memory back")


def pool(socket):
    with rdtd.connect(socket) as c, rdtd.connect(socket) as reader:
        try:
            with c.torch_pool("cuda:0"):
                tensor = value()
        except rdtd.Unsupported as why:
            print(why)
            sys.exit(77)
        ref = c.put({"w": tensor})
        assert ref.copied == 0, "it lies in the daemon's memory"
        assert torch.equal(reader.get(ref, device="cuda:0", mode="share")["w"], value())
        del tensor
        torch.cuda.empty_cache()
        assert torch.equal(reader.get(ref, device="cuda:0")["w"], value()), "what was put stays while the object needs it"
        ref.free()


def test_torch_pool():
    with Daemon() as node:
        done = subprocess.run([sys.executable, __file__, node.socket], capture_output=True, text=True, timeout=LONG)
        if done.returncode == 77:
            raise Skipped(done.stdout.strip())
        assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    if len(sys.argv) > 1:
        pool(sys.argv[1])
    else:
        main(globals())
