# SPDX-License-Identifier: Apache-2.0
"""stored=True, and what a later daemon, and the safetensors library, make of the files."""
import json
import os
import sys
import tempfile

import rdtd

from nodes import Node, Skipped, main, raises

try:
    import numpy as np
except ImportError:
    print("no numpy here")
    sys.exit(77)

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
        assert os.listdir(store) == [], os.listdir(store)


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


main(globals())
