# SPDX-License-Identifier: Apache-2.0
"""Ray over rdtd while the daemon, which has a keeper, is killed every two seconds. Needs ray, torch and numpy."""
import gc
import os
import sys

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from nodes import Killed, main, until  # noqa: E402

try:
    import ray
    import torch
except ImportError as missing:
    print(f"{missing}: `make test-ray` installs what this needs")
    sys.exit(77)
import rdtd  # noqa: E402
import rdtd.ray  # noqa: E402
from ray.experimental import set_target_for_ref  # noqa: E402

KILLS, TURNS = 6, 12
ELEMS = 200000

rdtd.ray.register()


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Actor:
    @ray.method(tensor_transport="rdtd")
    def full(self, elems, number):
        return torch.full((elems,), float(number))

    @ray.method(tensor_transport="rdtd")
    def kept(self):
        self.tensor = rdtd.default().empty((ELEMS,), torch.float32)
        self.tensor.fill_(1)
        return self.tensor

    def fill(self, number):
        self.tensor.fill_(number)

    def total(self, value):
        return float(value.sum())

    def into(self, refs):
        mine = torch.zeros(ELEMS)
        set_target_for_ref(refs[0], [mine])
        ray.get(refs[0])
        return float(mine.sum())

    def session(self):
        return rdtd.default().node["session"]


def test_actors_notice_nothing():
    with Killed() as killed:
        os.environ["RDT_SOCKET"] = killed.node.socket
        ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
        try:
            source, sink = Actor.remote(), Actor.remote()
            kept = source.kept.remote()  # daemon memory of an actor that does not call rdtd again for long
            early = source.full.remote(ELEMS, 7)
            ray.wait([kept, early], num_returns=2)
            sessions = ray.get([actor.session.remote() for actor in (source, sink)])
            turns = 0
            with killed.kill_every(2):
                while killed.kills < KILLS or turns < TURNS:
                    turns += 1
                    refs = [source.full.remote(elems, turns) for elems in (10, ELEMS)]
                    assert ray.get([sink.total.remote(ref) for ref in refs]) == [10.0 * turns, float(ELEMS) * turns]
                    assert ray.get(sink.into.remote([refs[1]])) == float(ELEMS) * turns
                    ray.get(source.fill.remote(turns))
                    assert ray.get(sink.total.remote(kept)) == float(ELEMS) * turns
                    assert float(ray.get(refs[0]).sum()) == 10 * turns
                    if turns == 5:  # a new actor connects at any moment; Ray takes seconds to start one
                        fresh = Actor.remote()
                        assert ray.get(fresh.total.remote(early)) == 7.0 * ELEMS
                        del fresh
                    del refs
            assert ray.get([actor.session.remote() for actor in (source, sink)]) == sessions
            assert ray.get(sink.total.remote(early)) == 7.0 * ELEMS, "it was put before the first kill"
            print(f"{turns} turns, {killed.kills} kills")
            del kept, early, source, sink
        finally:
            gc.collect()
            ray.shutdown()
            rdtd.default().close()
        until(lambda: killed.node.ctl("clients", "--json").count('"pid"') <= 1, "Ray's processes have gone")


main(globals())
