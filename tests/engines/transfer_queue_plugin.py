# SPDX-License-Identifier: Apache-2.0
"""A plug-in of pytest: TransferQueue's own suites, which its wheel has, know the backend "rdtd", and so do Ray's workers. Ray's
dashboard, whose processes take a minute to start on a small machine, is left out."""
import functools
from typing import Any

import ray

import rdtd.transferqueue

rdtd.transferqueue.register()
ray.init = functools.partial(ray.init, include_dashboard=False,
                             runtime_env={"worker_process_setup_hook": "rdtd.transferqueue.register"})


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for module in {item.module for item in items}:
        if hasattr(module, "BACKEND_CONFIGS"):
            module.BACKEND_CONFIGS["rdtd"] = {"controller": {"polling_mode": True},
                                              "backend": {"storage_backend": "rdtd", "rdtd": {"socket": None}}}
