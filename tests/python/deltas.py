# SPDX-License-Identifier: Apache-2.0
"""Weights as deltas: a publisher at one daemon, followers at it and at another."""
from contextlib import contextmanager

import rdtd

from nodes import LONG, Node, main, need, optional, raises, required

torch = optional("torch")
np = required("numpy")

RANDOM = np.random.default_rng(7)


def weights():
    return {"large": RANDOM.standard_normal(300_000).astype("f4"), "half": RANDOM.standard_normal((50, 100)).astype("f2"),
            "bytes": np.zeros(1000, "u1"), "none": np.zeros(0, "f4"), "one": np.array(3.0)}


def step(tensors, parts=100):
    """Changes about one of `parts` values, as an optimizer does."""
    for value in tensors.values():
        chosen = RANDOM.random(value.shape) < 1 / parts
        value[chosen] += np.ones((), value.dtype)


def empty_like(tensors):
    return {key: np.full_like(value, 9) for key, value in tensors.items()}


def assert_same(one, other):
    for key, value in one.items():
        np.testing.assert_array_equal(value, other[key], key)


@contextmanager
def followed():
    """A connection, weights, their publisher, and a follower that has the first version."""
    with Node() as node, rdtd.connect(node.socket) as c:
        now = weights()
        publisher = rdtd.DeltaPublisher(c, "policy")
        publisher.publish(now)
        follower = rdtd.DeltaFollower(c, "policy", empty_like(now))
        follower.update(LONG)
        yield c, now, publisher, follower


def test_a_follower_on_another_node_fetches_deltas():
    with Node(listen=True) as near, Node(listen=True) as far, rdtd.connect(near.socket) as c, rdtd.connect(far.socket) as other:
        now = weights()
        publisher = rdtd.DeltaPublisher(c, "policy")
        version = publisher.publish(now)
        assert version == 1 and publisher.delta_bytes is None
        follower = rdtd.DeltaFollower(other, version.ref, empty_like(now))
        assert follower.update(LONG) == 1 and not follower.by_delta
        assert_same(now, follower._tensors)
        near.fds, far.fds = near.open_fds(), far.open_fds()  # the transports between the nodes stay connected
        whole = follower.bytes_fetched
        assert whole == sum(value.nbytes for value in now.values())
        for number in range(2, 8):
            step(now)
            assert publisher.publish(now) == number
            assert follower.update(LONG) == number and follower.by_delta
            assert follower.bytes_fetched == publisher.delta_bytes < whole / 10
            assert_same(now, follower._tensors)
        with raises(rdtd.TimedOut):
            follower.update(0.05)
        step(now)
        publisher.publish(now)
        assert follower.update(LONG) == 8 and follower.by_delta
        assert_same(now, follower._tensors)
        publisher.unpublish()


def test_small_models_are_followed():
    with Node() as node, rdtd.connect(node.socket) as c:
        now = {"w": np.zeros((16, 16), "f4"), "b": np.zeros(300, "f2")}
        publisher = rdtd.DeltaPublisher(c, "small")
        follower = rdtd.DeltaFollower(c, "small", empty_like(now))
        for number in range(1, 5):
            step(now)
            assert publisher.publish(now) == number
            assert follower.update(LONG) == number and follower.by_delta == (number > 1)
            assert_same(now, follower._tensors)
        publisher.unpublish()


def test_a_missed_version_is_fetched_whole():
    with followed() as (c, now, publisher, follower):
        for _ in range(2):
            step(now)
            publisher.publish(now)
        assert follower.update(LONG) == 3 and not follower.by_delta
        assert_same(now, follower._tensors)
        step(now)
        publisher.publish(now)
        assert follower.update(LONG) == 4 and follower.by_delta
        assert_same(now, follower._tensors)
        publisher.unpublish()


def test_a_publisher_that_is_faster_than_its_follower():
    with followed() as (c, now, publisher, follower):
        by_delta, ahead = follower._by_delta, 3

        def slow(*args):  # meanwhile the version that it is about is replaced, and freed
            nonlocal ahead
            found = by_delta(*args)
            while ahead:
                ahead -= 1
                step(now)
                publisher.publish(now)
                found = False
            return found

        follower._by_delta = slow
        step(now)
        publisher.publish(now)
        assert follower.update(LONG) == 5 and not follower.by_delta
        assert_same(now, follower._tensors)
        publisher.unpublish()


def test_tensors_that_somebody_wrote_are_fetched_whole():
    with followed() as (c, now, publisher, follower):
        mine = follower._tensors
        mine["large"][5] += 1
        step(now, 10**9)
        publisher.publish(now)
        assert follower.update(LONG) == 2 and not follower.by_delta
        assert_same(now, mine)
        publisher.unpublish()


