"""The SDK inside a training script. Owns the public names; imports the checkpoint library and the wire types only."""

from keepstep.train.deal import local_batch
from keepstep.train.errors import DataStateInvalid, RestoreFailed, SessionError
from keepstep.train.loader import ResumableLoader, endless, resumable
from keepstep.train.loop import Session, session
from keepstep.train.sampler import ResumableSampler

__all__ = [
    "DataStateInvalid",
    "RestoreFailed",
    "ResumableLoader",
    "ResumableSampler",
    "Session",
    "SessionError",
    "endless",
    "local_batch",
    "resumable",
    "session",
]
