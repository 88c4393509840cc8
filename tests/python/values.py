# SPDX-License-Identifier: Apache-2.0
"""Values that are put come back equal: arrays, dtypes, strides, nested values, pickles. Values in daemon
memory are not copied, nor are others where that is promised."""
import array
import asyncio
import collections
import ctypes
import dataclasses
import datetime
import decimal
import enum
import pickle
import signal
import struct
import time
import uuid

import rdtd

from nodes import LONG, Node, Skipped, end, main, need, optional, raises, until

np = optional("numpy")
torch = optional("torch")


@dataclasses.dataclass
class Step:
    weights: object
    number: int


def same(a, b):
    if isinstance(a, dict):
        assert type(a) is type(b) and list(a) == list(b), (a, b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b), (a, b)
        for x, y in zip(a, b):
            same(x, y)
    elif np is not None and isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape, (a, b)
        assert (a == b).all(), (a, b)
    elif torch is not None and isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape, (a, b)
        assert torch.equal(a, b), (a, b)
    else:
        assert type(a) is type(b) and a == b, (a, b)


def test_every_numpy_dtype_and_stride():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        for code in "?bBhHiIlLqQefdFD":
            for a in (np.arange(24).reshape(2, 3, 4).astype(code), np.array(3).astype(code),
                      np.zeros((0, 5), code)):
                for put in (a, a.T, a[::-1] if a.ndim else a, a[..., ::2] if a.ndim else a,
                            np.asfortranarray(a)):
                    same(np.ascontiguousarray(put).reshape(put.shape),
                         np.ascontiguousarray(c.get(c.put(put))).reshape(put.shape))
        big = np.arange(1 << 16, dtype="f8").reshape(256, 256)
        same(big.T.copy(), c.get(c.put(big.T)).copy())
        with raises(TypeError, "no rdtd dtype matches"):
            c._put([np.zeros(3, ">f4")], None, None, 0, None, 0, None, None, None)
        same(np.zeros(3, ">f4"), c.get(c.put(np.zeros(3, ">f4"))))  # as a pickle
        named = np.zeros(3, np.dtype("i4", metadata={"enum": {"red": 1}}))
        for value, found in (named, lambda got: got), ({"a": named}, lambda got: got["a"]):
            assert found(c.get(c.put(value))).dtype.metadata == {"enum": {"red": 1}}
            with raises(TypeError, "without pickle"):
                c.put(value, allow_pickle=False)
        same(np.array(["a", None], object), c.get(c.put(np.array(["a", None], object))))


def test_plain_structure_needs_no_pickle():
    need(np, "numpy")
    value = {"w": np.ones((3, 4), "f4"), "list": [1, 2.5, True, None, "x", [], {}],
             "tuple": (np.arange(3), (), b"bytes", bytearray(b"b")),
             "$odd": {1: np.zeros(1), None: 2, "$": 3, False: 4}, "big": b"x" * 100000, "inf": float("inf"),
             "é\n\"": "é\n"}
    with Node() as node, rdtd.connect(node.socket) as c:
        same(value, c.get(c.put(value, allow_pickle=False), allow_pickle=False))
        for small in (1, "x", [], {}, (), None, b"", [[]], {"a": []}, 10**30):
            same(small, c.get(c.put(small, allow_pickle=False), allow_pickle=False))
        ref = c.put([np.zeros(3)], id="inner")
        assert c.get(c.put({"ref": ref}, allow_pickle=False))["ref"] == ref
        long = {f"layer.{i}": i for i in range(30000)}
        same(long, c.get(c.put(long, allow_pickle=False), allow_pickle=False))


def test_dict_of_tensors_is_a_safetensors_file():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        value = collections.OrderedDict([("b\"é", np.arange(4, dtype="i8")), ("a", np.ones((2, 2), "f2")),
                                         ("none", np.zeros((0, 3), "f4"))])
        with c.put(value) as ref:
            got = c.get(ref)
            assert list(got) == list(value)
            for name in value:
                same(value[name], got[name])
            assert type(got) is collections.OrderedDict
            path = node.dir / "x.safetensors"
            node.ctl("fetch", str(ref), "-o", str(path))
        detached = node.ctl("put", str(path), "--detached", "-q").split()[0]
        got = c.get(rdtd.Ref(detached))
        assert set(got) == set(value)
        for name in value:
            same(value[name], got[name])
        c.free(rdtd.Ref(detached))
        # Safetensors has no c128, but the value is a dict nevertheless.
        halves = {"a": np.zeros(2, "c16"), "b": np.ones(1)}
        same(halves, c.get(c.put(halves)))


