# SPDX-License-Identifier: Apache-2.0
"""Engines are killed again and again while they store and load KV blocks: what the others find is whole, and nothing that the
dead had stays."""
import os
import random
import signal
import sys
import tempfile
import time

import rdtd
from rdtd._kv import Blocks

from nodes import Node, main, until

try:
    import numpy as np
except ImportError:
    print("no numpy here")
    sys.exit(77)

COUNT = 16
SIZE = 192 << 10
NAMES = [f"m/{number}" for number in range(COUNT)]
LEASE = 2.0  # seconds: what a killed engine has leased goes after that


def stored(number):
    return np.full(SIZE, number + 1, dtype=np.uint8)


def killed(work):
    """Runs the work again and again in a process of its own, and kills that at a random moment after it has begun."""
    begun, tells = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(lambda: os.write(tells, b"x"))
        finally:
            os._exit(1)
    os.close(tells)
    assert os.read(begun, 1) == b"x", "the engine has ended by itself"
    os.close(begun)
    time.sleep(random.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def store(node):
    def work(begins):
        blocks = Blocks(node.socket, LEASE)
        data = [stored(number) for number in range(COUNT)]
        begins()
        while True:
            blocks.store(NAMES, data)
    return work


def load(node):
    def work(begins):
        blocks = Blocks(node.socket, LEASE)
        into = [np.zeros(SIZE, dtype=np.uint8) for _ in NAMES]
        begins()
        while True:
            blocks.lookup(NAMES, True)
            blocks.load(NAMES, into)
    return work


def check(engine):
    """Returns how many blocks there are."""
    into = [np.zeros(SIZE, dtype=np.uint8) for _ in NAMES]
    there = engine.load(NAMES, into)
    assert all((block == number + 1).all() for number, block in enumerate(into) if there[number]), "a block is not whole"
    return sum(there)


def nothing_is_left(c):
    row = c.cache()["owners"][0]
    return row["idle_objects"] == row["objects"] and c.status()["orphaned_bytes"] == 0


def kill_again_and_again(*flags, kills, keeps_all):
    with Node("--set", "daemon.cache_limit=64MiB", *flags) as node, rdtd.connect(node.socket) as c:
        engine = Blocks(node.socket, LEASE)
        for _ in range(kills):
            killed(store(node))
            check(engine)
        assert all(engine.store(NAMES, [stored(number) for number in range(COUNT)]))
        for _ in range(kills):
            killed(load(node))
            assert check(engine) == COUNT or not keeps_all
        until(lambda: nothing_is_left(c), f"leases, holds and memory of the killed have ended: {c.cache()}")
        assert node.waiters() == 0
        engine.close()
        c.flush_cache()


def test_engines_that_are_killed_leave_whole_blocks_and_nothing_else():
    kill_again_and_again(kills=100, keeps_all=True)


def test_the_same_while_blocks_are_in_files():
    kill_again_and_again("--set", "daemon.cache_limit=2MiB", "--set", "daemon.cache_storage_limit=64MiB",
                         "--storage-dir", tempfile.mkdtemp(prefix="store"), kills=30, keeps_all=False)


if __name__ == "__main__":
    main(globals())
