# SPDX-License-Identifier: Apache-2.0
"""Deltas: two ranks of a trainer publish the weights of real optimizer steps (AdamW, masters in f32, the model of delta_steps.py), and two
samplers of another node, with another sharding, update theirs.

    ready    seconds from the call of `publish` until the slower sampler has the version
    moved    MB that the samplers' node received for it
    publish  seconds of the ranks' call of `publish`

Each case is a kind of training, a dtype and a link. The weights that go over the faster link are those of eight such models, because one alone
would measure what each version costs. Both sides publish the same versions, which are learnt once; every sampler compares each with what the
trainer had. The first version warms up."""
import atexit
import os
import shutil
import sys
import tempfile

from harness import HERE, CannotRun, Side, call_all, now

sys.path.append(os.path.join(HERE, ".."))
RANKS = 2
LINKS = (("100 Mbit/s", "100mbit", 1), ("2 Gbit/s", "2gbit", 8))  # and how many models
# The learning rates of reinforcement learning, of fine-tuning, and of training from scratch; the dtype that is published.
KINDS = (("policy gradient, 1e-6", 1e-6, "bfloat16"), ("fine-tuning, 1e-5", 1e-5, "bfloat16"), ("from scratch, 3e-4", 3e-4, "bfloat16"),
         ("policy gradient, 1e-6", 1e-6, "float32"))


class Learner:
    """Makes the versions, on nobody's clock."""

    def learn(self, path, kind, rate, dtype, steps):
        import torch

        import delta_steps
        model, losses = delta_steps.Model(), delta_steps.losses()
        torch.manual_seed(1)
        if rate < 1e-4:
            for _ in delta_steps.train(model, losses[0], 3e-4, 20):
                pass
        versions = []
        for _ in delta_steps.train(model, losses[kind.startswith("policy")], rate, steps + 10):
            versions.append({key: value.to(getattr(torch, dtype)).clone() for key, value in model.state_dict().items()})
        torch.save(versions[-steps:], path)


def layout(rank, dim):
    def of(_, tensor):
        return (dim, rank, RANKS) if tensor.dim() == 2 else None
    return of


def local(state, rank, dim):
    return {key: value.chunk(RANKS, dim)[rank].contiguous() if value.dim() == 2 else value for key, value in state.items()}


class Rank:
    def __init__(self, path, rank):
        import rdtd.torch
        self.c, self.rank = rdtd.connect(path), rank

    def load(self, path, models):
        import torch
        self.versions = [{f"{i}.{key}": value.clone() for i in range(models) for key, value in version.items()} for version in torch.load(path)]

    def publish(self, name, number, delta):
        import rdtd.torch
        state = local(self.versions[number], self.rank, 0)
        start = now()
        rdtd.torch.publish(state, name, step=number + 1, layout=layout(self.rank, 0), rank=self.rank, world_size=RANKS, connection=self.c,
                           timeout=100, delta=delta)
        return start, now() - start


class Sampler(Rank):
    def load(self, path, models):
        super().load(path, models)
        self.state = {key: value.clone() for key, value in local(self.versions[0], self.rank, 1).items()}

    def update(self, name, address, number):
        import torch

        import rdtd.torch
        ref = rdtd.Ref.from_name(name, address=address)
        rdtd.torch.update(self.state, ref, layout=layout(self.rank, 1), connection=self.c, timeout=100, move="whole")
        ended = now()
        if not all(torch.equal(value, self.state[key]) for key, value in local(self.versions[number], self.rank, 1).items()):
            raise RuntimeError(f"version {number + 1} is not what was published")
        return ended

    def received(self):
        return self.c.status()["bytes_in"]


learnt = {}


def paths_of(bench, count):
    """The files with the versions of each kind."""
    if count not in learnt:
        home = tempfile.mkdtemp(prefix="rdtw.", dir="/tmp")
        atexit.register(shutil.rmtree, home, True)
        learnt[count] = [os.path.join(home, str(i)) for i in range(len(KINDS))]
        with bench.inner() as inner:
            learner = inner.actor(Learner)
            for path, kind in zip(learnt[count], KINDS):
                learner.call("learn", path, *kind, count, seconds=600)
    return learnt[count]


def steps(delta):
    def side(bench):
        try:
            import torch  # noqa: F401
        except ImportError:
            raise CannotRun("torch is not installed") from None
        found, count = {}, 3 if bench.quick else 6
        paths = paths_of(bench, count)
        for link, rate, models in LINKS:
            for path, (kind, _, dtype) in zip(paths, KINDS):
                with bench.inner() as inner:
                    nodes = inner.network(2, rate)
                    a, b = inner.daemon("a", nodes[0]), inner.daemon("b", nodes[1])
                    ranks = inner.actors([(Rank, a.socket, rank) for rank in range(RANKS)], [nodes[0]] * RANKS)
                    samplers = inner.actors([(Sampler, b.socket, rank) for rank in range(RANKS)], [nodes[1]] * RANKS)
                    call_all([*ranks, *samplers], "load", path, models)
                    taken = []
                    for number in range(count):
                        before = samplers[0].call("received")
                        for sampler in samplers:
                            sampler.start("update", "policy", a.address, number)
                        published = call_all(ranks, "publish", "policy", number, delta)
                        ended = max(sampler.result() for sampler in samplers)
                        taken.append((ended - min(start for start, _ in published), (samplers[0].call("received") - before) / 1e6,
                                      max(took for _, took in published)))
                    size = models * os.path.getsize(path) / count / 1e6
                    for i, figure in enumerate(("ready, s", "moved, MB", "publish, s")):
                        found[f"{kind}, {dtype}, {size:.0f} MB, {link}", figure] = sorted(row[i] for row in taken[1:])[(count - 1) // 2]
        return found
    return side


def sides():
    return [Side("rdtd, delta=True", steps(True), "the changes"), Side("rdtd, whole", steps(False), "each version whole")]
