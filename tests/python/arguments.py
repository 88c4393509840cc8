# SPDX-License-Identifier: Apache-2.0
"""Every parameter of every public call, with what must not be passed for it: the error names the parameter."""
from __future__ import annotations

import asyncio
import inspect
import mmap
import os
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any, Callable

import rdtd
from nodes import LONG, Node, main, need, optional, raises

np = optional("numpy")
torch = optional("torch")

NO_TEXT = [5, 1.5, b"bytes", ["list"], "zero\0byte", "half\ud800", object()]
NO_NUMBER = ["5", 1.5, -1, 2**64, 10**400, [1], True, None, float("nan")]
NO_SECONDS = ["1", -1, -0.5, float("nan"), -float("inf"), [1], b"1", object(), -10**400]
NO_FLAG = ["yes", "", 2, -1, 1.0, [], {}]
NO_CHOICE = ["nix", "", 5, [], {}, b"all", "half\ud800"]
NO_REF = ["rdt:text", 5, b"bytes", [], {}, object()]
NO_LIST = [5, "text", b"bytes", object(), 1.5]
NO_DICT = [5, "text", [1], object(), None]

WRONG: dict[str, list[Any]] = {
    **dict.fromkeys(("timeout", "grace"), NO_SECONDS), "ttl": [*NO_SECONDS, 0, 0.0], "lease_for": [*NO_SECONDS, 0, 0.0],
    "nodes": [*NO_SECONDS, 0, 0.0],
    **dict.fromkeys(("name", "text", "address", "transport", "least_path", "group", "prefix"), NO_TEXT),
    **dict.fromkeys(("detached", "stored", "allow_pickle", "copy", "immutable", "checksum", "verify", "lease", "reconnect",
                     "strict", "force", "replace", "delta", "evictable", "all", "until_missing"), NO_FLAG),
    **dict.fromkeys(("mode", "as_", "visible", "move", "state"), NO_CHOICE),
    **dict.fromkeys(("after", "client", "limit", "step", "version", "priority"), NO_NUMBER),
    **dict.fromkeys(("rank", "of", "world_size", "daemon_uid"), [*NO_NUMBER, 2**32 - 1 + 1]),
    "priority": [*NO_NUMBER, 8],
    **dict.fromkeys(("ref", "near"), NO_REF),
    "owner": [1.5, b"root", [], "zero\0", "half\ud800", -1, 2**32, True],
    "id": [5, 1.5, [], "", b"", "x" * 129, "half\ud800", object()],
    "snapshot": ["yes", "sealed", 2, [], 1.5],
    "socket": [5, 1.5, [], "zero\0byte", "/half\ud800"],
    "others": [5, "text", b"bytes", [5], ["zero\0"], ["half\ud800"], [b"x"], [None]],
    "refs": [5, "text", b"x", [5], [None], {"a": 1}, object()],
    "into": [5, "text", object(), {"a": 5}, [None], {"a": object()}, b"bytes"],
    "slices": [5, "text", [5], [(slice(0, None),)], [(slice(0, 5, 2),)], [(slice("a", "b"),)], [(slice(-3, 5),)],
               [(slice(5, 2),)], [(slice(0, 2**70),)], [(slice(0.5, 2),)]],
    "device": ["nix", 1.5, [], -1, 2**70, "cuda:-1", "cuda:" + "9" * 5000, "cuda:\u00b2", True, b"cpu", "GPU-\0", "GPU-\ud800"],
    "stream": ["nix", 1.5, [], -1, 2**64, True],
    "shape": ["text", None, 1.5, [1.5], [-1], -1, [2**70], 2**62, [2**31, 2**31], ["5"], [1] * 33, {1: 2}, [True],
              object()],
    "dtype": ["nix", 5, [], "f4\0", "half\ud800", object(), None, b"f4", "O"],
    "what": [5, "text", {"a": 1}, object(), None],
    "requests": [5, "text", [5], [None], object()],
    "how_many": ["some", -2, 2, 1.5, None, [], True],
    "members": [5, "text", [5], [()], [("a", "b", "c", "d")], [(5,)], [("a", 5)], [("a", None, 5)], ["zero\0"],
                ["half\ud800"], [None]],
    "boxes": [*NO_DICT, {5: b"x"}, {"zero\0": bytearray(8)}, {"half\ud800": bytearray(8)}, {"a": 5}, {"a": "text"},
              {"a": rdtd.Box(bytearray(8), (8,), (-1,))}, {"a": rdtd.Box(bytearray(8), (2**70,))}, {"a": rdtd.Box(bytearray(8), 8)},
              {"a": rdtd.Box(bytearray(8), ("8",))}, {"a": rdtd.Box(bytearray(8), (8,), (0.5,))},
              {"a": rdtd.Box(bytearray(8), (8,), "0")}, {"a": rdtd.Box(bytearray(8), (8, 8))}],
    "targets": [*NO_DICT, {}, {5: bytearray(8)}, {"zero\0": bytearray(8)}, {"half\ud800": bytearray(8)}, {"a": 5}, {"a": "text"},
                {"a": b"read-only"}, {"a": rdtd.Box(bytearray(8), (8,), (-1,))}, {"a": rdtd.Box(bytearray(8), (2**70,))},
                {"a": rdtd.Box(bytearray(8), start=5)}, {"a": rdtd.Box(bytearray(8), start=(1.5,))}],
    "padded": [5, "text", [1], {"nix": 0}, {"a": -1}, {"a": "0"}, {"a": 2**70}, {"a": 1.5}, {"a": True}, {"a": None}],
    "part": [5, "text", [1], None, object()],
    "connection": [5, "text", object()],
    "tensors": NO_DICT,
    "most": ["1", -1, 2, float("nan"), None, [], True],
    "layout": [5, "text", [1], {"nix": (0, 0, 1)}, {"a": 5}, {"a": (0, 0)}, {"a": ("0", 0, 1)}, {"a": (0, 2**70, 1)},
               {"a": (5, 0, 1)}, {"a": (0, 1, 1)}, {"a": (0, -1, 1)}, {"a": (0, 1.5, 2)}],
    "model": NO_DICT,
    "like": [5, "text", {}, [], {"a": 5}, None, object()],
    "count": [*NO_NUMBER, 0],
    "buffer": [5, "text", None, {"a": 1}, object()],
    "fd": [*NO_NUMBER, 2**31],
    "names": [5, b"bytes", object(), 1.5, "zero\0byte", "half\ud800", ["zero\0byte"], [5], [None], ["half\ud800"]],
    "values": [5, "text", None, object()],
    "ids": [5, "text", [5], ["half\ud800"], object()],
    "errors": NO_CHOICE,
}
# Where an error names what is inside a parameter, or where the parameter may be more.
ALSO = {"boxes": "'a'", "targets": "'a'", "slices": "slice"}
ANYTHING = {"self", "cls", "value", "options", "args"}


