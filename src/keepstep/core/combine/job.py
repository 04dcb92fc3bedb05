"""Combination rules of job signals. Pure."""

from keepstep.core.signal import Rule

RULES: tuple[Rule, ...] = ()
