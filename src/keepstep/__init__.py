"""Keepstep keeps training runs in step through every failure."""

from typing import TYPE_CHECKING, Any

from keepstep._version import __version__ as __version__

if TYPE_CHECKING:
    from keepstep.train import ResumableSampler as ResumableSampler
    from keepstep.train import Session as Session
    from keepstep.train import endless as endless
    from keepstep.train import resumable as resumable
    from keepstep.train import session as session

_LAZY = ("session", "Session", "ResumableSampler", "resumable", "endless")


def __getattr__(name: str) -> Any:
    # The SDK is loaded on first use, so that `import keepstep` costs nothing to the control programs.
    if name in _LAZY:
        from keepstep import train

        return getattr(train, name)
    raise AttributeError(f"module 'keepstep' has no attribute {name!r}")
