"""This machine: its process table and what it can say of a launcher that is silent. Linux only."""

from keepstep.adapters.local.host import LocalHost

__all__ = ["LocalHost"]
