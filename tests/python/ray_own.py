# SPDX-License-Identifier: Apache-2.0
"""ray_own.py SOURCE OUT: runs Ray's own tests of its transports, from a checkout of Ray, over rdtd. Prints
what it changes in them, and writes that and pytest's output to OUT. Needs ray, torch, tensordict, pytest and
pytest-timeout; `make test-ray-own RAY_SOURCE=PATH` installs them."""
import difflib
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from nodes import Node

SUITES = {"nixl": "test_rdt_nixl.py", "gloo": "test_rdt_gloo.py"}

# These tests expect a two-sided transport: both sides take part, and an error of one ends both.
EXPECTED = {
    "test_p2p_errors_before_group_creation": "expects an error for a missing group; rdtd needs none",
    "test_send_fails": "expects a send that fails; rdtd sends nothing, readers fetch what was put",
    "test_send_actor_dies_before_sending": "expects that the receiver dies with the sender; with rdtd it "
                                           "lives, and "
                                           "has the tensor, or a RayDirectTransportError if the sender was "
                                           "gone first",
    "test_recv_actor_dies": "expects that the sender dies with the receiver; with rdtd it lives",
}

DROPPED = re.compile(r"^( *)assert [^\n]*_tensor_desc_cache[^\n(]*\n", re.M)
CHANGES = [  # (what is changed, pattern, replacement)
    ("a line about nixl's registrations", DROPPED, r"\1pass\n"),
    ("the transport's name", r'"(?:nixl|gloo|torch_gloo)"', '"rdtd"'),
    ("the transport's name", r'"(?:NIXL|GLOO)"', '"RDTD"'),
    ("the transport's name", r"(?<=transport )GLOO\b", "RDTD"),
    ("the transport's name", r'(?<=tensor_transport=\\")GLOO\b', "RDTD"),
    ("the transport's name", r'(?<=tensor_transport=")GLOO\b', "RDTD"),
    ("the transport's error", r'"nixlBackendError"', '"RayDirectTransportError"'),
    ("the device", r'"cuda"', '"cpu"'),
    ("the device", r"\bnum_gpus=\d+, |, num_gpus=\d+\b", ""),
    ("what it holds", r"\b_get_num_managed_meta_nixl\(\)", "_held.__len__()"),
    ("what it holds", r"\b_managed_meta_nixl\b", "_held"),
]
# Tests of nixl's registrations, agents, pool and streams, which no other transport has.
NIXL_ONLY = re.compile(r"_tensor_desc_cache|_nixl_memory_pool|nixl_memory|nixl_agent\b|_remote_agents|"
                       r"NixlTensorTransport|nixl_cuda_stream|NIXL_REMOTE|nixl\._")
DECORATED = re.compile(r"^(?=@|def |class )", re.M)

CONFTEST = '''"""Ray's fixtures, without those that the wheel lacks."""
import logging
import pytest
import ray
import hook

hook.hook()


@pytest.fixture
def ray_start_regular(request):
    options = {"num_cpus": 1, "object_store_memory": 150 << 20, "include_dashboard": False,
               "runtime_env": {"worker_process_setup_hook": "hook.hook"}}
    options.update(getattr(request, "param", {}))
    options.pop("num_gpus", None)
    yield ray.init(**options)
    ray.shutdown()


@pytest.fixture
def propagate_logs():
    logging.getLogger("ray").propagate = True
    yield
    logging.getLogger("ray").propagate = False
'''
HOOK = '''"""Runs in every process of Ray. Creating a group only waits for its actors, because tests with
deadlines of seconds rely on that wait. Killing an actor returns when its process has ended, because a fetch
that runs at the same time could otherwise succeed."""
import os
import select
import ray
import ray.experimental.collective as collective
import rdtd.ray

kill = ray.kill


def started(actors, *ignored, **options):
    ray.get([actor.__ray_ready__.remote() for actor in actors])


def killed(actor, **options):
    try:
        process = os.pidfd_open(ray._private.state.actors(actor._actor_id.hex()).get("Pid", 0))
    except OSError:
        process = None  # the actor has no process yet, or none any more
    kill(actor, **options)
    if process is not None:
        select.select([process], [], [], 30)
        os.close(process)


def hook():
    rdtd.ray.register(hooked=True)
    collective.create_collective_group = started
    ray.kill = killed
'''


