# SPDX-License-Identifier: Apache-2.0
"""Refs that hold their objects: unpickled in this process, in others, on other nodes, or before there is a
connection; and what ends their holds."""
import asyncio
import copy
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings

import rdtd

from nodes import LONG, Node, main, raises, required, until

np = required("numpy")


def gone(c, ref):
    try:
        c.stat(ref)
    except rdtd.Freed:
        return True
    return False


def carried(ref):
    return pickle.loads(pickle.dumps(ref))


def test_unpickled_ref_holds_while_it_lives():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket):
        ref = c.put({"w": np.arange(10000)})
        name = rdtd.Ref(str(ref))
        mine, other = carried(ref), copy.deepcopy(ref)
        assert mine == ref and mine.holds and other.holds and not name.holds and mine.copied is None
        assert c.stat(name)["holds"] == 2  # the producer's, and the one that both share
        del ref, other
        assert c.get(mine)["w"][9999] == 9999
        assert '"hold"' in node.ctl("stat", str(name), "--json")
        assert node.ctl("stat", str(name)).count("holds it to fetch it later") == 1
        del mine
        c.wait_freed(name, timeout=LONG)
        with raises(rdtd.Freed):
            c.get(name)
        late = carried(name)  # raises nothing ...
        assert not late.holds
        with raises(rdtd.Freed):  # ... until it is fetched
            c.get(late)


class Own(rdtd.Ref):
    pass


def test_ref_inside_a_value_is_passed_on_whatever_is_beside_it():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket):
        for beside in None, {1}, np.float128(1):  # plain parts, and pickles
            for kind in rdtd.Ref, Own:
                block = c.put(np.ones(10000))
                name = rdtd.Ref(str(block))
                table = c.put({"blocks": [kind._unpack(block.pack()), block], "beside": beside})
                assert c.stat(name)["holds"] == 2, c.stat(name)["holders"]  # its own, and one in transit
                del block
                first, second = c.get(table), c.get(table)
                assert first["blocks"][1].holds and second["blocks"][1].holds and type(first["blocks"][0]) is kind
                assert c.get(first["blocks"][1]).sum() == 10000
    with Node() as node, rdtd.connect(node.socket) as c:  # the grace period has passed
        block = c.put(np.ones(10000), grace=0)
        table, name = c.put([block]), rdtd.Ref(str(block))
        del block
        c.wait_freed(name, timeout=LONG)
        with raises(rdtd.Freed):
            c.get(c.get(table)[0])


def test_ref_of_an_own_class_is_unpickled_as_that():
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put(np.arange(1000))
        own = Own(str(ref))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            first, second = pickle.loads(pickle.dumps([ref, own], protocol))
            assert type(first) is rdtd.Ref and type(second) is Own and first == second == ref and second.holds
        assert type(copy.copy(own)) is Own


def test_unpickled_refs_share_a_hold():
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put(np.arange(1000))
        name = rdtd.Ref(str(ref))
        first, second = carried(ref), carried(ref)
        assert first._hold is second._hold and first.holds and c.stat(name)["holds"] == 2
        ref.free()
        first.free()
        assert not first.holds and second.holds and c.get(second)[999] == 999
        third = carried(second)
        del second
        assert third.holds and c.stat(name)["holds"] == 1
        kept, fourth = third.keep(), carried(third)
        del third, kept
        assert fourth.holds and c.stat(name)["holds"] == 2  # the connection has the hold of `kept` now
        del fourth
        c.ping()
        assert c.stat(name)["holds"] == 1 and c.get(name)[7] == 7
        with raises(rdtd.Freed):  # the producer freed it before, and free() drops the connection's hold
            c.free(name)
        c.wait_freed(name, timeout=LONG)
        late = carried(name)
        assert not late.holds and not carried(late).holds  # a refused hold is not shared


def test_hold_is_there_when_the_other_process_has_unpickled():
    """The producer drops its Ref as soon as the other process says that it has unpickled it."""
    with Node() as node, rdtd.connect(node.socket) as c:
        context = multiprocessing.get_context("fork")
        pipe, theirs = context.Pipe()
        child = context.Process(target=unpickle_many, args=(theirs, node.socket))
        child.start()
        assert pipe.recv() == "open"
        for i in range(200):
            ref = c.put(np.full(1000, i))
            pipe.send(ref)
            assert pipe.recv() == i
            del ref
            pipe.send("freed")
        pipe.send(None)
        child.join(LONG)
        assert child.exitcode == 0


