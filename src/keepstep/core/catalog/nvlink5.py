"""Rows of NVLink 5 signals (Xid 144 to 150) by what was decoded, and of the fabric manager's own words. Data only."""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

SOURCE = "vendor's table of NVLink 5 errors, 2025-10"
UNITS = {
    144: "the switch port's buffer",
    145: "the receive side",
    146: "the transport side",
    147: "the multicast unit",
    148: "the link's power controller",
    149: "the link's interrupt unit",
    150: "the management engine",
}


def _link(verdict: Verdict, text: str, failure_class: str = "nvlink.link", **more: object) -> Row:
    return row(Cause.DEVICE, failure_class, Scope.CARD, verdict, text, **{"source": SOURCE, **more})


OUTCOMES: dict[str, Row] = {
    "fatal": _link(
        Verdict.FAULTY,
        "an NVLink error that only a reset of the card clears",
        remedy=Remedy.RESET_DEVICE,
        urgency=Urgency.NOW,
        confidence=0.9,
        corroborate="every card of one switch or tray: the fabric, once",
    ),
    "link": _link(
        Verdict.FAULTY,
        "an NVLink went down: the signal on it is to be looked at",
        remedy=Remedy.RESET_DEVICE,
        urgency=Urgency.NEXT_CHECKPOINT,
        confidence=0.85,
        corroborate="the same link again: cables or cartridge",
    ),
    "cable": _link(
        Verdict.FAULTY,
        "an NVLink went down because of its signal: look at cables and cartridge",
        remedy=Remedy.RESET_DEVICE,
        urgency=Urgency.NEXT_CHECKPOINT,
        confidence=0.85,
    ),
    "peer": _link(
        Verdict.FAULTY,
        "an NVLink went down because of the other end: this card needs a reset, the other end a look",
        remedy=Remedy.RESET_DEVICE,
        urgency=Urgency.NEXT_CHECKPOINT,
        confidence=0.7,
        corroborate="the peer's own errors",
    ),
    "user": _link(
        Verdict.FAULTY,
        "an NVLink was taken down by software, perhaps on request: the card needs a reset",
        "nvlink.sw",
        remedy=Remedy.RESET_DEVICE,
        urgency=Urgency.NEXT_CHECKPOINT,
        confidence=0.7,
    ),
    "host": _link(
        Verdict.SUSPECT,
        "an NVLink went down because of the host",
        "nvlink.sw",
        remedy=Remedy.VALIDATE,
        urgency=Urgency.NOW,
        confidence=0.6,
    ),
    "contained": _link(
        Verdict.WATCH,
        "a transfer over NVLink was lost: the program that waited for it ends",
        confidence=0.7,
        corroborate="154 of the same card says whether it needs more; a peer's or a switch's error at the same time",
    ),
    "poison": _link(
        Verdict.WATCH, "data was lost in the link's memory: 48, 94 or 95 tell whom it hits", confidence=0.7
    ),
    "ber": _link(
        Verdict.WATCH,
        "many bit errors on an NVLink: look at the cable when there is time",
        remedy=Remedy.INSPECT,
        confidence=0.7,
    ),
    "nonfatal": _link(Verdict.WATCH, "an NVLink error that the link went on from", confidence=0.7),
}


def _rows() -> dict[str, Row]:
    bare = {
        f"nvlink5.{code}": _link(
            Verdict.SUSPECT,
            f"an NVLink error of {unit}; the line does not say how severe",
            remedy=Remedy.VALIDATE,
            confidence=0.5,
        )
        for code, unit in UNITS.items()
    }
    return bare | {f"nvlink5.{code}.{name}": value for code in UNITS for name, value in OUTCOMES.items()}


FABRIC_MANAGER: dict[str, Row] = {
    "fabric_manager.gpu_fatal": _link(
        Verdict.FAULTY,
        "the fabric manager saw a fatal NVLink error of a card",
        remedy=Remedy.RESET_DEVICE,
        urgency=Urgency.NOW,
        confidence=0.85,
        source="field reports",
    ),
    "fabric_manager.gpu_nonfatal": _link(
        Verdict.WATCH,
        "the fabric manager saw an NVLink error of a card",
        confidence=0.6,
        source="field reports",
    ),
    "fabric_manager.link_training": row(
        Cause.DEVICE,
        "nvlink.fabric",
        Scope.NODE,
        Verdict.SUSPECT,
        "the fabric manager could not train a link",
        remedy=Remedy.RESTART_SERVICE,
        urgency=Urgency.NOW,
        confidence=0.7,
        source="field reports",
    ),
    "fabric_manager.stopped": row(
        Cause.HOST_SOFTWARE,
        "nvlink.fabric",
        Scope.NODE,
        Verdict.FAULTY,
        "the fabric manager failed: cards behind NVSwitches do not start",
        remedy=Remedy.RESTART_SERVICE,
        urgency=Urgency.NOW,
        confidence=0.8,
        source="field reports",
    ),
    "fabric_manager.error": row(
        Cause.HOST_SOFTWARE,
        "nvlink.fabric",
        Scope.NODE,
        Verdict.WATCH,
        "the fabric manager logged an error",
        confidence=0.5,
        source="field reports",
    ),
}

ROWS: dict[str, Row] = {
    "nvlink5": _link(Verdict.SUSPECT, "an NVLink error that was not decoded", remedy=Remedy.VALIDATE, confidence=0.5),
    **_rows(),
    **FABRIC_MANAGER,
}