def test_headers_of_others_are_read_too():
    """Headers may have blanks, another order and further entries. Metadata that is no such header yields a
    list."""
    need(np, "numpy")
    a, b = np.arange(3, dtype="i4"), np.ones(2, "f8")
    one = '{"dtype":"I32","shape":[3],"data_offsets":[0,12]}'
    two = '{"dtype":"F64","shape":[2],"data_offsets":[12,28]}'
    with Node() as node, rdtd.connect(node.socket) as c:
        def read(text):
            return c.get(c._put([a, b], None, text.encode(), 0, None, 0, None, None, None))

        for text in (f'{{"a":{one},"b":{two}}}', f'{{"__metadata__":{{"x":"y"}},"a":{one},"b":{two}}}',
                     f'{{"a":{one},"b":{two},"__metadata__":{{}}}}',
                     f'{{"b":{two},"a":{one}}}', f'{{ "a": {one},\n "b": {two} }}',
                     f'{{"a":{one},"__metadata__":{{}},"b":{two}}}'):
            same({"a": a, "b": b}, {name: array for name, array in sorted(read(text).items())})
        same({"\u00e9": a, "\"": b}, read(f'{{"\\u00e9":{one},"\\"":{two}}}'))
        for text in (f'{{"a":{one},"a":{two}}}', f'{{"a":{one}}}', f'{{"a":{one},"b":{two}',
                     f'{{"a":{one},"b":{two}}}x', '{"a":', '{}', "{", "x",
                     f'{{"a":{one},"b":{two},"__metadata__":', f'{{"a":{one},"\x01":{two}}}'):
            same([a, b], read(text))
        with raises(TypeError, "bytes"):
            rdtd._rdt.header_names("text")


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Whole(int):
    pass


class Words(dict):
    pass


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: object


@dataclasses.dataclass
class Ran:
    """Its code must not run when it is read."""

    x: object
    ran = []

    def __post_init__(self):
        self.ran.append(self.x)


def test_plain_values_keep_their_types_and_need_no_pickle():
    utc = datetime.timezone.utc
    plain = [
        -0.0, float("-inf"), 10**5000, -10**5000, True, Colour.RED, Level.LOW, Access.READ, Point(1, [2]), Frozen((1, "x")),
        Step({"w": [1]}, 2), 1 + 2j, range(3, 10**400, 7), slice(1, None), {1, "x"}, frozenset((1, (2,))), (1,), (), ...,
        b"b", bytearray(b"B"), "\ud800", "\ud83d\ude00", "\U0001f600", {"\ud83d\ude00": 1},
        {(1, 2): 3, b"k": 4, Colour.RED: 5, frozenset([1]): 6, 1.5: 7}, collections.OrderedDict(b=1, a=2),
        datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5, 6, utc, fold=1), datetime.time(1, 2, 3),
        datetime.timedelta(-1, 2, 3), decimal.Decimal("1.10"), uuid.UUID(int=7),
        uuid.UUID(int=7, is_safe=uuid.SafeUUID.safe)]
    pickled = [Whole(3), Words(a=1), Access.READ | Access.WRITE, collections.defaultdict(list, {1: [2]}),
               collections.deque([1], 3), collections.Counter("aab"), Step]
    if np:
        plain += [np.float32(2.5), np.bool_(True), np.str_("xé"), np.str_("x\0"), np.bytes_(b"x\0"), np.datetime64("2026-01-01", "ns"), np.complex64(1j),
                  np.dtype("f4"), np.dtype("M8[ns]")]
        pickled += [np.dtype([("a", "i4")]), np.float32]
    with Node() as node, rdtd.connect(node.socket) as c:
        for value in plain:
            got = c.get(c.put([value], allow_pickle=False), allow_pickle=False)[0]
            assert type(got) is type(value) and got == value and (type(value) is int or repr(got) == repr(value))
            assert type(value) is not uuid.UUID or got.is_safe == value.is_safe
        for value in pickled:
            got = c.get(c.put([value]))[0]
            assert type(got) is type(value) and got == value, (value, got)
        for bits in "000000000000f87f", "000000000000f8ff", "010000000000f87f", "0100000000f0f4ff":  # numbers that are none
            (nan,) = struct.unpack("<d", bytes.fromhex(bits))
            got = c.get(c.put({"nan": nan, "complex": complex(-0.0, nan)}, allow_pickle=False), allow_pickle=False)
            assert [struct.pack("<d", x).hex() for x in (got["nan"], got["complex"].imag)] == [bits, bits]
            assert str(got["complex"].real) == "-0.0"
        not_a_number = c.get(c.put(float("nan")))
        assert not_a_number != not_a_number
        keys = {"b": 1, "a": 2, "$": 3}
        assert list(c.get(c.put(keys))) == list(keys)
        ordered = collections.OrderedDict(b=1)
        ordered.note = {"version": (2,)}
        got = c.get(c.put([ordered, ordered], allow_pickle=False))
        assert got[0] is got[1] and got[0] == ordered and vars(got[0]) == vars(ordered)
        put = Ran(1)
        Ran.ran.clear()
        assert c.get(c.put({"r": put}))["r"].x == 1 and Ran.ran == []


