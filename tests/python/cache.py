# SPDX-License-Identifier: Apache-2.0
"""Evictable objects: what is evicted and what is not, who loses what, and what survives."""
import contextlib
import json
import os
import pickle
import random
import sys
import threading
import time

import rdtd

from nodes import LONG, Killed, Node, Skipped, end, main, raises, until

try:
    import numpy as np
except ImportError:
    print("no numpy here")
    sys.exit(77)

MIB = 1 << 20


def block(number, bytes=MIB):
    return np.full(bytes, number % 251, dtype=np.uint8)


def put(c, number, bytes=MIB, **options):
    return c.put(block(number, bytes), id=f"b{number}", evictable=True, **options)


def there(c, numbers):
    """Which of them are there. To ask is no use of them."""
    numbers = list(numbers)
    found = c.exists([rdtd.Ref.from_id(f"b{number}") for number in numbers])
    return {number for number, one in zip(numbers, found) if one}


def own(c):
    rows = c.cache()["owners"]
    return rows[0] if rows else {"objects": 0, "bytes": 0, "idle_objects": 0, "evictions": 0, "hits": 0, "misses": 0}


def settled(c, bytes):
    until(lambda: own(c)["bytes"] <= bytes, f"{own(c)} has at most {bytes} bytes")


def test_what_was_used_least_recently_goes_past_cache_limit():
    with Node("--set", "daemon.cache_limit=9MiB") as node, rdtd.connect(node.socket) as c:
        for number in range(8):
            put(c, number)
        for _ in range(2):
            for number in (0, 1, 2):
                assert (c.get(rdtd.Ref.from_id(f"b{number}")) == block(number)).all()
        for number in range(8, 30):  # a scan
            put(c, number)
        settled(c, 9 * MIB)
        row = own(c)
        assert row["hits"] == 6 and row["misses"] == 0
        left = there(c, range(30))
        assert {0, 1, 2, 29} <= left and not {3, 4, 5, 6, 7} & left, left
        assert row["evictions"] == 30 - len(left), row
        row = own(c)
        assert row["hits"] == 6 and row["misses"] == 0, row
        assert row["evicted_bytes"] >= row["evictions"] * MIB
        status = c.status()
        assert status["evictable_objects"] == len(left) == row["idle_objects"] and status["evictions"] == row["evictions"]
        assert "MISSES" in node.ctl("cache") and f"rdtd_evictions_total {row['evictions']}" in node.ctl("metrics")
        first = put(c, 100)
        for number in range(101, 125):
            put(c, number)
        until(lambda: not c.exists(first), "it is evicted")
        for call in c.get, c.hold, c.wait_put, c.stat, c.free, lambda ref: c.publish("n", ref):
            with raises(rdtd.Freed, "was evicted from the cache, because its memory was wanted or the cache was flushed: put it again"):
                call(first)
        objects, bytes = c.flush_cache()
        assert objects >= 4 and bytes > objects * MIB and own(c)["objects"] == 0
        assert c.flush_cache() == c.flush_cache(all=1) == (0, 0)


def test_lower_priorities_go_first():
    with Killed("--set", "daemon.cache_limit=12MiB") as killed:
        with rdtd.connect(killed.node.socket) as c:
            for number in range(4):
                put(c, number, priority=7)
            c.put_many([block(number, 1000) for number in range(4, 8)], ids=[f"b{number}" for number in range(4, 8)],
                       evictable=True, priority=3)
            c.put_many([block(number, 50000) for number in range(8, 12)], ids=[f"b{number}" for number in range(8, 12)],
                       evictable=True, priority=3)
            for number in range(12, 60):
                put(c, number)
                c.get(rdtd.Ref.from_id(f"b{number}"))
            settled(c, 12 * MIB)
            assert set(range(12)) <= there(c, range(12))
            killed.kill()
            for number in range(60, 120):
                put(c, number)
            settled(c, 12 * MIB)
            assert set(range(12)) <= there(c, range(12)), "a restart keeps priorities"
            for number in range(120, 132):
                put(c, number, priority=5)
            settled(c, 12 * MIB)
            left = there(c, range(132))
            assert set(range(4)) <= left and not set(range(4, 120)) & left, left
            for number in range(140, 160):
                put(c, number, priority=7)
            settled(c, 12 * MIB)
            assert 0 not in there(c, range(4)) and 159 in there(c, [159])
            for options in {"priority": 8}, {"priority": -1}, {"priority": 1, "evictable": False}:
                with raises(ValueError, "priority"):
                    c.put(block(1), **{"evictable": True, **options})
            with raises(ValueError, "priority"):
                c.put_many([block(1, 100)] * 5, priority=1)
            c.flush_cache()


