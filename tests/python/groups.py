# SPDX-License-Identifier: Apache-2.0
"""Groups of actors on two nodes: create, fetch, broadcast, destroy."""
import asyncio

import rdtd

from nodes import BUILD, LONG, Node, Skipped, main, raises, required, until

np = required("numpy")


def two():
    """Two nodes that let gloo move bytes over the loopback interface."""
    if not (BUILD / "backends" / "rdt_gloo.so").exists():
        raise Skipped("gloo was not built (libgloo-dev)")
    return tuple(Node(listen=True) for _ in range(2))


def address(c):
    return c.node["address"]


def test_formed_used_and_ended():
    a, b = two()
    with rdtd.connect(a.socket, name="trainer") as here, rdtd.connect(b.socket, name="sampler") as there:
        ref = here.put({"w": np.arange(100000, dtype="f4")})
        here.create_group("weights", "gloo", ["trainer", rdtd.Member("sampler", address(there))],
                          timeout=LONG)
        (group,) = here.groups()
        assert isinstance(group, rdtd.Group) and group[:3] == ("weights", "gloo", "ready"), group
        assert (group.members, group.ranks) == (2, 2), group
        assert [each.name for each in there.groups()] == ["weights"]
        got = there.get_fetched(ref, group="weights", timeout=LONG)
        assert got.path == "gloo" and got.value["w"][99999] == 99999
        with raises(rdtd.Exists, "weights"):
            asyncio.run(here.create_group_async("weights", "gloo",
                                                [("trainer",), ("sampler", address(there))]))
        with raises(rdtd.Error, "other"):
            there.get(ref, group="other", timeout=LONG)
        del got
        there.destroy_group("weights")
        assert here.groups() == [] == there.groups()
        with raises(rdtd.NotFound, "weights"):
            here.destroy_group("weights")


def test_broadcast_puts_a_copy_on_the_other_node():
    a, b = two()
    with rdtd.connect(a.socket, name="trainer") as here, rdtd.connect(b.socket, name="sampler") as there:
        here.create_group("weights", "gloo", ["trainer", ("sampler", address(there))], timeout=LONG)
        live, sealed = here.put(np.ones(1000)), here.put(np.arange(100000), snapshot=True)
        with raises(rdtd.Invalid):
            here.broadcast(live, "weights", timeout=LONG)
        with raises(rdtd.NotFound, "nobody"):
            here.broadcast(sealed, "nobody", timeout=LONG)
        here.broadcast(sealed, "weights", timeout=LONG)
        got = there.get_fetched(sealed)
        assert got.bytes_moved == 0 and got.value[99999] == 99999, got
        del got

        async def again():
            await here.when_broadcast(sealed, "weights", timeout=LONG)

        asyncio.run(again())
        here.destroy_group("weights")
        a.fds, b.fds = a.open_fds(), b.open_fds()  # the transports between the nodes stay connected


def test_what_cannot_be_formed_is_said():
    a, b = two()
    with rdtd.connect(a.socket, name="trainer") as here, rdtd.connect(b.socket, name="sampler") as there:
        for members, error, text in ((["trainer"], rdtd.Invalid, ""), (["trainer", "trainer"], rdtd.Invalid,
                                                                       "trainer"),
                                     (["trainer", ("missing", address(there))], rdtd.NotFound, "missing")):
            with raises(error, text):
                here.create_group("weights", "gloo", members, timeout=LONG)
        with raises(rdtd.Unsupported, "pigeon"):
            here.create_group("weights", "pigeon", ["trainer", ("sampler", address(there))])
        with raises(rdtd.Invalid, "member 1"):
            here.create_group("weights", "gloo", ["trainer", ""])
        for wrong in (3, ("trainer", 3), ("a", "b", "c", "d")):
            with raises(TypeError):
                here.create_group("weights", "gloo", ["trainer", wrong])
        until(lambda: here.groups() == [] == there.groups(), "nothing is left of what was refused")


if __name__ == "__main__":
    main(globals())
