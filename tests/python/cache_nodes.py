# SPDX-License-Identifier: Apache-2.0
"""Evictable objects of other nodes: what a lookup finds there, what it says of nodes that do not answer, and the KV blocks of
the engines that are fetched from there."""
import logging
import os
import signal
import sys
import threading

import rdtd
from rdtd._kv import Blocks, options

from nodes import LONG, Node, Skipped, cluster, main, raises, until

try:
    import numpy as np
except ImportError:
    print("no numpy here")
    sys.exit(77)

SOON = 0.3  # for nodes that do not answer


def block(number, bytes=4096):
    return np.full(bytes, number % 251, dtype=np.uint8)


def put(c, *numbers, **of):
    c.put_many([block(number, **of) for number in numbers], ids=[f"b{number}" for number in numbers], evictable=True)


def ids(*numbers):
    return [f"b{number}" for number in numbers]


def idle(c):
    rows = c.cache()["owners"]
    return sum(row["idle_objects"] for row in rows)


def counts(c):
    row = c.cache()["owners"][0]
    return row["hits"], row["misses"]


def homes(c):
    """The uuid of the node."""
    return c.put(np.zeros(1)).node


def test_a_block_of_another_node_is_found_leased_and_fetched():
    with cluster(3) as (nodes, (a, b, c)):
        put(a, 0, 1)
        put(b, 2, 3, 7)
        put(c, 4, 5)
        at_a, at_b, at_c = homes(a), homes(b), homes(c)
        assert a.lookup(ids(0, 2, 4)) == [a.lookup(ids(0))[0], None, None], "nobody is asked unless that is wanted"
        found = a.lookup(ids(0, 2, 4, 6), nodes=LONG, lease_for=LONG)
        assert [ref and ref.node for ref in found] == [at_a, at_b, at_c, None] and found.unasked == {}
        assert [int(one[0]) for one in a.get(found[:3])] == [0, 2, 4]
        assert (idle(a), idle(b), idle(c)) == (1, 2, 1), "what was found is leased where it is"
        for connection in a, b, c:
            connection.flush_cache()
        assert [int(one[0]) for one in a.get(found[:3])] == [0, 2, 4]
        a.end_lease(found)
        until(lambda: (idle(a), idle(b), idle(c)) == (1, 1, 1), "the leases have ended on all nodes")
        for connection in a, b, c:
            connection.flush_cache()
        assert a.lookup(ids(0, 2, 4), nodes=LONG) == [None] * 3
        for ref in found[1:3]:
            with raises(rdtd.Error, ""):
                a.get(ref, timeout=LONG)
        del found


def test_the_longest_prefix_is_that_of_all_nodes():
    with cluster(3) as (nodes, (a, b, c)):
        put(a, 0, 3, 8)
        put(b, 1, 4, 7)
        put(c, 1, 2, 4, 6)
        found = a.lookup(ids(*range(10)), nodes=LONG, until_missing=True, lease_for=LONG)
        assert [ref.id for ref in found] == [f"b{number}".encode() for number in range(5)]
        assert [int(one[0]) for one in a.get(found)] == list(range(5))
        # 1 and 4 are leased on one node only, 6, 7 and 8 nowhere
        until(lambda: idle(a) + idle(b) + idle(c) == 10 - 5, "only what was found is leased")
        assert sum(counts(one)[1] for one in (b, c)) == 0, "what was missed here is no miss there"
        assert counts(a)[0] == 3 and counts(a)[1] == 7 and a.cache()["owners"][0]["far_hits"] == 5
        a.end_lease(found)
        until(lambda: idle(a) + idle(b) + idle(c) == 10, "the leases have ended")
        assert a.lookup(ids(9, 0), nodes=LONG, until_missing=True) == []
        many = a.lookup(ids(*range(9000)), nodes=LONG)
        assert [bool(ref) for ref in many[:10]] == [True] * 5 + [False, True, True, True, False] and len(many) == 9000
        del found, many


def test_a_frozen_node_costs_the_time_that_was_given_and_is_named():
    with cluster(3) as (nodes, (a, b, c)):
        put(a, 0)
        put(b, 1)
        put(c, 2)
        nodes[2].process.send_signal(signal.SIGSTOP)
        try:
            found = a.lookup(ids(0, 1, 2, 3), nodes=SOON, lease_for=LONG)
            assert [bool(ref) for ref in found] == [True, True, False, False]
            assert list(found.unasked) == ["n2"] and isinstance(found.unasked["n2"], rdtd.TimedOut), found.unasked
            assert a.lookup(ids(0), nodes=SOON).unasked == {}, "nobody was asked"
            found = a.lookup(ids(0, 1, 2, 3), nodes=SOON, until_missing=True)
            assert len(found) == 2 and list(found.unasked) == ["n2"]
        finally:
            nodes[2].process.send_signal(signal.SIGCONT)
        until(lambda: a.lookup(ids(2), nodes=LONG)[0] is not None, "it answers again")
        del found


