# SPDX-License-Identifier: Apache-2.0
"""Calls that describe the daemon: the holders of an object, and the daemon's objects, names, nodes and
state."""
import json
import os

import rdtd

from nodes import LONG, Node, main, raises, required, times_out, until

np = required("numpy")


def test_stat_and_time_out_name_the_holders():
    with (Node() as node, rdtd.connect(node.socket, name="trainer") as c,
          rdtd.connect(node.socket, name="evaluator") as reader):
        ref = c.put({"w": np.arange(100000)})
        c.publish("my weights", ref)
        held = reader.hold(ref)
        holders = {one["kind"]: one for one in c.stat(ref)["holders"]}
        assert set(holders) == {"producer", "hold", "name"}, holders
        assert holders["producer"]["client_name"] == "trainer"
        assert holders["producer"]["client"] == c.node["session"]
        assert holders["hold"]["client_name"] == "evaluator" and holders["hold"]["pid"] == os.getpid()
        assert holders["hold"]["count"] == 1
        assert holders["name"]["name"] == "my%20weights" and holders["name"]["version"] == 1
        assert holders["name"]["client"] == 0
        assert holders["hold"]["sentence"] in [one["sentence"] for one in reader.stat(ref)["holders"]]
        c.unpublish("my weights")
        name = rdtd.Ref(str(ref))
        ref.free()
        times_out(f'"evaluator" (pid {os.getpid()}) holds it', lambda: c.wait_freed(name, timeout=0.5))
        held.free()
        c.wait_freed(name, timeout=LONG)
        memory = c.empty(100000)
        ref = c.put(memory, id="live")
        value = reader.get(ref)
        c.free(ref)
        times_out(f'object "live": client {reader.node["session"]} "evaluator" (pid {os.getpid()}) reads it',
                  lambda: c.wait_freed(memory[10:20], timeout=0.2))
        del value
        c.wait_freed(memory, timeout=LONG)


def test_objects_and_names_are_listed():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        refs = [c.put(np.arange(100000), id=f"step {i}", snapshot=True) for i in range(3)]
        other.put(np.arange(3), id="other", visible="all")
        listed = {one["id"]: one for one in c.objects()}
        assert set(listed) == {"step%200", "step%201", "step%202", "other"}
        one = listed["step%201"]
        assert one["ref"] == refs[1] and one["owner"] == (os.getuid(), "") and one["visible"] == "owner"
        assert one["snapshot"]
        assert one["producer"] == c.node["session"] and one["tensors"] == 1 and one["holds"] == 1
        assert 0 <= one["age"] < LONG
        assert {key for key in c.stat(refs[1]) if key != "holders"} == set(one)
        assert listed["other"]["visible"] == "all"
        assert [one["id"] for one in c.objects(prefix="step", limit=2)] == ["step%200", "step%201"]
        assert [one["id"] for one in c.objects(client=other.node["session"])] == ["other"]
        assert c.objects(state="awaited") == []
        waits = c.fetch(rdtd.Ref("later"))
        assert [one["id"] for one in other.objects(state="awaited")] == ["later"]
        waits.cancel()
        assert c.names() == []
        for ref in refs:
            version = c.publish("weights", ref)
        (one,) = other.names(prefix="wei")
        assert version == 3 and one["name"] == "weights" and one["version"] == 3 and one["object"] == refs[2]
        assert one["bytes"] == 800000
        assert one["owner"] == (os.getuid(), "") and one["visible"] == "owner" and one["waiters"] == 0
        assert one["lease"] == 0 and one["ttl_left"] == -1
        assert other.get(one["object"])[99999] == 99999
        c.free(refs[2], force=True)
        assert c.names()[0]["object"] is None
        c.unpublish("weights")
        with raises(TypeError):
            c.objects("step")


