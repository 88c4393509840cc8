# SPDX-License-Identifier: Apache-2.0
"""Python as the user of a store: keys whose values are replaced."""
import threading

import rdtd

from nodes import LONG, Node, main, raises, required, until

np = required("numpy")


def test_value_takes_the_place_of_the_one_that_has_its_id():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        for size in 3, 200_000:
            for options in {"detached": True}, {"snapshot": True}, {"snapshot": "unsealed", "detached": True, "timeout": LONG}:
                key = rdtd.Ref.from_id("key")
                with raises(ValueError, "replace needs an id"):
                    c.put(np.zeros(size), replace=True)
                first = c.put(np.zeros(size), id="key", replace=True, **options)
                with raises(rdtd.Exists, "replace it"):
                    c.put(np.ones(size), id="key", **options)
                read = other.get(key)
                second = c.put({"is": np.ones(size)}, id="key", replace=True, **options)
                assert other.get(key)["is"][-1] == 1 and read[-1] == 0
                del read
                until(lambda: not _is_there(c, first), "the earlier one ends with its reader")
                with raises(rdtd.Freed):
                    c.free(first)
                c.free(second)
        c.put(1, id="key")
        with raises(rdtd.Exists, "held by its producer, client"):
            other.put(2, id="key", replace=True)
        c.put(2, id="key", replace=True, detached=True)
        other.free(other.put(3, id="key", replace=True, detached=True))


def _is_there(c, ref):
    try:
        return bool(c.stat(ref))
    except (rdtd.Freed, rdtd.NotFound):
        return False


def test_get_of_an_id_finds_a_value_while_threads_replace_it():
    with Node() as node, rdtd.connect(node.socket) as c, rdtd.connect(node.socket) as other:
        key = rdtd.Ref.from_id("key")
        c.put(np.zeros(10_000), id="key", detached=True)

        def replace(start):
            for i in range(100):
                c.put(np.full(10_000, start + i), id="key", detached=True, replace=True, snapshot="unsealed", timeout=LONG)

        threads = [threading.Thread(target=replace, args=(start,)) for start in (1000, 2000)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            value = other.get(key, timeout=0)
            assert (value == value[0]).all()
        del value
        c.free(key)


main(globals())