def test_holds_readers_and_names_protect():
    with Node("--set", "daemon.cache_limit=6MiB") as node, rdtd.connect(node.socket) as c:
        array = c.get(put(c, 0))
        hold = c.hold(put(c, 1))
        c.publish("n", put(c, 2))
        for number in range(3, 40):
            put(c, number)
        settled(c, 6 * MIB)
        assert {0, 1, 2} <= there(c, range(40)) and (array == block(0)).all()
        arrays = [c.get(put(c, number)) for number in (50, 51)]
        with raises(rdtd.LimitReached, "cache_limit"):
            put(c, 52)
        with raises(rdtd.LimitReached, "cache_limit"):
            put(c, 53, 7 * MIB)
        row = own(c)
        assert row["idle_objects"] == 0 and row["objects"] == 5, row
        del array, arrays
        hold.release() if hasattr(hold, "release") else None
        del hold
        until(lambda: own(c)["idle_objects"] == 4, "they may be evicted again")
        put(c, 54)
        c.unpublish("n")
        c.flush_cache()
        assert own(c)["objects"] == 0


def test_memory_that_anything_else_wants():
    with Node("--set", "daemon.memory_limit=64MiB") as node, rdtd.connect(node.socket) as c:
        for number in range(200):  # by memory_limit itself
            put(c, number)
        assert 30 < own(c)["objects"] <= 64
        kept = c.put(np.ones(30 * MIB, dtype=np.uint8))  # of ordinary memory
        assert own(c)["evictions"] >= 150 and own(c)["objects"] < 40
        ours = c.empty(25 * MIB, "u8")
        assert own(c)["objects"] < 12
        for number in range(200, 300):
            put(c, number)
        assert 200 + 99 in there(c, range(200, 300))
        with raises(rdtd.Error, ""):
            c.put(np.ones(63 * MIB, dtype=np.uint8))
        del kept, ours
        c.flush_cache()


def test_limits_of_users_and_of_connections():
    with Node("--set", "limits.owner_max_bytes=20MiB", "--set", "limits.client_max_bytes=4MiB",
              "--set", "limits.owner_max_objects=100") as node, rdtd.connect(node.socket) as c:
        for number in range(60):  # by the owner's limit, and not by that of the connection
            put(c, number)
        assert 10 < own(c)["objects"] <= 20
        for number in range(60, 400):  # small ones: by the number of objects
            put(c, number, 100)
        assert 99 <= own(c)["objects"] <= 100
        assert [text.partition(": ")[2] for text in c.cache()["full"]] == ["raise owner_max_objects"], c.cache()
        refs = [c.put(np.ones(10)) for _ in range(50)]
        assert own(c)["objects"] <= 50
        assert c.stat(rdtd.Ref.from_id("b399"))["evictable"]
        del refs
        c.flush_cache()
    with Node("--set", "limits.owner_max_fds=64") as node, rdtd.connect(node.socket) as c:
        assert c.cache()["full"] == []
        for number in range(80):  # each has descriptors of its own
            put(c, number, 64 << 10)
        assert own(c)["objects"] < 64 and own(c)["evictions"] > 0
        assert [text.partition(": ")[2] for text in c.cache()["full"]] == ["raise owner_max_fds"], c.cache()
        assert "objects are evicted although memory may be left" in node.ctl("cache")
        c.flush_cache()


