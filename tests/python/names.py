# SPDX-License-Identifier: Apache-2.0
"""Published names: their ends, and iterations over versions that go on after a restart."""
import multiprocessing
import os
import pickle
import signal
import sys
import threading

import rdtd

from nodes import LONG, Node, main, raises, until

try:
    import numpy as np
except ImportError:
    print("no numpy here")
    sys.exit(77)


def publish_and_die(socket, length):
    c = rdtd.connect(socket, name="trainer")
    c.publish("weights", np.arange(length), lease=True)
    os.kill(os.getpid(), signal.SIGKILL)


def publisher(node, length):
    process = multiprocessing.get_context("spawn").Process(target=publish_and_die, args=(node.socket, length))
    process.start()
    return process


def test_name_ends_with_its_dead_publisher():
    with Node() as node, rdtd.connect(node.socket) as c:
        waiting = c.fetch(c.name("weights", 1))
        publisher(node, 3).join(LONG)
        with raises(rdtd.OwnerDied, "a lease"):
            waiting.result(LONG)
        with raises(rdtd.OwnerDied, "after version 1"):
            c.get(c.name("weights", 1), timeout=LONG)
        versions = c.versions("weights", after=1, reconnect=True, timeout=LONG)
        process = publisher(node, 5)
        process.join(LONG)
        with rdtd.connect(node.socket) as trainer:
            trainer.publish("weights", np.arange(7), lease=True)
            assert next(versions)[0] == 3
        with raises(rdtd.OwnerDied):
            next(c.versions("weights", after=3, timeout=LONG))
        try:
            next(c.versions("weights", after=3, timeout=0.2, reconnect=True))
        except rdtd.TimedOut as error:
            assert isinstance(error.__cause__, rdtd.OwnerDied)
        else:
            raise AssertionError("a version that nobody published")


def test_publish_says_its_name_and_when_it_ends():
    with Node() as node, rdtd.connect(node.socket) as c:
        version = c.publish("weights", np.arange(3), ttl=LONG, visible="all")
        assert version == 1 and isinstance(version, int) and version.ref.is_name
        assert pickle.loads(pickle.dumps(version)).ref == version.ref
        assert (c.get(version.ref) == np.arange(3)).all()
        assert "in " in node.ctl("names")
        c.publish("weights", np.arange(3), ttl=0.2, visible="all")
        with raises(rdtd.Freed, "time to live"):
            c.get(c.name("weights", 2), timeout=LONG)
        with raises(ValueError, "ttl"):
            c.publish("weights", np.arange(3), ttl=0)
        assert c.name("w", owner=os.getuid()).owner == (os.getuid(), "")
        with raises(rdtd.Invalid, "no user"):
            c.name("w", owner="no such user")
        with raises(ValueError, "says itself"):
            c.versions(version.ref, owner=1)


def test_versions_go_on_when_the_own_daemon_restarts():
    with Node() as node, rdtd.connect(node.socket) as c:
        c.publish("weights", np.arange(3))
        follow = c.versions("weights", reconnect=True, timeout=LONG)
        assert next(follow)[0] == 1
        c.publish("weights", np.arange(4))
        assert next(follow)[0] == 2
        node.kill()
        with raises(rdtd.Disconnected):
            next(c.versions("weights", timeout=LONG))
        node.start()
        with rdtd.connect(node.socket) as again:
            again.publish("weights", np.arange(5))
            number, value = next(follow)
            assert number == 1 and len(value) == 5  # a new daemon counts versions from 1
            ends = []

            def wait():
                try:
                    next(follow)
                except rdtd.Error as error:
                    ends.append(type(error))

            thread = threading.Thread(target=wait)
            thread.start()
            until(lambda: '"waiters": 1' in node.ctl("names", "--json"), "it waits on a connection of its own")
            c.close()
            thread.join(LONG)
            assert ends and ends[0] in (rdtd.Cancelled, rdtd.Disconnected), ends
            again.unpublish("weights")
        del follow, value
        with raises(rdtd.Disconnected, "closed"):
            next(c.versions("weights", reconnect=True))


def is_known(c, name):
    try:
        return bool(c.stat(name))
    except rdtd.PeerLost:
        return False


def test_versions_go_on_when_the_publishers_node_restarts():
    with Node(listen=True, keeps_identity=True) as a, Node(listen=True) as b, rdtd.connect(b.socket) as c:
        with rdtd.connect(a.socket) as trainer:
            name = trainer.publish("weights", np.arange(3)).ref
        port = int(str(name.address).rpartition(":")[2])
        a.command[a.command.index("--listen") + 1] = f"127.0.0.1:{port}"
        follow = c.versions(name, reconnect=True, timeout=LONG)
        assert next(follow)[0] == 1
        with raises(rdtd.Unsupported, "time to live"), rdtd.connect(a.socket) as trainer:
            with trainer.put(np.arange(3)) as ref:
                c.publish("mine", ref, lease=True)
        a.kill()
        with raises(rdtd.PeerLost):
            next(c.versions(name, after=1, timeout=LONG))
        a.start()
        with rdtd.connect(a.socket) as trainer:
            trainer.publish("weights", np.arange(5))
            until(lambda: is_known(c, name), "the nodes have met again, and the iteration has noticed nothing")
            number, value = next(follow)
            assert number == 1 and len(value) == 5
            waiting = threading.Thread(target=lambda: next(follow))
            waiting.start()
            trainer.publish("weights", np.arange(6))
            waiting.join(LONG)
            assert follow.after == 2
            trainer.unpublish("weights")
        del value, follow
        b.kill()


if __name__ == "__main__":
    main(globals())
