"""Combination rules of gpu signals. Pure."""

from keepstep.core.signal import Rule

RULES: tuple[Rule, ...] = ()
