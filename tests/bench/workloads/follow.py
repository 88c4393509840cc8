# SPDX-License-Identifier: Apache-2.0
"""Follow: a trainer publishes version after version of a model, and engines follow the name: `prepare`, then `commit` into their own memory.

    commit   milliseconds that the slowest of one node's engines stands still, for one and for four of them, and links of several rates
    beside   the same copy out of the process's own memory, at the same time in as many processes
    ready    seconds from the first tensor of a version until the engine on the other node could commit it. The tensors come one by one, at
             1 GB/s, as from a collective; they are added as they come (`publishing`), or gathered and then published

Every engine checks that all elements of all tensors are of the version that it has committed. The first version warms up."""
import time

from harness import Side, call_all, now

TENSORS = 64
LINKS = (("100 Mbit/s", "100mbit", 0.1), ("2 Gbit/s", "2gbit", 1), ("unshaped", None, 1))  # of the size
GENERATED = 1e9  # bytes a second


def arrays(size):
    import numpy as np
    return {f"layer.{i}": np.zeros(max(size // TENSORS // 4, 1), "f4") for i in range(TENSORS)}


class Trainer:
    def __init__(self, path, size):
        import rdtd
        self.c = rdtd.connect(path)
        self.weights = arrays(size)

    def publish(self, name, step):
        for array in self.weights.values():
            array.fill(step)
        self.c.publish(name, self.weights)

    def _generate(self, step):
        start, done = now(), 0
        for key, array in self.weights.items():
            array.fill(step)
            done += array.nbytes
            time.sleep(max(0.0, start + done / GENERATED - now()))
            yield key, array

    def stream(self, name, step):
        start = now()
        with self.c.publishing(name) as version:
            for key, array in self._generate(step):
                version.add(key, array)
        return start

    def gather(self, name, step):
        start = now()
        self.c.publish(name, dict(self._generate(step)))
        return start


class Engine:
    def __init__(self, path, size):
        import rdtd
        self.c = rdtd.connect(path)
        self.model, self.own = arrays(size), arrays(size)
        for array in self.own.values():
            array.fill(1)

    def follow(self, name, address):
        self.follower = self.c.follow(name, address=address)

    def prepare(self):
        self.follower.prepare(100)
        return now()

    def commit(self):
        start = now()
        version = self.follower.commit(into=self.model).version
        took = now() - start
        seen = {float(end) for array in self.model.values() for end in (array.min(), array.max())}
        if len(seen) != 1:
            raise RuntimeError(f"a mixture: {seen}")
        return took, version

    def copy(self):
        start = now()
        for key, array in self.own.items():
            self.model[key][...] = array
        return now() - start


def commits(bench):
    found = {}
    for text, rate, share in LINKS:
        size = bench.size(int(400e6 * share), 1_000_000)
        with bench.inner() as inner:
            nodes = inner.network(2, rate)
            a, b = inner.daemon("a", nodes[0]), inner.daemon("b", nodes[1])
            trainer = inner.actor(Trainer, a.socket, size, node=nodes[0])
            engines = inner.actors([(Engine, b.socket, size)] * 4, [nodes[1]] * 4)
            for count in (1, 4):
                some, name = engines[:count], f"policy-{count}"
                call_all(some, "follow", name, a.address)
                slowest, beside = [], []
                for step in range(1, 3 if bench.quick else 5):
                    trainer.call("publish", name, step)
                    call_all(some, "prepare")
                    slowest.append(max(took for took, _ in call_all(some, "commit")))
                    beside.append(max(call_all(some, "copy")))
                case = f"{count} engine{'s' * (count > 1)}, {size / 1e6:.0f} MB, {text}"
                found[case, "commit, ms"] = min(slowest[1:]) * 1e3
                found[case, "the copy out of its own memory, ms"] = min(beside[1:]) * 1e3
    return found


def ready(method):
    def side(bench):
        size = bench.size(int(1e9), 1_000_000)
        nodes = bench.network(2, "8gbit")
        a, b = bench.daemon("a", nodes[0]), bench.daemon("b", nodes[1])
        trainer, engine = bench.actors([(Trainer, a.socket, size), (Engine, b.socket, size)], nodes)
        engine.call("follow", "policy", a.address)
        taken = []
        for step in range(1, 3 if bench.quick else 5):
            engine.start("prepare")
            start = trainer.call(method, "policy", step)
            taken.append(engine.result() - start)
            engine.call("commit")
        return {(f"{size / 1e6:.0f} MB at 1 GB/s, 8 Gbit/s", "ready, s"): min(taken[1:])}
    return side


def sides():
    return [
        Side("rdtd, follow", commits, "publish, prepare, commit(into=)"),
        Side("rdtd, publishing", ready("stream"), "added as they come"),
        Side("rdtd, gathered", ready("gather"), "all of them, then publish"),
    ]
