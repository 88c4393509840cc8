# SPDX-License-Identifier: Apache-2.0
"""Whether the engine that is installed is one that a module knows. If it is not, a sentence says so at the import."""
from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import metadata
from typing import Any


@dataclass(frozen=True)
class Engine:
    """module: of rdtd. packages: the names under which the engine may be installed. tested: its version."""

    module: str
    packages: tuple[str, ...]
    tested: str

    def other(self, lacks: object) -> ImportError:
        """The error for an engine that is not installed, or that has another interface."""
        for package in self.packages:
            try:
                return ImportError(f"{self.module} is tested with {package} {self.tested}, and {package} "
                                   f"{metadata.version(package)}, which is installed, has another interface: {lacks}")
            except metadata.PackageNotFoundError:
                pass
        return ImportError(f"{self.module} needs {self.packages[0]}, which is not installed ({self.tested} is tested): {lacks}")

    def check(self, *classes: type) -> None:
        """Raises that error if a class lacks a method that the engine's base class demands, or if a method does not take a
        parameter that the base class's has."""
        for cls in classes:
            lacks = sorted(getattr(cls, "__abstractmethods__", ()))
            if lacks:
                raise self.other(f"{self.module}.{cls.__name__} lacks {', '.join(lacks)}")
            for name in vars(cls):
                theirs = getattr(super(cls, cls), name, None)
                if name.startswith("_") or not inspect.isroutine(theirs):
                    continue
                known = _parameters(getattr(cls, name))
                unknown = set() if "**" in known else _parameters(theirs) - known - {"**"}
                if unknown:
                    raise self.other(f"{name} of {cls.__mro__[1].__name__} has the parameter {min(unknown)}")


def _parameters(function: Any) -> set[str]:
    found = inspect.signature(function).parameters.values()
    return {"**" if one.kind == one.VAR_KEYWORD else one.name for one in found if one.kind != one.VAR_POSITIONAL}
