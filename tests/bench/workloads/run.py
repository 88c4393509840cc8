# SPDX-License-Identifier: Apache-2.0
"""run.py: `make bench-workloads`. Measures whole jobs beside the tools that people would take, prints a table, merges it into
build/workloads.json, workload by workload, and draws that. See ../README.md.

    WORKLOADS='weights rl'  these only            ROUNDS=5   rounds (3)
    SCALE=2                 sizes times 2         QUICK=1    tiny sizes, one round, rdtd's sides only, nothing is written
    RESUME=1                leave out what build/workloads.json has of the same commit, scale and rounds
    ABLATE=1                rdtd's sides only, each mechanism that has a switch off in turn
    SIDES=TEXT              only sides whose name contains it"""
import dataclasses
import datetime
import importlib
import json
import os
import platform
import subprocess
import sys

import picture

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "../../.."))
sys.path.insert(0, HERE)
WORKLOADS = ("weights", "follow", "deltas", "blocks", "queues", "loader", "rl", "checkpoints", "crash", "verl_updates", "vllm_updates",
             "batches", "cache")
NAMES = {"queue": "queues"}  # `queue` is a module of Python
JSON = os.path.join(ROOT, "build", "workloads.json")
# What ABLATE=1 switches off, and how. The last ones have no switch.
ABLATIONS = {
    "as configured": (),
    "no region cache": ("daemon.cache_max=4KiB",),
    "no region cache, no pool": ("daemon.cache_max=4KiB", "daemon.pool_idle=1ms"),
    "no busy polling": ("daemon.busy_poll=0s",),
    "no replicas, no fan-out": ("transfer.replicas_max=0", "transfer.fanout_min=0"),
    "with TLS": ("network.trusted_network=no",),
}
NO_SWITCH = "mappings cached by the client, loaned regions, request coalescing, arena of small objects"
LIBRARIES = ("ray", "torch", "nixl", "safetensors", "numpy", "pyarrow", "lmcache", "mooncake-transfer-engine-non-cuda")


def inside_namespace():
    """As root: in a network namespace of its own, with cubic, as `make bench`, and with a /dev/shm of its own; see ../README.md."""
    if os.geteuid() or os.environ.get("BENCH_NETWORK", "own") != "own":
        return
    if subprocess.run(["unshare", "-nm", "true"], capture_output=True).returncode:
        return
    os.environ["BENCH_NETWORK"] = "inside"
    os.execvp("unshare", ["unshare", "-nm", "--", sys.executable, *sys.argv])


def environment():
    os.environ.setdefault("RDT_BUILD_DIR", os.path.join(ROOT, "build/release"))
    path = os.path.join(os.environ["RDT_BUILD_DIR"], "python")
    os.environ["PYTHONPATH"] = f"{path}:{HERE}"
    sys.path.insert(1, path)
    os.environ.update(OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0", PYTHONDONTWRITEBYTECODE="1", NIXL_LOG_LEVEL="ERROR",
                      UCX_WARN_UNUSED_ENV_VARS="n", UCX_LOG_LEVEL="error", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    sys.dont_write_bytecode = True
    if os.environ.get("BENCH_NETWORK") == "inside":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100%", "tmpfs", "/dev/shm"], check=True)
        for control in ("cubic", "reno"):  # without losses they are the same
            try:
                with open("/proc/sys/net/ipv4/tcp_congestion_control", "w") as file:
                    file.write(control)
                break
            except OSError:
                pass


def machine():
    def of(text, key):
        return next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith(key)), "?")
    with open("/proc/cpuinfo") as cpu, open("/proc/meminfo") as memory:
        model, size = of(cpu.read(), "model name"), of(memory.read(), "MemTotal")
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as tcp:
        return {"cores": os.cpu_count(), "processor": model, "memory_gib": int(size.split()[0]) >> 20, "kernel": platform.release(),
                "tcp": tcp.read().strip(), "python": platform.python_version()}


def versions():
    from importlib import metadata
    found = {}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            found[library] = None
    try:
        commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:  # there is no git here
        commit = ""
    return {"rdtd": commit or "?", **found}


def print_table(workload, rows):
    print(f"\n{workload}")
    cases = {}
    for row in rows:
        if "failed" not in row:
            cases.setdefault((row["case"], row["figure"]), []).append(row)
    for (case, figure), found in cases.items():
        print(f"  {case}: {figure}")
        for row in found:
            print(f"    {row['side']:52} {row['median']:>10.4g}   [{row['least']:.4g} - {row['most']:.4g}], {row['rounds']} rounds")
    for row in rows:
        if "failed" in row:
            print(f"    {row['side']:52} {row['failed']}")
    sys.stdout.flush()


def load():
    try:
        with open(JSON) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def save(name, entry):
    """Merges one workload into what is there: a run that was cut off keeps those that were complete."""
    everything = load()
    everything[name] = entry
    os.makedirs(os.path.dirname(JSON), exist_ok=True)
    with open(JSON + ".new", "w") as file:
        json.dump(everything, file, indent=1)
        file.write("\n")
    os.replace(JSON + ".new", JSON)


def main():
    inside_namespace()
    environment()
    from harness import now, run_sides
    quick, ablate = os.environ.get("QUICK") == "1", os.environ.get("ABLATE") == "1"
    scale, rounds = float(os.environ.get("SCALE", 1)), 1 if quick else int(os.environ.get("ROUNDS", 3))
    wanted = [NAMES.get(name, name) for name in os.environ.get("WORKLOADS", " ".join(WORKLOADS)).split()]
    unknown = set(wanted) - set(WORKLOADS)
    if unknown:
        sys.exit(f"bench-workloads: there is no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    only = os.environ.get("SIDES", "")
    about, libraries = machine(), versions()
    print(f"machine: {', '.join(f'{key} {value}' for key, value in about.items())}; load average {os.getloadavg()[0]:.1f}")
    print(f"versions: {', '.join(f'{key} {value}' for key, value in libraries.items())}")
    failed = False
    for name in wanted:
        setting = {"versions": libraries, "scale": scale, "rounds": rounds}
        old = load().get(name, {})
        if os.environ.get("RESUME") == "1" and not ablate and all(old.get(key) == value for key, value in setting.items()):
            print(f"{name}: build/workloads.json has it")
            continue
        began = now()
        module = importlib.import_module(name)
        sides = [side for side in module.sides() if only in side.name and (side.name.startswith("rdtd") or not (quick or ablate))]
        if ablate:
            sides = [dataclasses.replace(side, name=f"{side.name}, {without}", settings=settings)
                     for side in sides for without, settings in ABLATIONS.items()]
        rows = run_sides(sides, rounds, scale, quick)
        print_table(name, rows)
        for side in sides:
            print(f"    {side.name}: {side.note}") if side.note else None
        failed = failed or any(row.get("failed", "").startswith("failed") for row in rows if row["side"].startswith("rdtd"))
        entry = {"date": datetime.date.today().isoformat(), "machine": about, **setting, "seconds": round(now() - began),
                 "load": os.getloadavg()[0], "rows": rows}
        if not quick:
            save(f"{name}, ablated" if ablate else name, entry)
        print(f"  {now() - began:.0f} s", flush=True)
    if ablate:
        print(f"without a switch: {NO_SWITCH}")
    if not failed and os.path.exists(JSON):
        picture.draw(JSON, os.path.join(ROOT, "build", "workloads.svg"))
    sys.exit(failed)


if __name__ == "__main__":
    main()
