# SPDX-License-Identifier: Apache-2.0
"""Calls for many objects and names at once."""
import sys

import rdtd

from nodes import LONG, Node, main, raises

try:
    import numpy as np
except ImportError:
    print("no numpy here")
    sys.exit(77)


def test_exists_of_names_and_refs():
    with Node() as node, rdtd.connect(node.socket) as c:
        c.publish("a", np.arange(3))
        ref = c.put(np.arange(3))
        gone = c.put(np.arange(3), id="gone")
        gone.free()
        assert c.exists("a") is True and c.exists("b") is False
        assert c.exists(["b", "a", ref, gone, rdtd.Ref.from_id("x"), c.name("a", 1)]) == [False, True, True, False, False, False]
        assert c.exists([]) == [] and c.exists(name for name in ("a",)) == [True]
        assert c.exists(["name %d" % i for i in range(20000)] + ["a"]) == [False] * 20000 + [True]
        with raises(TypeError, "item 1"):
            c.exists(["a", 5])
        with raises(TypeError, "a name, a Ref"):
            c.exists(b"a")
        with raises(rdtd.Invalid, "item 0"):
            c.exists(["x" * 200])
        assert node.ctl("exists", "a") == "yes a\n"
        c.unpublish("a")


def test_get_returns_an_error_for_each():
    with Node() as node, rdtd.connect(node.socket) as c:
        refs = [c.put(np.arange(3)), c.put(np.arange(4), id="gone"), c.name("nothing"), c.put(np.arange(5))]
        refs[1].free()
        values = c.get(refs, errors="return", timeout=0)
        assert (values[0] == np.arange(3)).all() and (values[3] == np.arange(5)).all()
        assert isinstance(values[1], rdtd.Freed) and isinstance(values[2], rdtd.NotPut)
        assert isinstance(c.get(refs[1], errors="return"), rdtd.Freed)
        assert c.get([], errors="return") == []
        with raises(ValueError, "errors must be"):
            c.get(refs, errors="ignore")


def test_wait_goes_on_after_a_failure():
    with Node() as node, rdtd.connect(node.socket) as c:
        gone = c.put(np.arange(4), id="gone")
        gone.free()
        here = c.put(np.arange(3))
        target = np.zeros(3, dtype=np.int64)
        requests = [c.fetch(gone), c.fetch(rdtd.Ref.from_id("later")), c.fetch(here, into=[target], as_="list"),
                    c.fetch(here, into=np.zeros(3, dtype=np.int64))]
        ended, running = c.wait(requests, 3, timeout=LONG, errors="return")
        assert ended == [requests[0], requests[2], requests[3]] and running == [requests[1]]
        with raises(rdtd.Freed):
            requests[0].result()
        assert (target == np.arange(3)).all()
        assert c.wait(requests, timeout=0.01, errors="return")[1] == [requests[1]]
        requests[1].cancel()
        assert c.wait(requests, timeout=LONG, errors="return")[1] == []


if __name__ == "__main__":
    main(globals())
