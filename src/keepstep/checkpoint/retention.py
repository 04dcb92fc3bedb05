"""Which checkpoints may go, and their removal in two steps. Owns deletion; nothing else in the library deletes data.

Decided from the log alone: the newest ``keep`` commits stay, and nothing goes until the newest one has been re-read from
the disk by the caller. First an ``expire`` record, then exactly the files that the manifest names. Unknown files, and
folders that hold any, are never touched.
"""

import contextlib
import os
import re
from pathlib import Path

from keepstep.checkpoint.directory import CheckpointDirectory, Commit, job_mark
from keepstep.checkpoint.files import sync_directory
from keepstep.checkpoint.records import LogRecord

_FOLDER = re.compile(r"(\d{8,})-g(\d+)-[a-z0-9]{1,32}-([0-9a-f]{8})")
_OURS = re.compile(r"(xxh3-[0-9a-f]{32}\.(group|manifest)|rank-\d+\.json|\.tmp-\d+-[0-9a-f]{16})")


def expire(directory: CheckpointDirectory, verified: Commit, keep: int) -> list[str]:
    """Expire what is older than the newest ``keep`` commits of the job. ``verified`` was just read back whole.

    Also finishes removals that were interrupted, and clears saves that can never be committed any more: those of an
    older or the same generation, at a step before ``verified``. Returns the keys expired. Raises OSError or Superseded.
    """
    if keep < 1:
        raise ValueError("keep must be at least 1: the last valid checkpoint is never deleted")
    commits = directory.commits(verified.job)
    kept = {commit.key for commit in commits[:keep]} | {verified.key}
    gone = [commit.key for commit in commits if commit.key not in kept and commit.key < verified.key]
    for key in gone:
        draft = LogRecord(
            seq=0, kind="expire", job=verified.job, generation=verified.generation, previous="", writer="",
            at_unix_s=0.0, expires=int(key),
        )  # fmt: skip
        directory.log.append(draft, lambda record, seq=int(key): record.kind == "expire" and record.expires == seq)  # type: ignore[misc]
    _sweep(directory, verified)
    return gone


def _sweep(directory: CheckpointDirectory, verified: Commit) -> None:
    directory.log.refresh()
    if directory.log.damaged():
        # A record that cannot be read may be the only thing that says a folder is needed.
        return
    records = directory.log.records(verified.job)
    expired = {record.expires for record in records if record.kind == "expire"}
    committed = {record.folder: record.seq for record in records if record.kind == "commit"}
    steps, mark = directory.path / "steps", job_mark(verified.job)
    for name in sorted(os.listdir(steps)):
        folder = _FOLDER.fullmatch(name)
        if folder is None:
            continue
        step, generation = int(folder[1]), int(folder[2])
        if name in committed:
            dead = committed[name] in expired
        else:
            dead = folder[3] == mark and generation <= verified.generation and step < verified.step
        if dead:
            _remove_folder(steps / name)


def _remove_folder(folder: Path) -> None:
    names = os.listdir(folder)
    for name in sorted(names, key=lambda name: name.endswith(".group")):
        if _OURS.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                (folder / name).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
        sync_directory(folder.parent)
