# SPDX-License-Identifier: Apache-2.0
"""stored=True, and what a later daemon, and the safetensors library, make of the files."""
import base64
import hashlib
import json
import os
import tempfile

import rdtd

from nodes import Node, Skipped, main, raises, required, until

np = required("numpy")

WEIGHTS = {"w": np.arange(1 << 18, dtype=np.float32).reshape(512, 512), "b": np.arange(5, dtype=np.int8), "step": 7}


def test_stored_objects_survive_a_killed_daemon():
    store = tempfile.mkdtemp(prefix="store")
    with Node("--storage-dir", store, keeps_identity=True) as node:
        with rdtd.connect(node.socket) as c:
            version = c.publish("weights", WEIGHTS, stored=True)
            assert version == 1, version
            ref = c.put(WEIGHTS["b"], id="detached", detached=True, stored=True)
            path = c.store(c.name("weights"))
            assert path.startswith(store) and path.endswith(".safetensors"), path
            status = c.status()
            assert status["stored_objects"] == 2 and status["stored_names"] == 1, status
        node.kill()
        node.start()
        with rdtd.connect(node.socket) as c:
            got = c.get(c.name("weights"))
            assert np.array_equal(got["w"], WEIGHTS["w"]) and np.array_equal(got["b"], WEIGHTS["b"]) and got["step"] == 7
            assert np.array_equal(c.get(ref), WEIGHTS["b"])
            assert c.status()["storage_restored"] == 2
            assert c.publish("weights", {"w": np.zeros(4)}, stored=True) == 2
            del got
            c.unpublish("weights")
            c.free(ref, force=True)
        assert os.listdir(store) == ["storage.lock"], os.listdir(store)


def test_stored_object_is_replaced_and_its_file_goes():
    store = tempfile.mkdtemp(prefix="store")
    with Node("--storage-dir", store, keeps_identity=True) as node:
        with rdtd.connect(node.socket) as c:
            c.put(WEIGHTS["w"], id="key", detached=True, stored=True)
            read = c.get(rdtd.Ref.from_id("key"))
            with raises(ValueError, "replace and stored"):
                c.put(WEIGHTS["b"], id="key", detached=True, stored=True, replace=True)
            second = c.put(WEIGHTS["b"], id="key", detached=True, snapshot=True, replace=True)
            assert (read == WEIGHTS["w"]).all(), "its reader keeps it"
            assert os.listdir(store) == ["storage.lock"], "its file goes before the answer, although somebody reads it"
            c.store(second)
            c.publish("name", second, stored=True)
            with raises(rdtd.Exists, "is stored on the disk for a published name"):
                c.put(3, id="key", detached=True, replace=True)
            first = c.put(WEIGHTS["b"], id="other", detached=True, snapshot=True)
            c.publish("mine", first)
            c.put(4, id="other", detached=True, replace=True)
            with raises(rdtd.Freed, "another one has replaced it"):
                c.store(first)
            del read
        node.kill()
        node.start()
        with rdtd.connect(node.socket) as c:
            assert np.array_equal(c.get(rdtd.Ref.from_id("key")), WEIGHTS["b"])
            c.unpublish("name")
            c.free(rdtd.Ref.from_id("key"))


def test_time_to_store_grows_with_the_bytes():
    timeouts = []

    class Stores(rdtd.Connection):
        def _store(self, ref, timeout):
            timeouts.append(timeout)
            return "file"

    with Node("--storage-dir", tempfile.mkdtemp(prefix="store")) as node, Stores(node.socket) as c:
        little, large = np.zeros(3), np.zeros(130 << 20, np.int8)
        c.store(c.put(little, snapshot=True))
        c.put(large, stored=True)
        c.publish("large", large, stored=True)
        c.store(c.name("large"), timeout=5)
        c.store(c.name("large"))
        c.store(rdtd.Ref("never"))
        c.unpublish("large")
    assert timeouts == [600, 602, 602, 5, 602, 600], timeouts