def test_shared_parts_stay_shared_and_cycles_work():
    with Node() as node, rdtd.connect(node.socket) as c:
        part = [1]
        got = c.get(c.put({"a": part, "b": (part, {"c": part})}))
        assert got["a"] is got["b"][0] is got["b"][1]["c"]
        ring = [b"x"]
        ring.append(ring)
        got = c.get(c.put(ring))
        assert got[0] == b"x" and got[1] is got
        knot = {"x": 1}
        knot["knot"] = knot
        got = c.get(c.put(knot))
        assert got["knot"] is got
        step = Step(None, 1)
        step.weights = {"back": step}
        got = c.get(c.put(step, allow_pickle=False))
        assert got.weights["back"] is got
        pair = ([],)
        pair[0].append(pair)
        got = c.get(c.put(pair))  # as a pickle
        assert got[0][0] is got
        for twice in (lambda x: [x, x], lambda x: (x, x), lambda x: {"a": x, "b": x}):
            value = []
            for _ in range(90):  # two to the power of 90 ways lead to the innermost list
                value = twice(value)
            assert len(c.put(value).pack()) and type(c.get(c.put(value))) is type(value)
        deep = []
        for _ in range(100000):
            deep = [deep]
        with raises(TypeError, "nested more deeply"):
            c.put(deep)
        while deep:
            deep = deep.pop()


def test_an_array_with_two_names_is_one_tensor():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        a = np.arange(5)
        for value in ({"a": a, "b": np.ones(2), "c": a}, {"x": [a, 1], "c": a}, [a, a]):
            ref = c.put(value)
            assert c.stat(ref)["tensors"] == len({id(x) for x in _leaves(value)})
            got = _leaves(c.get(ref))
            assert got[0] is got[-1]
            same(c.get(ref), value)
            into = {"a": np.zeros(5, "i8"), "b": np.zeros(2), "c": np.zeros(5, "i8")}
            if isinstance(value, dict) and "a" in value:
                same(c.get(ref, into=into), value)
        with raises(rdtd.Mismatch, "into['c']"):
            c.get(c.put({"a": a, "b": a[:2].copy(), "c": a}), into={**into, "b": np.zeros(2, "i8"), "c": np.zeros(4, "i8")})


def _leaves(value):
    if isinstance(value, (dict, list)):
        return [leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(item)]
    return [] if isinstance(value, int) else [value]


if np:
    class Rows(np.ndarray):
        pass


def test_subclasses_of_arrays_come_back():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        rows = np.ones(3).view(Rows)
        rows.unit = "m"
        got = c.get(c.put({"r": rows}))["r"]
        assert type(got) is Rows and got.unit == "m"
        for a in (np.matrix([[1, 2]]), np.ma.array([1, 2], mask=[0, 1]), np.rec.array([(1, 2.0)], dtype="i4,f4"),
                  np.array(["a", "bc"]), np.array([1], ">i4"), np.array(["2026"], "M8[s]"), np.zeros(2, "i4,f8")):
            got = c.get(c.put(a))
            assert type(got) is type(a) and got.dtype == a.dtype and got.tolist() == a.tolist(), (a, got)


if torch:
    class Boxes(torch.Tensor):
        pass

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(4, 4, bias=False)
            self.b = torch.nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight


def test_torch_keeps_parameters_subclasses_and_attributes():
    need(torch, "torch")
    with Node() as node, rdtd.connect(node.socket) as c:
        model = torch.nn.Linear(3, 2)
        model.bias.requires_grad_(False)
        for got in c.get(c.put(model)), c.get(c.put({"m": model}, snapshot=True))["m"]:
            assert type(got.weight) is torch.nn.Parameter and got.weight.requires_grad and not got.bias.requires_grad
            got(torch.ones(3)).sum().backward()
            same(got.weight.detach(), model.weight.detach())
        for value in (dict(model.named_parameters()), {"x": [model.weight, 1], "y": model.bias}):
            got = c.get(c.put(value, allow_pickle=False), allow_pickle=False)
            for put, read in zip(_leaves(value), _leaves(got)):
                assert type(read) is torch.nn.Parameter and read.requires_grad == put.requires_grad
        got = c.get(c.put(torch.ones(3, requires_grad=True)))
        assert type(got) is torch.Tensor and got.requires_grad
        boxes = torch.ones(3).as_subclass(Boxes)
        boxes.format = "XYWH"
        plain = torch.ones(2)
        plain.note = "attribute"
        parallel = torch.nn.Parameter(torch.ones(2))
        parallel.split = 1
        got = c.get(c.put([boxes, {"p": plain, "q": parallel}]))
        assert type(got[0]) is Boxes and got[0].format == "XYWH" and got[1]["p"].note == "attribute"
        assert type(got[1]["q"]) is torch.nn.Parameter and got[1]["q"].split == 1 and got[1]["q"].requires_grad
        assert type(c.get(c.put(boxes))) is Boxes
        for value in torch.float16, torch.Size([1, 2]), torch.device("cpu"):
            same(c.get(c.put([value], allow_pickle=False))[0], value)
        with raises(TypeError, "value['m'] is a torch.nn.modules.linear.Linear"):
            c.put({"m": model}, allow_pickle=False)