def is_wrong(call: Callable[[], Any], parameter: str) -> str:
    """What is wrong with the error; "": nothing."""
    try:
        made = call()
        if inspect.isawaitable(made) and inspect.iscoroutine(made):
            made = asyncio.run(asyncio.wait_for(made, LONG))
        return f"no error, but {made!r}"
    except (rdtd.Error, ValueError, TypeError) as error:
        if isinstance(error, (UnicodeError, RecursionError)):
            return f"{type(error).__name__}: {error}"
        text = str(error)
        return "" if parameter in text or ALSO.get(parameter, parameter) in text else f"{type(error).__name__}: {text}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def try_all(calls: list[tuple[Any, dict[str, Any]]]) -> None:
    """calls: each with arguments that are right."""
    failures = []
    tried = 0
    for function, right in calls:
        parameters = inspect.signature(function).parameters
        for name, parameter in parameters.items():
            if name in ANYTHING:
                continue
            if name not in WRONG:
                failures.append(f"{function.__qualname__}: this test has nothing for the parameter {name}")
                continue
            for value in WRONG[name]:
                if value is None and parameter.default is None or (function.__name__, name) == ("publish", "what"):
                    continue
                if value == [None] and function.__name__ == "end_lease":
                    continue  # lookup returns it for an id without an object
                tried += 1
                said = is_wrong(lambda: function(**{**right, name: value}), name)
                if said:
                    failures.append(f"{function.__qualname__}({name}={value!r:.60}): {said:.200}")
    assert tried > 100 and not failures, f"{len(failures)} of {tried}:\n" + "\n".join(failures)


def public(cls: type) -> set[str]:
    """The public methods of a class."""
    return {name for name in dir(cls) if name[0] != "_" and callable(getattr(cls, name)) and
            getattr(getattr(cls, name), "__module__", "").startswith("rdtd")}