def test_what_cannot_be_stored_is_refused():
    with Node("--storage-dir", tempfile.mkdtemp(prefix="store")) as node, rdtd.connect(node.socket) as c:
        live = c.put(np.zeros(3))
        with raises(rdtd.Invalid, "snapshot"):
            c.store(live)
        with raises(ValueError, "lease"):
            c.publish("lease", WEIGHTS, lease=True, stored=True)


def test_file_has_the_names_of_the_tensors():
    with Node("--storage-dir", tempfile.mkdtemp(prefix="store")) as node, rdtd.connect(node.socket) as c:
        c.publish("weights", {"small": WEIGHTS["b"], "layer.0": WEIGHTS["w"]}, stored=True)
        with open(c.store(c.name("weights")), "rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            assert set(head) == {"__metadata__", "small", "layer.0"}, head.keys()
            begin, end = head["small"]["data_offsets"]
            file.seek(begin, os.SEEK_CUR)
            assert file.read(end - begin) == WEIGHTS["b"].tobytes()
        c.unpublish("weights")


def test_the_safetensors_library_reads_the_file():
    try:
        from safetensors.numpy import load_file
    except ImportError:
        raise Skipped("the library safetensors is not installed") from None
    with Node("--storage-dir", tempfile.mkdtemp(prefix="store")) as node, rdtd.connect(node.socket) as c:
        c.publish("weights", WEIGHTS, stored=True)
        tensors = load_file(c.store(c.name("weights")))
        shapes = {value.shape: value for value in tensors.values()}
        assert len(tensors) == 2, tensors.keys()
        assert np.array_equal(shapes[(512, 512)], WEIGHTS["w"]) and np.array_equal(shapes[(5,)], WEIGHTS["b"])
        c.unpublish("weights")


def without_checksums(path):
    """Makes of a file what an earlier rdtd would have written: its description has no fields 20 and 21."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    length = int.from_bytes(data[:8], "little")
    head = bytes(data[8:8 + length])
    text = head[head.index(b'"rdtd":"') + 8:]
    text = text[:text.index(b'"')]
    version, _, encoded = text.split(b" ")
    facts = base64.b64decode(encoded)
    at = facts.rindex(b"\xa2\x01")  # the tag of field 20
    order = at + 3 + facts[at + 2]
    assert facts[order:order + 2] == b"\xa8\x01" and len(facts) - order < 12, facts[at:]
    old = facts[:at]
    new = head.replace(text, b" ".join((version, hashlib.sha256(old).hexdigest().encode(), base64.b64encode(old))))
    assert len(new) <= length
    data[8:8 + length] = new.ljust(length)
    os.chmod(path, 0o600)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, 0o400)


def test_file_of_an_earlier_rdtd_is_served_and_counted():
    store = tempfile.mkdtemp(prefix="store")
    with Node("--storage-dir", store, keeps_identity=True) as node:
        with rdtd.connect(node.socket) as c:
            c.publish("old", WEIGHTS, stored=True)
            old = c.store(c.name("old"))
            c.publish("new", WEIGHTS, stored=True)
        node.kill()
        without_checksums(old)
        node.start()
        with rdtd.connect(node.socket) as c:
            for name in "old", "new":
                assert np.array_equal(c.get(c.name(name))["w"], WEIGHTS["w"])
            status = c.status()
            assert status["storage_without_sums"] == 1 and status["storage_checked"] == 1, status
            assert status["storage_damaged"] == 0, status
            assert "1 have no checksums" in node.ctl("scrub")
            for name in "old", "new":
                c.unpublish(name)


def test_checksum_of_the_publisher_outlives_the_daemon():
    store = tempfile.mkdtemp(prefix="store")
    with Node("--storage-dir", store, keeps_identity=True) as node:
        with rdtd.connect(node.socket) as c:
            c.publish("weights", WEIGHTS, stored=True)
        node.kill()
        node.start()
        with rdtd.connect(node.socket) as c:
            got = c.get(c.name("weights"), verify=True)
            assert np.array_equal(got["w"], WEIGHTS["w"])
            del got
            c.unpublish("weights")


main(globals())
