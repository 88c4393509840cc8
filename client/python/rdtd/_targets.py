# SPDX-License-Identifier: Apache-2.0
"""The targets of a fetch: which tensor of the object is for which, and the words by which errors name them, such as
`into['w']`."""
from __future__ import annotations

import re
from typing import Any, Callable, Iterator, Optional, Sequence, cast

from . import _rdt
from ._arrays import kind_of, numpy, torch
from ._errors import Invalid, Mismatch
from ._plain import type_name
from ._structure import Layout

_IN_ORDER = "pass as_=\"list\" and a list of targets in the order of the tensors"
_NUMBER = re.compile(r"(?:^|(?<=: ))(?:fetch: )?(?:ref \d+: )?(?:the targets: )?(?:target )?tensor (\d+)(?=[:, ])")


def _children(value: Any) -> Optional[Iterator[tuple[Any, Any]]]:
    """The items of a dict, list or tuple, with their keys; None: it is none."""
    if isinstance(value, dict):
        return iter(value.items())
    return enumerate(value) if isinstance(value, (list, tuple)) else None


def places(value: Any, where: str, skips: bool = False) -> Iterator[tuple[str, Any]]:
    """The tensors of a nested value in the order of put, and the expressions that name them. skips: None is a place, too.
    Raises TypeError if the value contains anything else."""
    children = None if kind_of(value) else _children(value)
    if kind_of(value) or value is None and skips:
        yield where, value
    elif children is None:
        raise TypeError(f"{where} is a {type_name(value).removeprefix('builtins.')}, and tensors in dicts, lists and tuples "
                        "are wanted")
    else:
        for key, item in children:
            yield from places(item, f"{where}[{key!r}]", skips)


def flatten(value: Any, where: str, skips: bool = False) -> list[Any]:
    """The tensors of a nested value, in the order of put, and with `skips` None, too. Raises TypeError if the value contains
    anything else."""
    found: list[Any] = []

    def walk(item: Any) -> bool:
        if kind_of(item) or item is None and skips:
            found.append(item)
            return True
        children = _children(item)
        return children is not None and all([walk(child) for _, child in children])

    try:
        return found if walk(value) else [leaf for _, leaf in places(value, where, skips)]
    except RecursionError:
        raise ValueError(f"{where} is nested more deeply than Python's recursion limit") from None


def _same_bytes(a: Any, b: Any) -> bool:
    if kind_of(a) == "t":
        module = torch()
        return bool(module.equal(*[one.detach().as_strided((one.numel(),), (1,)).view(module.uint8) for one in (a, b)]))
    return bool(numpy().array_equal(*[one.reshape(-1).view("u1") for one in (a, b)]))


def _like(target: Any) -> Any:
    """New memory like a target's; None: there is none of its library."""
    kind = kind_of(target)
    if kind == "t":
        return torch().empty_like(target.detach())
    return numpy().empty_like(target) if kind == "n" else None


