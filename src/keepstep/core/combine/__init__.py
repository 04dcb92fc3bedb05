"""Judges observations together: each gets its catalogue row, then the combination rules change what company changes. Pure."""

from collections.abc import Sequence

import msgspec

from keepstep.core.catalog.row import Mode
from keepstep.core.combine import bmc, gpu, host, job, network, own
from keepstep.core.observation import Observation
from keepstep.core.signal import Context, Rule, Signal

RULES: tuple[Rule, ...] = (*own.RULES, *gpu.RULES, *host.RULES, *network.RULES, *bmc.RULES, *job.RULES)
"""In order. A later rule sees what an earlier one has done."""


def judge(observations: Sequence[Observation], context: Context) -> list[Signal]:
    """The signals of some observations, with their verdicts. The order is kept; derived signals come last."""
    signals = [Signal(seen=seen, row=context.catalog.row(seen.signal)) for seen in observations]
    for rule in RULES:
        signals = _apply(rule, signals, context)
    return signals


def _apply(rule: Rule, signals: list[Signal], context: Context) -> list[Signal]:
    mode = context.catalog.rule_modes.get(rule.name, rule.mode)
    if mode is Mode.OBSERVE:
        return signals
    changed = rule.apply(signals, context)
    return changed if mode is Mode.ACT else _shadowed(rule, signals, changed)


def _shadowed(rule: Rule, before: list[Signal], after: list[Signal]) -> list[Signal]:
    """The signals as they were, with what the rule would have done written beside them."""
    would = {(x.seen.file, x.seen.line, x.seen.entry, x.key, x.seen.part): x for x in after}
    told = []
    for signal in before:
        changed = would.get((signal.seen.file, signal.seen.line, signal.seen.entry, signal.key, signal.seen.part))
        if changed is not None and changed.row != signal.row:
            note = f"{rule.name}: {signal.row.verdict.value} -> {changed.row.verdict.value}"
            signal = msgspec.structs.replace(signal, shadow=(*signal.shadow, note))
        told.append(signal)
    return told
