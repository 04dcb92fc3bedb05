"""What a matcher of the job's log hands on: a key and what it says, without where it stood."""

from typing import NamedTuple


class Sighting(NamedTuple):
    key: str
    attributes: dict[str, str]
