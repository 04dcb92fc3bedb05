"""The collector never has much to look at, however many objects came and stayed: a look holds every order up."""

import subprocess
import sys

import pytest

from keepstep.server.collecting import GROWTH_OBJECTS, WHOLE_S, is_due

A_FLEET_JOINS = """
import asyncio, gc
from keepstep.server.collecting import YOUNG_OBJECTS, Collecting

async def main():
    collecting, kept, most = Collecting(), [], 0
    collecting.begin()
    for _ in range(100):
        kept += [[] for _ in range(YOUNG_OBJECTS // 4)]
        most = max(most, len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)))
    collecting.stop()
    print(most / YOUNG_OBJECTS)

asyncio.run(main())
"""


def test_a_fleet_that_joins_leaves_little_for_one_look() -> None:
    told = subprocess.run([sys.executable, "-c", A_FLEET_JOINS], capture_output=True, text=True, check=True, timeout=60)
    assert float(told.stdout) < 4, "looks at the young ones come often enough that none takes tenths of a second"


@pytest.mark.parametrize(
    ("since_s", "objects", "due"),
    [
        (0.0, 300_000, False),
        (WHOLE_S, 300_000, True),
        (60.0, 600_000 + GROWTH_OBJECTS, False),
        (60.0, 600_001 + GROWTH_OBJECTS, True),
    ],
)
def test_everything_is_looked_at_once_a_day_or_when_it_has_grown_much(since_s: float, objects: int, due: bool) -> None:
    assert is_due(since_s, objects, objects_then=300_000) is due