def unpickle_many(pipe, socket):
    with rdtd.connect(socket) as c:
        pipe.send("open")
        number = 0
        while (ref := pipe.recv()) is not None:
            pipe.send(number)
            assert pipe.recv() == "freed"
            assert c.get(ref)[999] == number and ref.holds
            number += 1


def test_ways_to_let_go():
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put(np.arange(3))
        for let_go in (lambda held: held.free(), lambda held: held.__exit__(),
                       lambda held: held._hold.cancel()):
            held = carried(ref)
            assert held.holds and c.stat(ref)["holds"] == 2
            let_go(held)
            assert not held.holds
            until(lambda: c.stat(ref)["holds"] == 1, "it let go")
            held.free()
        held = carried(ref)
        with raises(rdtd.Denied, "its producer"):
            with rdtd.connect(node.socket) as other:
                other.free(held)
        carried(ref).keep()
        assert c.stat(ref)["holds"] == 2
        ref.free()
        name = rdtd.Ref(str(ref))
        assert c.get(name)[2] == 2
        carried(ref).free(force=True)
        until(lambda: gone(c, name), "it is freed by force")
        far = c.put(np.arange(3), detached=True, ttl=30)
        name = rdtd.Ref(str(far))
        with carried(far) as held:
            c.free(held)  # any session of the user may free a detached object
        del far
        until(lambda: gone(c, name), "the detached one is freed")


def test_drop_lets_go_without_an_answer():
    with Node() as node, rdtd.connect(node.socket) as c:
        refs = [c.put(np.arange(3)), c.put(np.arange(3), id="mine"),
                carried(c.put(np.arange(3), detached=True, ttl=30))]
        names = [rdtd.Ref(str(ref)) for ref in refs]
        assert refs[2].holds
        os.kill(node.process.pid, signal.SIGSTOP)
        try:
            for ref in refs:
                ref.drop()  # a free() would wait
                ref.drop()
                ref.free()
                assert not ref.holds
        finally:
            os.kill(node.process.pid, signal.SIGCONT)
        ref = c.put(np.arange(3), id="mine")  # the daemon reads the drop before this put
        assert gone(c, names[0]) and c.stat(names[2])["holds"] == 1, "the detached object keeps its own hold"
        c.free(names[2])
        del ref
        c.ping()
        ref = rdtd.Ref.from_id("mine")
        assert c.stat(ref)["holds"] == 1, "the connection holds an object with an id until it is dropped"
        c.free(ref)
        ended = c.put(np.arange(3))
    ended.drop()


def test_hold_raises_and_can_be_awaited():
    with Node() as node, rdtd.connect(node.socket) as c:
        with raises(rdtd.TimedOut, "later"):
            c.hold(rdtd.Ref("later"), timeout=0)
        waiting = c.when_held(rdtd.Ref("later"))
        assert not waiting.done()
        ref = c.put(np.arange(3), id="later")
        held = waiting.result(LONG)
        assert held == ref and held.holds and held.generation
        c.free(ref)
        assert c.get(held)[1] == 1
        del waiting
        with c.hold(held) as second:
            held.free()
            assert c.get(second)[2] == 2
        with raises(rdtd.Freed):
            c.hold(second)
        c.publish("weights", np.arange(4))

        async def awaited():
            version = await c.when_held(rdtd.Ref.from_name("weights"))
            assert version.holds and not version.is_name
            c.publish("weights", np.arange(5))
            c.unpublish("weights")
            assert len(await c.fetch(version)) == 4
            try:
                await asyncio.wait_for(c.when_held(rdtd.Ref("never")), 0.05)
            except asyncio.TimeoutError:
                return version
            raise AssertionError("nobody put that")

        version = asyncio.run(awaited())
        until(lambda: c.stat(version)["waiters"] == 0, "nobody waits")
        request = c.when_held(version)
        with raises(rdtd.Invalid, "brings no object"):
            request.result(LONG), request.fetched()


def test_closed_connection_holds_nothing():
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put({"w": np.arange(100000)})
        with rdtd.connect(node.socket) as first:
            asked = first.hold(ref)
            view = first.get(ref)["w"]  # the session lasts for this view, and holds nothing else
            kept = first.hold(ref).keep()
            del kept
            assert c.stat(ref)["holds"] == 4
        assert not asked.holds
        until(lambda: c.stat(ref)["holds"] == 2, "only the view's is left")
        assert view[999] == 999
        del view
        asked.free()


