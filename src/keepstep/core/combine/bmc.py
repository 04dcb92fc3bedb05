"""Combination rules of bmc signals. Pure."""

from keepstep.core.signal import Rule

RULES: tuple[Rule, ...] = ()