class _Place:
    """Stands for a tensor of the object in the object's structure."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def tobytes(self) -> bytes:
        raise Mismatch(f"the object's structure is too large to be matched with into: {_IN_ORDER}")


class Targets:
    """The targets of one object. A tensor may have several targets, which are written after the fetch. Several tensors may have
    one target, such as tied weights, if all of them are equal. skips: nothing is wanted of a tensor whose target is None."""

    def __init__(self, into: Any, where: str = "into", skips: bool = False) -> None:
        self.into = into
        self._order = flatten(into, where, skips)
        self.leaves = [leaf for leaf in self._order if leaf is not None]
        self.skips = len(self.leaves) < len(self._order)
        if self.skips and not self.leaves:
            raise ValueError(f"{where} wants nothing of any tensor")
        self._where = where
        self.twins: list[tuple[int, int]] = []  # of the leaves, by number: those in the very same memory
        self._roots: dict[int, Any] = {}  # by id: the first leaf in that memory
        self._clear()

    def _clear(self) -> None:
        self._placed: dict[int, tuple[Any, str]] = {}  # by the number of the tensor; None: nothing is wanted of it
        self._unwanted: dict[int, str] = {}  # what one place does not want, another one may
        self._users: dict[int, tuple[int, str]] = {}  # by the id of a leaf in self._roots: the first tensor for it
        self._copies: list[tuple[Any, Any]] = []  # (from, to)
        self._ties: list[tuple[int, int, str, str]] = []  # two tensors that must be equal, and the targets that say so

    def may_move(self) -> bool:
        """Whether their memory can be freed while a fetch waits for its object: torch lets nobody prevent that."""
        return any([kind_of(leaf) == "t" for leaf in self.leaves])

    def places(self) -> list[str]:
        return [where for where, _ in places(self.into, self._where, self.skips)]

    def leaf_places(self) -> list[str]:
        return [where for where, leaf in places(self.into, self._where, self.skips) if leaf is not None]

    def add_twins(self, first: int, second: int) -> None:
        self.twins.append((first, second))
        for leaf in self.leaves[first], self.leaves[second]:
            self._roots[id(leaf)] = self.leaves[first]

    def in_order(self) -> list[Any]:
        """The targets for the tensors of an object whose structure does not matter."""
        self._clear()
        found = self.places() if self._roots or self.skips else [""] * len(self._order)
        for i, leaf in enumerate(self._order):
            if leaf is None:
                self._placed[i] = None, found[i]
            else:
                self._place(i, leaf, found[i])
        return [self._placed[i][0] for i in range(len(self._order))]

    def arrange(self, metadata: bytes, count: int, may_unpickle: Callable[[], bool], source: str) -> list[Any]:
        """The targets for the tensors of an object: dicts match by key, lists and tuples by index. Parts of the object without
        tensors need no counterpart. Raises Mismatch, which names the place."""
        layout = Layout(metadata, cast("list[_rdt.Tensor]", [_Place(i) for i in range(count)]))
        if layout.form == "bare" and not isinstance(self.into, dict):
            return self.in_order()  # the tensors have an order and nothing else
        self._clear()
        self._match(self.into, layout.filled(layout.tensors, may_unpickle, str, source), self._where)
        for number, place in self._unwanted.items():
            self._placed.setdefault(number, (None, place))
        if len(self._placed) != count:
            raise Mismatch(f"the object has {count} tensors, of which only {len(self._placed)} lie in its dicts, "
                           f"lists and tuples: {_IN_ORDER}")
        return [self._placed[i][0] for i in range(count)]

    def _match(self, into: Any, put: Any, where: str) -> None:
        if into is None:
            self._unwanted.update((tensor.number, where) for tensor in _tensors_of(put))
        elif kind_of(into):
            if not isinstance(put, _Place):
                raise Mismatch(f"{where} is a tensor, but the object has {_described(put)} there")
            self._place(put.number, into, where)
        elif isinstance(into, dict):
            if not isinstance(put, dict):
                raise Mismatch(f"{where} is a dict, but the object has {_described(put)} there")
            for key, item in into.items():
                if key not in put:
                    raise Mismatch(f"{where} has the key {key!r}, but the object has {_described(put)} there")
                self._match(item, put[key], f"{where}[{key!r}]")
            for key, item in put.items():
                if key not in into and _has_tensors(item):
                    raise Mismatch(f"{where} has no target for the object's key {key!r}")
        else:
            if not isinstance(put, (list, tuple)):
                raise Mismatch(f"{where} is a {type(into).__name__}, but the object has {_described(put)} "
                               f"there: give it that structure, or {_IN_ORDER}")
            children = [item for item in put if _has_tensors(item)]
            if len(children) != len(into):
                raise Mismatch(f"{where} has {len(into)} targets, but the object has {_described(put)} there, "
                               f"with tensors in {len(children)} of its items")
            for i, (item, child) in enumerate(zip(into, children)):
                self._match(item, child, f"{where}[{i}]")

    def _place(self, number: int, leaf: Any, where: str) -> None:
        """The leaf is a target of that tensor."""
        root = self._roots.get(id(leaf))
        user = None if root is None else self._users.setdefault(id(root), (number, where))
        if number in self._placed:
            self._check_like(self._placed[number][0], leaf, where)
            if user is not None and user[0] != number:
                self._ties.append((user[0], number, user[1], where))
            elif leaf is not self._placed[number][0]:
                self._copies.append((self._placed[number][0], leaf))
        elif user is not None and user[0] != number:
            made = _like(leaf)
            if made is None or kind_of(self._placed[user[0]][0]) != kind_of(leaf):
                raise Invalid(f"{where} has the same memory as {user[1]}, so one would overwrite the other")
            self._placed[number] = made, where
            self._ties.append((user[0], number, user[1], where))
        else:
            self._placed[number] = leaf, where

    @staticmethod
    def _check_like(first: Any, into: Any, where: str) -> None:
        kind = kind_of(into)
        if kind not in ("n", "t") or kind != kind_of(first):
            raise Mismatch(f"{where}: the object has this tensor in two places: {_IN_ORDER}")
        if first.dtype != into.dtype or tuple(first.shape) != tuple(into.shape):
            raise Mismatch(f"{where} is a tensor of {into.dtype} {tuple(into.shape)}, and the object has it in another place, "
                           f"whose target is of {first.dtype} {tuple(first.shape)}")

    def name(self, error: BaseException) -> None:
        """Makes an error that names a tensor by its number name its target."""
        numbers = list(_NUMBER.finditer(str(error)))
        if not numbers or not isinstance(error, (TypeError, ValueError)):
            return
        last = numbers[-1]  # before it is the object, which may be called anything
        found: Sequence[str] = [self._placed[i][1] for i in sorted(self._placed)]
        found = found if found and found[0] else self.places()
        if int(last[1]) < len(found):
            text = str(error)
            rest = re.sub("^: (?=is |has )", " ", text[last.end():])
            error.args = (text[:last.start()] + found[int(last[1])] + rest, *error.args[1:])

    def check_ties(self, tensors: Callable[[], Sequence[_rdt.Tensor]]) -> None:
        """Before anything is written: raises the Mismatch of `written`. tensors: gives those of the object, in host memory."""
        found = tensors() if self._ties else ()
        for first, second, a, b in self._ties:
            if found[first].tobytes() != found[second].tobytes():
                raise _differ(a, b)

    def written(self) -> Any:
        """What remains to be done after the fetch. Returns `into`. Raises Mismatch, which names two targets in the same memory
        that should have got different bytes."""
        for first, second, a, b in self._ties:
            if not _same_bytes(self._placed[first][0], self._placed[second][0]):
                raise _differ(a, b)
        for source, target in self._copies:
            if kind_of(target) == "t":
                with torch().no_grad():
                    target.copy_(source)
            else:
                target[...] = source
        return self.into


def _differ(a: str, b: str) -> Mismatch:
    return Mismatch(f"{a} and {b} have the same memory, but the object has different tensors for them")


def check_memory(all_targets: Sequence[Optional[Targets]]) -> None:
    """Finds the targets that are in the very same memory. Raises Invalid, which names two targets, if they share memory
    otherwise, or are of two objects."""
    given = [targets for targets in all_targets if targets is not None]

    def owner(number: int) -> tuple[Targets, int]:
        for targets in given:
            if number < len(targets.leaves):
                return targets, number
            number -= len(targets.leaves)
        raise IndexError(number)

    def place(number: int) -> str:
        targets, i = owner(number)
        return targets.leaf_places()[i]

    try:
        twins, clash = _rdt.target_twins(given[0].leaves if len(given) == 1 else
                                         [leaf for targets in given for leaf in targets.leaves])
    except (TypeError, ValueError) as error:  # it names the tensor by its number in the list
        found = _NUMBER.search(str(error))
        if found:
            error.args = (place(int(found[1])) + str(error)[found.end():],)
        raise
    for second, first in twins.items():
        if owner(first)[0] is owner(second)[0]:
            owner(first)[0].add_twins(owner(first)[1], owner(second)[1])
        else:
            clash = first, second
    if clash is not None:
        raise Invalid(f"{place(clash[1])} shares memory with {place(clash[0])}, so one would overwrite the other")


def _tensors_of(put: Any, seen: Optional[set[int]] = None) -> Iterator[_Place]:
    """The tensors in a value, which may contain itself."""
    if isinstance(put, _Place):
        yield put
    elif isinstance(put, (dict, list, tuple)):
        seen = set() if seen is None else seen
        if id(put) not in seen:
            seen.add(id(put))
            for child in put.values() if isinstance(put, dict) else put:
                yield from _tensors_of(child, seen)


def _has_tensors(put: Any) -> bool:
    return next(_tensors_of(put), None) is not None


def _described(put: Any) -> str:
    if isinstance(put, _Place):
        return "a tensor"
    if isinstance(put, dict):
        keys = [repr(key) for key in list(put)[:8]] + ["..."] * (len(put) > 8)
        return f"a dict with the keys {', '.join(keys)}" if put else "an empty dict"
    if isinstance(put, (list, tuple)):
        return f"a {type(put).__name__} of {len(put)}"
    return f"a {type_name(put)}"
