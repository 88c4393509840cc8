# SPDX-License-Identifier: Apache-2.0
"""Deltas of versions of many parts: ranks are processes with connections of their own at one node, readers of other shardings at
another one. The reader's node receives the deltas only, and makes the parts of the version before; nothing wrong gets through."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from contextlib import contextmanager
from typing import Any, Iterator

import rdtd
from nodes import LONG, Node, main, raises, required, until

np = required("numpy")

ROWS, COLUMNS, RANKS = 480, 512, 3
SHAPE = (ROWS, COLUMNS)


def model(version: int) -> Any:
    """Each version changes about one value in a hundred of the version before."""
    w = np.arange(ROWS * COLUMNS, dtype="f4").reshape(SHAPE) % 60_000  # f2 has these, too
    for number in range(2, version + 1):
        w.reshape(-1)[number % 97::97] += number
    return w


def part(version: int, rank: int) -> dict[str, Any]:
    rows = ROWS // RANKS
    return {"w": rdtd.Box(model(version)[rank * rows:(rank + 1) * rows], SHAPE, (rank * rows, 0)),
            f"bias {rank}": np.full(300, version, "f2")}


def rank_main(socket: str, rank: int) -> None:
    """A rank in a process of its own: publishes the versions whose numbers it reads, and says when each is complete."""
    with rdtd.connect(socket) as c:
        for line in sys.stdin:
            step, version = map(int, line.split())
            try:
                print(c.publish_part("policy", step, rank, RANKS, part(version, rank), delta=True, timeout=LONG), flush=True)
            except rdtd.Error as error:
                print(type(error).__name__, flush=True)


class Rank:
    def __init__(self, node: Node, rank: int) -> None:
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--rank", node.socket, str(rank)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, step: int, version: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{step} {version}\n")
        self.process.stdin.flush()

    def said(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self, by: int = signal.SIGTERM) -> None:
        self.process.send_signal(by)
        self.process.wait(LONG)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


class Readers:
    """Of other shardings than the trainer's, at one node: all of it, its columns, and cast to f2."""

    def __init__(self, c: Any, name: Any) -> None:
        biases = {f"bias {rank}": np.zeros(300, "f2") for rank in range(RANKS)}
        self.whole, self.columns, self.cast = np.zeros(SHAPE, "f4"), np.zeros((ROWS, 300), "f4"), np.zeros(SHAPE, "f2")
        self.biases = biases
        self.plans = [c.plan(name, {"w": self.whole, **biases}), c.plan(name, {"w": rdtd.Box(self.columns, start=(0, 200))}),
                      c.plan(name, {"w": self.cast}, verify=True)]

    def run(self, version: int) -> list[Any]:
        """All of them read the version; returns what each run did."""
        runs = [plan.run(timeout=LONG) for plan in self.plans]
        assert [run.version for run in runs] == [version] * 3, runs
        self.check(version)
        return runs

    def check(self, version: int) -> None:
        w = model(version)
        assert (self.whole == w).all() and (self.columns == w[:, 200:500]).all() and (self.cast == w.astype("f2")).all()
        assert all((bias == version).all() for bias in self.biases.values())


def counts(c: Any) -> tuple[int, int, int]:
    """Replicas that were made by deltas, deltas that failed, replicas that were damaged."""
    status = c.status()
    return status["replicas_by_delta"], status["deltas_failed"], status["replicas_damaged"]


@contextmanager
def trained(*flags: str) -> Iterator[Any]:
    """Two nodes, ranks at the first, a connection to each; the first version is at the second node."""
    with Node(*flags, listen=True) as near, Node(listen=True) as far, rdtd.connect(near.socket) as home, \
            rdtd.connect(far.socket) as c:
        ranks = [Rank(near, rank) for rank in range(RANKS)]
        try:
            name = rdtd.Ref.from_name("policy", address=home.node["address"])
            readers = Readers(c, name)
            publish(ranks, 1)
            readers.run(1)
            yield near, far, home, c, name, ranks, readers
        finally:
            for rank in ranks:
                rank.end(signal.SIGKILL)
        home.unpublish("policy")
        near.kill()  # what the transports keep open for the link, which differs, is not looked at
        far.kill()


def publish(ranks: list[Rank], step: int, version: int = 0, but: tuple[int, ...] = ()) -> None:
    chosen = [rank for i, rank in enumerate(ranks) if i not in but]
    for rank in chosen:
        rank.start(step, version or step)
    said = [rank.said() for rank in chosen]
    assert said == [said[0]] * len(chosen) and said[0].isdigit(), said