def test_what_no_eviction_helps_is_refused_at_once():
    """Behind a request that waits for what others hold, which evictions cannot give."""
    with Node("--set", "limits.owner_max_bytes=64MiB") as node, rdtd.connect(node.socket) as c, \
            rdtd.connect(node.socket) as other:
        kept = c.put(np.ones(40 * MIB, dtype=np.uint8))
        for number in range(4):
            put(c, number)
        got = []
        thread = threading.Thread(target=lambda: got.append(other.empty(40 * MIB, "u8", timeout=LONG)))
        thread.start()
        until(lambda: node.waiters() == 1, "a request waits")
        with raises(rdtd.LimitReached, "already wait for bytes of memory and come first"):
            put(c, 4)
        with raises(rdtd.LimitReached, "already wait for bytes of memory and come first"):
            c.empty(MIB, "u8")
        made = c.put_many([block(number, 1000) for number in range(200)], evictable=True, errors="return")
        assert all(isinstance(one, (rdtd.Ref, rdtd.LimitReached)) for one in made), made
        assert there(c, range(4)) == set(range(4)), "nothing was evicted for them"
        kept.drop()
        thread.join(LONG)
        put(c, 4)
        del got[:]
        c.flush_cache()


def test_many_small_ones_in_few_messages():
    with Node("--set", "daemon.cache_limit=8MiB") as node, rdtd.connect(node.socket) as c:
        for turn in range(2):
            values = [np.full(1000, i % 100, dtype=np.uint8) for i in range(20000)]
            refs = c.put_many(values, ids=[f"b{i}" for i in range(20000)], evictable=True, replace=True)
            assert len(refs) == 20000 and not refs[0].holds
        settled(c, 8 * MIB)
        left = sorted(there(c, range(20000)))
        assert 3000 < len(left) < 9000 and 19999 in left and 0 not in left
        assert (c.get(rdtd.Ref.from_id(f"b{left[0]}")) == left[0] % 100).all()
        assert c.free(prefix="b1999") == 10 + (1999 in left) and not there(c, range(19990, 20000))
        c.flush_cache()
    with Node("--set", "limits.owner_max_objects=5000") as node, rdtd.connect(node.socket) as c:
        refs = c.put_many([np.full(1000, i % 100, dtype=np.uint8) for i in range(20000)], evictable=True)
        assert own(c)["objects"] <= 5000 and c.exists(refs[-1])
        c.flush_cache()


def test_many_large_ones_are_put_at_the_same_time():
    with Node("--set", "daemon.cache_limit=64MiB") as node, rdtd.connect(node.socket) as c:
        own_memory = c.empty(200 * 40000, "u8")
        own_memory[:] = 3
        for source in own_memory, np.full(200 * 40000, 3, dtype=np.uint8):
            values = [source[i * 40000:(i + 1) * 40000] for i in range(200)]
            refs = c.put_many(values, ids=[f"b{i}" for i in range(200)], evictable=True, replace=True)
            source[:] = 4  # the objects are copies
            assert all((c.get(ref) == 3).all() for ref in refs) and [ref.id for ref in refs] == [b"b%d" % i for i in range(200)]
            source[:] = 3
            same = [np.full(40000 + 100 * (i % 3), i, dtype=np.uint8) for i in range(50)]
            c.put_many(same, ids=["same"] * 50, evictable=True, replace=True)
            assert (c.get(rdtd.Ref.from_id("same")) == 49).all(), "the last one of an id stays"
            made = c.put_many(values[:8], ids=[f"b{i}" for i in range(4)] + [f"n{i}" for i in range(4)], evictable=True,
                              errors="return")
            assert all(isinstance(one, rdtd.Exists) for one in made[:4]) and all(isinstance(one, rdtd.Ref) for one in made[4:])
            with raises(rdtd.Exists, "value 3: object \"n0\""):
                c.put_many(values[:5], ids=["m0", "m1", "m2", "n0", "m3"], evictable=True)
            assert c.free(prefix="m") == 0 and c.free(prefix="n") == 4
            refs.clear()
            del values, source
        mixed = [block(i, (100, 40000, 3 * MIB, 5 * MIB)[i % 4]) for i in range(16)] + [block(9, 70000).reshape(2, -1)[:, ::5]]
        refs = c.put_many(mixed, evictable=True)
        assert all((c.get(ref) == value).all() for ref, value in zip(refs, mixed))
        for number in range(20):  # more than the cache has
            c.put_many([block(number, MIB)] * 20, evictable=True)
        settled(c, 64 * MIB)
        snapshots = c.put_many([block(i, 50000) for i in range(40)], snapshot=True)
        assert all((c.get(ref) == block(i, 50000)).all() for i, ref in enumerate(snapshots))
        del snapshots, refs, own_memory
        c.flush_cache()
    with Node("--set", "limits.client_max_bytes=1MiB") as node, rdtd.connect(node.socket) as c:  # no room for a stage
        refs = c.put_many([block(i, 50000) for i in range(10)], evictable=True)
        assert all((c.get(ref) == block(i, 50000)).all() for i, ref in enumerate(refs))
        c.flush_cache()


