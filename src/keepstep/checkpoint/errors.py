"""What can go wrong with state, as exceptions. Owns the error tree of the library."""


class CheckpointError(Exception):
    """Root of everything this library raises on purpose."""


class StateInvalid(CheckpointError):
    """State that was asked for is absent, incomplete or does not match its digest. Nothing was applied."""


class SaveFailed(CheckpointError):
    """A save did not become a checkpoint. Older checkpoints are untouched; the next save tries again."""


class Superseded(CheckpointError):
    """A newer generation of the job writes here: this writer must stop for good."""


class SnapshotRefused(CheckpointError):
    """The snapshot server does not accept this client (older generation, other job, not a control connection)."""
