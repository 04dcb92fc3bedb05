"""The shape of a catalogue row: what a signal means for the resource, and, apart from that, for the running job."""

import enum

from msgspec import Struct

from keepstep.core.incident import Cause, Urgency


class Scope(enum.Enum):
    """How much of the world a signal is about, and so what is isolated."""

    CARD = "card"
    NIC = "nic"
    DISK = "disk"
    NODE = "node"
    RACK = "rack"
    FABRIC = "fabric"
    """A switch, or a network as a whole."""
    JOB = "job"
    """The program, a rank, a process: no resource is at fault."""
    DEPENDENCY = "dependency"
    FLEET = "fleet"


class Verdict(enum.Enum):
    """What is wrong with the resource."""

    BENIGN = "benign"
    """Ordinary. Recorded where it helps to understand another signal."""
    WATCH = "watch"
    """Counts into the health score; nothing else happens."""
    SUSPECT = "suspect"
    """Could be a fault: needs corroboration before anything is isolated."""
    FAULTY = "faulty"


class Remedy(enum.Enum):
    """What cures the resource, once it is isolated. The ladder of the class goes on from here."""

    NONE = "none"
    VALIDATE = "validate"
    """Run the gate: it will tell."""
    RESET_DEVICE = "reset_device"
    RESTART_SERVICE = "restart_service"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    INSPECT = "inspect"
    """A person: seating, cables, cooling, power."""
    REPLACE = "replace"
    FIX_CONFIG = "fix_config"
    FACILITY = "facility"
    """Power, cooling, leak: whoever runs the building."""
    DEPENDENCY = "dependency"
    """Whoever runs what is needed from outside."""


class Mode(enum.Enum):
    """How far a rule is trusted."""

    OBSERVE = "observe"
    """Recorded only."""
    SHADOW = "shadow"
    """Says what it would have done, so that its precision can be measured."""
    ACT = "act"


class Row(Struct, frozen=True, kw_only=True):
    cause: Cause
    urgency: Urgency
    """What the running job should do about it."""
    isolate: bool
    """Whether the resource is held before the restart."""
    confidence: float
    """That the verdict is right on this signal alone, 0 … 1."""
    text: str
    """What it means, in a sentence that a person can read."""
    failure_class: str = "unclassified"
    """Dotted class of the field: ``gpu.memory.dbe``, ``nic.link``, ``storage.shared`` …"""
    scope: Scope = Scope.CARD
    verdict: Verdict = Verdict.FAULTY
    remedy: Remedy = Remedy.NONE
    corroborate: str = ""
    """What makes it surer, or what it is mistaken for."""
    mode: Mode = Mode.ACT
    source: str = ""
    """Who says so."""


def row(cause: Cause, failure_class: str, scope: Scope, verdict: Verdict, text: str, **more: object) -> Row:
    """A row in one line. ``isolate`` follows from the verdict, ``urgency`` is NONE and ``confidence`` 0.8 unless given."""
    values: dict[str, object] = {
        "urgency": Urgency.NONE,
        "isolate": verdict is Verdict.FAULTY and scope not in (Scope.JOB, Scope.DEPENDENCY, Scope.FLEET),
        "confidence": 0.8,
        **more,
    }
    return Row(cause=cause, failure_class=failure_class, scope=scope, verdict=verdict, text=text, **values)  # type: ignore[arg-type]
