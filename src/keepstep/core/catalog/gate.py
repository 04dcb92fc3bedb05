"""Rows of what validation tools report: passed, failed, or not run. Data only.

A tool that could not run says nothing about the hardware: not a pass, not a fault.
"""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_DEV, _END = Cause.DEVICE, Urgency.JOB_END

ROWS: dict[str, Row] = {
    "gate.tool_failed": row(
        Cause.UNKNOWN, "software.app", Scope.JOB, Verdict.BENIGN,
        "a validation tool could not run: not a pass, and no fault of the node", source="test output",
    ),
    "gate.gpu.wrong_results": row(
        _DEV, "sdc", Scope.CARD, Verdict.FAULTY, "an accelerator computed wrong results under load", urgency=Urgency.NOW,
        confidence=0.9, remedy=Remedy.REPLACE, source="test output",
    ),
    "gate.gpu.died": row(
        _DEV, "gpu.compute_engine", Scope.CARD, Verdict.FAULTY, "an accelerator stopped working during a load test",
        urgency=Urgency.NOW, confidence=0.8, remedy=Remedy.RESET_DEVICE, source="test output",
    ),
    "gate.gpu.slow": row(
        _DEV, "straggler", Scope.CARD, Verdict.SUSPECT, "an accelerator is slower than its neighbours in the same test",
        urgency=_END, confidence=0.6, remedy=Remedy.VALIDATE, source="test output",
    ),
    "gate.gpu.pcie": row(
        _DEV, "gpu.pcie", Scope.CARD, Verdict.SUSPECT, "copies between host and accelerator are slower than at its neighbours",
        urgency=_END, confidence=0.6, remedy=Remedy.VALIDATE, source="test output",
    ),
    "gate.gpu.memory": row(
        _DEV, "gpu.memory.dbe", Scope.CARD, Verdict.FAULTY, "a test found errors in an accelerator's memory",
        urgency=Urgency.NOW, confidence=0.85, remedy=Remedy.RESET_DEVICE, source="test output",
    ),
    "gate.nvlink": row(
        _DEV, "nvlink.link", Scope.CARD, Verdict.SUSPECT, "a test of the links between accelerators failed",
        urgency=_END, confidence=0.7, remedy=Remedy.VALIDATE, source="test output",
    ),
    "gate.comm.wrong_results": row(
        _DEV, "sdc", Scope.NODE, Verdict.FAULTY, "a collective gave wrong results", urgency=Urgency.NOW, confidence=0.8,
        remedy=Remedy.VALIDATE, corroborate="run it again over fewer cards to find which", source="test output",
    ),
    "gate.comm.failed": row(
        _DEV, "comm", Scope.NODE, Verdict.SUSPECT, "a collective test ended with an error", urgency=_END, confidence=0.5,
        remedy=Remedy.VALIDATE, corroborate="which of the participants is common to failing runs", source="test output",
    ),
    "gate.incomplete": row(
        Cause.UNKNOWN, "unclassified", Scope.NODE, Verdict.WATCH,
        "a benchmark gave no result on a node: it is to be run again before anybody judges", confidence=0.4,
        remedy=Remedy.VALIDATE, source="test output",
    ),
    "gate.network": row(
        Cause.NETWORK, "nic.link", Scope.NIC, Verdict.SUSPECT, "a network test failed or is slower than its peers",
        urgency=_END, confidence=0.6, remedy=Remedy.VALIDATE, source="test output",
    ),
    "gate.node": row(
        Cause.HOST_HARDWARE, "straggler", Scope.NODE, Verdict.SUSPECT, "a node is outside the limits of a benchmark",
        urgency=_END, confidence=0.6, remedy=Remedy.VALIDATE, source="test output",
    ),
}  # fmt: skip
