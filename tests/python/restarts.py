# SPDX-License-Identifier: Apache-2.0
"""The Python package while the daemon, which has a keeper, is killed: nothing but a pause is noticed."""
import asyncio
import os
import threading

import numpy as np
from nodes import LONG, Killed, main, raises

import rdtd


def test_calls_arrays_and_the_default_connection_go_on():
    with Killed() as killed:
        os.environ["RDT_SOCKET"] = killed.node.socket
        c = rdtd.default()
        session = c.node["session"]
        ours = c.empty((1000, 1000), "f32")
        ours[:] = 1
        live = c.put(ours)
        copied = c.put({"w": np.arange(100000), "n": 3})
        seen = c.get(live)
        for number in range(2, 5):
            killed.kill()
            assert rdtd.default() is c and c.node["session"] == session
            ours[0, 0] = number
            assert seen[0, 0] == number, "the same memory, before and after"
            assert c.get(copied)["w"].sum() == 4999950000
            assert c.stat(live)["bytes"] == 4000000
            c.put(np.ones(number)).drop()
        del ours, live, copied, seen
        c.close()
        del os.environ["RDT_SOCKET"]


def test_what_waits_goes_on_in_threads_and_event_loops():
    with Killed() as killed:
        c, other = rdtd.connect(killed.node.socket), rdtd.connect(killed.node.socket)
        got = []
        thread = threading.Thread(target=lambda: got.append(c.get(rdtd.Ref("late"), timeout=LONG).sum()))
        thread.start()

        async def wait() -> tuple[rdtd.Ref, float]:
            parked = [c.fetch(rdtd.Ref("late"), timeout=LONG) for _ in range(3)]
            await asyncio.get_running_loop().run_in_executor(None, killed.kill)
            ref = other.put(np.ones(1000), id="late")
            return ref, sum([(await request).sum() for request in parked])

        ref, total = asyncio.run(wait())
        thread.join(LONG)
        assert (got, total) == ([1000], 3000)
        other.free(ref)  # not before: the thread may have begun late
        c.close()
        other.close()


def test_versions_go_on_without_being_asked_to():
    with Killed() as killed:
        publisher, reader = rdtd.connect(killed.node.socket), rdtd.connect(killed.node.socket)
        publisher.publish("weights", np.full(10, 1), lease=True)
        versions = reader.versions("weights", timeout=LONG)
        assert next(versions)[1][0] == 1
        for number in range(2, 6):
            killed.kill()
            assert int(publisher.publish("weights", np.full(10, number), lease=True)) == number
            version, value = next(versions)
            assert (version, value[0]) == (number, number)
        publisher.close()  # the lease ends with it, as ever
        with raises(rdtd.OwnerDied):
            next(versions)
        reader.close()


def test_work_goes_on_while_the_daemon_is_killed_again_and_again():
    with Killed() as killed:
        with killed.kill_every(0.5):
            c = rdtd.connect(killed.node.socket)
            made = 0
            while killed.kills < 6:
                ref = c.put({"w": np.full(50000, made), "small": np.arange(3)}, snapshot=(False, True, "unsealed")[made % 3])
                got = c.get(ref)
                assert got["w"][49999] == made and got["small"][2] == 2
                made += 1
            with rdtd.connect(killed.node.socket) as another:  # a new one, whenever it comes
                another.ping()
        del ref, got
        c.close()


main(globals())
