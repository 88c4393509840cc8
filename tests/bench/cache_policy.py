# SPDX-License-Identifier: Apache-2.0
"""Compares orders of eviction (daemon/objects/cache_queue.h) by the part of blocks that are found, on a trace as engines of a
node make it: prompts that begin with one of 4,000 system prompts (Zipf), conversations that grow turn by turn, and scans, which are
prompts that nobody uses again. A block is found if all blocks before it in its prompt are.

The last rows have priorities, which users would give: scans have a lower one than the rest, system prompts a higher one, or both;
or they mean nothing, because each prompt has one of four at random.

    python3 cache_policy.py [REQUESTS]"""
import random
import sys
from collections import OrderedDict, deque


def trace(n_requests, scan, seed=1, n_docs=4000):
    rnd = random.Random(seed)
    system = [rnd.randint(8, 48) for _ in range(n_docs)]
    docs = rnd.choices(range(n_docs), [1 / (i + 1) for i in range(n_docs)], k=n_requests)
    live, number = [], 0  # conversations: [system prompt, number, blocks]
    for doc in docs:
        if rnd.random() < scan:
            number += 1
            yield [("scan", number, i) for i in range(rnd.randint(50, 400))]
            continue
        if live and rnd.random() < 0.6:  # rather a recent one
            one = live[int(len(live) * rnd.random() ** 0.5)]
            one[2] += rnd.randint(1, 8)
            if rnd.random() < 0.15:
                live.remove(one)
        else:
            number += 1
            one = [doc, number, rnd.randint(1, 12)]
            live.append(one)
        yield [("system", one[0], i) for i in range(system[one[0]])] + [("turn", one[1], i) for i in range(one[2])]


class Lru:
    def __init__(self, size):
        self.size, self.queue = size, OrderedDict()

    def __contains__(self, key):
        return key in self.queue

    def use(self, key):
        self.queue.move_to_end(key)

    def put(self, key):
        self.queue[key] = True
        if len(self.queue) > self.size:
            self.queue.popitem(last=False)


class Segmented:
    def __init__(self, size, part):
        self.size, self.part = size, part
        self.probation, self.protected = OrderedDict(), OrderedDict()

    def __contains__(self, key):
        return key in self.probation or key in self.protected

    def use(self, key):
        self.protected.pop(key, None)
        self.probation.pop(key, None)
        self.protected[key] = True
        while len(self.protected) > self.part * (len(self.probation) + len(self.protected)) and len(self.protected) > 1:
            self.probation[self.protected.popitem(last=False)[0]] = True

    def put(self, key):
        self.probation[key] = True
        if len(self.probation) + len(self.protected) > self.size:
            (self.probation or self.protected).popitem(last=False)


class Priorities:
    """A pair of segments for each priority; those of a lower one go first."""

    def __init__(self, size, of):
        self.size, self.of, self.n = size, of, 0
        self.classes = [Segmented(sys.maxsize, 0.5) for _ in range(4)]

    def __contains__(self, key):
        return key in self.classes[self.of(key)]

    def use(self, key):
        self.classes[self.of(key)].use(key)

    def put(self, key):
        self.classes[self.of(key)].put(key)
        self.n += 1
        if self.n > self.size:
            lowest = next(one for one in self.classes if one.probation or one.protected)
            (lowest.probation or lowest.protected).popitem(last=False)
            self.n -= 1


class S3Fifo:
    def __init__(self, size):
        self.size, self.small, self.main, self.ghost, self.uses = size, deque(), deque(), OrderedDict(), {}

    def __contains__(self, key):
        return key in self.uses

    def use(self, key):
        self.uses[key] = min(3, self.uses[key] + 1)

    def put(self, key):
        while len(self.uses) >= self.size:
            self.evict()
        self.uses[key] = 0
        (self.main if self.ghost.pop(key, False) else self.small).append(key)

    def evict(self):
        while self.small and (len(self.small) >= self.size // 10 or not self.main):
            key = self.small.popleft()
            if self.uses[key] == 0:
                del self.uses[key]
                self.ghost[key] = True
                if len(self.ghost) > self.size:
                    self.ghost.popitem(last=False)
                return
            self.uses[key] = 0
            self.main.append(key)
        while self.main:
            key = self.main.popleft()
            if self.uses[key] == 0:
                del self.uses[key]
                return
            self.uses[key] -= 1
            self.main.append(key)


def found(cache, requests):
    hits = blocks = 0
    for keys in requests:
        n = next((i for i, key in enumerate(keys) if key not in cache), len(keys))
        hits, blocks = hits + n, blocks + len(keys)
        for key in keys[:n]:
            cache.use(key)
        for key in keys[n:]:
            if key in cache:
                cache.use(key)
            else:
                cache.put(key)
    return 100 * hits / blocks


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
    for scan in (0, 0.15, 0.4):
        requests = list(trace(n, scan))
        for size in (5000, 20000):
            row = {"LRU": Lru(size), "segmented, half": Segmented(size, 0.5), "segmented, 4/5": Segmented(size, 0.8),
                   "S3-FIFO": S3Fifo(size), "scans lower": Priorities(size, lambda key: key[0] != "scan"),
                   "system prompts higher": Priorities(size, lambda key: key[0] == "system"),
                   "both": Priorities(size, lambda key: ("scan", "turn", "system").index(key[0])),
                   "at random": Priorities(size, lambda key: hash(key[1]) % 4)}
            texts = [f"{name} {found(cache, requests):.1f}" for name, cache in row.items()]
            print(f"scans {scan}, {size} blocks:", ", ".join(texts), flush=True)


if __name__ == "__main__":
    main()