def test_readers_of_other_shardings_receive_what_changed() -> None:
    with trained() as (near, far, home, c, name, ranks, readers):
        whole = sum(run.bytes_moved for run in Readers(c, name).run(1))
        assert whole == 0  # the replicas of the first readers serve all of the node
        for version in range(2, 6):
            before = c.status()["bytes_in"]
            publish(ranks, version)
            runs = readers.run(version)
            moved = c.status()["bytes_in"] - before
            assert 0 < moved < model(1).nbytes / 10, moved
            assert 0 < runs[0].bytes_moved < model(1).nbytes / 10, runs[0]
            assert counts(c) == (RANKS * (version - 1), 0, 0)
        assert "made here of an earlier version and a delta" in far.ctl("transfers", "--json")


def test_followers_prepare_by_delta() -> None:
    with trained() as (near, far, home, c, name, ranks, readers):
        with c.follow(name, after=1) as follower, c.follow(name, after=1) as other:
            for version in (2, 3):
                publish(ranks, version)
                for each in (follower, other):
                    prepared = each.prepare(LONG)
                    assert prepared.version == version and 0 < prepared.bytes_moved < prepared.bytes / 10, prepared
                    each.commit(readers.plans[0])
                    assert (readers.whole == model(version)).all()
        assert counts(c) == (2 * RANKS, 0, 0)


def test_on_one_node_nothing_moves() -> None:
    with trained() as (near, far, home, c, name, ranks, readers):
        local = Readers(home, name)
        local.run(1)
        for version in (2, 3):
            publish(ranks, version)
            runs = local.run(version)
            assert all(run.bytes_moved == 0 for run in runs), runs
        assert counts(home) == (0, 0, 0)


def test_a_missed_version_comes_whole() -> None:
    with trained() as (near, far, home, c, name, ranks, readers):
        publish(ranks, 2)
        publish(ranks, 3)
        assert readers.run(3)[0].bytes_moved >= model(1).nbytes
        assert counts(c) == (0, 0, 0)
        publish(ranks, 4)
        readers.run(4)
        assert counts(c) == (RANKS, 0, 0)


def test_a_rank_that_is_killed_between_versions() -> None:
    with trained() as (near, far, home, c, name, ranks, readers):
        publish(ranks, 2)
        readers.run(2)
        ranks[1].end(signal.SIGKILL)
        ranks[0].start(3, 3)
        ranks[2].start(3, 3)
        ranks[1] = Rank(near, 1)  # has no part of a version before, and publishes all of its own
        ranks[1].start(3, 3)
        assert [rank.said() for rank in ranks] == ["3"] * RANKS
        assert model(1).nbytes / RANKS <= readers.run(3)[0].bytes_moved < model(1).nbytes / 2
        assert counts(c) == (RANKS + RANKS - 1, 0, 0)
        publish(ranks, 4)
        readers.run(4)
        assert counts(c) == (RANKS + RANKS - 1 + RANKS, 0, 0)


def test_ranks_at_different_steps_and_what_follows() -> None:
    """A step that fails leaves the version before, and the next one is a change of that."""
    with trained() as (near, far, home, c, name, ranks, readers):
        publish(ranks, 2)
        readers.run(2)
        ranks[0].start(3, 3)
        ranks[1].start(4, 3)
        until(lambda: all(f"step {step}: 1 of 3" in near.ctl("shards", "policy") for step in (3, 4)), "both steps wait")
        home._give_up_part(name, 3, 1, RANKS, "it is at another step")
        home._give_up_part(name, 4, 0, RANKS, "it is at another step")
        assert (ranks[0].said(), ranks[1].said()) == ("OwnerDied", "OwnerDied")
        readers.check(2)
        publish(ranks, 5, 3)
        assert readers.plans[0].run(timeout=LONG).version == 3 and (readers.whole == model(3)).all()
        assert counts(c) == (2 * RANKS, 0, 0)


def forge(home: Any, name: Any, step: int, version: int, deltas: Any, base: Any) -> Any:
    """Publishes a version of one rank whose note says what it likes. Returns what keeps the deltas."""
    boxes = [("w", rdtd.Box(model(version), SHAPE, (0, 0)))]
    forged = home._put_part([deltas], ["deltas"], [None], [None], 0, LONG)
    wrong = home._put_boxes(boxes, "owner", LONG, False, base, forged)
    home.publish_part(name, step, 0, 1, wrong, timeout=LONG)
    return forged


