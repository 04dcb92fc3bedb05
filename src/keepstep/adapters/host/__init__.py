"""The host itself: boots, wall clock, pressure, memory kills, services."""

from keepstep.adapters.host.services import Service
from keepstep.adapters.host.source import HostSource

__all__ = ["HostSource", "Service"]
