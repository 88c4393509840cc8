# SPDX-License-Identifier: Apache-2.0
"""Ray's transport with tensors on GPUs, on a FAKE driver and a stand-in for torch (fake_torch.py), through real
daemons. Ray's own calls of the transport are made here, without a cluster. Shows which GPU the bytes go to, and
the order of streams; shows nothing about a GPU, nor about PyTorch: tests/gpu/torch_tensors.py does."""
import os
import pickle
import subprocess
import sys

try:
    import numpy as np
    import ray  # noqa: F401
except ImportError as missing:
    print(f"{missing}: `make test-ray` installs what this needs")
    sys.exit(77)

import fake_torch
from gpu import Gate, Own, cuda, driver, use
from nodes import LONG, Node, main, until

import rdtd


def allocate(gpu, count):
    use(gpu)
    own = Own(np.zeros(count, "u1")).address
    use(0)
    return own


torch = fake_torch.install(cuda, allocate)

import rdtd.ray  # noqa: E402
from ray.experimental.rdt import util  # noqa: E402

VALUE = np.arange(1 << 19, dtype="f4").reshape(512, 1024)


def tensor_on(device, value=VALUE):
    made = torch.empty(value.shape, dtype=torch.float32, device=device)
    made.numpy()[...] = value
    return made


class Transport:
    """The transport in a process of Ray's, with a daemon that has the fake driver."""

    def __init__(self, *flags, **options):
        self.node = Node(*flags, **options)
        os.environ["RDT_SOCKET"] = self.node.socket
        use(0)

    def __enter__(self):
        self.ray = rdtd.ray.RdtdTransport()
        return self.ray

    def __exit__(self, *ignored):
        self.ray._free_all()
        rdtd.default().close()
        torch.state.__dict__.update(stream=0, gpu=0, available=True)


def described(transport, name, tensors):
    """The metadata as Ray's reader gets it."""
    return pickle.loads(pickle.dumps(transport.extract_tensor_transport_metadata(name, tensors)))


def received(transport, name, meta, targets=None):
    started = transport.fetch_multiple_tensors(name, meta, None, targets)
    return transport.wait_fetch_complete(started)


def test_ray_takes_tensors_of_both_devices():
    rdtd.ray.register()
    assert util.device_match_transport("cuda", "RDTD") and util.device_match_transport("cpu", "RDTD")
    assert not util.device_match_transport("cuda", "RDTD_NUMPY")


def test_tensor_arrives_on_the_readers_current_gpu():
    with Transport() as transport:
        meta = described(transport, "a", [tensor_on("cuda:1")])
        assert meta.tensor_device == "cuda"
        for gpu in (0, 1):
            torch.state.gpu = gpu
            (got,) = received(transport, "a", meta)
            assert isinstance(got, torch.Tensor) and str(got.device) == f"cuda:{gpu}"
            assert (got.numpy() == VALUE).all()
        torch.state.available = False  # a driver on a machine without a GPU, for instance
        (got,) = received(transport, "a", meta)
        assert got.is_cpu and (got.numpy() == VALUE).all()
        del got


def test_put_is_ordered_by_torchs_current_stream_and_does_not_wait_for_it():
    with Transport() as transport:
        late, source, gate = torch.empty(VALUE.shape, dtype=torch.float32, device="cuda:0"), Own(VALUE), Gate()
        gate.copy(late.address, source.address.value, VALUE.nbytes)
        torch.state.stream = gate.stream.value
        meta = described(transport, "b", [late])
        started = transport.fetch_multiple_tensors("b", meta, None)
        rdtd.default().ping()
        assert not started.request.done(), "readers wait for the stream"
        gate.event.set()
        (got,) = transport.wait_fetch_complete(started, LONG)
        assert (got.numpy() == VALUE).all()
        gate.end()
        source.end()
        del got, started


def test_object_with_tensors_in_both_places_keeps_them_apart():
    with Transport() as transport:
        meta = described(transport, "c", [tensor_on("cuda:1"), tensor_on("cpu", VALUE + 1), tensor_on("cuda:0", VALUE + 2)])
        assert meta.tensor_device == "cuda"
        got = received(transport, "c", meta)
        assert [str(tensor.device) for tensor in got] == ["cuda:0", "cpu", "cuda:0"]
        for i, tensor in enumerate(got):
            assert (tensor.numpy() == VALUE + i).all(), i
        del got, tensor


def test_targets_may_be_on_other_devices_than_the_object():
    with Transport() as transport:
        meta = described(transport, "d", [tensor_on("cuda:0"), tensor_on("cpu", VALUE + 1)])
        for places in (("cpu", "cuda:1"), ("cuda:1", "cpu"), ("cuda:1", "cuda:0"), ("cpu", "cpu")):
            targets = [torch.empty(VALUE.shape, dtype=torch.float32, device=place) for place in places]
            got = received(transport, "d", meta, targets)
            for i, tensor in enumerate(got):
                assert tensor is targets[i] and (tensor.numpy() == VALUE + i).all(), (places, i)


def read():
    """A reader in a process of its own, which sees some of the GPUs only."""
    use(0)
    (got,) = received(rdtd.ray.RdtdTransport(), "e", pickle.load(sys.stdin.buffer))
    print(got.device, rdtd.default()._gpu(got.device.index), (got.numpy() == VALUE).all())


def test_reader_that_sees_another_gpu_gets_the_tensor_there_from_its_node_and_from_another():
    with Transport(listen=True) as transport:
        meta = transport.extract_tensor_transport_metadata("e", [tensor_on("cuda:0")])
        away = Node(listen=True)
        for socket in (os.environ["RDT_SOCKET"], away.socket):
            done = subprocess.run([sys.executable, __file__, "read"], input=pickle.dumps(meta), timeout=LONG,
                                  env={**os.environ, "RDT_SOCKET": socket, "CUDA_VISIBLE_DEVICES": "1"},
                                  capture_output=True)
            said = done.stdout.decode().split()
            assert said[:1] == ["cuda:0"] and said[1].endswith("2") and said[2] == "True", done
        transport.garbage_collect("e", meta, [])
        until(lambda: '"generation"' not in away.ctl("objects", "--json"), "the object is gone")
        away.kill()  # the link between the daemons keeps descriptors open


if __name__ == "__main__":
    if sys.argv[1:] == ["read"]:
        read()
    else:
        main(globals())