def test_errors_name_the_parameter() -> None:
    need(np, "numpy")
    with Node(listen=True) as node, rdtd.connect(node.socket) as c:
        a = np.arange(8, dtype="f4")
        ref = c.put({"a": a})
        named = rdtd.Ref.from_name("policy")
        c.publish_part("policy", 1, 0, 1, {"a": a}, timeout=LONG)
        done = c.fetch(ref)
        done.result(LONG)
        mine = {"a": np.zeros(8, "f4")}
        plan = c.plan("policy", mine)
        part = c.put_part({"a": a})
        publisher = rdtd.DeltaPublisher(c, "deltas")
        publisher.publish({"a": a})
        follower = rdtd.DeltaFollower(c, "deltas", mine)
        fd = os.memfd_create("pages", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4096)
        pages = mmap.mmap(fd, 4096)
        os.close(fd)
        calls: list[tuple[Any, dict[str, Any]]] = [
            (rdtd.connect, {"socket": node.socket}), (rdtd.Connection, {"socket": node.socket}),
            (c.put, {"value": a}), (c.put_async, {"value": a}), (c.empty, {"shape": 5}), (c.empty_async, {"shape": 5}),
            (c.empty_like, {"value": a}), (c.buffers, {"like": a}), (c.import_memory, {"buffer": pages}),
            (c.store, {"ref": ref}), (c.free, {"ref": ref}), (c.fetch, {"refs": ref}), (c.get, {"refs": ref}),
            (c.get_fetched, {"ref": ref}), (c.publish, {"name": "name", "what": a}), (c.unpublish, {"name": "name"}),
            (c.name, {"name": "name"}), (c.versions, {"name": "name"}), (c.ping, {}), (c.torch_pool, {}),
            (c.when_held, {"ref": ref}), (c.end_lease, {"refs": [ref]}), (c.hold, {"ref": ref}), (c.wait, {"requests": [done]}),
            (c.wait_async, {"requests": [done]}), (c.when_put, {"ref": ref}), (c.when_freed, {"what": ref}),
            (c.wait_put, {"ref": ref}), (c.wait_freed, {"what": ref}),
            (c.put_part, {"boxes": {"a": a}}), (c.start_part, {"name": "p", "step": 1, "rank": 0, "of": 1, "part": part}),
            (c.publish_part, {"name": "p", "step": 1, "rank": 0, "of": 1, "part": part}), (c.manifest, {"name": "policy"}),
            (c.plan, {"name": "policy", "targets": mine}), (plan.run, {}),
            (c.create_group, {"name": "g", "transport": "gloo", "members": ["a", "b"]}),
            (c.create_group_async, {"name": "g", "transport": "gloo", "members": ["a", "b"]}), (c.destroy_group, {"name": "g"}),
            (c.when_broadcast, {"ref": ref, "group": "g"}), (c.broadcast, {"ref": ref, "group": "g"}),
            (c.exists, {"names": ["policy"]}), (c.put_many, {"values": [a]}), (c.publish_many, {"values": {"m": a}}),
            (c.end_client, {"client": 1 << 40}), (c.publishing, {"name": "grows"}), (c.follow, {"name": "policy"}),
            (c.stat, {"ref": ref}), (c.objects, {}), (c.names, {}), (c.flush_cache, {}), (c.lookup, {"ids": ["id"]}),
            (c.load_many, {"refs": [ref], "into": [pages]}), (done.result, {}), (done.fetched, {}),
            (rdtd.Ref.__new__, {"cls": rdtd.Ref}), (rdtd.Ref.from_id, {"id": "id"}), (rdtd.Ref.from_name, {"name": "name"}),
            (ref.at, {"address": "host:1"}), (ref.free, {}),
            (rdtd.DeltaPublisher, {"connection": c, "name": "d"}), (publisher.publish, {"tensors": {"a": a}}),
            (rdtd.DeltaFollower, {"connection": c, "name": "d", "tensors": mine}), (follower.update, {}),
        ]
        untried = set()
        for cls in rdtd.Connection, rdtd.Ref, rdtd.Request, rdtd.Plan, rdtd.DeltaPublisher, rdtd.DeltaFollower:
            tried = {getattr(function, "__name__", "") for function, _ in calls}
            untried |= {f"{cls.__name__}.{name}" for name in public(cls) - tried
                        if len(inspect.signature(getattr(cls, name)).parameters) > 1}
        assert untried <= {"Request.fetched_async"}, untried
        try_all(calls)
        # options that are passed on
        for function, right in ((c.get, {"refs": ref}), (c.get_fetched, {"ref": ref}), (c.versions, {"name": "name"}),
                                (c.put_async, {"value": a}), (c.publish, {"name": "name", "what": a}),
                                (c.publish, {"name": "name", "what": ref})):
            said = is_wrong(lambda: function(**right, tiemout=5), "tiemout")
            assert not said, (function, said)
        for name in ("mode", "as_", "into", "slices", "transport", "least_path", "allow_pickle", "device", "group", "verify",
                     "timeout"):
            for value in WRONG[name]:
                said = is_wrong(lambda: c.get(ref, **{name: value}), name)
                assert not said, (name, value, said)
        said = is_wrong(lambda: c.get({"a": ref}), "list(refs.values())")
        assert not said, said
        said = is_wrong(lambda: c.put(a, snapshot=True, immutable=True), "pass one of the two")
        assert not said, said
        assert c.get(ref, timeout=np.float32(5), verify=np.bool_(False))["a"][1] == 1
        assert c.names(limit=np.int64(5)) and c.empty(np.int64(5)).shape == (5,) and c.empty(np.array([2, 3])).shape == (2, 3)
        for name in "policy", "deltas", "deltas.delta":
            c.unpublish(name)
        del plan, part, publisher, follower, done, calls, named


