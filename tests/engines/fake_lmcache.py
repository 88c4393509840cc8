# SPDX-License-Identifier: Apache-2.0
"""A fake of what rdtd.lmcache needs of lmcache 0.5.6, for machines without it: the names, and the accounting of the base class."""
from __future__ import annotations

import os
import sys
import types
from abc import ABC
from dataclasses import dataclass


class Bitmap:
    def __init__(self, size):
        self.bits = [False] * size

    def set(self, i):
        self.bits[i] = True

    def test(self, i):
        return self.bits[i]


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class L2StoreResult(int):
    def __new__(cls, success, bytes_transferred):
        return super().__new__(cls, bytes_transferred if success else -1)

    def is_successful(self):
        return int(self) >= 0

    def bytes_transferred(self):
        return max(0, int(self))


@dataclass
class Usage:
    total_bytes_used: int
    total_capacity_bytes: int


class L2AdapterInterface(ABC):
    def __init__(self, max_capacity_bytes=0):
        self.usage = Usage(0, max_capacity_bytes)
        self.listeners = []

    def register_listener(self, listener):
        self.listeners.append(listener)

    def get_usage(self):
        return self.usage

    def _notify_keys_stored(self, keys, sizes):
        self.usage.total_bytes_used += sum(sizes)
        for one in self.listeners:
            one.on_l2_keys_stored(keys, sizes)

    def _notify_keys_accessed(self, keys):
        for one in self.listeners:
            one.on_l2_keys_accessed(keys)

    def _notify_keys_deleted(self, keys, sizes):
        self.usage.total_bytes_used -= sum(sizes)
        for one in self.listeners:
            one.on_l2_keys_deleted(keys)


class Notifier:
    def __init__(self):
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self):
        return self._fd

    def notify(self):
        os.eventfd_write(self._fd, 1)

    def close(self):
        os.close(self._fd)


def install() -> None:
    """Puts the fake in the place of the package in this process."""
    root = "lmcache.v1.distributed"
    has = {"lmcache": {}, "lmcache.v1": {}, root: {}, f"{root}.l2_adapters": {}, "lmcache.lmcache_native": {"Bitmap": Bitmap},
           f"{root}.api": {"ObjectKey": ObjectKey}, f"{root}.internal_api": {"L2StoreResult": L2StoreResult},
           f"{root}.l2_adapters.base": {"L2AdapterInterface": L2AdapterInterface},
           "lmcache.v1.platform": {"create_event_notifier": Notifier}}
    for name, values in has.items():
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(values)