def late(pipe, socket):
    ref = pipe.recv()  # this process has no connection
    assert not ref.holds
    with rdtd.connect(socket) as c:
        value = c.get(ref)
        c.ping()
        assert ref.holds
        pipe.send(int(value["w"].sum()))
        del value
        assert pipe.recv() == "freed"
        pipe.send(int(c.get(ref)["w"].sum()))
        ref.free()
        pipe.recv()


def early(pipe, socket):
    with rdtd.connect(socket) as c:
        pipe.send("open")
        ref = pipe.recv()
        assert ref.holds
        pipe.send(0)
        assert pipe.recv() == "freed"
        pipe.send(int(c.get(ref)["w"].sum()))
        assert pipe.recv() == "end"
        os.kill(os.getpid(), signal.SIGKILL)


def leave(pipe, socket):
    rdtd.default()
    pipe.send("open")
    holder["ref"] = pipe.recv()
    pipe.send(0)
    pipe.recv()
    pipe.send(int(rdtd.get(holder["ref"])["w"].sum()))
    pipe.recv()
    sys.exit(0)  # the Ref is in a global: the interpreter's end drops the hold


holder = {}


def test_pipes_to_other_processes():
    with Node() as node, rdtd.connect(node.socket) as c:
        os.environ["RDT_SOCKET"] = node.socket
        for work, method, status in ((late, "spawn", 0), (early, "fork", -signal.SIGKILL),
                                     (leave, "spawn", 0)):
            context = multiprocessing.get_context(method)
            pipe, theirs = context.Pipe()
            child = context.Process(target=work, args=(theirs, node.socket))
            child.start()
            if work is not late:
                assert pipe.recv() == "open"
            ref = c.put({"w": np.ones(1000, "i8")})
            name = rdtd.Ref(str(ref))
            pipe.send(ref)
            assert pipe.recv() in (0, 1000)
            del ref
            c.ping()
            assert c.stat(name)["holds"] == 1
            pipe.send("freed")
            assert pipe.recv() == 1000
            pipe.send("end")
            child.join(LONG)
            assert child.exitcode == status, (work, child.exitcode)
            c.wait_freed(name, timeout=LONG)


def produced(step):
    return rdtd.put({"w": np.full(50000, step)})  # the Ref is deleted at once; only its pickle is left


def enqueue(queue, n):
    with rdtd.connect() as c:
        for step in range(n):
            queue.put(c.put({"w": np.full(50000, step)}))
        queue.close()
        queue.join_thread()  # all are pickled
    sys.exit(0)


def test_refs_that_a_worker_returns_arrive():
    with Node() as node, rdtd.connect(node.socket) as c:
        os.environ["RDT_SOCKET"] = node.socket
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            names = []
            for step, ref in enumerate(pool.imap(produced, range(20))):
                assert ref.holds and c.get(ref)["w"][49999] == step
                names.append(rdtd.Ref(str(ref)))
            del ref
            for name in names:  # the receivers took the holds over, so nothing waits for the grace period
                c.wait_freed(name, timeout=5)
        refs = multiprocessing.get_context("spawn").Pool(1).map(produced, range(20))
        assert [int(c.get(ref)["w"][0]) for ref in refs] == list(range(20))


def test_refs_in_a_queue_outlive_the_process_that_put_them():
    with Node() as node, rdtd.connect(node.socket) as c:
        os.environ["RDT_SOCKET"] = node.socket
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        child = context.Process(target=enqueue, args=(queue, 20))
        child.start()
        first = queue.get(timeout=LONG)
        assert c.get(first)["w"][0] == 0
        child.join(LONG)
        assert child.exitcode == 0
        assert [int(c.get(queue.get(timeout=LONG))["w"][49999]) for _ in range(19)] == list(range(1, 20))