def test_a_killed_node_costs_nothing_and_is_named():
    with cluster(3) as (nodes, (a, b, c)):
        put(b, 1, bytes=1 << 20)
        put(c, 1, 2, bytes=1 << 20)
        refs = a.lookup(ids(2), nodes=LONG, lease_for=LONG)
        nodes[2].kill()
        until(lambda: a.lookup(ids(2), nodes=LONG).unasked, "the link has ended")
        found = a.lookup(ids(1, 2), nodes=LONG)
        assert found[0].node == homes(b) and found[1] is None
        assert list(found.unasked) == ["n2"] and isinstance(found.unasked["n2"], rdtd.PeerLost), found.unasked
        with raises(rdtd.PeerLost, "n2"):
            a.get(refs[0], timeout=LONG)
        a.end_lease(refs)
        del refs, found
        c.close()


def test_a_lookup_without_room_to_ask_leases_nothing():
    with cluster(2, "--set", "limits.owner_max_heap=64KiB") as (nodes, (a, b)):
        put(a, 0)
        ref = a.lookup(ids(0))[0]
        for count in range(1, 4000, 8):  # so the record of the other node is the first that does not fit
            try:
                a.end_lease(a.lookup(ids(*range(count)), nodes=LONG, lease_for=LONG))
            except rdtd.LimitReached as error:
                assert "owner_max_heap" in str(error)
                break
        else:
            assert False, "the look-ups are not charged"
        until(lambda: a.stat(ref)["holds"] == 1, "the lease has ended")
        a.free(ref)


def test_an_interrupted_lookup_leaves_nothing():
    """The client ends while others are asked."""
    with cluster(2) as (nodes, (a, b)):
        put(b, 1)
        nodes[1].process.send_signal(signal.SIGSTOP)
        child = os.fork()
        if child == 0:
            with rdtd.connect(nodes[0].socket) as c:
                c.lookup(ids(1), nodes=LONG, lease_for=LONG)
            os._exit(0)
        until(lambda: nodes[0].waiters() > 0, "it asks")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        until(lambda: nodes[0].waiters() == 0, "it has ended")
        nodes[1].process.send_signal(signal.SIGCONT)
        assert a.lookup(ids(1), nodes=LONG)[0] is not None


def test_other_users_see_nothing_on_other_nodes():
    if os.geteuid() != 0:
        raise Skipped("only root can be two users")
    with cluster(2) as (nodes, (a, b)):
        put(b, 1)
        for node in nodes:
            os.chmod(node.dir, 0o755)
            os.chmod(node.socket, 0o666)
        refs = a.lookup(ids(1), nodes=LONG, lease_for=LONG)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setresgid(65533, 65533, 65533)
                os.setresuid(65533, 65533, 65533)
                with rdtd.connect(nodes[0].socket) as c:
                    found = c.lookup(ids(1), nodes=LONG, lease_for=LONG)
                    assert found == [None] and found.unasked == {}
                    c.end_lease(refs)  # which are not its own
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        b.flush_cache()
        assert (a.get(refs[0], timeout=LONG) == block(1)).all(), "the lease has stayed"
        a.end_lease(refs)
        del refs


def test_nobody_is_asked_for_a_tenant_that_is_not_shared():
    with cluster(2, "--set", "network.share_tenants=team") as (nodes, (a, b)):
        put(a, 0)
        put(b, 1)
        found = a.lookup(ids(0, 1), nodes=LONG)
        assert found[0] and found[1] is None and isinstance(found.unasked["n1"], rdtd.Denied), found.unasked
        assert "share_tenants" in str(found.unasked["n1"])
        assert counts(b) == (0, 0)


def blocks(node, nodes=LONG):
    return Blocks(node.socket, LONG, nodes)


def test_a_child_after_a_fork_has_blocks_of_its_own_connection():
    with Node() as node:
        here = blocks(node, None)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                until(lambda: here.store(["m/1"], [block(1, 100)]) == [True], "the child has connected")
                status = 0 if here.lookup(["m/1", "m/2"], True) == [True, False] else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert here.lookup(["m/1"], False) == [True]
        here.clear("m/")
        here.close()


