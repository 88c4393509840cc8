# SPDX-License-Identifier: Apache-2.0
"""A plug-in of pytest: TransferQueue's own suites, which its wheel has, know the backend "rdtd"."""
from typing import Any

import rdtd.transferqueue

rdtd.transferqueue.register()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for module in {item.module for item in items}:
        if hasattr(module, "BACKEND_CONFIGS"):
            module.BACKEND_CONFIGS["rdtd"] = {"controller": {"polling_mode": True},
                                              "backend": {"storage_backend": "rdtd", "rdtd": {"socket": None}}}