def test_pickling_after_the_connection_was_closed_warns():
    with Node() as node, rdtd.connect(node.socket) as other:
        with rdtd.connect(node.socket) as c:
            lost, detached, published = c.put([1.0]), c.put([2.0], detached=True), c.put([3.0])
            c.publish("name", published)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            data = [pickle.dumps(ref) for ref in (lost, detached, published)]
        assert [str(w.message)[:45] for w in warned] == ["pickling the Ref of an object that ended when"]
        until(lambda: len(other.objects()) == 2, "the end of the closed session")
        with raises(rdtd.Freed, "dropped its Ref or closed its connection"):
            other.get(pickle.loads(data[0]))
        assert [other.get(pickle.loads(one))[0] for one in data[1:]] == [2.0, 3.0]
        other.unpublish("name")
        other.free(detached)


def copied_at_once(c, ref):
    """An object that exists has 200 ms, in which a busy machine may not get to the copy: then once more."""
    for _ in range(50):
        try:
            return c.get(ref, timeout=0, mode="copy")
        except rdtd.TimedOut as error:
            assert "bytes were copied" in str(error), error
    raise AssertionError("no copy in 50 times 200 ms")


def test_a_timeout_of_zero_does_what_can_be_done_at_once():
    with Node() as node, rdtd.connect(node.socket, timeout=0) as c:
        small, large = c.put(np.arange(4), timeout=0), c.put(np.arange(10**6), timeout=0, snapshot=True)
        for _ in range(20):
            assert c.get(small, timeout=0)[3] == 3 and copied_at_once(c, large)[-1] == 10**6 - 1
            with raises(rdtd.NotPut, "does not wait: nobody has put an object with this id"):
                c.get(rdtd.Ref("nobody"), timeout=0)
            for missed in (lambda: c.hold(rdtd.Ref("nobody"), timeout=0), lambda: c.wait_put(rdtd.Ref("nobody"), timeout=0),
                           lambda: next(c.versions("nobody", timeout=0)),
                           lambda: c.get(rdtd.Ref("nobody"), into=np.zeros(3), timeout=0)):
                for kind in rdtd.NotPut, rdtd.NotFound, rdtd.TimedOut, TimeoutError:
                    with raises(kind):
                        missed()
        for call in (c.get, c.wait_put, c.wait_freed, c.hold):
            with raises(ValueError, "not negative"):
                call(small, timeout=-1)
        with raises(ValueError, "not negative"):
            c.versions("nobody", timeout=-1)


def test_hold_in_transit_is_listed():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        ref = c.put(np.arange(100000), grace=LONG)
        data, name = pickle.dumps(ref), rdtd.Ref(str(ref))
        del ref
        assert other.stat(name)["holds"] == 1
        assert "on the way to another process" in node.ctl("stat", str(name))
        del data
        other.free(pickle.loads(pickle.dumps(other.hold(name))), force=True)


def test_threads_that_fetch_with_one_ref_take_one_hold():
    with Node() as node:
        with rdtd.connect(node.socket) as putter:
            ref = putter.put(np.ones(3), detached=True)
            data = pickle.dumps(ref)
        late = pickle.loads(data)  # no connection is open
        with rdtd.connect(node.socket) as c:
            assert c.get(late)[0] == 1
            hold = late._hold
            c._hold_too(late)  # what a thread does that saw the wish for a hold before another one fulfilled it
            assert late._hold is hold and late.holds
            c.free(late)


def test_grace_period_is_an_option_of_put():
    with (Node("--set", "daemon.detached_ttl_max=2s") as node, rdtd.connect(node.socket) as c,
          rdtd.connect(node.socket) as other):
        def sent(**options):
            ref = c.put(np.arange(100000), **options)
            return pickle.dumps(ref), rdtd.Ref(str(ref))

        data, name = sent(grace=0)
        with raises(rdtd.Freed, "was freed when its producer dropped its Ref or closed its connection: keep both, or put with "
                                "detached=True"):
            other.get(pickle.loads(data))
        data, name = sent(grace=0.5)
        other.wait_freed(name, timeout=LONG)
        data, name = sent(grace=3600)  # the daemon shortens it to detached_ttl_max
        other.wait_freed(name, timeout=LONG)
        data, name = sent()
        held = pickle.loads(data)
        again = pickle.loads(data)
        assert held.holds and again.holds and other.get(held)[99999] == 99999
        del held, again
        other.wait_freed(name, timeout=5)
        ref = c.put(np.arange(3))
        same, deep = copy.copy(ref), copy.deepcopy([ref])
        assert same.holds and deep[0].holds
        name = rdtd.Ref(str(ref))
        del ref, same, deep  # a copy in this process gives no grace period
        c.wait_freed(name, timeout=5)
        ref = c.put(np.arange(3))
        data = pickle.dumps(ref)
        same, deep = copy.copy(ref), copy.deepcopy([pickle.loads(pickle.dumps(ref))])
        del ref, same, deep  # and ends none: the other process still gets its Ref
        assert other.get(pickle.loads(data))[2] == 2


