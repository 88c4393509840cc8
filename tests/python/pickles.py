# SPDX-License-Identifier: Apache-2.0
"""Whose code runs when a value is read: pickles and classes of this user, of other users and of other nodes. What cannot be
read is an error."""
import array
import collections
import copy
import dataclasses
import enum
import importlib
import os
import pickle
import signal
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import rdtd

from nodes import LONG, Node, end, main, raises, until


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Step:
    weights: object
    number: object


class Model:
    def __init__(self, part):
        self.part = part


def test_what_needs_a_pickle_says_so_and_can_be_refused():
    with Node() as node, rdtd.connect(node.socket) as c:
        shared = bytearray(b"x" * 5000)
        value = {"step": Model({"w": shared, "again": shared}), "set": {1, 2},
                 "deque": collections.deque([2])}
        ref = c.put(value)
        got = c.get(ref)
        assert got["set"] == {1, 2} and got["step"].part["w"] == shared
        assert c.stat(ref)["tensors"] == 1, "the same array twice is one tensor"
        with raises(rdtd.PickleRefused, f"is a pickle, because value['step'] is a {__name__}.Model"):
            c.get(ref, allow_pickle=False)
        (leaf,) = c.get(ref, allow_pickle=False, as_="list")
        assert leaf == shared
        with raises(TypeError, f"value['step'] is a {__name__}.Model"):
            c.put(value, allow_pickle=False)
        with raises(TypeError, "value[1] is a"):
            c.put([1, array.array("d", [1])], allow_pickle=False)
        assert c.get(c.put(array.array("d", [1, 2]))) == array.array("d", [1, 2])
        long = [Step(None, i) for i in range(20000)]
        assert c.get(c.put(long)) == long


def test_pickles_of_another_user_are_refused_unless_asked_for():
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put(array.array("d", [1]))
        owner = c._owner
        c._owner = (owner[0] + 1, owner[1])
        with raises(rdtd.PickleRefused):
            c.get(ref)
        assert c.get(ref, allow_pickle=True) == array.array("d", [1])
        claims = rdtd.Ref(str(ref).replace(f"u={owner[0]}", f"u={owner[0] + 1}"))  # to be the reader's own
        for got in [c.get(claims, errors="return"), *c.get([claims] * 20, errors="return")]:
            assert isinstance(got, rdtd.PickleRefused)
        c._owner = owner
        assert c.get(ref) == array.array("d", [1])


def test_pickles_of_other_nodes_need_a_word_of_this_node():
    with Node(listen=True) as a, rdtd.connect(a.socket) as c:
        value = {"deque": collections.deque([1])}
        with (Node(listen=True) as b, rdtd.connect(b.socket) as far):
            for snapshot in (False, True):
                ref = c.put(value, snapshot=snapshot)
                for _ in range(2):  # the second time of a snapshot comes from the replica
                    with raises(rdtd.PickleRefused, f"of node {c.node['node'].hex()}"):
                        far.get(ref)
                    with raises(rdtd.PickleRefused, "value['deque'] is a collections.deque"):
                        far.fetch(ref).result(LONG)
                    with raises(rdtd.PickleRefused):
                        far.get(ref, into={"deque": [bytearray()]})
                    for got in far.get([ref] * 20, errors="return"):  # in one answer of the node
                        assert isinstance(got, rdtd.PickleRefused)
                assert far.get(ref, allow_pickle=True) == value and c.get(ref) == value
                plain = {"set": {1, 2}, "step": Step((1, 2), Colour.RED)}
                assert far.get(c.put(plain)) == plain
            name = c.publish("deques", value).ref
            with raises(rdtd.PickleRefused):
                next(far.versions(name, timeout=LONG))
            with raises(rdtd.PickleRefused):
                far.get(name)
            assert next(far.versions(name, timeout=LONG, allow_pickle=True))[1] == value
        end(b)
        table = a.dir / "nodes"
        table.write_text(f"trainer {c.node['address']}\n")
        ref = c.put(value)
        os.kill(a.process.pid, signal.SIGSTOP)  # which node this is, b learns only while the fetch waits for the link
        try:
            with (Node("--set", "network.trusted_pickles=elsewhere,trainer", "--set", f"network.nodes={table}",
                       listen=True) as b, rdtd.connect(b.socket) as far, ThreadPoolExecutor(1) as pool):
                got = pool.submit(far.get, ref)
                until(lambda: "link" in b.ctl("transfers"), "the fetch waits for the link")
                os.kill(a.process.pid, signal.SIGCONT)
                assert got.result(LONG) == value
                assert far.get(c.put(value)) == value
        finally:
            os.kill(a.process.pid, signal.SIGCONT)
        end(b)
        uuid_text = str(uuid.UUID(bytes=c.node["node"]))
        with (Node("--set", f"network.trusted_pickles=elsewhere, {uuid_text}", listen=True) as b,
              rdtd.connect(b.socket) as far):
            for ref in (c.put(value), c.put(value, snapshot=True), name):
                assert far.get(ref) == value and far.fetch(ref).result(LONG) == value
                assert far.get([ref] * 20) == [value] * 20
            owner = far._owner
            far._owner = (owner[0] + 1, owner[1])
            with raises(rdtd.PickleRefused):
                far.get(name)
            with raises(rdtd.PickleRefused):
                far.get(name, allow_pickle=False)
        c.unpublish(name)
    end(a, b)


