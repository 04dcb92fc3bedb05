"""Readers of what validation tools print: passed, failed and which part, or not run.

The vendor's diagnostic (dcgmi) is read with the other evidence of cards.
"""

from keepstep.evidence.gate import bandwidth, burn, collectives, superbench
from keepstep.evidence.reading import Reader

READERS: tuple[Reader, ...] = (
    collectives.READER, bandwidth.COPIES, bandwidth.PERFTEST, burn.READER, superbench.READER,
)  # fmt: skip