def test_a_put_of_the_same_id_replaces():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        put(c, 1)
        with raises(rdtd.Exists, "b1"):
            put(other, 1)
        seen = other.get(rdtd.Ref.from_id("b1"))
        other.put(block(7), id="b1", evictable=True, replace=True)
        assert (seen == block(1)).all() and (c.get(rdtd.Ref.from_id("b1")) == block(7)).all()
        del seen
        assert own(c)["objects"] == 1
        other.close()
        c.close()
        with rdtd.connect(node.socket) as third:
            assert (third.get(rdtd.Ref.from_id("b1")) == block(7)).all(), "it outlives its connection"
            ends = third.put(block(2), id="b2", evictable=True, ttl=0.05)
            until(lambda: not third.exists(ends), "its time to live has passed")
            third.free(rdtd.Ref.from_id("b1"))
            assert not third.exists(rdtd.Ref.from_id("b1"))


def test_a_lookup_leases_in_the_same_step():
    with Node("--set", "daemon.cache_limit=9MiB") as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        for number in range(4):
            put(c, number)
        found = c.lookup(["b0", b"b1", "x", "b2"])
        assert [ref and ref.id for ref in found] == [b"b0", b"b1", None, b"b2"]
        refs = c.lookup(["b0", "b1", "b2", "x", "b3"], until_missing=True, lease_for=LONG)
        assert [ref.id for ref in refs] == [b"b0", b"b1", b"b2"]
        assert c.lookup([]) == [] and c.lookup(["x"], until_missing=True) == []
        assert own(c)["idle_objects"] == 1 and own(c)["hits"] == 6 and own(c)["misses"] == 3
        assert all(c.exists(refs)) and there(c, range(5)) == {0, 1, 2, 3}
        assert [int(array[0]) for array in c.get(refs)] == [0, 1, 2] and own(c)["hits"] == 6 and own(c)["misses"] == 3
        assert c.get(rdtd.Ref.from_id("b0"))[0] == 0 and own(c)["hits"] == 7, "a fetch by an id is a hit"
        c.close()  # the leases are of no session
        for number in range(4, 40):
            put(other, number)
        settled(other, 9 * MIB)
        assert all((other.get(ref) == block(number)).all() for number, ref in enumerate(refs))
        assert other.lookup(["b3"]) == [None]
        other.end_lease(refs)
        until(lambda: own(other)["idle_objects"] == own(other)["objects"], "the leases have ended")
        other.flush_cache()
        assert other.lookup([f"b{number}" for number in range(3)], lease_for=0.05) == [None] * 3
        put(other, 79)
        assert other.lookup(["b79"], lease_for=0.05)[0]
        until(lambda: own(other)["idle_objects"] == own(other)["objects"], "the lease has passed")
        many = other.lookup([f"b{number}" for number in range(10000)], lease_for=LONG)
        assert len(many) == 10000 and many[79] and not many[5000]
        with raises(rdtd.LimitReached, "detached_ttl_max"):
            other.lookup(["b79"], lease_for=1e6)
        with raises(rdtd.Invalid, "key 1"):
            other.lookup(["b79", ""])
        other.end_lease(many)
        with raises(TypeError, "refs[1] must be a Ref, not 'b79'"):
            other.end_lease([None, "b79"])
        other.flush_cache()
        assert own(other)["objects"] == 0


def heap(node):
    owners = json.loads(node.ctl("limits", "--all", "--json"))["owners"]
    return sum(usage["used"] for owner in owners for usage in owner["usage"] if usage["what"] == "heap")


