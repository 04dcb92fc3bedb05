"""Combination rules of network signals. Pure."""

from keepstep.core.signal import Rule

RULES: tuple[Rule, ...] = ()
