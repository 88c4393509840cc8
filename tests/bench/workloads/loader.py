# SPDX-License-Identifier: Apache-2.0
"""Loader: four worker processes make batches (a dict of 8 arrays, 20 MB), the trainer takes them in order, reads every byte, and ends epochs.
In a last epoch a worker is killed.

    batches/s          of whole epochs; two batches ahead for each worker on both sides
    came after a kill, %  the batches of the epoch in which a worker was killed that the trainer got
    longest wait, ms   for one batch in that epoch
    left               entries of /dev/shm, and objects of the daemon, after everything has ended

With rdtd the trainer sends indices through pipes, and the workers answer with refs; an index whose worker dies goes to another one."""
import os
import signal
import time

from harness import Side, now, shm_left

WORKERS, AHEAD, TENSORS, BYTES = 4, 2, 8, 20_000_000


def batch(number, size):
    import numpy as np
    return {f"feature.{i}": np.full(size // TENSORS // 4, number * TENSORS + i, "f4") for i in range(TENSORS)}


def use(value, number):
    """Reads every byte of a batch, and checks whose it is."""
    import numpy as np
    for i in range(TENSORS):
        array = np.asarray(value[f"feature.{i}"])
        if float(array.min()) != number * TENSORS + i or float(array.max()) != number * TENSORS + i:
            raise RuntimeError(f"batch {number} arrived as {array[0]} and others")


def epoch(batches, kill=None, at=None):
    """Takes an iterator of (number, batch). Returns (seconds, batches that came, the longest wait, why it ended early)."""
    start = last = now()
    came, longest, why = 0, 0.0, None
    try:
        for number, value in batches:
            longest = max(longest, now() - last)
            use(value, number)
            came += 1
            if came == at:
                kill()
            del value
            last = now()
    except (RuntimeError, OSError) as error:
        why = f"{type(error).__name__}: {error}"
    return now() - start, came, longest, why


class RdtdWorker:
    def __init__(self, path, size):
        os.environ["RDT_SOCKET"] = path
        import rdtd
        self.c, self.size = rdtd.default(), size

    def make(self, number):
        return self.c.put(batch(number, self.size))


class Trainer:
    """In a process of its own, as the workers are."""

    def __init__(self, path, size):
        import rdtd
        from harness import Actor
        os.environ["RDT_SOCKET"] = path
        self.c = rdtd.default()
        self.workers = [Actor(RdtdWorker, path, size) for _ in range(WORKERS)]
        for worker in self.workers:
            worker.ready()

    def batches(self, count):
        """In order. What a dead worker owed is asked of the others again."""
        owed = {worker: [] for worker in self.workers}  # numbers, in the order in which a worker answers
        came, following = {}, 0
        for number in range(count):
            while following < min(count, number + AHEAD * WORKERS):
                self.ask(owed, following)
                following += 1
            while number not in came:
                worker = next(worker for worker in owed if number in owed[worker])
                try:
                    ref = worker.result(10)
                    came[owed[worker].pop(0)] = ref
                except RuntimeError:
                    for one in owed.pop(worker):
                        self.ask(owed, one)
            yield number, self.c.get(came.pop(number), timeout=10)
        self.workers = list(owed)

    def ask(self, owed, number):
        """Asks the worker that owes least."""
        worker = min(owed, key=lambda one: len(owed[one]))
        try:
            worker.start("make", number)
        except OSError:
            pass  # it is dead: its pipe says so when it is read
        owed[worker].append(number)

    def epochs(self, count, epochs):
        done = 0
        start = now()
        for _ in range(epochs):
            _, came, _, why = epoch(self.batches(count))
            done += came
            if why:
                raise RuntimeError(why)
        return done / (now() - start)

    def with_a_kill(self, count):
        return epoch(self.batches(count), lambda: os.kill(self.workers[1].pid, signal.SIGKILL), count // 2)

    def close(self):
        for worker in self.workers:
            worker.close()
        self.c.close()


def by_rdtd(bench):
    size, count = bench.size(BYTES, 200_000), 16 if bench.quick else 64
    before = shm_left()[0]
    daemon = bench.daemon()
    trainer = bench.actor(Trainer, daemon.socket, size)
    trainer.call("epochs", count, 1)
    rate = trainer.call("epochs", count, 2)
    found = figures(rate, trainer.call("with_a_kill", count), count)
    trainer.call("close")
    return {**found, ("a worker is killed", "left"): objects_left(daemon) + shm_left()[0] - before}


def objects_left(daemon):
    import json
    deadline = now() + 5
    while True:
        left = len(json.loads(daemon.ctl("objects", "--json"))["objects"])
        if not left or now() > deadline:
            return left
        time.sleep(0.05)


def figures(rate, killed, count):
    _, came, longest, why = killed
    case = "a worker is killed"
    return {("epochs", "batches/s"): rate, (case, "came, %"): 100 * came / count, (case, "longest wait, ms"): longest * 1e3}


# ---- torch ----

class Batches:
    """A data set of whole batches."""

    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        import torch
        return {name: torch.from_numpy(array) for name, array in batch(number, self.size).items()}


class TorchTrainer:
    def __init__(self, size, count):
        import torch.utils.data
        self.loader = torch.utils.data.DataLoader(Batches(count, size), batch_size=None, num_workers=WORKERS, prefetch_factor=AHEAD,
                                                  persistent_workers=True)

    def epochs(self, count, epochs):
        done, start = 0, now()
        for _ in range(epochs):
            _, came, _, why = epoch(enumerate(self.loader))
            done += came
        return done / (now() - start)

    def with_a_kill(self, count):
        pids = [worker.pid for worker in self.loader._iterator._workers]
        try:
            return epoch(enumerate(self.loader), lambda: os.kill(pids[1], signal.SIGKILL), count // 2)
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # DataLoader's own raises its error wherever the process is


def by_torch(bench):
    size, count = bench.size(BYTES, 200_000), 64
    before = shm_left()[0]
    trainer = bench.actor(TorchTrainer, size, count)
    trainer.call("epochs", count, 1)
    rate = trainer.call("epochs", count, 2)
    found = figures(rate, trainer.call("with_a_kill", count), count)
    trainer.close()
    return {**found, ("a worker is killed", "left"): shm_left()[0] - before}


def sides():
    return [
        Side("rdtd", by_rdtd, "put in the worker, the Ref through a pipe, get with a time-out of 10 s"),
        Side("torch DataLoader", by_torch, "4 workers, prefetch_factor 2, persistent workers, file_descriptor"),
    ]
