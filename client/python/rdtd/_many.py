# SPDX-License-Identifier: Apache-2.0
"""Connection's calls for many objects or names at once."""
from __future__ import annotations

import inspect
import sys
from typing import Any, Iterable, Iterator, Literal, Mapping, Optional, Sequence, Union, overload
from urllib.parse import quote

from . import _rdt
from ._arrays import kind_of
from ._check import a_text, checked, shown
from ._errors import BY_STATUS, Error, Invalid, TimedOut
from ._requests import VISIBILITY, Ref, Visible
from ._shared import notes_of
from ._structure import ONE_OF_TORCH, encode
from ._versions import Published
from ._waits import returns_errors


def _listed(values: Any, what: str) -> list[Any]:
    if isinstance(values, (str, bytes, bytearray, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a list, not {shown(values)}")
    return list(values)


def _texts(items: list[Any], what: str, others: tuple[type, ...]) -> None:
    """Whether all items are text, or of the other types; names the first that is not."""
    if set(map(type, items)) == {str} and (every := "".join(items)).isascii() and "\0" not in every:
        return
    for i, item in enumerate(items):
        if not isinstance(item, others):
            a_text(item, f"{what}[{i}]")


def _all_alone(values: list[Any]) -> Optional[tuple[Optional[list[Optional[bytes]]], int]]:
    """Metadata and hint, if each value is one plain tensor, and all are numpy's or all are torch's."""
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return None
    (cls,) = kinds
    if cls.__module__ == "numpy" and cls.__name__ == "ndarray":
        of_dtype = {id(value.dtype): value for value in values}
        return (None, 0) if all([kind_of(value) == "n" for value in of_dtype.values()]) else None
    torch = sys.modules.get("torch")
    if torch is not None and cls is torch.Tensor and not notes_of(values):
        return [ONE_OF_TORCH] * len(values), 1
    return None


def _name_of(name: str, ref: Any, own: dict[str, Any]) -> Ref:
    """The Ref of a name for other nodes and users: of this node, and of the object's owner. The object's Ref may leave both open."""
    uid, tenant = ref.owner or (own["uid"], own["tenant"])
    more = [f"&{field}={quote(text, errors='surrogateescape')}" for field, text in (("a", own["address"]), ("t", tenant)) if text]
    return Ref.from_name(name, near=Ref(f"rdt:{own['node'].hex()}/-?u={uid}{''.join(more)}"))


class Found(list[Optional[Ref]]):
    """What `lookup` has found. unasked: the nodes that could not be asked, or have not answered in time, and why."""

    def __init__(self, refs: Iterable[Optional[Ref]], unasked: dict[str, Error]) -> None:
        super().__init__(refs)
        self.unasked = unasked


class ManyCalls(_rdt.Conn):
    """The part of Connection for many things at once: thousands take one message each way."""

    # ---- put ----

    @checked
    def put_many(self, values: Iterable[Any], *, ids: Optional[Sequence[Union[str, bytes, None]]] = None,
                 errors: Literal["raise", "return"] = "raise", **options: Any) -> list[Any]:
        """Puts each of the values as an object of its own, and returns their Refs in the same order. Small ones (up to
        32 KiB of tensors) travel together, a few hundred in a message; each of them can be freed by itself, and its memory
        is free again then. Larger ones that are evictable, or snapshots, are put by a message each, many at a time, from
        memory of `empty` or by way of memory of the call (at most 4 MiB each). All others, tensors on GPUs and dicts of tensors
        are put one after the other; but with device="host" tensors on GPUs, such as the blocks of an engine's KV cache, are
        copied to pinned host memory of the daemon, 16 MiB at a time, once the streams that write them have come to the call,
        and travel as others do.

        ids: a list with an id, or None, for each value. options: see `put`, without id, stored, copy and stream; they hold
        for all values. errors: "raise": the first failure is raised, and the other objects are freed (with replace,
        detached and evictable ones stay, because those that they have replaced are gone); "return": the result has the
        exception in place of the Ref of a value that was not put.
        Errors: TypeError, ValueError (a value that cannot be put: nothing was put); Exists (id), LimitReached, NoMemory,
        TimedOut, Unsupported."""
        listed = _listed(values, "values")
        keys: Optional[list[Any]] = None if ids is None else _listed(ids, "ids")
        if keys is not None:
            _texts(keys, "ids", (bytes, type(None)))
            keys = [key.encode() if isinstance(key, str) else key for key in keys]
        if keys is not None and len(keys) != len(listed):
            raise ValueError(f"there are {len(listed)} values and {len(keys)} ids")
        _known(options, "put_many")
        made = self._put_listed(listed, keys, **options)
        if returns_errors(errors):
            return made
        for one in made:
            if isinstance(one, Error):
                self._drop_all(made, options.get("replace", False))
                raise one
        return made

    def _drop_all(self, made: list[Any], replace: bool = False) -> None:
        for ref in made:
            if isinstance(ref, Ref) and not replace:  # otherwise its id would have neither object
                self._drop(ref)

    def _put_listed(self, values: list[Any], ids: Optional[list[Optional[bytes]]], *,
                    snapshot: Union[bool, Literal["unsealed"]] = False, detached: bool = False,
                    ttl: Optional[float] = None, visible: Visible = "owner", transport: Optional[str] = None,
                    timeout: Optional[float] = None, allow_pickle: bool = True, grace: Optional[float] = None,
                    immutable: bool = False, checksum: bool = False, replace: bool = False,
                    evictable: bool = False, priority: int = 0, device: Optional[Literal["host"]] = None) -> list[Any]:
        flags = (_rdt.RDT_PUT_SNAPSHOT if snapshot or evictable else 0) | (_rdt.RDT_PUT_DETACHED if detached else 0)
        flags |= (_rdt.RDT_PUT_IMMUTABLE if immutable else 0) | (_rdt.RDT_PUT_SUM if checksum else 0)
        flags |= _rdt.RDT_PUT_UNSEALED if snapshot == "unsealed" else 0
        flags |= (_rdt.RDT_PUT_REPLACE if replace else 0) | (_rdt.RDT_PUT_EVICTABLE if evictable else 0)
        if device not in (None, "host"):
            raise ValueError(f"device must be \"host\" or None, not {shown(device)}: a put moves tensors to no other GPU")
        flags |= _rdt.PUT_TO_HOST if device else 0
        if (snapshot or evictable) and immutable:
            raise ValueError("snapshot and evictable copy the tensors, and immutable promises that nobody writes them: "
                             "pass one of these")
        if evictable and detached:
            raise ValueError("an evictable object outlives its connection: leave out detached")
        if ttl is not None and not detached and not evictable:
            raise ValueError("ttl needs detached=True or evictable=True")
        if priority and not evictable:
            raise ValueError("priority needs evictable=True")
        if replace and (ids is None or None in ids):
            raise ValueError("replace needs an id for each value")
        alone = _all_alone(values)
        which: Sequence[int] = range(len(values))
        if alone is not None:
            tensors, counts, metadata, hints = values, None, alone[0], [alone[1]] * len(values)
        else:
            encoded = [encode(value, allow_pickle) for value in values]
            which = [i for i, one in enumerate(encoded) if one.names is None]
            tensors = [tensor for i in which for tensor in encoded[i].tensors]
            counts = [len(encoded[i].tensors) for i in which]
            metadata = [encoded[i].metadata or None for i in which]
            hints = [int(encoded[i].has_torch) for i in which]
            for i in which:
                for inner in encoded[i].refs:
                    inner._hand_on()
        keys = None if ids is None else [ids[i] for i in which]
        put = self._put_many(tensors, counts, keys, metadata, VISIBILITY[visible], transport, flags, timeout, ttl,
                             priority) \
            if which else ([], None)
        made: list[Any] = [None] * len(values)
        if put is not None:
            for i, hint, one in zip(which, hints, _results(*put, which)):
                made[i] = one
                if hint and isinstance(one, Ref):
                    one._hint = hint
                if grace is not None and isinstance(one, Ref):
                    one._grace = grace
        options = {"snapshot": snapshot, "detached": detached, "ttl": ttl, "visible": visible, "transport": transport,
                   "timeout": timeout, "allow_pickle": allow_pickle, "grace": grace, "immutable": immutable,
                   "checksum": checksum, "replace": replace, "evictable": evictable, "priority": priority, "device": device}
        try:
            silent: Optional[Error] = None
            for i in range(len(values)) if put is None or len(which) < len(values) else ():
                if made[i] is None:
                    key = None if ids is None else ids[i]
                    try:
                        if silent is not None:
                            raise silent
                        if key is not None and not 1 <= len(key) <= 128:
                            raise Invalid(f"the id has {len(key)} bytes, not 1 to 128")
                        made[i] = self.put(values[i], id=key, **options)  # type: ignore[attr-defined]
                    except Error as error:
                        made[i] = type(error)(f"value {i}: {error}")
                        if silent is None and isinstance(error, TimedOut):
                            silent = self._silence(timeout)
        except BaseException:  # a value that cannot be put, or Ctrl-C: nothing stays
            self._drop_all(made, replace)
            raise
        return made

    def _silence(self, timeout: Optional[float]) -> Optional[Error]:
        """None if the daemon gives a sign of life: then a value has timed out for want of room. Otherwise the error of the
        values that are not sent."""
        try:
            self.ping(5.0 if timeout is None else min(max(timeout, 1.0), 5.0))  # type: ignore[attr-defined]
            return None
        except Error:
            return TimedOut("it was not sent, because rdtd does not answer")

    # ---- names ----

    @checked
    def publish_many(self, values: Mapping[str, Any], *, visible: Visible = "owner", lease: bool = False,
                     ttl: Optional[float] = None, **options: Any) -> dict[str, Published]:
        """Publishes a dict of names and values, or Refs of objects of this node, so that all become visible at once: who
        finds the new version of one of the names on this node finds those of all. At most 1024. All or nothing: after an
        error none is published (NoMemory, or a death of the daemon in that moment, may leave some). Returns the version
        of each name, as `publish` does; lease, ttl and visible are as there, and options as in `put_many`.

        Where nodes list each other, all names are registered in one round.
        Errors: as of `publish`; Unsupported (an object of another node)."""
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a dict of names and values, not {shown(values)}")
        options.setdefault("snapshot", False if options.get("immutable") else "unsealed")
        names = list(values)
        _texts(names, "values", ())
        refs = [values[name] if isinstance(values[name], _rdt.Ref) else None for name in names]
        which = [i for i, ref in enumerate(refs) if ref is None]
        if options.keys() & {"errors", "ids"}:
            raise TypeError("publish_many takes no errors and no ids: it publishes all or nothing")
        _known(options, "publish_many")
        own = self._node()
        put = self.put_many([values[names[i]] for i in which], visible=visible, **options)
        for i, ref in zip(which, put):
            refs[i] = ref
        try:
            ttl_ns = 0 if ttl is None else int(ttl * 1e9)
            versions = self._publish_many(names, refs, VISIBILITY[visible], lease, ttl_ns)
        except BaseException:
            self._drop_all(put)
            raise
        for ref in put:
            ref.drop()
        return {name: Published(version, _name_of(name, ref, own)) for name, version, ref in zip(names, versions, refs)}

    # ---- exists ----

    @overload
    def exists(self, names: Union[str, _rdt.Ref]) -> bool: ...  # type: ignore[misc]

    @overload
    def exists(self, names: Iterable[Union[str, _rdt.Ref]]) -> list[bool]: ...

    @checked
    def exists(self, names: Any) -> Any:
        """Whether a published name, or the object of a Ref, could be fetched now: True or False, or a list of them for a
        list. Text is a name; for an id, pass `Ref.from_id`. A Ref of a name asks for a version above its `after`.

        Moves and holds nothing, so the object may end right after the answer, and is no use of an evictable object (`put`).
        A name is looked for at all nodes of the node table, and each other node is asked about its own in one message.
        Errors, if that cannot be found out for one of them: PeerLost, TimedOut (a node does not answer), Denied (an
        object that its user does not show), Unsupported (an older daemon)."""
        if isinstance(names, str):
            a_text(names, "names")
        if isinstance(names, (str, _rdt.Ref)):
            return self._exists([names])[0]
        listed = _listed(names, "names")
        _texts(listed, "names", (_rdt.Ref,))
        return self._exists(listed)

    # ---- load ----

    @checked
    def load_many(self, refs: Iterable[_rdt.Ref], into: Iterable[Any], *, timeout: Optional[float] = None,
                  errors: Literal["raise", "return"] = "raise") -> list[Optional[Error]]:
        """Copies the tensors of each object into its buffer, as `get(refs, into=into)` does: the blocks of a cache into one
        memory. into: for each Ref a writable, contiguous array, tensor or memoryview with the dtype and the shape of the object's
        one tensor, or a list of these; no two share memory.

        Objects of this user on this node whose Refs have a generation, as those of `lookup` do, take one message for hundreds,
        and the daemon copies them at once: straight into arrays from `empty`, or by way of memory of its own into buffers of
        up to 4 MiB. All others, also those of other nodes, are fetched with a message each. Metadata, such as the keys of a
        dict, is not returned.
        Buffers on GPUs are written by the daemon, once the streams that use them have come to the call: they are views of
        tensors, such as an engine's KV cache of each layer, that `import_memory` has made known, or that are from `torch_pool`
        or `empty`. Others are made known for the call, which takes longer.
        timeout: seconds; None: waits as long as it takes, also for the put of a Ref without a generation. After an error
        the daemon may write to arrays from `empty` for a moment.
        Returns a list of None; errors="return": with the exception of each that was not loaded in its place, otherwise the first
        is raised. Errors: those of `get`; Mismatch (other dtypes or shapes)."""
        returns = returns_errors(errors)
        listed, buffers = _listed(refs, "refs"), _listed(into, "into")
        if len(listed) != len(buffers):
            raise ValueError(f"there are {len(listed)} refs and {len(buffers)} buffers")
        for i, ref in enumerate(listed):
            if not isinstance(ref, _rdt.Ref):
                raise TypeError(f"refs[{i}] must be a Ref, not {shown(ref)}")
        lists = any([isinstance(buffer, (list, tuple)) for buffer in buffers])
        each = [list(buffer) if isinstance(buffer, (list, tuple)) else [buffer] for buffer in buffers] if lists else []
        statuses, sentence = self._load_many(listed, [one for buffer in each for one in buffer] if lists else buffers,
                                             [len(buffer) for buffer in each] if lists else None, timeout)
        result: list[Optional[Error]] = [None] * len(statuses)
        if sentence is None:
            return result
        for i, status in enumerate(statuses):
            if status != 0:
                kind = BY_STATUS.get(status, Error)
                result[i] = kind(f"ref {i} was not loaded: {kind.__name__}" if sentence == "" else sentence)
                sentence = ""
                if not returns:
                    raise result[i]  # type: ignore[misc]
        return result

    # ---- look-up ----

    @checked
    def lookup(self, ids: Sequence[Union[str, bytes]], *, until_missing: bool = False, lease_for: Optional[float] = None,
               nodes: Optional[float] = None) -> Found:
        """Finds the objects of this user that have these ids, in one message for a few thousand. Returns a list with a Ref for
        each, and None for an id without an object. until_missing: ends before the first id without one, and returns
        the Refs of those before it: the longest prefix of a prompt's blocks.

        lease_for: seconds for which the daemon holds each object from the moment at which it finds it, whatever happens to this
        connection; so nothing of it is evicted before `get` has it. It ends earlier by `end_lease`. Several leases of one
        object that are not ended last for the longest of their times. None: none is held, and an object may end right after
        the answer. The Refs have no hold. A lookup counts as a use of evictable objects (`put`),
        and as a hit or a miss of the cache; a `get` of its Refs is no further hit.

        nodes: seconds, at most 60, for which the other nodes of the node table are asked for ids that this one does not have,
        all at the same time and in one message each (for 4096 ids). They lease what they find in the same way, and
        the Ref's `node` says where it is. None: only this node is asked. An id that nobody has costs one round trip. A node
        that does not answer costs these seconds, one without a link to it nothing; the list's `unasked` has both:
        {name: the error}. A `get` of what its node has lost meanwhile is Freed, NotFound or PeerLost, and never gets a part.
        Errors: Invalid (an id that is empty or too long; nodes), LimitReached (lease_for: above the daemon's
        detached_ttl_max; the records of the leases exceed owner_max_heap)."""
        listed = _listed(ids, "ids")
        _texts(listed, "ids", (bytes,))
        keys = [key.encode() if isinstance(key, str) else key for key in listed]
        lease_ns, nodes_ns = [0 if one is None else max(1, int(one * 1e9)) for one in (lease_for, nodes)]
        found, unasked = self._lookup(keys, until_missing, lease_ns, nodes_ns)
        return Found(found[:found.index(None)] if until_missing and None in found else found,
                     {name: BY_STATUS.get(status, Error)(why) for name, status, why in unasked})

    @checked
    def end_lease(self, refs: Iterable[Optional[_rdt.Ref]]) -> None:
        """Ends one lease of each of these Refs that `lookup` has returned, on whatever node. None, and those without a lease,
        are passed over."""
        listed = _listed(refs, "refs")
        for i, ref in enumerate(listed):
            if ref is not None and not isinstance(ref, _rdt.Ref):
                raise TypeError(f"refs[{i}] must be a Ref, not {shown(ref)}")
        self._lease_end([ref for ref in listed if ref is not None])


_OPTIONS = frozenset(one.name for one in inspect.signature(ManyCalls._put_listed).parameters.values()
                     if one.kind is one.KEYWORD_ONLY)


def _known(options: Mapping[str, Any], call: str) -> None:
    for name in options.keys() - _OPTIONS:
        raise TypeError(f"{call} got an unexpected option {name!r}: it takes those of put, without id, stored, copy and stream")


def _results(items: list[Any], sentence: Optional[str], which: Sequence[int]) -> Iterator[Any]:
    """The Refs, with exceptions in place of statuses. The sentence is that of the first, and numbers it among the items; which:
    their numbers among the values."""
    if sentence is None:
        yield from items
        return
    for at, (i, item) in enumerate(zip(which, items)):
        if isinstance(item, int):
            kind = BY_STATUS.get(item, Error)
            yield kind(f"value {i} was not put: {kind.__name__}" if sentence is None else
                       f"value {i}: {sentence.removeprefix(f'value {at}: ')}")
            sentence = None
        else:
            yield item
