# SPDX-License-Identifier: Apache-2.0
"""What the daemon knows: objects and who holds them, published names, nodes, and the daemon itself."""
from __future__ import annotations

import json
from operator import index
from typing import Any, Literal, Optional

from . import _rdt
from ._check import checked
from ._requests import Ref

# Fields that have another name here than in rdtctl.
_NAMES = {"visibility": "visible", "lease_client": "lease", "peer": "node_uuid", "peer_name": "node",
          "peers_up": "nodes_up", "peers_known": "nodes_known"}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """What the daemon says of one thing: times become seconds and lose their unit, -1 stays."""
    made = {}
    for key, value in row.items():
        if key.endswith("_ns"):
            made[key[:-3]] = value / 1e9 if value >= 0 else -1.0
        else:
            made[_NAMES.get(key, key)] = value
    return made


def _owned(row: dict[str, Any]) -> dict[str, Any]:
    made = _row(row)
    made["owner"] = (made.pop("uid"), made.pop("tenant"))
    made["ref"] = Ref(made["ref"]) if made["ref"] else None
    made.pop("holders", None)
    return made


def _node(row: dict[str, Any]) -> dict[str, Any]:
    made = _row(row)
    paths, unusable = made.pop("routes"), made.pop("unusable")
    made["transports"] = [{"name": name, "usable": True, "path": path, "why": ""}
                          for name, path in zip(made["transports"], paths + [""] * len(made["transports"]))]
    for text in unusable:  # "ucx: why"
        name, _, why = text.partition(": ")
        made["transports"].append({"name": name, "usable": False, "path": "", "why": why})
    for key in ("uuid", "boot_id"):  # zeros: never reached
        made[key] = made[key] if made[key].strip("0") else ""
    return made


