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


class StoreUnfit(CheckpointError):
    """A store does not do what a commit depends on (it overwrites where it must refuse). It is not used."""


class Unreadable(CheckpointError):
    """State could not be read just now: a key is missing, or the store does not answer. It says nothing about the state."""


class KeyUnusable(CheckpointError):
    """Root of the three key errors."""


class KeyMissing(KeyUnusable):
    """No provider here can unwrap the session key."""


class KeyStale(KeyUnusable):
    """The session key, or the key that wraps it, has expired, was withdrawn or was forgotten."""


class WrongKey(KeyUnusable):
    """A key was found, and it is not the one that sealed this."""