def test_torch_dtypes_and_layouts_that_do_not_exist_are_refused():
    need(torch, "torch")
    with Node() as node, rdtd.connect(node.socket) as c:
        for name in ("int1", "int7", "uint4", "bits8"):
            if hasattr(torch, name):
                with raises(TypeError, f"value['a']: no rdtd dtype matches its dtype torch.{name}"):
                    c.put({"a": torch.empty(4, dtype=getattr(torch, name))})
                with raises(TypeError, f"no rdtd dtype matches its dtype torch.{name}"):
                    c.put_part({"a": torch.empty(4, dtype=getattr(torch, name))})
        for layout in torch.strided, torch.jagged:
            with raises(TypeError, "value['n']: it is a nested tensor"):
                c.put({"n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)})
        lazy = torch.tensor([1 + 2j]).conj()
        same(c.get(c.put({"a": lazy, "b": lazy.conj()})), {"a": lazy.resolve_conj(), "b": lazy.conj()})


def test_torch_tensors_of_one_storage_are_stored_once_and_stay_aliased():
    need(torch, "torch")
    with Node() as node, rdtd.connect(node.socket) as c:
        tied = Tied()
        got = c.get(c.put(tied))
        assert got.a.weight is got.b.weight
        for value in (dict(tied.state_dict()), tied.state_dict(), {"s": dict(tied.state_dict())}):
            ref = c.put(value)
            assert c.stat(ref)["tensors"] == 1
            got = c.get(ref)
            assert type(got) is type(value)
            a, b = _leaves(got)
            assert a.data_ptr() == b.data_ptr() and a is not b and torch.equal(a, tied.a.weight)
            into = {name: torch.zeros(4, 4) for name in tied.state_dict()}
            c.get(ref, into=into if len(value) == 2 else {"s": into})
            assert torch.equal(into["a.weight"], into["b.weight"]) and torch.equal(into["a.weight"], tied.a.weight)
        state = torch.nn.BatchNorm1d(2).state_dict()
        for note in (None, (torch.ones(1),), {"shared": [[]] * 2}, Step(None, 1)):
            state.note = note
            got = c.get(c.put(state, allow_pickle=False))
            assert type(got) is type(state) and list(got) == list(state) and got._metadata == state._metadata
            assert got.note == note
        numbers = torch.arange(30.0)
        value = {"even": numbers[0::2], "odd": numbers[1::2], "later": numbers[2::2]}
        got = c.get(c.put(value))
        assert got["even"][1:].data_ptr() == got["later"].data_ptr() and all(torch.equal(got[k], value[k]) for k in value)
        w = torch.arange(12.0).reshape(3, 4)
        value = {"w": w, "rows": w[:2], "t": w.T, "bits": w.view(torch.int32)}
        got = c.get(c.put(value), mode="copy")
        for name in value:
            same(got[name], value[name])
        got["w"][0, 0] = 7
        assert got["rows"][0, 0] == 7 and got["t"][0, 0] == 7
        columns = {"q": w[:, :2], "k": w[:, 2:]}
        same(c.get(c.put(columns)), columns)


def test_daemon_memory_is_put_without_a_copy_and_stays_live():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        e = c.empty((300, 1000), "f32")
        assert e.dtype == np.float32 and (e == 0).all() and e.flags.writeable
        ref = c.put(e[100:200])
        assert ref.copied == 0 and c.put(np.zeros(10)).copied == 1
        seen = reader.get(rdtd.Ref(str(ref)))
        assert reader.get_fetched(ref).path in ("local/share", "local/same") and not seen.flags.writeable
        e[100, 0] = 5
        assert seen[0, 0] == 5
        with raises(ValueError):
            seen[0, 0] = 1
        copied = reader.get(ref, mode="copy")
        copied[0, 0] = 6
        assert seen[0, 0] == 5
        del e
        ref2 = c.put({"all": seen.copy()}, snapshot=True)
        cow = reader.get(ref2, mode="cow")["all"]
        cow[0, 0] = 9
        assert reader.get(ref2)["all"][0, 0] == 5 and cow.flags.writeable


def test_empty_like_is_one_allocation():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        like = {"a": np.ones((3, 3)), "b": [np.arange(5, dtype="u1"), (np.zeros((0,), "f4"), np.array(1.5))]}
        mine = c.empty_like(like)
        assert mine["a"].shape == (3, 3) and mine["b"][0].dtype == np.uint8 and mine["b"][1][1].shape == ()
        mine["a"][:] = 2
        ref = c.put(mine)
        assert ref.copied == 0
        assert node.ctl("regions", "--json").count('"region"') == 1, node.ctl("regions", "--json")
        same(mine, c.get(ref))
        for bad, kind in ((-1, ValueError), ("x", TypeError)):
            with raises(kind):
                c.empty(bad)
        with raises(TypeError, "unknown dtype"):
            c.empty(3, "f5")
        with raises(MemoryError, "memory_limit"):
            c.empty((1 << 42,), "u8")


def test_empty_like_takes_what_has_a_buffer():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        for like in ((ctypes.c_int * 3 * 2)((1, 2, 3), (4, 5, 6)), memoryview(np.arange(6, dtype="c16").reshape(2, 3)), b"bytes",
                     memoryview(np.arange(3, dtype="c8")), memoryview(np.array([True, False])), bytearray(b"more"),
                     memoryview(np.array(2.5)), memoryview(np.arange(3, dtype="i2"))):
            want = c.get(c.put(like), as_="list")[0] if isinstance(like, (bytes, bytearray)) else c.get(c.put(like))
            want = np.frombuffer(want, "u1") if isinstance(want, (bytes, bytearray)) else want
            made = c.empty_like({"a": like})["a"]
            assert (made.dtype, made.shape) == (want.dtype, want.shape), (like, made)
            same(c.buffers([like], count=1).filled([like])[0], want)
        for wrong in np.zeros(3, "i4,f4"), np.zeros(3, ">i4"), np.zeros(3, "S3"), np.zeros(16, "u1"):
            view = memoryview(wrong) if wrong.dtype != np.uint8 else memoryview(wrong).cast("P")
            with raises(TypeError, "no rdtd dtype matches it"):
                c.empty_like(view)


def test_torch_goes_both_ways():
    need(torch, "torch")
    with Node() as node, rdtd.connect(node.socket) as c:
        value = {name: torch.arange(12).to(getattr(torch, name)).reshape(3, 4)
                 for name in ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32",
                              "int64", "bool", "complex64")}
        value["strided"] = torch.arange(12.0).reshape(3, 4).t()
        value["scalar"], value["none"] = torch.tensor(2.5), torch.zeros(0, 3)
        same({**value, "strided": value["strided"].contiguous()}, c.get(c.put(value)))
        big = torch.arange(1 << 16)
        ref = c.put(big, snapshot=True)
        for one in (ref, rdtd.Ref(str(ref)), pickle.loads(pickle.dumps(ref))):  # with the hint and without
            assert c.get_fetched(one).path == "local/cow"
            for got in c.get(one), *c.get(one, as_="list"), *c.fetch(one, as_="list").result(), *c.get([one] * 16, as_="list")[9]:
                got[0] = 7  # torch has no read-only tensors, so it gets private pages
                same(c.get(one), big)
        live = c.put(c.empty((70000,), torch.float32))
        assert live.copied == 0
        shared = c.get(live, mode="share", as_="torch")
        assert shared.shape == (70000,)
        model = torch.nn.Linear(3, 4)
        c.put(model.state_dict(), id="model")
        model.load_state_dict(c.get(rdtd.Ref("model")))
        same(c.get(c.put(torch.nn.Parameter(torch.ones(3)))), torch.ones(3))
        same(c.get(c.put(torch.tensor([1 + 2j]).conj())), torch.tensor([1 - 2j]))
        same(c.get(c.put(torch.tensor([1 + 2j]).conj().imag)), torch.tensor([-2.0]))
        for dtype in torch.bfloat16, torch.float16, torch.int32:
            one = torch.ones(3, dtype=dtype)
            same(c.get(c.put({"w": torch._neg_view(one), "v": one})), {"w": -one, "v": one})
            with raises(TypeError, "negated view, which cannot be written"):
                c.get(c.put(one), into=torch._neg_view(one))
        same(c.get(c.put([torch.ones(2, requires_grad=True), torch.tensor(3), torch.zeros(0, 4),
                          torch.ones(3, 4).t()[1:]])),
             [torch.ones(2), torch.tensor(3), torch.zeros(0, 4), torch.ones(3, 3).t()])
        for bad in (torch.eye(2).to_sparse(), torch.ones([1] * 33)):
            with raises((TypeError, ValueError, RuntimeError)):
                c.put([bad])
        with raises(TypeError, "host memory"):
            c.put([torch.zeros(3, device="meta")])
        into = torch.zeros(1 << 16, dtype=torch.int64)
        c.get(ref, into=into)
        same(into, big)
        assert c.get(ref, as_="numpy")[9] == 9


def test_views_of_every_protocol_are_the_memory_itself():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        e = c.empty((4, 5), "i32", as_="tensor")
        assert (e.shape, e.strides, e.dtype, e.nbytes, e.ndim, len(e)) == ((4, 5), (5, 1), "i32", 80, 2, 4)
        memoryview(e)[0, 1] = 3
        assert np.asarray(e)[0, 1] == 3 and np.from_dlpack(e)[0, 1] == 3
        assert e.__dlpack_device__() == (1, 0)
        if torch is not None:
            assert torch.from_dlpack(e)[0, 1] == 3
        ref = c.put(np.arange(100000), snapshot=True)
        (frozen,) = c.get(ref, as_="list", mode="share")
        (t,) = [c.get(ref, as_="tensor", mode="share")]
        assert t.readonly and not frozen.flags.writeable and memoryview(t).readonly
        with raises(BufferError, "read-only"):
            t.__dlpack__()
        assert "dltensor_versioned" in repr(t.__dlpack__(max_version=(1, 0)))
        with raises(BufferError, "copy"):
            e.__dlpack__(copy=True)
        with raises(BufferError, "host memory"):
            e.__dlpack__(dl_device=(2, 0))
        half = c.empty((3,), "bf16", as_="tensor")
        with raises(BufferError, "bf16"):
            memoryview(half)
        assert half.bits().dtype == "u16" and memoryview(half.bits()).format == "H"
        capsule = e.__dlpack__()
        del e, capsule, half, t, frozen  # capsules that nobody has consumed


def test_every_dtype_is_what_other_libraries_call_by_its_names():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        for text, (number, size, name, kind, _) in rdtd._rdt.DTYPES.items():
            tensor = c.empty((2,), text, as_="tensor")
            assert (tensor.dtype, tensor.nbytes) == (text, 2 * size), text
            if kind:
                assert np.dtype(f"{kind}{size}") == np.dtype(name), text
                assert np.asarray(tensor).dtype == np.dtype(name), text
                assert kind == "b" or np.from_dlpack(tensor).dtype == np.dtype(name), text  # numpy 1 lacks it
                assert c.get(c.put(np.ones(2, name)), as_="tensor").dtype == text
            if torch is not None and hasattr(torch, name):
                assert c.empty((2,), text, as_="torch").dtype == getattr(torch, name), text
                assert c.get(c.put(torch.ones(2).to(getattr(torch, name))), as_="tensor").dtype == text


def test_dlpack_comes_in():
    need(np, "numpy")

    class Foreign:
        def __init__(self, a):
            self.a = a

        def __dlpack__(self, **kwargs):
            return self.a.__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    with Node() as node, rdtd.connect(node.socket) as c:
        a = np.arange(12, dtype="f4").reshape(3, 4)[:, 1:]
        same(c.get(c.put([Foreign(a)]))[0], a.copy())


def test_ml_dtypes_where_they_are():
    need(np, "numpy")
    try:
        import ml_dtypes
    except ImportError:
        raise Skipped("no ml_dtypes here") from None
    with Node() as node, rdtd.connect(node.socket) as c:
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            a = np.arange(6).astype(getattr(ml_dtypes, name)).reshape(2, 3)
            same(c.get(c.put({"a": a, "t": a.T}))["a"], a)
        assert c.empty(3, "bf16").dtype == ml_dtypes.bfloat16


def test_unsealed_snapshots_never_change_and_use_memory_again():
    with Node("--set", "daemon.pool_idle=3s") as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        block = bytearray(1 << 20)
        for i in range(1, 5):
            block[:] = bytes((i,)) * len(block)
            ref = c.put(memoryview(block), snapshot="unsealed")
            block[:] = bytes(len(block))
            seen = reader.get(ref, as_="tensor")
            assert bytes(memoryview(seen)[-3:]) == bytes((i,)) * 3 and memoryview(seen).readonly
            del seen
            c.free(ref)
            c.wait_freed(ref)
        assert c.status()["cache_hits"] >= 3
        with raises(ValueError, "snapshot must be"):
            c.put(block, snapshot="sealed")


def test_arrays_are_read_only_whatever_their_size():
    need(np, "numpy")
    with (Node(listen=True) as a, Node(listen=True) as b, rdtd.connect(a.socket) as c,
          rdtd.connect(b.socket) as far):
        for n in (0, 3, 1000, 100000):
            for snapshot in (False, True):
                ref = c.put({"w": np.arange(n), "more": [np.zeros(n, "f2"), "text"]}, snapshot=snapshot)
                one = c.put(np.arange(n), snapshot=snapshot)
                for reader in (c, far):
                    for options in ({}, {"mode": "auto"}, {"as_": "numpy"}, {"timeout": 60}):
                        got = reader.get(ref, **options)
                        assert not got["w"].flags.writeable, (n, snapshot, options)
                        assert not got["more"][0].flags.writeable, (n, snapshot, options)
                        assert not reader.get(one, **options).flags.writeable
                    assert reader.get(one, as_="tensor").readonly
                    assert not reader.get_fetched(one).value.flags.writeable
                    for mode in ("copy", "cow"):
                        got = reader.get(ref, mode=mode)["w"]
                        assert got.flags.writeable
                        got[:1] = 7
                    into = np.ones(n, "i8")
                    assert reader.get(one, into=into) is into and into.flags.writeable
    end(a, b)


def test_reprs_say_what_they_are():
    with Node() as node:
        with rdtd.connect(node.socket) as c:
            ref = c.put(b"bytes", id="mine")
            assert repr(c) == f"<rdtd.Connection to {node.socket}, session {c.node['session']}>"
            assert repr(ref) == "<Ref of object mine, holds it>"
            assert repr(rdtd.Ref(str(ref))) == "<Ref of object mine>"
            name = rdtd.Ref.from_name("w", 3, address="192.0.2.1:7171")
            assert repr(name) == "<Ref of name w after version 3 at 192.0.2.1:7171>"
            fetch, wait, late = c.fetch(ref), c.when_freed(ref), c.when_held(rdtd.Ref("later"))
            fetch.result()
            assert repr(fetch) == f"<rdtd.Request: fetch of {ref!r}, done>"
            assert repr(wait) == "<rdtd.Request: wait, running>"
            assert repr(late) == "<rdtd.Request: hold of <Ref of object later>, running>"
            late.cancel()
            assert repr(late).endswith(", ended with CANCELLED>")
            assert repr(c.versions("w", 3)) == "<rdtd.Versions of name w after version 3>"
            for one in (c.get_fetched(ref), c.empty(3, "bf16", as_="tensor"), rdtd.Member("x"),
                        rdtd.TimedOut("late")):
                assert " object at 0x" not in repr(one)
        assert "(closed)" in repr(c) and "holds" not in repr(ref)


def test_refs_whose_bytes_are_no_text_can_be_looked_at():
    with Node() as node, rdtd.connect(node.socket) as c:
        text = f"rdt:{'0' * 32}/x?g=7&a=h%d5:1&u=5&t=%d5"
        got = c.get(c._put([bytes(8)], None, b'{"rdt":1,"form":"tree","kinds":"n"}\n[{"$ref":"%s"}]' % text.encode(), 0, None, 0,
                           None, None, None))[0]
        for ref in rdtd.Ref(text), got:
            assert ref.address == "h\\xd5:1" and ref.address in repr(ref) and ref.owner == (5, "\udcd5")
            assert rdtd.Ref(str(ref)) == ref and str(ref) == text


def test_other_names_of_dtypes():
    with Node() as node, rdtd.connect(node.socket) as c:
        for name, text in (("f4", "f32"), ("<f4", "f32"), ("half", "f16"), ("float", "f64"), ("<i8", "i64"),
                           ("i8", "i8"), ("u1", "u8"), (float, "f64")):
            assert c.empty(3, name, as_="tensor").dtype == text, name
        for wrong in (">f4", "f3", "<text"):
            with raises(TypeError, wrong):
                c.empty(3, wrong)
        for other in (np.dtype(">f4"), np.dtype([("a", "f4")]), {"names": ["a", "b"], "formats": ["f4"]}) if np else ():
            with raises(TypeError, "unknown dtype"):
                c.empty(3, other)


class Model:
    def __init__(self, part):
        self.part = part


def test_put_names_what_it_cannot_take():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        for value, where in (({"w": np.zeros(3), "f": lambda: 1}, "value['f']"),
                             ([1, {"g": (2, lambda: 1)}], "value[1]['g'][1]"),
                             (Model({"h": lambda: 1}), "value.part['h']"), (lambda: 1, "value")):
            with raises(TypeError, f"put: {where}, a builtins.function, is not a tensor and cannot be pickled"):
                c.put(value)
        with raises(TypeError, "put: tensor 1, value['x'][0]: "):
            c.put({"w": np.zeros(3), "x": [Strange()]})
        if torch:
            with raises(TypeError, "put: tensor 1, value['s']: it has the layout torch.sparse_coo"):
                c.put({"w": torch.ones(2), "s": torch.eye(3).to_sparse()})


class Strange:
    """An array whose dtype does not exist."""

    __cuda_array_interface__ = {"shape": (1,), "typestr": "<f3", "data": (8, False), "version": 3}


def test_put_that_waits_for_room_ends_in_time():
    need(np, "numpy")
    with Node("--memory-limit", "64MiB") as node, rdtd.connect(node.socket) as c:
        keep = c.empty(40 << 20, "u1")
        for options in ({}, {"snapshot": True}):
            began = time.monotonic()
            with raises(rdtd.TimedOut):  # from the daemon, or from librdt if the daemon's answer comes late
                c.put(np.zeros(30 << 20, "u1"), timeout=1, **options)
            assert 0.97 < time.monotonic() - began < LONG, "it waited, and not until there was room"
        del keep


def test_calls_end_at_their_time_out_if_the_daemon_does_not_answer():
    need(np, "numpy")
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put(np.zeros(10))
        node.process.send_signal(signal.SIGSTOP)
        try:
            for call in (lambda: c.empty(1000, timeout=0.3), lambda: c.put(np.zeros(100000), timeout=0.3),
                         lambda: c.put(b"small", timeout=0.3),
                         lambda: c.get(ref, timeout=0.3), lambda: c.hold(ref, timeout=0.3),
                         lambda: c.wait_freed(ref, timeout=0.3),
                         lambda: c.ping(timeout=0.3)):
                began = time.monotonic()
                with raises(rdtd.TimedOut):
                    call()
                assert time.monotonic() - began < LONG, "each would wait for a minute or more by itself"
        finally:
            node.process.send_signal(signal.SIGCONT)


# ---- verify=True ----


def test_verified_fetch_has_the_bytes_that_were_put():
    strided = np.arange(4000, dtype=np.int32).reshape(40, 100)[::2, 1::3]
    value = {"a": strided, "b": np.arange(1 << 20, dtype=np.float32), "c": np.array(7, dtype=np.int16),
             "none": np.zeros((0, 3)), "text": "t"}
    with Node(listen=True) as here, Node(listen=True) as there:
        with rdtd.connect(here.socket) as c, rdtd.connect(there.socket) as far:
            for how in {"snapshot": True}, {"snapshot": "unsealed"}, {"snapshot": True, "checksum": True}, {"checksum": True}:
                ref = c.put(value, **how)
                for reader in c, far:
                    for mode in None, "copy", "share", "cow":
                        if mode in ("share", "cow") and (reader is far or "snapshot" not in how):
                            continue
                        got = reader.get(rdtd.Ref(str(ref)), verify=True, mode=mode)
                        assert np.array_equal(got["a"], strided) and np.array_equal(got["b"], value["b"]), (how, mode)
                    into = {"a": np.empty(strided.shape, np.int32), "b": np.empty(1 << 20, np.float32),
                            "c": np.empty((), np.int16), "none": np.zeros((0, 3))}
                    assert reader.get(rdtd.Ref(str(ref)), verify=True, into=into) is into
                    assert np.array_equal(into["a"], strided) and into["c"] == 7
                    fetched = reader.get_fetched(rdtd.Ref(str(ref)), verify=True)
                    assert fetched.value["text"] == "t"
                with raises(ValueError, "whole"):
                    c.fetch(ref, verify=True, slices=[None] * 4)
                del got, fetched
                ref.free()
            for small in c.put(np.arange(10)), c.put(np.arange(10), snapshot=True):  # both are copies of the daemon
                assert far.get(rdtd.Ref(str(small)), verify=True)[9] == 9
            assert asyncio.run(awaited(far, small))[9] == 9
            assert far.status()["replicas_checked"] == 3 and far.status()["replicas_damaged"] == 0
        for node in here, there:  # they keep their connections to each other open
            node.kill()


async def awaited(connection, ref):
    return await connection.fetch(rdtd.Ref(str(ref)), verify=True)


def test_snapshot_that_is_freed_while_it_moves_is_checked():
    """Its node computes the checksum meanwhile, and the reader waits for it."""
    value = np.arange(6 << 20, dtype=np.uint64)
    with Node(listen=True) as here, Node(listen=True) as there:
        with rdtd.connect(here.socket) as c, rdtd.connect(there.socket) as far:
            for _ in range(12):
                ref = c.put(value, snapshot="unsealed")
                before = far.status()["bytes_in"]
                request = far.fetch(rdtd.Ref(str(ref)))
                until(lambda before=before: far.status()["bytes_in"] > before, "bytes have come")
                c.free(ref, force=True)
                assert np.array_equal(request.result(LONG), value)
                del request
            counts = far.status()
            assert (counts["replicas_checked"], counts["replicas_unchecked"]) == (12, 0), counts
        for node in here, there:  # they keep their connections to each other open
            node.kill()


def test_verified_fetch_of_changed_bytes_is_damaged():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as reader:
        for size in 10, 1 << 20:
            memory = c.empty((size,), np.uint8)
            memory[:] = 3
            ref = c.put(memory, checksum=True)
            assert reader.get(ref, verify=True)[0] == 3
            memory[size // 2] ^= 1
            for options in {}, {"mode": "copy"}, {"into": np.empty(size, np.uint8)}:
                with raises(rdtd.Damaged, "checksum"):
                    reader.get(ref, verify=True, **options)
            assert reader.get(ref)[size // 2] == 2, "who does not ask gets them"
            ref.free()


def test_fetch_that_cannot_be_verified_says_how_to_get_a_checksum():
    with Node() as node, rdtd.connect(node.socket) as c:
        memory = c.empty((1 << 20,), np.uint8)
        ref = c.put(memory)
        with raises(rdtd.Unsupported, "or with RDT_PUT_SUM (in Python checksum=True)"):
            c.get(ref, verify=True)
        ref.free()


if __name__ == "__main__":
    main(globals())
