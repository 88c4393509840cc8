# SPDX-License-Identifier: Apache-2.0
"""Evictable objects that leave memory for files (cache_storage_limit): what is loaded from there, what is not written, what
goes, and what a later daemon has."""
import os
import subprocess
import tempfile
from types import SimpleNamespace

import rdtd

from nodes import BUILD, LONG, Killed, Node, Skipped, main, raises, required, until

np = required("numpy")

MIB = 1 << 20
CACHE = 16 * MIB  # so two blocks of 1 MiB are written ahead, once it has more than 14 MiB


def block(number, bytes=MIB):
    return np.full(bytes, number % 251, dtype=np.uint8)


def folder():
    return tempfile.mkdtemp(prefix="store")


def flags(store, files="1GiB", *more):
    return ["--storage-dir", store, "--set", f"daemon.cache_limit={CACHE}",
            "--set", f"daemon.cache_storage_limit={files}", *more]


def own(c):
    rows = c.cache()["owners"]
    return rows[0] if rows else {"objects": 0, "bytes": 0, "spilled_objects": 0, "files": 0}


def files(store):
    return sorted(name for name in os.listdir(store) if name != "storage.lock")


def name_of(ref):
    return f"{ref.generation:016x}.cache.safetensors"


def calm(c, store):
    """The disk has what goes next."""

    def is_calm():
        row = own(c)
        ahead = row["files"] - row["spilled_objects"]
        whole = sum(name.endswith(".safetensors") for name in files(store))
        return (row["bytes"] <= CACHE * 7 // 8 or ahead == 2) and whole == row["files"] and row["bytes"] <= CACHE

    until(is_calm, f"the disk has what goes next: {own(c)}, {files(store)}")


def put(c, number, bytes=MIB, **options):
    return c.put(block(number, bytes), id=f"b{number}", evictable=True, **options)


def put_slowly(c, store, numbers):
    refs = []
    for number in numbers:
        refs.append(put(c, number))
        calm(c, store)
    return refs


def there(c, numbers):
    numbers = list(numbers)
    found = c.exists([rdtd.Ref.from_id(f"b{number}") for number in numbers])
    return {number for number, one in zip(numbers, found) if one}


def holds(c, number):
    return (c.get(rdtd.Ref.from_id(f"b{number}"), timeout=LONG) == block(number)).all()


def test_evicted_objects_are_loaded_from_files():
    store = folder()
    with Node(*flags(store)) as node, rdtd.connect(node.socket) as c:
        refs = put_slowly(c, store, range(60))
        assert there(c, range(60)) == set(range(60))
        row = own(c)
        assert row["objects"] == 60 and row["evictions"] == 0 and row["spilled_objects"] == row["spilled"] >= 44, row
        assert not row["unspilled_late"] + row["unspilled_failed"] + row["unspilled_small"], row
        assert row["file_bytes"] >= row["files"] * MIB and row["files"] == row["spilled_objects"] + 2, row
        usage = {one["what"]: one["used"] for one in c.limits()["owner"]} if hasattr(c, "limits") else {}
        assert usage.get("stored_bytes", row["file_bytes"]) == row["file_bytes"], usage
        status = c.status()
        assert status["evictable_file_bytes"] == row["file_bytes"] and status["evictable_spilled"] == row["spilled"]
        assert "SPILLED" in node.ctl("cache") and "before the disk had them" in node.ctl("cache")
        assert f"rdtd_evictable_spilled_total {row['spilled']}" in node.ctl("metrics")
        found = c.lookup([f"b{number}" for number in range(60)], lease_for=LONG)
        assert all(found) and own(c)["file_hits"] == row["spilled"]
        memory = c.empty(60 * MIB, "u8")
        c.load_many(found, [memory[i * MIB:(i + 1) * MIB] for i in range(60)])
        assert all((memory[i * MIB:(i + 1) * MIB] == i).all() for i in range(60))
        c.end_lease(found)
        del memory
        assert all(holds(c, number) for number in range(60))
        until(lambda: own(c)["idle_objects"] == 60, "nothing is held")
        assert name_of(refs[0]) in files(store)
        c.put(block(99), id="b0", evictable=True, replace=True)
        assert name_of(refs[0]) not in files(store), "the answer waits until the file is gone"
        assert (c.get(rdtd.Ref.from_id("b0")) == 99).all()
        with raises(rdtd.Invalid, "cache_storage_limit"):
            c.store(refs[1])
        gone = [name_of(ref) for ref in refs[10:20]]
        assert set(gone) <= set(files(store))
        assert c.free(prefix="b1", force=True) == 11 and not set(gone) & set(files(store))
        objects, bytes = c.flush_cache()
        assert objects == 49 and bytes >= 49 * MIB and files(store) == []
        until(lambda: own(c)["objects"] == 0, "what was read from a file a moment ago ends, too")


def test_what_is_used_again_needs_no_file():
    store = folder()
    with Node(*flags(store)) as node, rdtd.connect(node.socket) as c:
        put_slowly(c, store, range(15))
        written = {name for name in files(store)}
        assert len(written) == 2
        for number in 0, 1:  # they were to go next
            assert holds(c, number)
        until(lambda: not written & set(files(store)), "their files go")
        calm(c, store)
        put_slowly(c, store, range(15, 40))
        row = own(c)
        assert there(c, range(40)) == set(range(40)) and row["unspilled_late"] == row["evictions"] == 0, row
        c.flush_cache()


def test_files_past_the_limit_go_least_recently_used_first():
    store = folder()
    with Node(*flags(store, "8MiB")) as node, rdtd.connect(node.socket) as c:
        put_slowly(c, store, range(20))
        assert own(c)["spilled_objects"] >= 4
        for number in range(20, 60):
            assert holds(c, 0), "it is in a file, and used"
            put_slowly(c, store, [number])
        row = own(c)
        left = there(c, range(60))
        assert {0} | set(range(50, 60)) <= left and not {1, 2, 3, 4, 5} & left, left
        assert row["file_bytes"] <= 8 * MIB and row["evictions"] == 60 - len(left) and row["spilled_objects"] >= 4, row
        assert not row["unspilled_late"] + row["unspilled_failed"], row
        c.put(block(1, 10 * MIB), id="large", evictable=True)  # its file would be too large
        until(lambda: own(c)["bytes"] <= CACHE, "there is room for it")
        c.flush_cache()
        assert files(store) == []


def test_small_objects_have_no_files():
    store = folder()
    with Node(*flags(store)) as node, rdtd.connect(node.socket) as c:
        c.put_many([block(number, 20000) for number in range(2000)], ids=[f"b{number}" for number in range(2000)],
                   evictable=True)
        until(lambda: own(c)["bytes"] <= CACHE, "some have gone")
        row = own(c)
        assert row["unspilled_small"] == row["evictions"] == 2000 - row["objects"] and row["files"] == 0, row
        c.flush_cache()


def test_puts_never_wait_for_the_disk_and_what_it_has_not_in_time_ends():
    store = folder()
    with Node(*flags(store)) as node, rdtd.connect(node.socket) as c:
        for number in range(400):
            put(c, number)
        calm(c, store)
        row = own(c)
        left = there(c, range(400))
        assert len(left) == row["objects"] and row["evictions"] == row["unspilled_late"] == 400 - len(left), row
        assert all(holds(c, number) for number in left)
        until(lambda: own(c)["idle_objects"] == len(left), "nothing is held")
        c.flush_cache()


def test_a_full_disk_ends_objects_and_fails_no_put():
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode != 0:
        raise Skipped("a disk of its own needs root and a mount namespace")
    store = folder()
    disk = SimpleNamespace(command=["unshare", "-m", "sh", "-c",
                                    f'mount -t tmpfs -o size=6m,mode=700 none {store} && exec "$@"', "sh"])
    with Node(*flags(store), namespace=disk) as node, rdtd.connect(node.socket) as c:
        for turn in range(2):
            for number in range(60):
                put(c, number)
                until(lambda: own(c)["bytes"] <= CACHE, "there is room")
            until(lambda: own(c)["unspilled_failed"] > 10, f"the disk is full: {own(c)}")
            row = own(c)
            left = there(c, range(60))
            assert len(left) == row["objects"] and 3 <= row["files"] <= 6, row
            assert all(holds(c, number) for number in left)
            until(lambda: own(c)["idle_objects"] == len(left), "nothing is held")
            assert "without room there" in node.ctl("cache")
            c.flush_cache()
        node.process.terminate()  # its log has a warning
        assert node.process.wait(LONG) == 0


def test_a_later_daemon_has_them_without_a_keeper():
    store = folder()
    with Node(*flags(store), keeps_identity=True) as node:
        with rdtd.connect(node.socket) as c:
            put_slowly(c, store, range(40))
            assert own(c)["files"] >= 24
            c.put(block(7), id="b3", evictable=True, replace=True)
            c.free(rdtd.Ref.from_id("b4"), force=True)
            calm(c, store)
            spilled = own(c)["files"]
        node.kill()
        node.start()
        with rdtd.connect(node.socket) as c:
            left = there(c, range(40))
            assert len(left) == spilled and {3, 4} & left == set(), f"what was replaced or freed is not there again: {left}"
            assert all(holds(c, number) for number in left)
            until(lambda: own(c)["idle_objects"] == len(left), "nothing is held")
            row = own(c)
            assert row["spilled_objects"] == row["files"] == len(left) and row["bytes"] == 0, row
            put_slowly(c, store, range(100, 130))
            assert left <= there(c, range(40)) and there(c, range(100, 130)) == set(range(100, 130))
        node.command[node.command.index("daemon.cache_storage_limit=1GiB")] = "daemon.cache_storage_limit=5MiB"
        node.kill()
        node.start()
        with rdtd.connect(node.socket) as c:
            until(lambda: own(c)["file_bytes"] <= 5 * MIB and len(files(store)) == own(c)["files"], "a lower limit holds")
            assert own(c)["files"] == 4
        node.command[node.command.index("daemon.cache_storage_limit=5MiB")] = "daemon.cache_storage_limit=0"
        node.kill()
        node.start()
        until(lambda: files(store) == [], "without a limit there are no files")


def test_kills_in_the_middle_of_a_spill_leave_whole_objects():
    store = folder()
    with Killed(*flags(store)) as killed:
        with rdtd.connect(killed.node.socket) as c:
            with killed.kill_every(0.25):
                for number in range(300):
                    put(c, number, replace=True)
            left = there(c, range(300))
            assert len(left) >= 12 and all(holds(c, number) for number in left)
            with killed.kill_every(0.25):
                for turn in range(3):  # of spilled ones, too
                    for number in range(40):
                        c.put(block(number + turn), id=f"b{number}", evictable=True, replace=True)
                    for number in there(c, range(40)):
                        assert (c.get(rdtd.Ref.from_id(f"b{number}"), timeout=LONG) == number + turn).all()
            killed.kill()
            assert not [name for name in files(store) if name.endswith(".tmp")]
            for number in there(c, range(40)):
                assert (c.get(rdtd.Ref.from_id(f"b{number}"), timeout=LONG) == number + 2).all()
            until(lambda: own(c)["idle_objects"] == own(c)["objects"], "nothing is held")
            c.flush_cache()
            until(lambda: files(store) == [], "nothing is left")
    store = folder()
    with Node(*flags(store), keeps_identity=True) as node:
        for turn in range(6):
            with rdtd.connect(node.socket) as c:
                for number in range(30):
                    c.put(block(100 * turn + number), id=f"b{number}", evictable=True, replace=True)
            node.kill()
            node.start()
            with rdtd.connect(node.socket) as c:
                for number in there(c, range(30)):
                    got = c.get(rdtd.Ref.from_id(f"b{number}"), timeout=LONG)
                    assert (got == (100 * turn + number) % 251).all(), f"{number} of turn {turn} is {got[0]}"
                    del got
        with rdtd.connect(node.socket) as c:
            until(lambda: own(c)["idle_objects"] == own(c)["objects"], "nothing is held")
            c.flush_cache()
            assert files(store) == []


def test_a_damaged_file_is_a_miss_from_then_on():
    store = folder()
    with Node(*flags(store)) as node, rdtd.connect(node.socket) as c:
        refs = put_slowly(c, store, range(20))
        path = os.path.join(store, name_of(refs[0]))
        os.chmod(path, 0o600)
        with open(path, "r+b") as file:
            file.seek(-100, os.SEEK_END)
            file.write(b"x")
        os.chmod(path, 0o400)
        with raises(rdtd.Damaged, "put the object again"):
            c.get(rdtd.Ref.from_id("b0"), timeout=LONG)
        assert c.lookup(["b0", "b1"])[0] is None and holds(c, 1)
        put(c, 0)
        assert holds(c, 0)
        until(lambda: own(c)["idle_objects"] == 20, "nothing is held")
        c.flush_cache()
        assert [name.split(".")[1] for name in files(store)] == ["damaged"]
        node.process.terminate()  # its log has an error
        assert node.process.wait(LONG) == 0


def as_user(node, uid, script):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with rdtd.connect(node.socket) as c:
                script(c)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_files_that_a_power_failure_has_spoilt_are_misses():
    store = folder()
    with Node(*flags(store), keeps_identity=True) as node:
        with rdtd.connect(node.socket) as c:
            refs = put_slowly(c, store, range(24))
        node.kill()
        for ref, length in zip(refs, (0, 5000, None)):  # empty, cut off, and with a header that says something else
            path = os.path.join(store, name_of(ref))
            os.chmod(path, 0o600)
            if length is not None:
                os.truncate(path, length)
            else:
                with open(path, "r+b") as file:
                    file.write(bytes(4096))
            os.chmod(path, 0o400)
        node.start()
        with rdtd.connect(node.socket) as c:
            assert c.lookup(["b0", "b1", "b2", "b3"])[:3] == [None] * 3 and holds(c, 3)
            assert not {name_of(ref) for ref in refs[:3]} & set(files(store)) and c.status()["storage_bad_files"] == 0
            until(lambda: own(c)["idle_objects"] == own(c)["objects"], "nothing is held")
            c.flush_cache()
            assert files(store) == []


def test_who_fills_the_disk_loses_own_files():
    if os.geteuid() != 0:
        raise Skipped("only root can be two users")
    store = folder()
    with Node(*flags(store, "20MiB", "--set", "daemon.owner_cache_storage_limit=16MiB"), keeps_identity=True) as node:
        os.chmod(node.dir, 0o755)
        os.chmod(node.socket, 0o666)
        with rdtd.connect(node.socket) as c:
            put_slowly(c, store, range(20))
            mine = own(c)["spilled_objects"]
            assert mine >= 4

            def fill(other):
                for number in range(200):
                    put(other, number)
                    until(lambda: own(other)["bytes"] <= CACHE, "there is room")
                row = own(other)
                assert row["file_bytes"] <= 16 * MIB and row["spilled"] > 10, row

            as_user(node, 65533, fill)
            rows = {row["owner"][0]: row for row in c.cache()["owners"]}
            assert len(rows) == 2 and sum(row["file_bytes"] for row in rows.values()) <= 20 * MIB, rows
            assert rows[0]["spilled_objects"] >= mine, rows
            assert all(holds(c, number) for number in there(c, range(20)))
            until(lambda: own(c)["idle_objects"] == own(c)["objects"], "nothing is held")
            c.flush_cache(all=True)
            assert files(store) == []


def test_descriptors_that_are_wanted_end_files_first():
    store = folder()
    with Node(*flags(store), "--set", "limits.owner_max_regions=40") as node, rdtd.connect(node.socket) as c:
        put_slowly(c, store, range(36))
        for number in range(36, 80):
            put_slowly(c, store, [number])
        row = own(c)
        assert row["objects"] <= 40 and row["evictions"] >= 40 and row["spilled_objects"] > 10, row
        left = there(c, range(80))
        assert set(range(70, 80)) <= left and all(holds(c, number) for number in left)
        until(lambda: own(c)["idle_objects"] == len(left), "nothing is held")
        c.flush_cache()


def test_what_users_store_takes_the_place_of_files_of_the_cache():
    store = folder()
    with Node(*flags(store), "--set", "limits.owner_max_stored_bytes=12MiB") as node, rdtd.connect(node.socket) as c:
        put_slowly(c, store, range(22))
        assert own(c)["file_bytes"] >= 8 * MIB
        ref = c.put(block(7, 9 * MIB), id="mine", snapshot=True, detached=True)
        c.store(ref)
        assert own(c)["file_bytes"] <= 3 * MIB and own(c)["evictions"] >= 5
        for number in range(30, 60):
            put(c, number)
            until(lambda: own(c)["bytes"] <= CACHE, "there is room")
        assert own(c)["unspilled_failed"] > 0 and name_of(ref).replace(".cache", "") in files(store)
        c.flush_cache()
        c.free(ref)
        assert files(store) == []


def test_the_configuration_is_checked():
    limit = ["--set", "daemon.cache_storage_limit=1GiB"]
    for wrong, text in ((limit, "needs storage_dir"),
                        (["--storage-dir", "/x", "--set", "daemon.storage_max=1MiB", *limit], "more than storage_max")):
        done = subprocess.run([str(BUILD / "rdtd"), "--check-config", *wrong], capture_output=True, text=True, timeout=LONG)
        assert done.returncode != 0 and text in done.stderr + done.stdout, done


if __name__ == "__main__":
    main(globals())