def test_a_step_that_changes_all_has_no_delta():
    with followed() as (c, now, publisher, follower):
        step(now, 1)
        publisher.publish(now)
        assert publisher.delta_bytes is None
        assert follower.update(LONG) == 2 and not follower.by_delta
        assert_same(now, follower._tensors)
        now["more"] = np.ones(3)  # another layout has none either
        publisher.publish(now)
        assert publisher.delta_bytes is None
        with raises(rdtd.Mismatch):
            follower.update(LONG)
        publisher.unpublish()


def test_a_name_without_deltas_can_be_followed():
    with Node() as node, rdtd.connect(node.socket) as c:
        now = weights()
        follower = rdtd.DeltaFollower(c, "plain", empty_like(now))
        for number in (1, 2):
            step(now)
            c.publish("plain", now)
            assert follower.update(LONG) == number and not follower.by_delta
            assert_same(now, follower._tensors)
        c.unpublish("plain")


def test_a_name_whose_deltas_have_ended_is_followed():
    with followed() as (c, now, publisher, follower):
        step(now)
        publisher.publish(now)
        assert follower.update(LONG) == 2 and follower.by_delta
        publisher.unpublish()
        step(now)
        c.publish("policy", now)
        assert follower.update(LONG) == 3 and not follower.by_delta
        assert_same(now, follower._tensors)
        c.unpublish("policy")


def test_a_publisher_keeps_two_versions_and_no_more():
    with Node() as node, rdtd.connect(node.socket) as c:
        now = weights()
        publisher = rdtd.DeltaPublisher(c, "policy")
        for _ in range(6):
            step(now)
            publisher.publish(now)
        assert len(c.objects()) <= 3, c.objects()  # this version, the one before, and the delta
        publisher.unpublish()


def test_a_name_that_another_process_has_unpublished_leaves_no_deltas():
    with Node() as node, rdtd.connect(node.socket) as c:
        publisher = rdtd.DeltaPublisher(c, "policy")
        publisher.publish(weights())
        c.unpublish("policy")
        with raises(rdtd.NotFound, "policy"):
            publisher.unpublish()
        assert not c.names()


def test_what_has_no_delta_is_named():
    with Node() as node, rdtd.connect(node.socket) as c:
        publisher = rdtd.DeltaPublisher(c, "policy")
        with raises(TypeError, "'step' is a int"):
            publisher.publish({"a": np.ones(3), "step": 7})
        with raises(TypeError, "'text' is a bytearray"):  # comes back as that, and not as a tensor
            publisher.publish({"text": bytearray(8)})
        with raises(TypeError, "'step' is a int"):
            rdtd.DeltaFollower(c, "policy", {"step": 7})
        with raises(TypeError, "name must be text, not b'policy'"):
            rdtd.DeltaFollower(c, b"policy", {})


def test_tensors_of_torch_are_followed_in_place():
    need(torch, "torch")
    with Node() as node, rdtd.connect(node.socket) as c:
        model = torch.nn.Linear(200, 300).to(torch.bfloat16)
        copy = torch.nn.Linear(200, 300).to(torch.bfloat16)
        publisher = rdtd.DeltaPublisher(c, "policy")
        follower = rdtd.DeltaFollower(c, "policy", copy.state_dict())
        for number in (1, 2, 3):
            publisher.publish(model.state_dict())
            assert follower.update(LONG) == number and follower.by_delta == (number > 1)
            for one, other in zip(model.parameters(), copy.parameters()):
                assert torch.equal(one, other)
            with torch.no_grad():
                model.weight[::50] += 1
        publisher.unpublish()


def test_tensors_of_every_dtype_and_shape_are_followed():
    values = {"c128": np.zeros(40, "c16"), "c64": np.zeros((3, 5), "c8"), "scalar": np.array(0.5),
              "none": np.zeros((0, 3), "f4"), "bool": np.zeros(99, bool), "u8": np.zeros(77, "u1"), "f16": np.zeros((7, 7), "f2"), "i64": np.zeros(50, "i8")}
    with Node() as node, rdtd.connect(node.socket) as c:
        weights = rdtd.DeltaPublisher(c, "policy", most=1)
        mine = {key: np.ones_like(value) for key, value in values.items()}
        follower = rdtd.DeltaFollower(c, "policy", mine)
        for step in range(1, 12):
            for value in values.values():
                if value.size:
                    value.reshape(-1)[step % value.size] = step % 3
            weights.publish(values)
            assert follower.update(LONG) == step and (step > 1 or not follower.by_delta)
            assert all((mine[key] == value).all() for key, value in values.items())
        weights.unpublish()


main(globals())
