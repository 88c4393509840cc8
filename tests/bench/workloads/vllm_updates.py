# SPDX-License-Identifier: Apache-2.0
"""Updates of vLLM on the CPU: a Qwen2 of 0.4 GB in bf16 (SCALE=5: 2 GB, one engine), one engine and four of one node, which update at once.

    pause   seconds that the slowest engine stands still, by the clock of its worker
    bound   the same loaders, with tensors that lie in the worker's process already
    total   seconds from the beginning of the publish, or save, until all engines have loaded the version

By rdtd the trainer is on another node, behind links of several rates, and the engines update when the version is whole on their node. Files
are on the engines' own node, where nothing has to travel: vLLM's reload_weights. The first update warms up, and the median of the others counts."""
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harness import CannotRun, Side, now, sh

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINES = os.path.join(HERE, "../../engines")
sys.path.append(ENGINES)
from vllm_process import SIZES, Engine, Size, model_folder, weights  # noqa: E402

UPDATES = 4
LINKS = (("100 Mbit/s", "100mbit"), ("2 Gbit/s", "2gbit"), ("unshaped", None))


class Extension:
    """Methods of vLLM's worker, which return seconds."""

    def timed_update(self, version):
        began = time.perf_counter()
        self.start_weight_update()
        self.update_weights({"version": version})
        self.finish_weight_update()
        return time.perf_counter() - began

    def timed_reload(self, folder):
        began = time.perf_counter()
        self.model_runner.reload_weights(weights_path=folder)
        return time.perf_counter() - began

    def timed_bound(self, size):
        from vllm.config import set_current_vllm_config
        if not hasattr(self, "own"):
            self.own = weights(1, Size(*size))
        with set_current_vllm_config(self.vllm_config):
            began = time.perf_counter()
            self.model_runner.reload_weights(weights_iterator=iter(self.own.items()))
            return time.perf_counter() - began


def start(bench, folder, count, seed=None, path="", **options):
    if importlib.util.find_spec("vllm") is None:
        raise CannotRun("vllm is not installed")
    os.environ["PYTHONPATH"] = f"{os.environ['RDT_BUILD_DIR']}/python:{HERE}:{ENGINES}"
    made = [Engine(model_folder(folder, seed, size(bench)), path, dtype="bfloat16", worker_extension_cls="vllm_updates.Extension", **options)
            for _ in range(count)]
    for engine in made:
        bench.stack.callback(engine.kill)
    return [engine.ready() for engine in made]


def size(bench):
    return SIZES["0.1" if bench.quick else "0.4" if bench.scale < 5 else "2"]


def counts(bench):
    return (1, 4) if bench.scale < 5 else (1,)


def slowest(engines, method, *arguments):
    for engine in engines:
        engine.begin("collective_rpc", method, None, arguments)
    return max(engine.end()[0] for engine in engines)


def case(bench, count, link):
    return f"{count} engine{'s' * (count > 1)}, {sum(one.nbytes for one in weights(1, size(bench)).values()) / 1e9:.1f} GB, {link}"


def by_rdtd(bench):
    import rdtd
    nodes = bench.network(2)
    a, b = bench.daemon("a", nodes[0]), bench.daemon("b", nodes[1])
    engines = start(bench, Path(bench.dir), max(counts(bench)), path=b.socket, load_format="dummy")
    state, found = weights(2, size(bench)), {}
    with rdtd.connect(a.socket) as c, rdtd.connect(b.socket) as beside, beside.follow("policy", address=a.address) as whole:
        for engine in engines:
            engine.init_weight_transfer_engine({"name": "policy", "address": a.address})
        for link, rate in LINKS:
            for node in nodes if rate else ():
                shape = f"root tbf rate {rate} burst 512k latency 50ms"
                sh(f"tc qdisc replace dev {node.outer} {shape} && nsenter -t {node.pid} -n tc qdisc replace dev eth0 {shape}")
            for node in () if rate else nodes:
                sh(f"tc qdisc del dev {node.outer} root; nsenter -t {node.pid} -n tc qdisc del dev eth0 root")
            for count in counts(bench):
                pauses, bounds, totals = [], [], []
                for _ in range(UPDATES if rate != "100mbit" else 2):
                    began = now()
                    version = c.publish("policy", state)
                    whole.prepare(600)
                    whole.commit()
                    pauses.append(slowest(engines[:count], "timed_update", version))
                    totals.append(now() - began)
                    bounds.append(slowest(engines[:count], "timed_bound", size(bench)))
                for figure, times in ("pause", pauses), ("bound", bounds), ("total", totals):
                    found[case(bench, count, link), f"{figure}, s"] = statistics.median(times[1:])
    return found


def by_file(parent):
    def side(bench):
        from safetensors.torch import save_file
        found = {}
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            engines = start(bench, Path(folder), max(counts(bench)), 1, load_format="safetensors")
            new = model_folder(Path(folder), size=size(bench))
            state = weights(2, size(bench))
            for count in counts(bench):
                pauses, totals = [], []
                for _ in range(UPDATES):
                    began = now()
                    save_file(state, f"{new}/model.safetensors", metadata={"format": "pt"})
                    pauses.append(slowest(engines[:count], "timed_reload", new))
                    totals.append(now() - began)
                for figure, times in ("pause", pauses), ("total", totals):
                    found[case(bench, count, "no link"), f"{figure}, s"] = statistics.median(times[1:])
        return found
    return side


def sides():
    return [Side("rdtd, rdtd.vllm", by_rdtd, "publish, prepared by the node, then vLLM's update_weights"),
            Side("safetensors in /dev/shm", by_file("/dev/shm"), "vLLM's reload_weights"),
            Side("safetensors on disk", by_file("/var/tmp"), "vLLM's reload_weights; the pages are in the page cache")]
