"""What shards and their copies are called in a store. Owns ``<key>/shard-<number>-<revision>``; no I/O.

A store overwrites nothing. A shard that is repaired appears under the next revision first, and only then is the damaged one
deleted: what was still good in it is not given up before there is something better.
"""

import re
from typing import NamedTuple

_NAME = re.compile(r"(?P<key>.+)/shard-(?P<shard>\d\d)-(?P<revision>\d{1,6})")


class ShardName(NamedTuple):
    """One shard of one object, as an object in a store."""

    key: str
    shard: int
    revision: int

    def __str__(self) -> str:
        return f"{self.key}/shard-{self.shard:02d}-{self.revision}"


def parse_name(name: str) -> ShardName | None:
    """None if ``name`` is not a shard's, written the way it is written here."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    parsed = ShardName(found["key"], int(found["shard"]), int(found["revision"]))
    return parsed if str(parsed) == name else None
