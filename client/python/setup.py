# SPDX-License-Identifier: Apache-2.0
"""Builds the package for `pip install ./client/python`. If `make` has built librdt in this tree, the package
contains it; otherwise the package uses the installed librdt that pkg-config finds. `pip install
--no-build-isolation` needs no network."""
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

here = Path(__file__).resolve().parent
tree = here.parent.parent
os.chdir(here)


def pkg_config(*arguments: str) -> list[str]:
    try:
        return shlex.split(subprocess.run(["pkg-config", *arguments], check=True, capture_output=True,
                                          text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return []


def version() -> str:
    header = tree / "client" / "rdt.h"
    if header.exists():
        found = re.search(r'#define RDT_VERSION "([^"]+)"', header.read_text())
        if found:
            return found.group(1)
    return (pkg_config("--modversion", "rdt") or ["0"])[0]


# For a wheel, libprotobuf-c is linked statically (RDTPY_STATIC=1): other machines need not have it.
PROTOBUF = (["-l:libprotobuf-c.a"] if os.environ.get("RDTPY_STATIC")
            else pkg_config("--libs", "libprotobuf-c") or ["-lprotobuf-c"])
WITHOUT_CUDA = ("RDTPY_WITHOUT_CUDA", "1")


def where() -> dict[str, list[Any]]:
    built = [tree / "build" / "release" / name for name in ("librdt.a", "libproto.a")]
    if all(path.exists() for path in built):
        gpus = tree / "build" / "release" / "librdt-cuda.a"  # built if make found cuda.h
        return {"include_dirs": [str(tree / "client"), str(tree / "client" / "cuda"), str(tree / "proto")],
                "extra_objects": [str(path) for path in ([gpus] if gpus.exists() else []) + built],
                "define_macros": [] if gpus.exists() else [WITHOUT_CUDA],
                "extra_link_args": ["-Wl,--exclude-libs,ALL", *PROTOBUF]}
    for name in ("rdt-cuda", "rdt"):
        flags = pkg_config("--cflags", name)
        if flags:
            return {"extra_compile_args": flags, "extra_link_args": pkg_config("--libs", name),
                    "define_macros": [] if name == "rdt-cuda" else [WITHOUT_CUDA]}
    sys.exit("rdtd: librdt was not found: run `make` in the tree, or install it where pkg-config finds it "
             "(PKG_CONFIG_PATH)")


found = where()
setup(version=version(), ext_modules=[Extension(
    "rdtd._rdt", sorted(str(path.relative_to(here)) for path in (here / "src").glob("*.c")),
    depends=["src/rdtpy.h"],
    **{**found, "define_macros": [("_GNU_SOURCE", "1"), *found["define_macros"]],
       "extra_compile_args": ["-std=c11", "-O2", *found.get("extra_compile_args", [])]})])
