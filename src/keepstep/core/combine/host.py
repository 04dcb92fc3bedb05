"""Combination rules of host signals. Pure."""

from keepstep.core.signal import Rule

RULES: tuple[Rule, ...] = ()
