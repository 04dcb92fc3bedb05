"""What a save is called, and the objects that belong to it. Owns the names below ``steps/``.

steps/<step>-g<generation>-<attempt>-<job mark>/   one save; attempts never share a prefix
    <pack id>.pack
    claims/<group digest>                          who writes a group that several ranks have
    receipts/<rank>                                what is durable
    <digest>.manifest
"""

import hashlib
import re

from msgspec import Struct

PREFIX = "steps/"
_ATTEMPT = re.compile(r"[a-z0-9]{1,32}")
_FOLDER = re.compile(r"steps/((\d{8,})-g(\d+)-([a-z0-9]{1,32})-([0-9a-f]{8}))/(.+)")
_OURS = re.compile(r"[0-9a-f]{32}\.pack|claims/xxh3-[0-9a-f]{32}|receipts/\d+|xxh3-[0-9a-f]{32}\.manifest")


class Save(Struct, frozen=True, kw_only=True):
    """Which save a part belongs to. Ranks of one save agree on all of it."""

    job: str
    generation: int
    step: int
    attempt: str
    world_size: int

    def __post_init__(self) -> None:
        if not _ATTEMPT.fullmatch(self.attempt):
            raise ValueError(f"attempt {self.attempt!r} must be 1 to 32 of a-z and 0-9")

    def folder(self) -> str:
        """Carries the job as well: jobs may share a store, and a save that died can be told by its name."""
        return f"{self.step:08d}-g{self.generation}-{self.attempt}-{job_mark(self.job)}"

    def prefix(self) -> str:
        return f"{PREFIX}{self.folder()}/"


class Owned(Struct, frozen=True):
    """An object below ``steps/`` that keepstep made."""

    folder: str
    step: int
    generation: int
    mark: str


def job_mark(job: str) -> str:
    """Eight hex digits that stand for a job in names."""
    return hashlib.blake2b(job.encode(), digest_size=4).hexdigest()


def owned(key: str) -> Owned | None:
    """What a key belongs to; None for anything that keepstep would not have named so, which is never touched."""
    match = _FOLDER.fullmatch(key)
    if match is None or not _OURS.fullmatch(match[6]):
        return None
    return Owned(match[1], int(match[2]), int(match[3]), match[5])


def manifest_key(folder: str, digest: str) -> str:
    return f"{PREFIX}{folder}/{digest}.manifest"