def test_hostile_deltas_never_make_a_wrong_tensor() -> None:
    with Node(listen=True) as near, Node(listen=True) as far, rdtd.connect(near.socket) as home, rdtd.connect(far.socket) as c:
        name = rdtd.Ref.from_name("policy", address=home.node["address"])
        base = home.put_part({"w": rdtd.Box(model(1), SHAPE, (0, 0))})
        other = home.put_part({"w": rdtd.Box(model(9), SHAPE, (0, 0))})
        home.publish_part(name, 1, 0, 1, base, timeout=LONG)
        mine = np.zeros(SHAPE, "f4")
        plan = c.plan(name, {"w": mine})
        assert plan.run(timeout=LONG).version == 1 and (mine == model(1)).all()
        c.get(other)
        room = bytearray(model(1).nbytes * 2)
        used = rdtd._rdt.delta_encode(model(1), model(2), room)
        right = bytes(room[:used])
        gaps, values = bytearray(right), bytearray(right)
        gaps[48:56] = b"\xff" * 8  # a gap far behind the end
        values[-4:] = b"\x00\x00\x80\x7f"  # infinity
        short = np.frombuffer(right[:len(right) // 2], "u1").copy()
        wrong = [("beyond the end", np.frombuffer(bytes(gaps), "u1"), base), ("another value", np.frombuffer(bytes(values), "u1"), base),
                 ("cut off", short, base), ("nothing", np.zeros(100_000, "u1"), base),
                 ("more behind it", np.frombuffer(right + right, "u1"), base),
                 ("not bytes", np.frombuffer(right[:len(right) // 8 * 8], "u8"), base),
                 ("of another base", np.frombuffer(right, "u1"), other),
                 ("the base itself", None, base)]
        step = 1
        for what, deltas, of in wrong:
            step += 1
            failed = counts(c)[1]
            kept = forge(home, name, step, 2, model(1) if deltas is None else deltas, of)
            run = plan.run(timeout=LONG)
            assert run.version == step and (mine == model(2)).all(), what
            assert run.bytes_moved >= mine.nbytes, (what, run)
            assert counts(c) == (0, failed + 1, 0), (what, counts(c))
            mine[:] = 0
        log = far.log()
        assert "its delta" in log and "names elements that the tensor does not have" in log, log
        assert "made here of an earlier version and a delta are not those that were put" in log, log
        base_again = home.put_part({"w": rdtd.Box(model(1), SHAPE, (0, 0))})
        c.get(base_again)  # the right one is used, so the wrong ones above could have been
        kept = forge(home, name, step + 1, 2, np.frombuffer(right, "u1"), base_again)
        assert plan.run(timeout=LONG).bytes_moved == len(right) and (mine == model(2)).all()
        assert counts(c) == (1, len(wrong), 0)
        kept.free()
        near.kill()
        far.kill()


def test_deltas_that_have_ended_are_done_without() -> None:
    with Node(listen=True) as near, Node(listen=True) as far, rdtd.connect(near.socket) as home, rdtd.connect(far.socket) as c:
        name = rdtd.Ref.from_name("policy", address=home.node["address"])
        base = home.put_part({"w": rdtd.Box(model(1), SHAPE, (0, 0))})
        c.get(base)
        gone = home._put_part([np.zeros(100_000, "u1")], ["deltas"], [None], [None], 0, LONG)
        changed = home._put_boxes([("w", rdtd.Box(model(2), SHAPE, (0, 0)))], "owner", LONG, False, base, gone)
        gone.free()
        home.publish_part(name, 1, 0, 1, changed, timeout=LONG)
        mine = np.zeros(SHAPE, "f4")
        assert c.plan(name, {"w": mine}).run(timeout=LONG).bytes_moved >= mine.nbytes and (mine == model(2)).all()
        assert counts(c) == (0, 1, 0)
        near.kill()
        far.kill()


def test_an_unpublished_name_keeps_no_part() -> None:
    with Node(listen=True) as node, rdtd.connect(node.socket) as c:
        for end in lambda: c.unpublish("policy"), lambda: c.unpublish(prefix="pol"):
            for step in 1, 2:
                c.publish_part(rdtd.Ref.from_name("policy", address=c.node["address"]), step, 0, 1,
                               {"w": rdtd.Box(model(step))}, delta=True)
            end()
            until(lambda: c.status()["objects"] == 0, "nothing of the name is left")
        node.kill()


def test_a_connection_that_nobody_has_any_more_ends() -> None:
    with Node() as node:
        c = rdtd.connect(node.socket)
        for step in 1, 2, 3:
            c.publish_part("policy", step, 0, 1, {"w": rdtd.Box(model(step))}, delta=True)
        gone = weakref.ref(c)
        del c
        assert gone() is None
        with rdtd.connect(node.socket) as other:
            until(lambda: other.status()["clients"] == 1, "the session has ended")
            other.unpublish("policy")


def test_a_reader_that_leaves_and_a_publisher_that_ends_meanwhile() -> None:
    """Readers are killed in the middle, and the ranks are frozen or killed: nothing hangs, and nothing wrong is read."""
    with trained() as (near, far, home, c, name, ranks, readers):
        for version in range(2, 8):
            publish(ranks, version)
            reader = os.fork()
            if reader == 0:  # dies in its first fetch, or before it, or after it
                try:
                    with rdtd.connect(far.socket) as own:
                        Readers(own, name).plans[0].run(timeout=LONG)
                finally:
                    os.kill(os.getpid(), signal.SIGKILL)
            if version % 2:
                os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)
            readers.run(version)
        publish(ranks, 8)
        for rank in range(RANKS):
            ranks[rank].end(signal.SIGKILL)
            ranks[rank] = Rank(near, rank)
        readers.run(8)  # the version outlives its ranks; their deltas end with them, or were fetched before
        publish(ranks, 9)
        readers.run(9)
        assert counts(c)[2] == 0


def test_a_version_that_changes_much_has_no_delta_and_memory_is_bounded() -> None:
    with Node(listen=True) as near, Node(listen=True) as far, rdtd.connect(near.socket) as home, rdtd.connect(far.socket) as c:
        name = rdtd.Ref.from_name("policy", address=home.node["address"])
        w = model(1)
        mine = np.zeros(SHAPE, "f4")
        plan = c.plan(name, {"w": mine})
        for step in range(1, 9):
            if step % 3 == 0:
                w += 1
            else:
                w[step] += 1
            home.publish_part(name, step, 0, 1, {"w": w}, delta=True, timeout=LONG)
            assert plan.run(timeout=LONG).version == step and (mine == w).all()
            # this version, its manifest, the one before, and the delta
            until(lambda: len(home.objects()) <= 4, "no more is kept")
        assert counts(c) == (5, 0, 0)
        home.publish_part(name, 9, 0, 1, {"w": w}, timeout=LONG)
        until(lambda: len(home.objects()) == 2, "only the version and its manifest are kept")
        home.publish_part(name, 10, 0, 1, {"w": w}, delta=True, timeout=LONG)
        home.unpublish(name)
        until(lambda: not home.objects(), "nothing is kept")
        near.kill()
        far.kill()


def test_a_base_that_was_freed_by_force_is_done_without() -> None:
    with Node(listen=True) as near, Node(listen=True) as far, rdtd.connect(near.socket) as home, rdtd.connect(far.socket) as c:
        name = rdtd.Ref.from_name("policy", address=home.node["address"])
        w, mine = model(1), np.zeros(SHAPE, "f4")
        plan = c.plan(name, {"w": mine})
        for step in range(1, 6):
            w[step] += 1
            home.publish_part(name, step, 0, 1, {"w": w}, delta=True, timeout=LONG)
            assert plan.run(timeout=LONG).version == step and (mine == w).all()
            if step == 3:
                home.free(home._parts_before[str(name), 0].part, force=True)
        assert counts(c) == (3, 0, 0)
        near.kill()
        far.kill()


def test_several_nodes_make_their_own() -> None:
    with trained() as (near, far, home, c, name, ranks, readers), Node(listen=True) as third, rdtd.connect(third.socket) as other:
        more = Readers(other, name)
        more.run(1)
        for version in (2, 3):
            publish(ranks, version)
            readers.run(version)
            more.run(version)
        assert counts(c) == counts(other) == (2 * RANKS, 0, 0)
        third.kill()


def test_every_dtype_and_shape() -> None:
    values = {"c128": np.zeros(4000, "c16"), "c64": np.zeros((30, 50), "c8"), "scalar": np.array(0.5), "none": np.zeros((0, 3), "f4"),
              "bool": np.zeros(9999, bool), "u8": np.zeros(7777, "u1"), "f16": np.zeros((70, 70), "f2"), "i64": np.zeros(5000, "i8")}
    with Node(listen=True) as near, Node(listen=True) as far, rdtd.connect(near.socket) as home, rdtd.connect(far.socket) as c:
        name = rdtd.Ref.from_name("policy", address=home.node["address"])
        mine = {key: np.ones_like(value) for key, value in values.items()}
        plan = c.plan(name, mine)
        for step in range(1, 6):
            for value in values.values():
                if value.size:
                    value.reshape(-1)[step % value.size] = step % 3
            home.publish_part(name, step, 0, 1, values, delta=True, timeout=LONG)
            assert plan.run(timeout=LONG).version == step
            assert all((mine[key] == value).all() for key, value in values.items())
        assert counts(c) == (4, 0, 0)
        near.kill()
        far.kill()


if len(sys.argv) > 1 and sys.argv[1] == "--rank":
    rank_main(sys.argv[2], int(sys.argv[3]))
else:
    main(globals())
