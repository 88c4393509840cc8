# SPDX-License-Identifier: Apache-2.0
"""KV blocks through LMCache's L2 adapters: rdtd.lmcache beside LMCache's own for files, on tmpfs, in turns.

    PYTHONPATH=build/release/python RDT_BUILD_DIR=build/release build/engines/bin/python tests/bench/lmcache_blocks.py [TURNS]

prints, for each number and size of blocks, the milliseconds from the submission of one task of all blocks until its eventfd is
ready: store, lookup of blocks that are there and of others, load; and a copy of as many bytes in the process. Every block that was
loaded is compared with what was stored."""
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("python", "engines")]
sys.argv[1:], turns = [], int((sys.argv[1:] or ["9"])[0])

import lmcache_adapter as calls  # noqa: E402
import torch  # noqa: E402
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig  # noqa: E402
from nodes import Node, main  # noqa: E402

SHAPES = ((64, 128 << 10), (64, 4 << 20), (4096, 64 << 10))
STEPS = ("store", "lookup", "miss", "load")


def turn(l2, first, source, into):
    count = len(source)
    keys, others = ([calls.key(start + i) for i in range(count)] for start in (first, first + (1 << 40)))
    steps = (lambda: calls.store(l2, keys, source).is_successful(), lambda: all(calls.lookup(l2, keys)),
             lambda: not any(calls.lookup(l2, others)), lambda: all(calls.load(l2, keys, into)))
    took = []
    for step in steps:
        start = time.perf_counter()
        assert step()
        took.append((time.perf_counter() - start) * 1e3)
    assert all(bytes(one.byte_array) == bytes(other.byte_array) for one, other in zip(source, into))
    l2.submit_unlock(keys)
    l2.delete(keys)
    return took


def test_blocks():
    folder = tempfile.mkdtemp(dir="/dev/shm")
    try:
        with Node() as node, calls.adapter(node) as ours:
            files = FSL2Adapter(FSL2AdapterConfig(base_path=folder))
            for count, size in SHAPES:
                source, into = calls.pages(range(count), size), calls.pages([0] * count, size)
                a, b = torch.ones(count * size, dtype=torch.uint8), torch.zeros(count * size, dtype=torch.uint8)
                rows = {"rdtd": [], "files": [], "copy": []}
                for number in range(turns):
                    rows["rdtd"].append(turn(ours, number * count, source, into))
                    rows["files"].append(turn(files, number * count, source, into))
                    start = time.perf_counter()
                    a.copy_(b)
                    rows["copy"].append([(time.perf_counter() - start) * 1e3])
                for name, of in rows.items():
                    middle = [sorted(one)[turns // 2] for one in zip(*of)]
                    print(f"{count} x {size >> 10} KiB", name, *[f"{step} {value:.1f}" for step, value in
                                                                 zip(STEPS if name != "copy" else [""], middle)], flush=True)
            files.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(globals())