def test_the_records_of_leases_are_charged():
    with Node("--set", "limits.owner_max_heap=32MiB") as node, rdtd.connect(node.socket) as c:
        ids = [f"b{number}" for number in range(2000)]
        c.put_many([block(number, 100) for number in range(2000)], ids=ids, evictable=True)
        before = heap(node)
        refs = c.lookup(ids, lease_for=LONG)
        again = c.lookup(ids, lease_for=LONG)
        assert heap(node) >= before + 2000 * 128, "there is one record for each object"
        c.end_lease(refs)
        assert heap(node) >= before + 2000 * 128
        c.end_lease(again)
        until(lambda: heap(node) == before, "they have ended")
        filler = [c.put("x" * 100000) for _ in range((32 * MIB - before) // 105000)]
        while heap(node) < 32 * MIB - 400 * 1000:  # less than the leases take
            filler.append(c.put("x" * 100000))
        with raises(rdtd.LimitReached, "bytes of bookkeeping"):
            c.lookup(ids, lease_for=LONG)
        until(lambda: own(c)["idle_objects"] == 2000, "nothing is leased by a look-up that fails")
        del filler
        c.flush_cache()


def test_blocks_of_one_region_are_stored_and_loaded():
    """Each has a status of its own, also with sizes that travel together."""
    with Node("--set", "daemon.cache_limit=24MiB") as node, rdtd.connect(node.socket) as engine, \
            rdtd.connect(node.socket) as next_engine:
        for size in (2000, 128 << 10):
            blocks = engine.empty(64 * size, "u8")
            for number in range(64):
                blocks[number * size:(number + 1) * size] = number
            ids = [f"m/v1/{size}/{number}" for number in range(64)] + ["x" * 200]
            values = [blocks[number * size:(number + 1) * size] for number in range(64)] + [blocks[:10]]
            stored = engine.put_many(values, ids=ids, evictable=True, replace=True, errors="return")
            assert all(isinstance(one, rdtd.Ref) for one in stored[:64]) and isinstance(stored[64], rdtd.Invalid)
            blocks[:] = 255  # the objects are copies
            loaded = next_engine.empty(64 * size, "u8")
            refs = next_engine.lookup(ids[:64] + ["missing"], until_missing=True, lease_for=LONG)
            assert len(refs) == 64
            engine.free(refs[7], force=True)
            into = [loaded[number * size:(number + 1) * size] for number in range(64)]
            got = next_engine.get(refs, into=into, errors="return")
            next_engine.end_lease(refs)
            assert isinstance(got[7], rdtd.Freed)
            for number in set(range(64)) - {7}:
                assert (loaded[number * size:(number + 1) * size] == number).all(), number
            del blocks, loaded, values, into, got
        assert engine.free(prefix="m/v1/") == 126
        until(lambda: own(engine)["objects"] == 0, "a version of a model is dropped by its prefix")


def test_blocks_are_loaded_together():
    """Into memory of any kind, and each has a status of its own."""
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        sizes = [100, 40000, 300000, MIB, 5 * MIB]
        blocks = {f"n{number}": block(number, sizes[number % 5]) for number in range(60)}
        c.put_many(list(blocks.values()), ids=list(blocks), evictable=True)
        pairs = [[np.arange(1000, dtype=np.float32), np.full((30, 40), 7, dtype=np.int16)[:, ::2]], [block(3, 10), block(4, 10)]]
        c.put(pairs[0], id="two", evictable=True)
        kept = c.put(pairs[1], id="kept")  # of the session, and not in the cache
        refs = reader.lookup([*blocks, "two", "kept"], lease_for=LONG)
        assert all(refs)
        def buffers(total):
            own = reader.empty(total, "u8")
            plain = np.empty(total, dtype=np.uint8)
            return own, plain
        total = sum(len(value) + 64 for value in blocks.values())
        for memory in buffers(total):
            into, at = [], 0
            for value in blocks.values():
                into.append(memory[at:at + len(value)])
                at += len(value) + 64
            two = [np.zeros(1000, dtype=np.float32), np.zeros((30, 20), dtype=np.int16)]
            more = [np.zeros(10, dtype=np.uint8) for _ in range(2)]
            memory[:] = 250
            assert reader.load_many(refs, [*into, two, more]) == [None] * 62
            for got, value in zip(into, blocks.values()):
                assert (got == value).all()
            assert (memory[at - 64:at] == 250).all() and (two[0] == pairs[0][0]).all() and (two[1] == pairs[0][1]).all()
            assert (more[1] == block(4, 10)).all()
            memory[:] = 0
            wrong = list(refs)
            wrong[1], wrong[2] = rdtd.Ref.from_id("n1"), reader.lookup(["n3"])[0]
            wrong[5] = c.put(block(1, 100), id="gone", evictable=True)
            c.free(wrong[5], force=True)
            got = reader.load_many(wrong, [*into, two, more], errors="return", timeout=LONG)
            assert isinstance(got[2], rdtd.Mismatch) and isinstance(got[5], rdtd.Freed), got
            assert [i for i, one in enumerate(got) if one is not None] == [2, 5]
            assert (into[1] == blocks["n1"]).all() and (into[6] == blocks["n6"]).all() and not into[2].any()
            with raises(rdtd.Mismatch):
                reader.load_many(wrong[:3], into[:3])
            with raises(rdtd.TimedOut):
                reader.load_many([rdtd.Ref.from_id("nobody")], into[:1], timeout=0.1)
            with raises(rdtd.Invalid, "targets 0 and 1 of all share memory"):
                reader.load_many(refs[:2], [memory[:100], memory[60:60 + 40000]])
            del into, got, two, more
        with raises(ValueError, "2 refs and 1 buffers"):
            reader.load_many(refs[:2], [np.zeros(1)])
        with raises(TypeError, "refs[1] must be a Ref"):
            reader.load_many([refs[0], None], [np.zeros(1)] * 2)
        with raises(ValueError):
            frozen = np.zeros(100, dtype=np.uint8)
            frozen.flags.writeable = False
            reader.load_many(refs[:1], [frozen])
        with raises(rdtd.Mismatch, "not contiguous"):
            reader.load_many(refs[:1], [np.zeros((100, 2), dtype=np.uint8)[:, 1]])
        assert reader.load_many([], []) == []
        live = reader.empty(200, "u8")  # an object in the memory into which it is loaded
        live[:] = 9
        ref = reader.put(live[:100], id="live")
        assert reader.load_many(reader.lookup(["live"]), [live[100:]]) == [None] and (live == 9).all()
        del ref, live, memory
        reader.end_lease(refs)
        c.free(prefix="n")
        kept.drop()
        c.flush_cache()


def test_blocks_that_would_end_behind_a_stage_are_loaded_together():
    """Each begins at a multiple of 64 bytes, so two of one MiB together may need more."""
    with Node() as node, rdtd.connect(node.socket) as c:
        sizes = [MIB // 2 - 1, MIB // 2 + 1]
        c.put_many([block(number, size) for number, size in enumerate(sizes)], ids=["n0", "n1"], evictable=True)
        into = [np.zeros(size, dtype=np.uint8) for size in sizes]
        assert c.load_many(c.lookup(["n0", "n1"]), into) == [None] * 2
        assert all((one == block(number, one.size)).all() for number, one in enumerate(into))
        requests = node.ctl("metrics")
        assert 'verb="LOAD_MANY",status="OK"' in requests and 'verb="LOAD_MANY",status="INVALID"' not in requests
        c.flush_cache()


def test_loads_while_the_daemon_is_killed_are_whole():
    with Killed("--set", "daemon.cache_limit=1GiB") as killed, rdtd.connect(killed.node.socket) as c:
        ids = [f"b{number}" for number in range(200)]
        c.put_many([block(number, 40000) for number in range(200)], ids=ids, evictable=True)
        refs = c.lookup(ids)
        with killed.kill_every(0.3):
            for turn in range(60):
                into = [np.zeros(40000, dtype=np.uint8) for _ in ids]
                loaded = c.load_many(refs, into, errors="return")
                for number, (error, got) in enumerate(zip(loaded, into)):
                    assert isinstance(error, rdtd.Restarted) or (error is None and (got == block(number, 40000)).all()), error
        until(lambda: own(c)["idle_objects"] == 200, "nothing is held")
        c.flush_cache()


def test_wrong_options():
    with Node() as node, rdtd.connect(node.socket) as c:
        with raises(ValueError, "detached"):
            c.put(block(1), evictable=True, detached=True)
        with raises(ValueError, "immutable"):
            c.put(block(1), evictable=True, immutable=True)
        with raises(ValueError, "replace needs an id"):
            c.put_many([block(1, 10)] * 2, evictable=True, replace=True)
        with raises(rdtd.LimitReached, "detached_ttl_max"):
            c.put(block(1), evictable=True, ttl=1e6)


def test_readers_of_another_node_get_all_or_nothing():
    with Node("--set", "daemon.cache_limit=24MiB", listen=True) as node, \
            Node("--set", "transfer.replicas_max=0", listen=True) as far:
        with rdtd.connect(node.socket) as c, rdtd.connect(far.socket) as reader:
            refs, over, counts = [], threading.Event(), {"whole": 0, "gone": 0}

            def read():
                at = 0
                while not over.is_set():
                    ref = refs[max(0, len(refs) - 1 - at * 7 % 40)]
                    at += 1
                    try:
                        got = reader.get(ref, timeout=LONG)
                        number = int(ref.id[1:])
                        assert (got == block(number)).all(), number
                        counts["whole"] += 1
                    except rdtd.Freed:
                        counts["gone"] += 1

            refs.append(put(c, 0))
            failures = []

            def run():
                try:
                    read()
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            number = 1
            deadline = time.monotonic() + LONG
            while (counts["whole"] < 60 or counts["gone"] < 20) and not failures and time.monotonic() < deadline:
                refs.append(put(c, number))
                number += 1
            over.set()
            thread.join(LONG)
            assert not failures, failures
            assert counts["whole"] >= 60 and counts["gone"] >= 20, counts
            until(lambda: c.flush_cache() is not None and own(c)["objects"] == 0, "nothing is held")
        end(far, node)


def test_threads_race_for_the_same_ids():
    """Whatever they do to each other, a reader gets the whole of what somebody has put under the id."""
    with Node("--set", "daemon.cache_limit=6MiB", "--set", "limits.owner_max_objects=300") as node:
        failures = []

        def run(seed):
            rnd = random.Random(seed)
            try:
                with rdtd.connect(node.socket) as c:
                    for _ in range(50):
                        number = rnd.randrange(60)
                        bytes = (100, 40000, MIB // 2)[number % 3]
                        what = rnd.randrange(8)
                        with contextlib.suppress(rdtd.Freed, rdtd.NotFound, rdtd.TimedOut, rdtd.LimitReached):
                            if what < 3:
                                put(c, number, bytes, replace=True)
                            elif what < 6:
                                refs = c.lookup([f"b{number}"], until_missing=True, lease_for=0.2)
                                for ref in refs:
                                    got = c.get(ref, timeout=LONG)
                                    assert got.size == bytes and (got == number).all(), number
                                if what == 5:
                                    c.end_lease(refs)
                            elif what == 6:
                                c.free(rdtd.Ref.from_id(f"b{number}"))
                            else:
                                c.put_many([block(n, 100) for n in range(0, 60, 3)], ids=[f"b{n}" for n in range(0, 60, 3)],
                                           evictable=True, replace=True)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG * 2)
        assert not failures, failures
        with rdtd.connect(node.socket) as c:
            until(lambda: own(c)["idle_objects"] == own(c)["objects"], "all leases and holds have ended")
            settled(c, 6 * MIB)
            c.flush_cache()
            assert own(c)["objects"] == 0


def test_it_is_there_again_after_the_daemon_was_killed():
    with Killed("--set", "daemon.cache_limit=40MiB") as killed:
        with rdtd.connect(killed.node.socket) as c:
            for number in range(10):
                put(c, number)
            for number in range(10, 200):
                put(c, number, 1000)
            held = c.hold(rdtd.Ref.from_id("b3"))
            leased = c.lookup(["b4", "b5"], lease_for=LONG)
            bytes = own(c)["bytes"]
            killed.kill()
            assert there(c, range(200)) == set(range(200))
            until(lambda: own(c)["idle_objects"] == 197, "a hold and the leases are there again")
            c.end_lease(leased)
            del held
        killed.kill()  # and without any client
        with rdtd.connect(killed.node.socket) as c:
            assert there(c, range(200)) == set(range(200))
            assert all((c.get(rdtd.Ref.from_id(f"b{number}")) == number).all() for number in range(200))
            until(lambda: own(c)["idle_objects"] == 200, "all may be evicted")
            assert own(c)["bytes"] == bytes
            for number in range(200, 300):
                put(c, number)
            settled(c, 40 * MIB)
            assert not there(c, range(10, 200)) or own(c)["evictions"] > 50
            c.free(prefix="b2")
            c.flush_cache()


def test_puts_while_the_daemon_is_killed_leave_whole_objects():
    with Killed("--set", "daemon.cache_limit=20MiB") as killed:
        with rdtd.connect(killed.node.socket) as c:
            with killed.kill_every(0.3):
                for number in range(250):
                    put(c, number, replace=True)
            blocks = [block(number, 40000) for number in range(300, 400)]
            with killed.kill_every(0.3):
                for turn in range(20):
                    c.put_many(blocks, ids=[f"b{number}" for number in range(300, 400)], evictable=True, replace=True,
                               errors="return")
            assert len(there(c, range(300, 400))) == 100
            for number, got in zip(range(300, 400), c.get([rdtd.Ref.from_id(f"b{number}") for number in range(300, 400)])):
                assert (got == block(number, 40000)).all()
            del got
            for number in there(c, range(250)):
                assert (c.get(rdtd.Ref.from_id(f"b{number}")) == block(number)).all()
            until(lambda: own(c)["idle_objects"] == own(c)["objects"], "nothing is held")
            c.flush_cache()


def test_who_fills_the_cache_loses_own_objects():
    if os.geteuid() != 0:
        raise Skipped("only root can be two users")
    with Node("--set", "daemon.cache_limit=32MiB", "--set", "daemon.owner_cache_limit=28MiB") as node:
        os.chmod(node.dir, 0o755)
        os.chmod(node.socket, 0o666)
        with rdtd.connect(node.socket) as c:
            for number in range(8):
                put(c, number)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.setresgid(65533, 65533, 65533)
                    os.setresuid(65533, 65533, 65533)
                    with rdtd.connect(node.socket) as hostile:
                        for number in range(300):
                            put(hostile, number)
                        assert not hostile.exists(rdtd.Ref.from_id("b5")) and len(hostile.cache()["owners"]) == 1
                        with raises(rdtd.Denied):
                            hostile.flush_cache(all=True)
                        status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert there(c, range(8)) == set(range(8)), "another user's puts have evicted them"
            owners = {row["owner"][0]: row for row in c.cache()["owners"]}
            assert owners[65533]["bytes"] <= 28 * MIB and owners[65533]["evictions"] > 250, owners
            assert json.loads(node.ctl("cache", "--json"))["limit_bytes"] == 32 * MIB
            c.flush_cache(all=True)
            assert c.cache()["owners"] == []


def test_a_lookup_whose_second_message_fails_leases_nothing():
    with Node("--set", "limits.owner_max_heap=700KiB") as node, rdtd.connect(node.socket) as c:
        ref = c.put(b"x", id="k", evictable=True)
        with raises(rdtd.LimitReached, "owner_max_heap"):
            c.lookup(["k"] * 4096 + ["x" * 128] * 4096, lease_for=LONG)
        until(lambda: c.stat(ref)["holds"] == 1, "the leases of the first message have ended")
        c.free(prefix="k")


def test_lookups_go_on_while_the_daemon_is_killed():
    with Killed() as killed, rdtd.connect(killed.node.socket) as c:
        ids = [f"k{i}" for i in range(1000)]
        c.put_many([b"x"] * 1000, ids=ids, evictable=True)
        with killed.kill_every(0.2):
            while killed.kills < 6:
                found = c.lookup(ids, lease_for=3)  # for that long the objects may stay
                assert None not in found
                c.end_lease(found)
        c.free(prefix="k")


def test_leases_and_refs_on_their_way_are_not_each_others():
    with Killed() as killed, rdtd.connect(killed.node.socket) as c:
        ref = c.put(block(1))
        text = pickle.dumps(ref)
        c.end_lease([ref])  # it has none
        name = rdtd.Ref(str(ref))
        ref.free()
        killed.kill()
        assert (c.get(pickle.loads(text)) == block(1)).all(), "the ref arrives"
        ref = put(c, 2)
        held = c.hold(ref)
        text = pickle.dumps(held)
        c.lookup(["b2", "b2"], lease_for=LONG)
        assert "1 ref is on the way to another process, and 2 look-ups have leased it" in killed.node.ctl("stat", str(ref))
        arrived = [pickle.loads(text) for _ in range(3)]  # two of them came by nobody's grace
        del arrived, held
        killed.kill()
        until(lambda: c.stat(ref)["holds"] == 2, "the leases are left")
        assert "2 look-ups have leased it" in killed.node.ctl("stat", str(ref))
        c.end_lease([ref])
        c.end_lease([ref, ref])
        assert c.stat(ref)["holds"] == 1
        c.free(prefix="b")
        del name


if __name__ == "__main__":
    main(globals())
