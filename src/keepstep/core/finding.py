"""What a judge hands to diagnose.py: a diagnosis, what to remember of the failure, and what it may be held against."""

from msgspec import Struct

from keepstep.core.ids import ResourceId
from keepstep.core.incident import Diagnosis
from keepstep.core.job import Failure


class Finding(Struct, frozen=True, kw_only=True):
    diagnosis: Diagnosis
    failure: Failure | None
    suspected: tuple[ResourceId, ...] = ()
    exit_code: int = 1
