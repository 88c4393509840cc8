# SPDX-License-Identifier: Apache-2.0
"""The modules of the engines beside another version of their engine: each raises one sentence when it is imported, which names
the version that is installed and the one that was tested. The versions are fakes, and what they lack, too."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, Optional

from nodes import main, optional, raises
from rdtd._engines import Engine

HERE = Path(__file__).resolve().parent


class Case(NamedTuple):
    """hidden: all modules of the engine whose names begin so are empty. fake: has an `install`, where the engine is not
    installed. base: the class of the engine that has a method more."""

    module: str
    package: str
    tested: str
    hidden: str
    fake: Optional[str]
    base: str


CASES = (Case("rdtd._vllm", "vllm", "0.32.0", "vllm", "fake_vllm",
              "vllm.distributed.weight_transfer.base WeightTransferEngine"),
         Case("rdtd._vllm_tier", "vllm", "0.32.0", "vllm", None, "vllm.v1.kv_offload.tiering.base SecondaryTierManager"),
         Case("rdtd.verl", "verl", "0.9.1", "verl", "fake_verl", "verl.checkpoint_engine.base CheckpointEngineWithCache"),
         Case("rdtd._sglang_cache", "sglang", "0.5.23", "sglang", None, "sglang.srt.mem_cache.hicache_storage HiCacheStorage"),
         Case("rdtd.lmcache", "lmcache", "0.5.6", "lmcache", "fake_lmcache",
              "lmcache.v1.distributed.l2_adapters.base L2AdapterInterface"),
         Case("rdtd.transferqueue", "transferqueue", "0.1.11", "transfer_queue", None,
              "transfer_queue.storage.clients.base StorageKVClient"),
         Case("rdtd.fsspec", "fsspec", "2026.9", "fsspec", None, "no.class has_abstract_methods"),
         Case("rdtd.dcp", "torch", "2.15", "torch.distributed.checkpoint", None,
              "torch.distributed.checkpoint StorageWriter"))

EMPTY = """
import importlib.machinery, sys
class Empty:
    def find_spec(self, name, path=None, target=None):
        if (name + ".").startswith({hidden!r} + ".") and name == name.lower():  # not a class
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec): return None
    def exec_module(self, module): pass
sys.meta_path.insert(0, Empty())
"""
NEWER = """
import abc, importlib, importlib.util
if {fake!r} != "None" and not importlib.util.find_spec({hidden!r}):
    importlib.import_module({fake!r}).install()
base = getattr(importlib.import_module({module!r}), {name!r})
base.new_in_9 = abc.abstractmethod(lambda self: None)
base.__abstractmethods__ = base.__abstractmethods__ | {{"new_in_9"}}
"""


def last_line(case: Case, begin: str, fakes: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{fakes}:{os.environ['PYTHONPATH']}:{HERE}"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", f"{begin}\nimport {case.module}"], env=environment,
                          capture_output=True, text=True)
    assert done.returncode == 1, f"{case.module} was imported: {done.stderr}"
    assert done.stderr.count("Traceback") == 1, done.stderr
    return done.stderr.splitlines()[-1]


def test_each_module_names_both_versions() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            info = Path(folder) / f"{case.package}-9.9.9.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {case.package}\nVersion: 9.9.9\n")
        for case in CASES:
            if case.package != "fsspec" and optional("torch") is None:
                continue
            begins = [EMPTY.format(hidden=case.hidden)]
            module, name = case.base.split()
            if case.fake or optional(module):  # fsspec has no abstract methods
                begins.append(NEWER.format(module=module, name=name, fake=str(case.fake), hidden=case.hidden))
            for begin in begins:
                said = last_line(case, begin, Path(folder))
                wanted = f"is tested with {case.package} {case.tested}, and {case.package} 9.9.9, which is installed, has"
                assert said.startswith("ImportError: rdtd.") and wanted in said, said
                assert begin == begins[0] or "new_in_9" in said, said


def test_methods_of_another_interface() -> None:
    class Base:
        def load(self, keys: Any, *, wait: bool = False) -> None: ...

        @classmethod
        def make(cls, config: Any) -> None: ...

        def start(self, **more: Any) -> None: ...

    class Same(Base):
        def load(self, keys: Any, more: Any = None, wait: bool = False) -> None: ...

        @classmethod
        def make(cls, config: Any) -> None: ...

        def own(self) -> None: ...

        def start(self, name: str, number: int) -> None: ...

    class Lax(Base):
        def load(self, keys: Any, **options: Any) -> None: ...

    class Older(Base):
        def load(self, keys: Any) -> None: ...  # type: ignore[override]

    class OlderMake(Base):
        @classmethod
        def make(cls) -> None: ...  # type: ignore[override]

    engine = Engine("rdtd.x", ("no-such-package",), "1.0")
    engine.check(Same, Lax)
    with raises(ImportError, "load of Base has the parameter wait"):
        engine.check(Older)
    with raises(ImportError, "rdtd.x needs no-such-package, which is not installed (1.0 is tested): make of Base has the"):
        engine.check(Same, OlderMake)


if __name__ == "__main__":
    main(globals())