class InfoCalls(_rdt.Conn):
    """The part of Connection that describes.

    A connection sees what belongs to its user (and tenant) and what is visible to it; root and the daemon's
    own user see everything. All times are in seconds. Ids and names are text as rdtctl shows it: a byte that
    does not print, a space and "%" are %XX."""

    @checked
    def stat(self, ref: _rdt.Ref) -> dict[str, Any]:
        """Describes an object, on this node or another, and who holds it, as a dict:

        ref; id; generation; owner (uid, tenant); state ("awaited", "filling", "live", "draining"); visible ("owner",
        "tenant", "all"); transport (preferred, or ""); producer (session); bytes; tensors; metadata_bytes; holds,
        pins, waiters (numbers); age; ttl_left (-1: no limit); snapshot; detached; kept (it survives a restart of the
        daemon); stored_dir, stored_file (where its file is, or ""); storing (the file is not complete); boxed (its tensors
        are boxes of larger ones); manifest (it lists the parts of a version); and holders, a list of dicts:
        kind ("producer", "detached", "reader", "hold", "node", "name", "in transit", "transfer", "pins",
        "replica", "replica being filled", "others": see rdt_info.h), count (of holds), hold (the id of one), client,
        client_name, pid, uid and tenant of a client of the object's node, node and node_uuid of another node, name
        and version of a published name, and sentence, which says all that for people. The object's user and root see
        all holders, at most 32; others see their own clients and one row "others" with a count. Of a version of many
        parts it describes the list of the parts, which has no tensors: see `manifest`. Errors: NotFound,
        Freed, Denied, PeerLost."""
        row = json.loads(self._json("stat", ref, None, None, 0, 0))
        return {**_owned(row), "holders": [_row(holder) for holder in row["holders"]]}

    @checked
    def objects(self, *, prefix: Optional[str] = None,
                state: Optional[Literal["awaited", "filling", "live", "draining"]] = None, client: int = 0,
                limit: int = 0) -> list[dict[str, Any]]:
        """Lists the objects of this node, including those that somebody waits for, as dicts with the keys
        of `stat` without holders.

        prefix: only ids that begin with it. state: only objects in that state. client: only objects that this
        session (`node["session"]`) has put. limit: at most so many; 0: all. Objects that come and go
        meanwhile can be missing or listed twice."""
        return [_owned(row) for row in json.loads(self._json("objects", None, prefix, state, client, limit))]

    @checked
    def names(self, *, prefix: Optional[str] = None, limit: int = 0) -> list[dict[str, Any]]:
        """Lists the names that are published on this node, as dicts: name; version (the newest); object (its
        Ref; None if it was freed by force); bytes; waiters (requests for a later version); owner (uid,
        tenant); visible; age (of the version); lease (the session that the name ends with; 0: none); ttl_left
        (-1: no limit). Filters as in `objects`."""
        rows = [_owned(row) for row in json.loads(self._json("names", None, prefix, None, 0, limit))]
        for row in rows:
            row["object"] = row.pop("ref")
        return rows

    def nodes(self) -> list[dict[str, Any]]:
        """Lists the other nodes that the daemon knows, as dicts: uuid, boot_id and version ("": never
        reached); name; address; state ("idle", "connecting", "up", "backoff"); rtt (0: unknown); since;
        retry_in (0: no attempt is due); transfers_in, transfers_out (running); bytes_in, bytes_out; fell_back
        (transfers that took a slower transport than both nodes have); last_error; identity (by its certificate;
        "": by the key); transports, a list of dicts: name, usable, path (of the bytes), why (not usable)."""
        return [_node(row) for row in json.loads(self._json("peers", None, None, None, 0, 0))]

    def status(self) -> dict[str, Any]:
        """Describes the daemon: version, node and boot_id (hex), state ("serving", "draining"), address,
        socket, pid, uptime, backends (a list of names), and counters: clients, objects, regions,
        memory_bytes, memory_limit_bytes, pool_bytes, pool_hits, pool_misses, cached_bytes, cache_hits,
        orphaned_bytes, freeing_bytes, replicas, replica_bytes, nodes_up, nodes_known, transfers_active, transfers_done,
        transfers_failed, transfers_cancelled, transfers_timed_out, bytes_in, bytes_out, bytes_local,
        fetches_joined, fetches_from_replicas, redirected, redirected_again, slow_readers, fell_back,
        busy_polls, busy_polls_missed, log_lines_dropped,
        kept_objects, kept_names, kept_bytes, restored_objects, unkept_objects; kept_sessions, kept_holds,
        restored_sessions, resumed_sessions, waiting_sessions; keeper_up (a bool); certificate_expires_s,
        crl_expires_s (seconds since 1970, 0: none); and storage_dir ("": none), stored_objects, stored_names,
        stored_bytes, stores_done, stores_bytes, stores_failed, storage_restored, storage_bad_files, spilled_objects,
        spilled_bytes, storage_checked, storage_damaged, storage_damaged_bytes,
        storage_without_sums (see `store`); replicas_checked,
        replicas_damaged, replicas_unchecked, replicas_by_delta, deltas_failed, delta_bytes_spared; shard_versions,
        shard_failures, shard_pending (see `publish_part`).
        rdt_info.h says what each counts."""
        return _row(json.loads(self._json("status", None, None, None, 0, 0)))

    def config(self) -> dict[str, dict[str, Any]]:
        """The daemon's configuration as it is in force: for each section ("daemon", "limits", "network", a backend...) a
        dict of its keys, and for each key a dict: value (text, as in the configuration file); source ("default", "file",
        "environment", "flag", "request"); where ("PATH:LINE", the variable or the flag; "" for a default); derived (the
        number that the daemon uses where the value leaves it to the daemon; else 0). Only for root and the daemon's own
        user. Error: Denied."""
        made: dict[str, dict[str, Any]] = {}
        for row in json.loads(self._json("config", None, None, None, 0, 0))["values"]:
            made.setdefault(row.pop("section"), {})[row.pop("key")] = row
        return made

    def cache(self) -> dict[str, Any]:
        """Describes the cache of evictable objects (`put`): limit_bytes; owner_limit_bytes; and owners, a list of dicts,
        this user's first: owner (uid, tenant); objects; bytes (of memory and bookkeeping); idle_objects, idle_bytes
        (those that could be evicted now); and, counted since this user had none there, hits and misses (ids that
        `lookup`, or a fetch by an id, asked for; `exists` does not count), evictions, evicted_bytes. Of files
        (cache_storage_limit of rdtd.conf): spilled_objects (of objects: in a file only); files and file_bytes (on the
        disk); spilled (that have left memory for a file); file_hits (of hits: in a file only); unspilled_late,
        unspilled_failed and unspilled_small (evicted without a file: before the disk had them, without room there,
        small). far_hits: of misses, found on other nodes. file_limit_bytes; owner_file_limit_bytes. full: texts, what objects are
        evicted for beside memory, such as the daemon's descriptors, and what to raise. more: users that are not in the list."""
        made: dict[str, Any] = json.loads(self._json("cache", None, None, None, 0, 0))
        for row in made["owners"]:
            row["owner"] = (row.pop("uid"), row.pop("tenant"))
        return made

    @checked
    def flush_cache(self, *, all: bool = False) -> tuple[int, int]:
        """Evicts the evictable objects of this user that nobody holds, and returns their number and bytes when they are
        gone. all: those of all users, for root and the daemon's own user. Errors: Denied, TimedOut."""
        done = self._request("cache_flush", all=bool(all))
        return int(done["objects"]), int(done["bytes"])

    @checked
    def end_client(self, client: int) -> None:
        """Ends a session of this user (root: of any user): what it holds is released, and its process goes on; its later
        calls raise Disconnected. client: its number, as in `stat(ref)["holders"]`, `node["session"]` and
        rdtctl clients. Errors: NotFound, Invalid (it is this session: `close` it)."""
        self._request("end_client", client=index(client))

    def _request(self, name: str, **fields: int | str) -> Any:
        """Sends a request of VERB_PLAIN (proto/verb.h) with these fields, and returns its reply."""
        texts = (f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in fields.items())
        return json.loads(self._request_json(name, tuple(texts)))