def test_what_is_listed_is_what_rdtctl_lists():
    """Values that change between two calls (ages, counters of this comparison) are left out."""
    with (Node(listen=True) as node, Node(listen=True) as far, rdtd.connect(node.socket, name="c") as c,
          rdtd.connect(far.socket) as there):
        ref = c.put({"w": np.arange(100000)}, id="a b", snapshot=True, visible="all")
        c.publish("weights", ref, lease=True, visible="tenant")
        assert there.get(ref)["w"][7] == 7
        printed = {what: json.loads(node.ctl(what, "--json"))
                   for what in ("objects", "names", "peers", "status")}

        names = {"visibility": "visible", "lease_client": "lease", "uid": "owner", "tenant": "owner", "peers_up": "nodes_up",
                 "peers_known": "nodes_known", "routes": "transports", "unusable": "transports"}

        def keys(row, **more):
            return {{**names, **more}.get(key, key.removesuffix("_ns")) for key in row}

        (mine,), (theirs,) = c.objects(), printed["objects"]["objects"]
        assert set(mine) == keys(theirs) - {"holders"} and set(c.stat(ref)) == keys(theirs), "no field of rdtctl is missing"
        same = ("id", "state", "bytes", "tensors", "metadata_bytes", "holds", "pins", "waiters", "snapshot",
                "detached", "transport", "producer")
        assert {key: mine[key] for key in same} == {key: theirs[key] for key in same}
        assert mine["ref"] == rdtd.Ref(theirs["ref"]) and mine["visible"] == theirs["visibility"]
        assert mine["owner"] == (theirs["uid"], theirs["tenant"])

        (mine,), (theirs,) = c.names(), printed["names"]["names"]
        assert set(mine) == keys(theirs, ref="object")
        same = ("name", "version", "bytes", "waiters")
        assert {key: mine[key] for key in same} == {key: theirs[key] for key in same}
        assert mine["object"] == rdtd.Ref(theirs["ref"]) and mine["visible"] == theirs["visibility"]
        assert mine["lease"] == theirs["lease_client"] == c.node["session"]

        (mine,), (theirs,) = c.nodes(), printed["peers"]["peers"]
        assert set(mine) == keys(theirs)
        same = ("uuid", "boot_id", "name", "address", "state", "version", "bytes_in", "bytes_out",
                "last_error", "fell_back")
        assert {key: mine[key] for key in same} == {key: theirs[key] for key in same}
        assert [one["name"] for one in mine["transports"] if one["usable"]] == theirs["transports"]

        mine, theirs = c.status(), printed["status"]
        assert set(mine) == keys(theirs)
        for key in ("version", "node", "boot_id", "address", "state", "pid", "objects", "regions", "socket",
                    "backends", "bytes_out"):
            assert mine[key] == theirs[key], key
        far.kill()
        node.kill()


def test_nodes_and_state_are_listed():
    with (Node(listen=True) as node, Node(listen=True) as far, rdtd.connect(node.socket) as c,
          rdtd.connect(far.socket) as there):
        assert c.nodes() == []
        ref = there.put(np.arange(100000))
        assert c.get(ref)[99999] == 99999
        (one,) = c.nodes()
        assert one["uuid"] == there.node["node"].hex() and one["boot_id"] == there.node["boot_id"].hex()
        assert one["address"] == there.node["address"] and one["state"] == "up", one
        assert one["bytes_in"] >= 800000 and one["last_error"] == "", one
        assert one["version"] == c.status()["version"]
        assert any(transport["usable"] for transport in one["transports"])
        held = c.hold(ref)
        (holder,) = [one for one in there.stat(ref)["holders"] if one["kind"] == "node"]
        assert holder["node_uuid"] == c.node["node"].hex() and holder["count"] == 1
        assert holder["node"] in holder["sentence"]
        status = c.status()
        assert status["state"] == "serving" and status["pid"] == node.process.pid
        assert status["address"] == c.node["address"]
        assert status["nodes_up"] == 1 and status["clients"] == 1 and status["bytes_in"] >= 800000
        assert status["transfers_done"] >= 1
        assert status["socket"] == node.socket and 0 < status["uptime"] < 3600
        assert there.status()["objects"] == 1
        del held
        far.kill()
        node.kill()
    with raises(rdtd.Disconnected):
        c.objects()


def test_configuration_says_where_each_value_comes_from():
    with Node() as node, rdtd.connect(node.socket) as c:
        printed = json.loads(node.ctl("config", "--json"))["values"]
        config = c.config()
        assert {(section, key) for section, keys in config.items() for key in keys} == \
            {(row["section"], row["key"]) for row in printed}
        assert config["daemon"]["socket"]["value"] == node.socket and config["daemon"]["socket"]["source"] == "flag"
        assert config["limits"]["owner_max_objects"]["source"] == "default"
        node.kill()


def test_session_is_ended_by_its_number():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        ref = other.put(np.arange(3), id="mine")
        c.end_client(other.node["session"])
        until(lambda: c.objects() == [], "what it held is released")
        with raises(rdtd.Disconnected):
            other.get(ref)
        with raises(rdtd.NotFound):
            c.end_client(10**6)
        with raises(rdtd.Invalid):
            c.end_client(c.node["session"])
        for wrong in (-1, 2**64, "1", None):
            with raises((TypeError, ValueError)):
                c.end_client(wrong)
        node.kill()


if __name__ == "__main__":
    main(globals())