def test_classes_of_other_nodes_must_be_imported():
    with Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as c, rdtd.connect(b.socket) as far:
        (a.dir / "rdtd_test_shapes.py").write_text(
            "import dataclasses\n@dataclasses.dataclass\nclass Shape:\n    x: int\n    y: int = 2\n")
        sys.path.insert(0, str(a.dir))
        shapes = importlib.import_module("rdtd_test_shapes")
        ref = c.put([shapes.Shape(1)], allow_pickle=False)
        assert far.get(ref) == [shapes.Shape(1)]
        del sys.modules["rdtd_test_shapes"]
        with raises(rdtd.NotFound, "import 'rdtd_test_shapes' first"):
            far.get(ref)
        assert "rdtd_test_shapes" not in sys.modules
        assert c.get(ref)[0].x == 1 and "rdtd_test_shapes" in sys.modules, "this user's own class is imported"
        sys.path.remove(str(a.dir))
        shape = sys.modules["rdtd_test_shapes"].Shape
        del shape.__dataclass_fields__["y"]
        importlib.import_module("rdtd._plain")._fields.cache_clear()
        with raises(rdtd.Mismatch, "the field 'y'"):
            far.get(ref)
    end(a, b)


def test_keys_of_one_hash_take_no_time():
    """Python compares each of them with all others."""
    keys = [number * sys.hash_info.modulus for number in range(101)]
    with Node() as node, rdtd.connect(node.socket) as c:
        for few in (dict.fromkeys(keys[1:]), set(keys[1:]), frozenset(keys[1:]), {(key,) for key in keys[1:]}):
            assert c.get(c.put([few])) == [few]
        for many in (dict.fromkeys(keys), set(keys), frozenset(keys), {(key,) for key in keys}, {"inner": {frozenset(keys): 1}}):
            ref = c.put([many])
            assert c.get(ref) == [many]
            with raises(rdtd.PickleRefused, "is a pickle, because value[0]"):
                c.get(ref, allow_pickle=False)
            with raises(TypeError, "100 keys or elements of one hash"):
                c.put([many], allow_pickle=False)
        for form in '{"$dict":[%s]}' % ",".join(f"[{key},0]" for key in keys), '{"$":["set",%s]}' % keys:
            text = f'{{"rdt":1,"form":"tree","kinds":"n"}}\n{form}'.encode()
            with raises(rdtd.Invalid, "more than 100 keys of a dict or set have the same hash"):
                c.get(c._put([], None, text, 0, None, 0, None, None, None))


def test_errors_arrive_as_they_were():
    for kind in rdtd.SystemFailed, rdtd.PeerLost, rdtd.Invalid:
        error = kind("it failed")
        error.errno, error.status = 5, 77
        for got in pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error):
            assert type(got) is kind and (str(got), got.errno, got.status) == ("it failed", 5, 77)
        assert pickle.loads(pickle.dumps(kind("it failed"))).args == ("it failed",)


