# SPDX-License-Identifier: Apache-2.0
"""Plans and commits that write tensors on GPUs, on the FAKE driver: see gpu.py."""
import threading

import rdtd

from gpu import VALUE, ByInterface, Gate, Gpu, np, seen
from interrupts import interrupted
from nodes import LONG, main, raises, times_out


def target(value, stream=1):
    return ByInterface(np.zeros_like(value), stream=stream)


def on_gpu(tensor):
    return seen(tensor.address.value, tensor.array.size, tensor.array.dtype).reshape(tensor.array.shape)


BIAS = np.arange(1024, dtype="f4")


def publish(c, step):
    c.publish_part("policy", step, 0, 1, {"w": VALUE + step, "bias": BIAS * step})


def test_plan_writes_gpus_and_host_memory():
    with Gpu() as (c, reader):
        publish(c, 1)
        w, half, bias = target(VALUE), target(VALUE[:7]), np.zeros_like(BIAS)
        plan = reader.plan("policy", {"w": [rdtd.Box(w), rdtd.Box(half, None, (3, 0))], "bias": bias})
        for step in 1, 2:
            run = plan.run()
            assert run.step == step and (on_gpu(w) == VALUE + step).all() and (bias == BIAS * step).all()
            assert (on_gpu(half) == VALUE[3:10] + step).all()
            publish(c, step + 1)
        del plan
        w.end()
        half.end()
        c.unpublish("policy")


def test_parts_of_tensors_on_gpus_lie_in_host_memory():
    with Gpu() as (c, reader):
        w, got = ByInterface(VALUE, stream=1), np.zeros_like(VALUE)
        plan = reader.plan("policy", {"w": got}, verify=True)
        for step, checksum in (1, False), (2, True):
            on_gpu(w)[:] = VALUE + step
            c.publish_part("policy", step, 0, 1, {"w": w, "bias": BIAS}, checksum=checksum)
            on_gpu(w)[:] = 0
            assert plan.run(timeout=LONG).step == step and (got == VALUE + step).all()
        del plan
        w.end()
        c.unpublish("policy")


def test_run_waits_for_the_stream_of_its_targets_and_can_be_interrupted():
    with Gpu() as (c, reader):
        publish(c, 1)
        gate = Gate()
        w = target(VALUE, stream=gate.stream.value)
        plan = reader.plan("policy", {"w": w})
        times_out("did not come so far in time", lambda: plan.run(timeout=0.2))
        interrupted(lambda: plan.run())
        assert (on_gpu(w) == 0).all()
        timer = threading.Timer(0.1, gate.event.set)
        timer.start()
        assert plan.run(timeout=LONG).version == 1
        assert (on_gpu(w) == VALUE + 1).all()
        timer.join()
        del plan
        gate.end()
        w.end()
        c.unpublish("policy")


def test_targets_may_be_used_in_many_streams():
    with Gpu() as (c, reader):
        publish(c, 1)
        gates = [Gate() for _ in range(11)]
        parts = [target(VALUE[:8], gate.stream.value) for gate in gates]
        plan = reader.plan("policy", {"w": [rdtd.Box(part, None, (8 * i, 0)) for i, part in enumerate(parts)]})
        with raises(rdtd.TimedOut):
            threading.Timer(0.2, lambda: [gate.event.set() for gate in gates[8:]]).start()  # the call itself waits for these
            plan.run(timeout=0.2)
        for gate in gates:
            gate.event.set()
        plan.run(timeout=LONG)
        assert all((on_gpu(part) == VALUE[8 * i:8 * i + 8] + 1).all() for i, part in enumerate(parts))
        del plan
        for gate, part in zip(gates, parts):
            gate.end()
            part.end()
        c.unpublish("policy")


def test_plan_of_host_memory_needs_no_driver_for_the_gpus_of_its_model():
    """As where torch uses GPUs that rdtd cannot: the plan's targets are copies in host memory."""
    with Gpu() as (c, reader):
        publish(c, 1)
        staged, w = np.zeros_like(VALUE), target(VALUE)
        plan = reader.plan("policy", {"w": staged})
        plan._plan.let_go()
        plan._order = [w]
        assert plan.run().step == 1 and (staged == VALUE + 1).all()
        del plan
        w.end()
        c.unpublish("policy")


def test_commits_write_gpus():
    with Gpu() as (c, reader):
        publish(c, 1)
        c.publish("single", {"w": VALUE})
        w, single = target(VALUE), target(VALUE)
        plan = reader.plan("policy", {"w": w})
        with reader.follow("policy") as follower, reader.follow("single") as other:
            follower.prepare(LONG)
            assert follower.commit(plan).version == 1 and follower.committed == 1
            assert (on_gpu(w) == VALUE + 1).all()
            publish(c, 2)
            follower.prepare(LONG)
            follower.commit({"w": w})  # plans in the commit
            assert (on_gpu(w) == VALUE + 2).all()
            other.prepare(LONG)
            other.commit({"w": single})
            assert (on_gpu(single) == VALUE).all()
        del plan
        w.end()
        single.end()
        c.unpublish("policy")
        c.unpublish("single")


if __name__ == "__main__":
    main(globals())
