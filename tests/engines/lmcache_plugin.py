# SPDX-License-Identifier: Apache-2.0
"""A plug-in of pytest: rdtd.lmcache in the place of LMCache's in-memory L2 adapter, whose suite is in LMCache's source
distribution, tests/v1/distributed/test_mock_l2_adapter.py. Each adapter has a name space of its own, as each of LMCache's has
memory of its own.

    RDT_SOCKET=SOCKET python -m pytest -p lmcache_plugin --noconftest .../test_mock_l2_adapter.py"""
from __future__ import annotations

from itertools import count
from typing import Any

from lmcache.v1.distributed.l2_adapters import mock_l2_adapter  # type: ignore[import]

import rdtd.lmcache

_numbers = count()


def _adapter(config: Any) -> Any:
    return rdtd.lmcache.L2({"space": f"suite{next(_numbers)}", "max_capacity_gb": config.max_size_gb})


mock_l2_adapter.MockL2Adapter = _adapter
