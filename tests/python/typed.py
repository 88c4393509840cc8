# SPDX-License-Identifier: Apache-2.0
"""A program that uses the package, which a type checker must accept. It is never run."""
from __future__ import annotations

from typing import Any

import rdtd


def program() -> tuple[int, str]:
    with rdtd.connect(timeout=1) as c:
        ref: rdtd.Ref = c.put([1, 2], snapshot=True, visible="tenant")
        one: rdtd.Request = c.fetch(ref)
        many: list[rdtd.Request] = c.fetch([ref, ref], timeout=1)
        done, running = c.wait([one, *many], "any", 0)
        value: Any = c.get(ref, mode="cow", as_="torch", device="cuda:0")
        with rdtd.torch_pool(0), c.torch_pool():
            c.put(value, stream=7)
        version: int = c.publish("w", ref)
        c.create_group("g", "gloo", ["trainer", rdtd.Member("sampler", "192.0.2.2:7171"),
                                     ("third", None, None)], timeout=5)
        c.broadcast(ref, "g", timeout=5)
        group: rdtd.Group = c.groups()[0]
        moved: rdtd.Fetched = c.get_fetched(ref, group=group.name)
        assert moved.bytes_moved > 0
        assert isinstance(value, rdtd.Tensor) and value.readonly
        try:
            c.wait_freed(value, timeout=0.5)
        except rdtd.TimedOut as error:
            return error.status, error.status_name
        return version + len(done) + len(running), str(ref)


async def waits(c: rdtd.Connection) -> Any:
    async for _version, value in c.versions("w"):
        return value
    request = c.fetch(rdtd.Ref("x"))
    done, running = await c.wait_async([request], "any", timeout=1)
    return await done[0] if not running else None
