"""What follows a commit: it is read back, written down as VERIFIED or CORRUPT, and older ones may go. Owns that order.

A checkpoint that was committed exists whatever happens here. Only damage that was found is a failed save; trouble with the
rest is left to the next checkpoint, which does it again.
"""

import contextlib

from keepstep.checkpoint.errors import CheckpointError, SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.repository.repository import Commit, Repository
from keepstep.checkpoint.repository.retention import Policy, retain


def settle(repository: Repository, commit: Commit, keep: int) -> Commit:
    """Returns the commit with its new state, or as it was where it could not be read back just now.

    Raises SaveFailed if its bytes are damaged, Superseded if a newer generation writes here.
    """
    try:
        repository.verify(commit.key)
    except (StateInvalid, OSError) as error:
        try:
            # A reading may have been wrong, and not what was read.
            repository.verify(commit.key)
        except OSError:
            return commit
        except StateInvalid as again:
            with contextlib.suppress(OSError, CheckpointError):
                repository.mark(commit.key, "corrupt", str(again))
            raise SaveFailed(f"step {commit.step} was committed, and is damaged: {again}") from error
    try:
        commit = repository.mark(commit.key, "verified")
        repository.mark_latest(commit)
        retain(repository, Policy(keep=keep))
    except Superseded:
        raise
    except (OSError, CheckpointError):
        return commit
    return commit
