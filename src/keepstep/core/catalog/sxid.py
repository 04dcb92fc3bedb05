"""Rows of NVSwitch errors (SXid): three severities by code, and what each line said itself. Data only.

``sxid.<code>`` is an error with its usual severity, ``sxid.<code>.fatal`` and
``.nonfatal`` one where the driver said otherwise.
"""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

SOURCE = "vendor's fabric manager guide 2023-10"

ALWAYS_FATAL: dict[int, str] = {
    10003: "an interrupt that nobody handled", 12020: "packets out of sequence on the way out",
    22003: "the link controller halted",
    22011: "the link controller reported an external error",
} | {
    base + offset: text
    for base in (23001, 23010)
    for offset, text in enumerate((
        "the input buffer overflowed", "the input buffer underflowed", "output credits overflowed",
        "output credits underflowed",
        "a broken burst of packets came in", "an error that stays came in", "gaps in what came in",
    ))
} | {
    23008: "a packet for nobody came in", 23009: "a packet with wrong parity came in",
    23017: "credits with wrong parity came in",
}  # fmt: skip

POTENTIALLY_FATAL: dict[int, str] = {
    10001: "a register of the host side was refused", 10002: "a register of the host side timed out",
    11001: "an invalid command came in", 11009: "a packet with an invalid channel set came in", 11013: "a header was lost",
    11018: "a routing entry was lost", 11019: "a lane entry was lost", 11020: "control data with wrong parity came in",
    12001: "the crossbar overflowed", 12002: "a packet could not be routed", 12022: "input memory of the way out lost data",
    12024: "output memory of the way out lost data", 12025: "credits overflowed on the way out",
    12026: "a request for nobody on the way out", 12027: "a response for nobody on the way out",
    12030: "control data with wrong parity on the way out", 12031: "credits with wrong parity on the way out",
    12032: "a packet of the wrong kind on the way out", 14017: "a time-out of the scheduler",
    15001: "a routing buffer ran over or empty", 15006: "routing credits ran over or empty", 15009: "a routing table lost data",
    15010: "a routing table has wrong parity", 15012: "data was lost on the way to routing",
    15013: "routing credits have wrong parity",
    20034: "a link went down", 22012: "a link's controller reported a connection that is broken or was shut down",
    24004: "memory of the source tracker lost data", 24005: "memory of the source tracker lost data",
    24006: "memory of the source tracker lost data", 24007: "the source tracker waited in vain for an answer",
} | dict.fromkeys(
    (19047, 19048, 19054, 19056, 19058, 19060, 19061, 19063, 19064, 19066, 19067, 19069, 19070), "memory of a link lost data"
)  # fmt: skip

CORRECTED = (
    11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068,
    19071, 24001, 24002, 24003,
)  # fmt: skip
NON_FATAL: dict[int, str] = dict.fromkeys(CORRECTED, "a single-bit error that was corrected") | {
    11004: "a packet was refused by the access list: traffic of the card behind the port stalls",
    12028: "a request for registers failed on the way out: traffic of the card behind the port stalls",
    19084: "a link's heartbeat timed out, most often beside a fatal error",
    20001: "packets were sent again: the port may be slower",
    20009: "bit errors came in",
    20012: "a connection that is broken or was shut down at one end only",
    22013: "a notice of a link's controller that may be ignored",
}  # fmt: skip
THERMAL = {10004: "the switch became too hot: links may be slowed down", 10005: "the switch is no longer too hot"}
STALLS = (11004, 12028, 19084)
"""Not fatal to the fabric, but the card behind the port hangs until it is reset."""

SEVERITY: dict[int, str] = (
    dict.fromkeys(ALWAYS_FATAL, "always")
    | dict.fromkeys(POTENTIALLY_FATAL, "potential")
    | dict.fromkeys((*NON_FATAL, *THERMAL), "nonfatal")
)


def _row(verdict: Verdict, text: str, **more: object) -> Row:
    return row(Cause.DEVICE, "nvlink.switch", Scope.NODE, verdict, text, **{"source": SOURCE, **more})


def _fatal(text: str, whole_fabric: bool) -> Row:
    if whole_fabric:
        return _row(
            Verdict.FAULTY, f"fatal to the switch: {text}", remedy=Remedy.REBOOT, urgency=Urgency.NOW, confidence=0.9,
        )  # fmt: skip
    return _row(
        Verdict.FAULTY, f"fatal to a port of the switch: {text}", remedy=Remedy.REBOOT, urgency=Urgency.NOW, confidence=0.8,
        corroborate="Xid 74 of the card behind an access port; a trunk port affects every partition that uses it",
    )  # fmt: skip


def _nonfatal(text: str) -> Row:
    return _row(Verdict.WATCH, f"not fatal to the switch: {text}", confidence=0.7)


def _stalls(text: str) -> Row:
    return _row(
        Verdict.SUSPECT, f"not fatal to the switch: {text}", remedy=Remedy.VALIDATE, confidence=0.5,
        corroborate="an Xid of the card behind the port. Ending a program within a collective prints it too",
    )  # fmt: skip


def _rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for code, text in (ALWAYS_FATAL | POTENTIALLY_FATAL).items():
        rows[f"sxid.{code}"] = rows[f"sxid.{code}.fatal"] = _fatal(text, code in ALWAYS_FATAL)
        rows[f"sxid.{code}.nonfatal"] = _nonfatal(text)
    for code, text in NON_FATAL.items():
        rows[f"sxid.{code}"] = rows[f"sxid.{code}.nonfatal"] = _stalls(text) if code in STALLS else _nonfatal(text)
        rows[f"sxid.{code}.fatal"] = _fatal(text, False)
    return rows | {
        "sxid.22013": _row(Verdict.BENIGN, NON_FATAL[22013]),
        "sxid.10004": _row(
            Verdict.SUSPECT, THERMAL[10004], remedy=Remedy.INSPECT, urgency=Urgency.NEXT_CHECKPOINT, confidence=0.7
        ),
        "sxid.10005": _row(Verdict.BENIGN, THERMAL[10005]),
        "sxid.10004.fatal": _fatal(THERMAL[10004], True),
        "sxid.10005.fatal": _fatal(THERMAL[10005], True),
    }


ROWS: dict[str, Row] = {
    "sxid": _row(Verdict.WATCH, "an NVSwitch error that the catalogue does not know", confidence=0.3),
    "sxid.fatal": _fatal("a code that the catalogue does not know", False),
    "sxid.nonfatal": _nonfatal("a code that the catalogue does not know"),
    **_rows(),
}
