# SPDX-License-Identifier: Apache-2.0
"""Blocks of a cache: put_many, lookup, get and load_many beside a copy of as many bytes, in turns.

    PYTHONPATH=build/release/python RDT_BUILD_DIR=build/release python3 tests/bench/cache_blocks.py [TURNS]

prints, for each number and size of blocks, in memory of `empty` and in ordinary memory, the least and the middle milliseconds of
each step, and the load average. What was loaded is compared with what was stored."""
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
sys.argv[1:], turns = [], int((sys.argv[1:] or ["7"])[0])

import numpy as np  # noqa: E402
import rdtd  # noqa: E402
from nodes import Node, main  # noqa: E402

SHAPES = ((64, 128 << 10), (64, 4 << 20), (4096, 64 << 10))


def measure(steps):
    took = {}
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        took[name] = (time.perf_counter() - start) * 1e3
    return took


def shape(c, count, size, own):
    total = count * size
    source, target = (c.empty(total, "u8") if own else np.ones(total, dtype=np.uint8) for _ in range(2))
    a, b = np.ones(total, dtype=np.uint8), np.ones(total, dtype=np.uint8)
    blocks, into = ([memory[at:at + size] for at in range(0, total, size)] for memory in (source, target))
    ids = [f"b{number}" for number in range(count)]
    refs, rows = [], []

    def lookup():
        refs[:] = c.lookup(ids, lease_for=60)

    for turn in range(turns):
        source[:] = np.arange(turn, turn + total, dtype=np.uint32).astype(np.uint8)
        target[:] = 0
        rows.append(measure({
            "store": lambda: c.put_many(blocks, ids=ids, evictable=True, replace=True), "lookup": lookup,
            "get": lambda: c.get(refs, into=into), "load_many": lambda: c.load_many(refs, into),
            "copy": lambda: np.copyto(a, b)}))
        c.end_lease(refs)
        assert (target == source).all()
    print(f"{count} x {size >> 10} KiB, {'empty()' if own else 'ordinary memory'}:",
          ", ".join(f"{name} {min(row[name] for row in rows):.1f} {sorted(row[name] for row in rows)[turns // 2]:.1f}"
                    for name in rows[0]), f"(load {os.getloadavg()[0]:.1f})", flush=True)
    del blocks, into, source, target
    c.flush_cache()


def test_blocks():
    with Node() as node, rdtd.connect(node.socket) as c:
        for count, size in SHAPES:
            for own in (True, False):
                shape(c, count, size, own)


if __name__ == "__main__":
    main(globals())
