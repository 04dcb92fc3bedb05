"""Readers of what a batch scheduler says about nodes and jobs."""

from keepstep.evidence.reading import Reader
from keepstep.evidence.scheduler import rest, scontrol, tables

READERS: tuple[Reader, ...] = (scontrol.READER, rest.READER, tables.READER)
