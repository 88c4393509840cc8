# SPDX-License-Identifier: Apache-2.0
"""stored=True, and what a later daemon, and the safetensors library, make of the files."""
import os
import signal
import subprocess
import tempfile
import time

import numpy as np

import rdtd

build, folder = os.environ["RDT_BUILD_DIR"], tempfile.mkdtemp(prefix="rdt-storage.")
socket, store = f"{folder}/s", f"{folder}/store"


def start() -> subprocess.Popen:
    log = open(f"{folder}/log", "ab")
    daemon = subprocess.Popen([f"{build}/rdtd", "--config=", f"--socket={socket}", f"--state-dir={folder}/state",
                               f"--storage-dir={store}", f"--backend-dir={build}/backends"], stderr=log)
    for _ in range(400):
        try:
            rdtd.Connection(socket).close()
            return daemon
        except rdtd.Disconnected:
            time.sleep(0.05)
    raise SystemExit("the daemon does not answer")


def end(daemon: subprocess.Popen, number: int) -> None:
    daemon.send_signal(number)
    daemon.wait()


daemon = start()
weights = {"w": np.arange(1 << 18, dtype=np.float32).reshape(512, 512), "b": np.arange(5, dtype=np.int8), "step": 7}
with rdtd.Connection(socket) as c:
    version = c.publish("weights", weights, stored=True)
    assert version == 1, version
    ref = c.put(weights["b"], id="detached", detached=True, stored=True)
    path = c.store(c.name("weights"))
    assert path.startswith(store) and path.endswith(".safetensors"), path
    status = c.status()
    assert status["stored_objects"] == 2 and status["stored_names"] == 1, status
    live = c.put(np.zeros(3))
    try:
        c.store(live)
        raise SystemExit("a live object was stored")
    except rdtd.Invalid as error:
        assert "snapshot" in str(error), error
    try:
        c.publish("lease", weights, lease=True, stored=True)
        raise SystemExit("a lease was stored")
    except ValueError:
        pass
end(daemon, signal.SIGKILL)

try:
    from safetensors.numpy import load_file
    tensors = load_file(path)
    assert len(tensors) == 2, tensors.keys()
    shapes = {value.shape: value for value in tensors.values()}
    assert np.array_equal(shapes[(512, 512)], weights["w"]) and np.array_equal(shapes[(5,)], weights["b"])
    print("the safetensors library reads the file")
except ImportError:
    print("skipped: the library safetensors is not installed, so it does not read the file")

daemon = start()
with rdtd.Connection(socket) as c:
    got = c.get(c.name("weights"))
    assert np.array_equal(got["w"], weights["w"]) and np.array_equal(got["b"], weights["b"]) and got["step"] == 7
    assert np.array_equal(c.get(ref), weights["b"])
    assert c.status()["storage_restored"] == 2
    assert c.publish("weights", {"w": np.zeros(4)}, stored=True) == 2
    del got
    c.unpublish("weights")
    c.free(ref, force=True)
assert os.listdir(store) == [], os.listdir(store)
end(daemon, signal.SIGTERM)