def test_infinity_is_the_longest_time() -> None:
    with Node() as node:
        for long in float("inf"), 1e300, 10**400, 2**62, 4.7e9:
            with rdtd.connect(node.socket, timeout=long) as c:
                c.ping(long)
                ref = c.put(bytearray(9), timeout=long, grace=long)
                assert c.publish("name", bytearray(9), ttl=long, timeout=long) > 0
                assert c.get(c.name("name"), timeout=long) == c.get(pickle.loads(pickle.dumps(ref)), timeout=long)
                assert c.names()[0]["ttl_left"] > 1e9
                request = c.fetch(ref, timeout=long)
                request.result(long)
                assert c.wait([request], timeout=long)[0] and asyncio.run(c.wait_async([request], timeout=long))[0]
                c.hold(ref, timeout=long)
                c.wait_put(ref, timeout=long)
                assert next(c.versions("name", timeout=long))[1] == bytearray(9)
                assert c.publish_part("policy", 1, 0, 1, {"a": memoryview(bytearray(8))}, timeout=long) > 0
                assert c.manifest("policy", timeout=long).step == 1
                assert c.plan("policy", {"a": bytearray(8)}).run(timeout=long).step == 1
                try:
                    c.put(bytearray(9), detached=True, ttl=long)
                    raise AssertionError("no limit")
                except rdtd.LimitReached as error:
                    assert "detached_ttl_max" in str(error)
                for name in "name", "policy":
                    c.unpublish(name)
        with rdtd.connect(node.socket) as c:
            c.wait_freed(c.put(bytearray(9), detached=True, ttl=1e-12), timeout=LONG)  # it is not taken for 0


def test_every_number_of_seconds_can_be_added_to_a_time() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        ref = c.put({"a": bytearray(9)}, timeout=Decimal(LONG), detached=True, ttl=Fraction(60))
        for short in Decimal("0.01"), Fraction(1, 100):
            with raises(rdtd.TimedOut):
                next(c.versions("none", timeout=short))
            with raises(rdtd.TimedOut):
                c.get([rdtd.Ref.from_id("none")] * 20, timeout=short)
            with raises(rdtd.TimedOut):
                c.get(rdtd.Ref.from_id("none"), into={"a": bytearray(9)}, timeout=short)
            assert asyncio.run(c.wait_async([c.when_put(rdtd.Ref.from_id("none"))], timeout=short))[1]
            assert c.get(ref, timeout=60 + short) == {"a": bytearray(9)}
        assert len(c.buffers(bytearray(9), timeout=Decimal(LONG))) == 2
        c.free(ref)


def test_a_list_may_be_a_generator() -> None:
    with Node() as node, rdtd.connect(node.socket) as c:
        with raises(rdtd.Invalid, 'tensor "b": rank 0 has it'):
            c.publish_part("p", 1, 0, 1, {"a": memoryview(bytearray(8))}, others=(key for key in ["b"]), timeout=LONG)


def test_errors_of_torch_name_the_parameter() -> None:
    need(np, "numpy")
    need(torch, "torch")
    import rdtd.dcp
    import rdtd.sglang
    import rdtd.torch
    with Node() as node, rdtd.connect(node.socket) as c:
        model = {"a": torch.ones(8)}
        rdtd.torch.publish(model, "policy", connection=c, timeout=LONG)
        plan = rdtd.torch.plan(model, "policy", connection=c)
        right = {"model": model, "name": "policy", "connection": c}
        try_all([(rdtd.torch.publish, right), (rdtd.torch.update, right), (rdtd.torch.plan, right),
                 (rdtd.torch.boxes, {"model": model}), (plan.update, {}), (rdtd.sglang.request, {"name": "n", "version": 1}),
                 (rdtd.dcp.Writer, {"name": "policy", "connection": c}), (rdtd.dcp.Reader, {"name": "policy", "connection": c})])
        for ranks in {"rank": 1}, {"world_size": 2}, {"rank": 2, "world_size": 2}:
            said = is_wrong(lambda: rdtd.torch.publish(**right, **ranks), "rank")
            assert not said, (ranks, said)
        c.unpublish("policy")
        del plan
    rdtd.torch._plans.clear()


if __name__ == "__main__":
    main(globals())