def test_forked_child_disturbs_no_hold():
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put(np.arange(3))
        held = carried(ref)
        ref.free()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                mine = carried(held)  # this process cannot use the parent's connection
                status = 0 if not mine.holds and not held.holds else 2
                with rdtd.connect(node.socket) as own:
                    again = carried(held)
                    status = status if again.holds and own.get(again)[1] == 1 else 3
                del held, mine, again
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert c.get(held)[2] == 2


def test_reader_of_another_node_hands_its_ref_on():
    with (Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as here,
          rdtd.connect(b.socket) as there):
        ref = here.put({"w": np.arange(100000, dtype="f4")})
        name = rdtd.Ref(str(ref))
        held = there.hold(ref)
        ref.free()
        data = pickle.dumps(held)
        held.free()
        until(lambda: [one["kind"] for one in here.stat(name)["holders"]] == ["in transit"],
              "only the ref on its way is left")
        got = pickle.loads(data)
        assert got.holds and there.get(got)["w"][7] == 7
        got.free()
        here.wait_freed(name, timeout=5)
        held = there.hold(here.put({"w": np.arange(100000, dtype="f4")}))
        a.kill()
        pickle.dumps(held)  # no hold is possible, and pickling raises nothing: the receiver's fetch will
        b.kill()


def test_two_nodes():
    with (Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(b.socket) as there,
          rdtd.connect(a.socket) as here):
        ref = here.put({"w": np.arange(100000, dtype="f4")})
        name = rdtd.Ref(str(ref))
        held = carried(ref)  # it uses `there`, the oldest connection
        assert held.holds
        assert '"peer"' in a.ctl("stat", str(name), "--json")
        del ref
        assert there.get(held)["w"][7] == 7
        held.free()
        here.wait_freed(name, timeout=LONG)
        with raises(rdtd.Freed):
            there.hold(name)
        a.kill()


def test_threads_take_and_let_go():
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put(np.arange(1000))
        data, failures = pickle.dumps(ref), []

        def work():
            try:
                for i in range(50):
                    held = pickle.loads(data)
                    assert held.holds
                    if i % 10 == 0:
                        assert c.get(held)[999] == 999
                    del held
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert not failures, failures
        c.ping()
        until(lambda: c.stat(ref)["holds"] == 1, "all have let go")


def test_results_are_taken_while_another_thread_closes():
    with Node() as node:
        for _ in range(20):
            c = rdtd.connect(node.socket)
            ref = c.put(np.arange(1000), id="x")
            requests = [c.fetch(ref) for _ in range(200)]
            c.wait(requests)
            values, failures = [], []

            def take():
                try:
                    while not c.closed:
                        pass
                    for request in reversed(requests):
                        values.append(request.result())
                except rdtd.Disconnected:
                    pass
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=take)
            thread.start()
            c.close()
            thread.join(LONG)
            assert not failures, failures
            assert all(value[999] == 999 for value in values)
            del values, requests, ref


def dropped(c, refs):
    """A reader that gets values, deletes the arrays and then deletes its Refs."""
    held = [carried(ref) for ref in refs]
    values = c.get(held)
    assert all(value[9999] == 9999 for value in values)
    del values[1:], held[1:]
    del values, held


def put_many(producer, n):
    """Returns Refs of one live array, and Refs made from their text, which hold nothing."""
    array = producer.empty((10000,), "i64")
    array[:] = np.arange(10000)
    refs = [producer.put(array) for _ in range(n)]
    return refs, [rdtd.Ref(str(ref)) for ref in refs]


def test_objects_dropped_together_are_released_soon():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as producer:
        refs, names = put_many(producer, 200)
        dropped(c, refs)
        until(lambda: all(producer.stat(name)["holds"] == 1 for name in names), "readers have let go")
        del refs[1:]  # the producer's holds
        del refs
        for name in names:
            c.wait_freed(name, timeout=LONG)


if __name__ == "__main__":
    main(globals())
