# SPDX-License-Identifier: Apache-2.0
"""KV blocks that other nodes have: look-ups and loads by 2, 4 and 8 daemons of one node table, each in a network namespace of
its own, all of which one bridge connects. Needs root.

    PYTHONPATH=build/release/python RDT_BUILD_DIR=build/release python3 tests/bench/cache_nodes.py [TURNS]

prints the milliseconds (median of TURNS, 15) of one call each for 64 blocks of 128 KiB, on node 0:

    hit      a look-up, with leases, of blocks that lie on the other nodes in turns
    miss     a look-up of blocks that nobody has
    load     one load_many of the blocks that were found, into one buffer
    question rdt_exists of one object of another node: the round trip that hit and miss cannot undercut
    ..here   the same on node 0 alone, without other nodes: what they would cost if the blocks were there

Every block that was loaded is compared with what was stored. All daemons share the processors of this machine, so the figures
of eight nodes have eight daemons' work in them; real nodes do it at the same time."""
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "python")]
sys.argv[1:], turns = [], int((sys.argv[1:] or ["15"])[0])

import namespaces  # noqa: E402
import numpy as np  # noqa: E402
import rdtd  # noqa: E402
from nodes import cluster  # noqa: E402

COUNT, SIZE, LEASE = 64, 128 << 10, 60.0


def timed(rows, name, call):
    start = time.perf_counter()
    result = call()
    rows.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
    return result


def turn(rows, number, near, others):
    blocks = near.empty(COUNT * SIZE, "u8")
    into = [blocks[i * SIZE:(i + 1) * SIZE] for i in range(COUNT)]
    stored = [np.full(SIZE, (number + i) % 251, dtype=np.uint8) for i in range(COUNT)]
    ids = [f"m/{number}/{i}" for i in range(COUNT)]
    missing = [f"x/{number}/{i}" for i in range(COUNT)]
    for k, other in enumerate(others):
        other.put_many(stored[k::len(others)], ids=ids[k::len(others)], evictable=True)
    far = timed(rows, "hit", lambda: near.lookup(ids, nodes=LEASE, lease_for=LEASE))
    timed(rows, "question", lambda: near.exists([far[0]]))
    gone = timed(rows, "miss", lambda: near.lookup(missing, nodes=LEASE, lease_for=LEASE))
    assert all(far) and not any(gone) and not far.unasked and not gone.unasked
    timed(rows, "load", lambda: near.load_many(far, into))
    assert all((one == other).all() for one, other in zip(stored, into))
    near.end_lease(far)
    near.put_many(stored, ids=ids, evictable=True)
    here = timed(rows, "hit here", lambda: near.lookup(ids, lease_for=LEASE))
    timed(rows, "miss here", lambda: near.lookup(missing, lease_for=LEASE))
    timed(rows, "load here", lambda: near.load_many(here, into))
    near.end_lease(here)
    for c in near, *others:
        c.free(prefix="m/", force=True)


def main():
    for count in (2, 4, 8):
        rows = {}
        with namespaces.many(count) as spaces, cluster(count, namespaces=spaces) as (nodes, (near, *others)):
            for number in range(turns + 1):
                turn(rows, number, near, others)
        middle = [f"{name} {sorted(of[1:])[turns // 2]:.2f}" for name, of in rows.items()]
        print(f"{count} nodes:", ", ".join(middle), f"(load {os.getloadavg()[0]:.1f}, rdtd {rdtd.__version__})", flush=True)


main()
