"""pip install ./client/python: against the librdt that `make` built in this tree (which then is within the package), else against the
installed one that pkg-config knows. `pip install --no-build-isolation` needs no network."""
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup

here = Path(__file__).resolve().parent
tree = here.parent.parent
os.chdir(here)


def pkg_config(*arguments: str) -> list[str]:
    try:
        return shlex.split(subprocess.run(["pkg-config", *arguments], check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return []


def version() -> str:
    header = tree / "client" / "rdt.h"
    if header.exists():
        found = re.search(r'#define RDT_VERSION "([^"]+)"', header.read_text())
        if found:
            return found.group(1)
    return (pkg_config("--modversion", "rdt") or ["0"])[0]


def where() -> dict[str, list[str]]:
    built = [tree / "build" / "release" / name for name in ("librdt.a", "libproto.a")]
    if all(path.exists() for path in built):
        return {"include_dirs": [str(tree / "client"), str(tree / "proto")], "extra_objects": [str(path) for path in built],
                "extra_link_args": ["-Wl,--exclude-libs,ALL", *(pkg_config("--libs", "libprotobuf-c") or ["-lprotobuf-c"])]}
    flags = pkg_config("--cflags", "rdt")
    if flags:
        return {"extra_compile_args": flags, "extra_link_args": pkg_config("--libs", "rdt")}
    sys.exit("rdt: there is no librdt: run `make` in the tree, or `make install` it where pkg-config looks (PKG_CONFIG_PATH)")


found = where()
setup(version=version(), ext_modules=[Extension(
    "rdt._rdt", sorted(str(path.relative_to(here)) for path in (here / "src").glob("*.c")), depends=["src/rdtpy.h"],
    define_macros=[("_GNU_SOURCE", "1")], **{**found, "extra_compile_args": ["-std=c11", "-O2", *found.get("extra_compile_args", [])]})])