def test_an_engine_loads_the_blocks_of_another_node_and_keeps_them():
    """The one path of rdtd.lmcache, rdtd.vllm and rdtd.sglang."""
    with cluster(2) as (nodes, (a, b)):
        here, alone, there = blocks(nodes[0]), blocks(nodes[0], None), blocks(nodes[1])
        size = 128 << 10
        names = [f"m/{number}" for number in range(16)]
        assert all(there.store(names[:12], [block(number, size) for number in range(12)]))
        assert all(here.store(names[:2], [block(number, size) for number in range(2)]))
        assert alone.lookup(names, False) == [True] * 2 + [False] * 14
        assert here.lookup(names, True, until_missing=True) == [True] * 12 + [False] * 4
        assert (idle(a), idle(b)) == (0, 2)
        b.flush_cache()
        into = [np.zeros(size, dtype=np.uint8) for _ in names]
        assert here.load(names, into) == [True] * 12 + [False] * 4
        assert all((one == number).all() for number, one in enumerate(into[:12])) and not any(one.any() for one in into[12:])
        here.unlock(names[:12])
        until(lambda: idle(b) == 10, "the leases on the other node have ended")
        there.clear("m/")
        assert all(alone.lookup(names[:12], False)), "what was loaded is on this node now"
        nodes[1].process.send_signal(signal.SIGSTOP)
        assert all(here.lookup(names[:12], True)), "and nobody is asked for it"
        again = [np.zeros(size, dtype=np.uint8) for _ in range(12)]
        assert all(here.load(names[:12], again)) and all((one == number).all() for number, one in enumerate(again))
        nodes[1].process.send_signal(signal.SIGCONT)
        for one in here, alone, there:
            one.close()


def test_engines_that_load_the_same_blocks_at_once_pull_them_once():
    """And not again while the lease lasts."""
    size, count, engines = 2 << 20, 6, 8
    names = [f"b{number}" for number in range(count)]
    with cluster(2) as (nodes, (a, b)):
        for number in range(count):
            b.put(block(number, size), id=names[number], evictable=True)
        connections = [rdtd.connect(nodes[0].socket) for _ in range(engines)]
        together = threading.Barrier(engines)
        failures = []

        def load(c):
            try:
                found = c.lookup(names, nodes=LONG, lease_for=LONG)
                into = [np.zeros(size, dtype=np.uint8) for _ in names]
                together.wait(LONG)
                for _ in range(2):
                    c.load_many(found, into)
                    assert all((one == number).all() for number, one in enumerate(into))
                c.end_lease(found)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=load, args=(c,)) for c in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert not failures, failures
        moved = a.status()["bytes_in"]
        assert count * size <= moved < (count + 1) * size, f"{moved / size} blocks came"
        assert a.cache()["owners"] == [] and a.status()["evictable_far_hits"] == engines * count
        for c in connections:
            c.close()
        until(lambda: idle(b) == count, "the leases have ended")


def test_an_engine_goes_on_while_another_node_is_frozen():
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("rdtd.kv").addHandler(handler)
    with cluster(2) as (nodes, (a, b)):
        here = blocks(nodes[0], SOON)
        assert all(here.store(["m/0"], [block(0)]))
        nodes[1].process.send_signal(signal.SIGSTOP)
        assert here.lookup(["m/0", "m/1"], True) == [True, False]
        into = [np.ones(4096, dtype=np.uint8) for _ in range(2)]
        assert here.load(["m/0", "m/1"], into) == [True, False] and not into[0].any()
        nodes[1].process.send_signal(signal.SIGCONT)
        assert any("n1" in text and "has not answered" in text for text in said), said
        here.close()
    logging.getLogger("rdtd.kv").removeHandler(handler)


def test_wrong_options():
    with Node() as node, rdtd.connect(node.socket) as c:
        assert c.lookup(["x"], nodes=LONG) == [None]
        with raises(rdtd.Invalid, "up to a minute"):
            c.lookup(["x"], nodes=61)
        for wrong in -1, 0, "1":
            with raises((TypeError, ValueError), "nodes must be"):
                c.lookup(["x"], nodes=wrong)
    known = {"socket": None, "space": "x", "lease_for": 1, "nodes": None}
    assert options("it", {"nodes": 0.5}, known)["nodes"] == 0.5
    for wrong in -1, 0, 61, "1", True:
        with raises(ValueError, "it: nodes must be"):
            options("it", {"nodes": wrong}, known)


if __name__ == "__main__":
    main(globals())
