# SPDX-License-Identifier: Apache-2.0
"""What may be passed to the public calls. Each parameter that is a number, a text, a choice, a flag or a Ref is checked before
the call does anything, so that errors name it, and nothing that looks right is taken for something else: "false" is no flag,
and -1 is no version."""
from __future__ import annotations

import functools
import inspect
import math
import os
import reprlib
from itertools import zip_longest
from operator import index
from typing import Any, Callable, Optional, TypeVar, cast

from . import _rdt

_F = TypeVar("_F", bound=Callable[..., Any])
_Check = Callable[[Any, str], Any]  # returns the value, if it has to be another one

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100
shown = _short.repr


def a_number(value: Any, what: str, least: int, most: int) -> int:
    """The whole number. Raises TypeError or ValueError."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {shown(value)}")
    if not least <= number <= most:
        raise ValueError(f"{what} must be a whole number from {least} to {most}, not {shown(value)}")
    return int(number)


def a_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {shown(value)}")
    if "\0" in value:
        raise ValueError(f"{what} contains a zero byte: {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} contains half of a character, which UTF-8 does not have: {shown(value)}") from None


LONGEST = 2**62 / 1e9  # in seconds: 146 years. Longer times, as infinity, have no nanoseconds in 64 bits.


def seconds(value: Any, what: str) -> Optional[float]:
    number = None
    if not isinstance(value, (bool, str, bytes, bytearray)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf if value > 0 else -1.0
        except (TypeError, ValueError):
            pass
    if number is None or not number >= 0:
        kind = TypeError if number is None else ValueError
        raise kind(f"{what} must be None or a number of seconds that is not negative, not {shown(value)}")
    return LONGEST if number > LONGEST else None if type(value) in (int, float) else number


def _lifetime(value: Any, what: str) -> float:
    """0 is refused: what ends at once could not be read, and 0 means the default on the wire."""
    number = seconds(value, what) or float(value)
    if number == 0:
        raise ValueError(f"{what} must be None or a number of seconds above 0, not {shown(value)}")
    return max(number, 1e-9)


def one_of(*choices: str) -> _Check:
    def check(value: Any, what: str) -> None:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{what} must be one of {', '.join(choices)}, not {shown(value)}")
    return check


def _number(least: int, most: int) -> _Check:
    def check(value: Any, what: str) -> int:
        return a_number(value, what, least, most)
    return check


def _flag(value: Any, what: str) -> None:
    if not (isinstance(value, int) and value in (0, 1) or type(value).__name__ in ("bool_", "bool")):  # the former is numpy's
        raise TypeError(f"{what} must be True or False, not {shown(value)}")


def _snapshot(value: Any, what: str) -> None:
    if not (isinstance(value, str) and value == "unsealed"):
        try:
            _flag(value, what)
        except TypeError:
            raise ValueError(f"{what} must be True, False or 'unsealed', not {shown(value)}") from None


def _a_ref(value: Any, what: str) -> None:
    if not isinstance(value, _rdt.Ref):
        raise TypeError(f"{what} must be a Ref, not {shown(value)}: Ref(\"...\") parses one from text")


def _id(value: Any, what: str) -> None:
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{what} contains half of a character, which UTF-8 does not have: {shown(value)}") from None
    if not isinstance(value, bytes):
        raise TypeError(f"{what} must be text or bytes, not {shown(value)}")
    if not 1 <= len(value) <= 128:
        raise ValueError(f"{what} must be 1 to 128 bytes, not {len(value)}")


def _owner(value: Any, what: str) -> Any:
    return a_text(value, what) if isinstance(value, str) else a_number(value, what, 0, 2**32 - 2)


def _path(value: Any, what: str) -> None:
    try:
        path = os.fsencode(value)
    except TypeError:
        raise TypeError(f"{what} must be a path, not {shown(value)}") from None
    except UnicodeEncodeError:
        raise ValueError(f"{what} has characters that no path has: {shown(value)}") from None
    if b"\0" in path:
        raise ValueError(f"{what} contains a zero byte: {shown(value)}")


def texts(value: Any, what: str) -> list[str]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{what} must be a list of texts, not {shown(value)}")
    listed = list(value)  # a generator gives its texts once
    for i, one in enumerate(listed):
        a_text(one, f"{what}[{i}]")
    return listed


U32, U64 = 2**32 - 1, 2**64 - 1
CHECKS: dict[str, _Check] = {
    **dict.fromkeys(("timeout", "grace"), seconds), "ttl": _lifetime, "lease_for": _lifetime, "nodes": _lifetime,
    **dict.fromkeys(("name", "text", "address", "transport", "least_path", "group", "prefix"), a_text),
    **dict.fromkeys(("detached", "stored", "allow_pickle", "copy", "immutable", "checksum", "verify", "lease", "reconnect",
                     "strict", "force", "replace", "delta", "evictable", "all", "until_missing"), _flag),
    **dict.fromkeys(("after", "client", "limit", "step"), _number(0, U64)),
    **dict.fromkeys(("ref", "near"), _a_ref),
    "priority": _number(0, 7), "rank": _number(0, U32 - 1), "of": _number(1, U32), "world_size": _number(1, U32),
    "daemon_uid": _number(0, U32 - 1),
    "mode": one_of("auto", "share", "copy", "cow"), "as_": one_of("auto", "numpy", "torch", "tensor", "list"),
    "visible": one_of("owner", "tenant", "all"), "move": one_of("auto", "whole", "slices"),
    "state": one_of("awaited", "filling", "live", "draining"),
    "snapshot": _snapshot, "id": _id, "owner": _owner, "socket": _path, "others": texts,
}


def checked(function: _F) -> _F:
    """Checks the parameters of a public call that CHECKS has. One whose default or annotation says so may be None, and a name
    a Ref."""
    parameters = inspect.signature(function).parameters
    passed_on = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    refs = {name for name, p in parameters.items() if name == "name" and "Ref" in str(p.annotation)}
    optional = {name for name, p in parameters.items() if p.default is None or str(p.annotation).startswith("Optional[")}
    if passed_on:
        optional |= CHECKS.keys() - parameters.keys()
    by_name = {name: check for name, check in CHECKS.items() if name in parameters or passed_on}
    by_position = [by_name.get(name) for name, p in parameters.items()
                   if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    names = list(parameters)
    unchecked = next((i for i, check in enumerate(by_position) if check), len(by_position))

    def check_one(check: _Check, value: Any, name: str) -> Any:
        if value is None and name in optional or name in refs and isinstance(value, _rdt.Ref):
            return value
        other = check(value, name)
        return value if other is None else other

    def check_all(args: Any, kwargs: Any) -> Any:
        """The arguments by position; those by name are replaced."""
        if not kwargs and len(args) <= unchecked:
            return args
        for name in kwargs.keys() & by_name.keys():
            kwargs[name] = check_one(by_name[name], kwargs[name], name)
        if not any(by_position[:len(args)]):
            return args
        return [value if check is None else check_one(check, value, name)
                for value, check, name in zip_longest(args, by_position[:len(args)], names[:len(args)])]

    if inspect.iscoroutinefunction(function):
        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await function(*check_all(args, kwargs), **kwargs)
        return cast(_F, call_async)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*check_all(args, kwargs), **kwargs)
    return cast(_F, call)