def adapt(text):
    """Returns the adapted text, how often each change was made, and the tests that are left out."""
    kept, left_out, pending = [], [], ""
    for part in DECORATED.split(text):
        pending += part
        if part.startswith("@"):
            continue
        name = re.match(r"def (test_\w+)", part)
        if name and NIXL_ONLY.search(DROPPED.sub("", pending)):
            left_out.append(name[1])
        else:
            kept.append(pending)
        pending = ""
    text, counts = "".join(kept), {}
    for what, pattern, by in CHANGES:
        text, n = re.subn(pattern, by, text)
        if n:
            counts[what] = counts.get(what, 0) + n
    return text, counts, left_out


def prepare(source, out):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "conftest.py").write_text(CONFTEST)
    (out / "hook.py").write_text(HOOK)
    with open(out / "changes.diff", "w") as diff:
        for suite, name in SUITES.items():
            path = source / "python/ray/tests/rdt" / name
            if not path.is_file():
                sys.exit(f"{path} is not there: RAY_SOURCE names a checkout of Ray from 2.56 on (its wheels "
                         "carry no tests)")
            before = path.read_text()
            after, counts, left_out = adapt(before)
            compile(after, name, "exec")
            (out / name).write_text(after)
            diff.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), name,
                                                 f"{name} for rdtd"))
            print(f"{suite}: changed {', '.join(f'{what} ({n})' for what, n in counts.items())}")
            for test in left_out:
                print(f"{suite}: left out, of nixl's own: {test}")
    print("the fixtures are ray_own.py's; the group's creation waits for its actors and does nothing else; "
          "ray.kill waits until the process has ended")
    print(f"all changes: {out}/changes.diff, conftest.py and hook.py beside it", flush=True)


def run(suite, out, environment):
    """Returns how many tests passed, which failed and which were skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "150",
               "--junitxml", f"{suite}.xml", SUITES[suite]]
    with open(out / f"{suite}.log", "wb") as log:
        subprocess.run(command, cwd=out, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                       timeout=3600)
    if not (out / f"{suite}.xml").is_file():
        said = (out / f"{suite}.log").read_text(errors="replace")[-3000:]
        sys.exit(f"pytest ended without a result:\n{said}")
    cases = list(ElementTree.parse(out / f"{suite}.xml").iter("testcase"))
    failed = [case.get("name") for case in cases if case.find("failure") is not None
              or case.find("error") is not None]
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    return len(cases) - len(failed) - len(skipped), failed, skipped


def main():
    source, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    import ray
    version = source / "python/ray/_version.py"
    said = re.search(r'^version = "(.*)"', version.read_text(), re.M) if version.is_file() else None
    print(f"tests of Ray {said[1] if said else '(no _version.py)'} with Ray {ray.__version__}")
    prepare(source, out)
    node = Node()
    environment = {**os.environ, "RDT_SOCKET": node.socket, "RAY_USAGE_STATS_ENABLED": "0"}
    environment["PYTHONPATH"] = f"{out}:{environment['PYTHONPATH']}"
    wrong = []
    try:
        for suite in SUITES:
            passed, failed, skipped = run(suite, out, environment)
            print(f"{suite}: {passed} of {passed + len(failed)} passed, {len(skipped)} skipped")
            for name in failed:
                why = EXPECTED.get(name.partition("[")[0])
                print(f"{suite}: {name} failed{f', as expected: it {why}' if why else ''}")
                wrong += [] if why else [name]
    finally:
        node.kill()
    if wrong:
        print(f"not expected: {', '.join(wrong)}; see {out}/*.log")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
