# SPDX-License-Identifier: Apache-2.0
"""Weights of a model between two processes on one GPU, beside plain copies of torch, and what they cost a trainer that works
meanwhile. Prints a row for each figure, and fails only for wrong bytes. RDT_WEIGHTS_MIB (4096): size of the model.
RDT_WEIGHTS_DEVICE=cpu: what needs no GPU, to see that the program works; its figures say nothing."""
import os
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    print(f"there is no torch for {sys.executable}: PYTHON=... names another")
    sys.exit(77)
DEVICE = torch.device(os.environ.get("RDT_WEIGHTS_DEVICE", "cuda:0"))
ON_GPU = DEVICE.type == "cuda"
if ON_GPU and not torch.cuda.is_available():
    print(f"torch {torch.__version__} uses no GPU here (torch.cuda.is_available())")
    sys.exit(77)

import rdtd
import rdtd.torch
from nodes import LONG, Node

TENSORS = 300
MIB = int(os.environ.get("RDT_WEIGHTS_MIB", 4096))
ROUNDS = 3


def sync():
    if ON_GPU:
        torch.cuda.synchronize()


def model(step):
    """As many tensors as an 8B model has, each filled with numbers of its own."""
    count = max(MIB * (1 << 20) // TENSORS // 4, 1)
    return {f"w{i}": torch.full((count,), float(1000 * step + i), device=DEVICE) for i in range(TENSORS)}


def timed(what, call, count=1):
    """The best of some rounds, after one that does not count."""
    best = float("inf")
    for i in range(ROUNDS + 1):
        sync()
        began = time.perf_counter()
        call()
        sync()
        best = min(best, time.perf_counter() - began) if i else best
    print(f"{what:<58} {best * 1e3:9.1f} ms {count * MIB / 1024 / best:8.2f} GiB/s", flush=True)
    return best


def is_step(state, step):
    return all(bool((tensor == 1000 * step + i).all()) for i, tensor in enumerate(state.values()))


def plain():
    on_device, host = model(1), {}
    for key, tensor in on_device.items():
        host[key] = torch.empty(tensor.shape, pin_memory=ON_GPU)

    def copy(to, source):
        for key, tensor in to.items():
            tensor.copy_(source[key], non_blocking=True)

    other = model(2)
    timed("plain: copy on the device", lambda: copy(other, on_device))
    timed("plain: device to pinned host memory", lambda: copy(host, on_device))
    return timed("plain: pinned host memory to device", lambda: copy(on_device, host))


def publish_and_read(c, reader):
    state, into = model(1), model(0)
    step = 0

    def publish():
        nonlocal step
        step += 1
        rdtd.torch.publish(state, "weights", step=step, connection=c)

    timed("rdtd.torch.publish, to host memory", publish)
    timed("rdtd.torch.update, into the device's tensors",
          lambda: rdtd.torch.update(into, "weights", after=0, connection=reader, timeout=LONG))
    assert is_step(into, 1)
    with rdtd.torch.follow(into, "weights", connection=reader) as follower:
        best = float("inf")
        for _ in range(ROUNDS):
            publish()
            follower.prepare(LONG)
            began = time.perf_counter()
            follower.commit()
            best = min(best, time.perf_counter() - began)
        print(f"{'rdtd.torch.follow: commit, the pause of a sampler':<58} {best * 1e3:9.1f} ms", flush=True)
    c.unpublish("weights")
    timed("publish of a snapshot on the device", lambda: c.publish("snapshot", state))
    timed("get(into=), 300 tensors", lambda: reader.get(c.name("snapshot"), into=into))
    assert is_step(into, 1)
    c.unpublish("snapshot")


def trade(socket, seconds):
    """Another process publishes and reads until the time is over."""
    with rdtd.connect(socket) as c, rdtd.connect(socket) as reader:
        state, into, n = model(1), model(0), 0
        print("ready", flush=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            n += 1
            rdtd.torch.publish(state, "traded", step=n, connection=c)
            rdtd.torch.update(into, "traded", connection=reader, timeout=LONG)
        print(n, flush=True)


def rate(work, seconds):
    """Calls of `work` in a second, of which a few are under way at a time."""
    n, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(8):
            work()
        sync()
        n += 8
    return n / (time.perf_counter() - began)


def cost(what, work, socket):
    seconds = 4.0
    rate(work, 1.0)
    alone = rate(work, seconds)
    process = subprocess.Popen([sys.executable, __file__, socket, str(seconds + 2)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    beside = rate(work, seconds)
    versions = process.stdout.read().strip()
    assert process.wait(LONG) == 0
    print(f"{what:<58} {100 * (1 - beside / alone):9.1f} % slower beside {versions} versions", flush=True)


def costs(socket):
    side = 4096 if ON_GPU else 256
    a, b = torch.randn(side, side, device=DEVICE), torch.randn(side, side, device=DEVICE)
    out = torch.empty_like(a)
    cost("a loop of matmul", lambda: torch.mm(a, b, out=out), socket)
    if not ON_GPU:
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            torch.mm(a, b, out=out)
    cost("a replayed CUDA graph", graph.replay, socket)


def behind_a_kernel(c, reader):
    """What must not wait for a kernel of a second."""
    if not ON_GPU:
        return
    state = {"w": torch.ones(1 << 20, device=DEVICE)}
    ref = c.put(state)
    got = reader.get(ref, device=DEVICE)
    sync()
    torch.cuda._sleep(int(2e9))
    for what, call in (("drop of a fetched tensor", got.clear), ("put of host memory", lambda: c.put(torch.ones(1000)).free()),
                       ("get to the host", lambda: reader.get(ref, device="host")), ("free", ref.free)):
        began = time.perf_counter()
        call()
        print(f"{'behind a kernel: ' + what:<58} {(time.perf_counter() - began) * 1e3:9.1f} ms", flush=True)
    sync()


def first_item(i):
    return torch.tensor([i])


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return first_item(i)


def fork_after_use():
    """Workers of a DataLoader, which fork, after GPU memory was published."""
    began = time.perf_counter()
    loader = torch.utils.data.DataLoader(Items(), num_workers=2, multiprocessing_context="fork", timeout=60)
    assert sum(int(one) for one in loader) == sum(range(8))
    print(f"{'a DataLoader that forks after a publish':<58} {(time.perf_counter() - began) * 1e3:9.1f} ms", flush=True)


def main():
    node = Node()
    with rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        where = torch.cuda.get_device_name() if ON_GPU else DEVICE
        print(f"{MIB} MiB in {TENSORS} tensors on {where}; torch {torch.__version__}")
        plain()
        publish_and_read(c, reader)
        behind_a_kernel(c, reader)
        fork_after_use()
        costs(node.socket)
    print(node.ctl("doctor", may_fail=True))
    node.process.terminate()
    node.process.wait(LONG)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trade(sys.argv[1], float(sys.argv[2]))
    else:
        main()