def test_wrong_metadata_is_an_error():
    head = b'{"rdt":1,"form":"tree","kinds":"n"}\n'
    wrong = [b"[" * 200000, b'{"$":-1}', b'{"$":1000000000}', b'{"$":"x"}', b'{"$":[]}', b'{"$":["x"]}', b'{"$":[[]]}',
             b'{"$list":[0,1000000000000]}', b'{"$list":5}', b'{"$dict":[[[1],2]]}', b'{"$dict":[[{"$":["object",1,2]},2]]}',
             b'{"$ref":"rdt:zz"}', b'{"$ref":7}', b"9" * 6000, b'{"$":["use",0]}', b'{"$":["def",0,{"$tuple":[{"$":["use",0]}]}]}',
             b'{"$":["object","os:system",{}]}', b'{"$":["object","builtins:object",{}]}', b'{"$":["object","nowhere:x",{}]}',
             b'{"$":["object","subprocess:Popen",{"args":1}]}', b'{"$":["enum","os:PathLike","x"]}',
             b'{"$":["named","builtins:tuple",[1]]}', b'{"$":["scalar","O","00"]}', b'{"$":["scalar","<f4","00"]}',
             b'{"$":["dtype","f4,O"]}', b'{"$":["set",[[1]]]}', b'{"$":["int","zz"]}', b'{"$":["date",1,2]}',
             b'{"$":["view",0,"uint8",0,[99],[1],"."]}', b'{"$":["view",0,"uint8",-1,[1],[1],"."]}', b'{"$":["torch.dtype","load"]}',
             b'[' + b','.join([b'{"$list":[0,1]}'] * 101) + b']',
             b'[{"$":["def",0,{"$tuple":[1]}]},' + b''.join(
                 b'{"$":["def",%d,{"$tuple":[{"$":["use",%d]},{"$":["use",%d]}]}]},' % (i, i - 1, i - 1) for i in range(1, 60))
             + b'{"$":["set",[{"$":["use",59]}]]}]']
    heads = [b'{"rdt":1,"form":"tree","kinds":"nnnn"}\n{"$":0}', b'{"rdt":1,"form":"pickle","kinds":"n","buffers":{"a":1}}\nx',
             b'{"rdt":1,"form":"pickle","kinds":"n","buffers":[-1]}\nx',
             b'{"rdt":1,"form":"pickle","kinds":"n"}\nx', b'{"rdt":1,"form":"pickle","kinds":"n"}\ncnowhere\nx\n.',
             b'{"rdt":1,"form":"pickle","kinds":"n"}\n' + pickle.dumps({"a": 1})[:-3],
             b'{"rdt":1,"form":"tree","kinds":"n"}\n',
             b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"__metadata__":{"rdt.same":"[[0,1]]"}}',
             b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"__metadata__":{"rdt.same":"[[9,\\"x\\",0,\\"\\"]]"}}']
    with Node() as node, rdtd.connect(node.socket) as c:
        for metadata in [head + text for text in wrong] + heads:
            ref = c._put([bytes(8)], None, metadata, 0, None, 0, None, None, None)
            for options in ({}, {"timeout": 60}, {"allow_pickle": False}):
                with raises(rdtd.Error):
                    c.get(ref, **options)
            c.free(ref)
        for head_ in b'{"rdt":1,"kinds":"b"}\n', b'{"rdt":1,"form":"tree","kinds":"n","tail":true}\n':
            with raises(rdtd.Invalid, "speaks of bytes, and the tensor has strides"):
                c.get(c._put([c.empty((4, 4), "u8", as_="numpy")[:, ::2]], None, head_, 0, None, 0, None, None, None))
        with raises(rdtd.NotPut, '"a?[31mb"'):
            c.get(rdtd.Ref("a\x1b[31mb"), timeout=0)
        assert repr(rdtd.Ref("a\x1b[31mb\u202e\n")) == "<Ref of object a?[31mb??>"
        bomb = b'{"$":["def",0,[]]}'
        for i in range(1, 40):
            bomb = b'{"$":["def",%d,[%s,{"$":["use",%d]}]]}' % (i, bomb, i - 1)
        got = c.get(c._put([bytes(8)], None, head + bomb, 0, None, 0, None, None, None))
        assert got[0][0][0] is got[0][0][1] or got[0] is got[1]


if __name__ == "__main__":
    main(globals())
