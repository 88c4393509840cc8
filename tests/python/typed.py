"""Never run: what a type checker must accept of a program that uses the package."""
from __future__ import annotations

from typing import Any

import rdt


def program() -> tuple[int, str]:
    with rdt.connect(timeout=1) as c:
        ref: rdt.Ref = c.put([1, 2], snapshot=True, visible="tenant")
        one: rdt.Request = c.fetch(ref)
        many: list[rdt.Request] = c.fetch([ref, ref], timeout=1)
        done, running = c.wait([one, *many], "any", 0)
        value: Any = c.get(ref, mode="cow", as_="torch", device="cuda:0")
        with rdt.torch_pool(0), c.torch_pool():
            c.put(value, stream=7)
        version: int = c.publish("w", ref)
        c.create_group("g", "gloo", ["trainer", rdt.Member("sampler", "192.0.2.2:7171"), ("third", None, None)], timeout=5)
        c.broadcast(ref, "g", timeout=5)
        group: rdt.Group = c.groups()[0]
        moved: rdt.Fetched = c.get_fetched(ref, group=group.name)
        assert moved.bytes_moved > 0
        assert isinstance(value, rdt.Tensor) and value.readonly
        try:
            c.wait_freed(value, timeout=0.5)
        except rdt.TimedOut as error:
            return error.status, error.status_name
        return version + len(done) + len(running), str(ref)


async def waits(c: rdt.Connection) -> Any:
    async for _version, value in c.versions("w"):
        return value
    request = c.fetch(rdt.Ref("x"))
    done, running = await c.wait_async([request], "any", timeout=1)
    return await done[0] if not running else None
