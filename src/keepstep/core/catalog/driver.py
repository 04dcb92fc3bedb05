"""Rows of driver modules: whether they load and match, peer memory; and of AMD's driver. Data only."""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_SW, _GPU = Cause.HOST_SOFTWARE, Cause.DEVICE
_NODE, _CARD = Scope.NODE, Scope.CARD

_MODULES: dict[str, Row] = {
    "driver": row(_SW, "software.driver", _NODE, Verdict.WATCH, "something about a driver", confidence=0.3, source="project"),
    "driver.peermem.context": row(
        _SW, "software.driver", _NODE, Verdict.WATCH,
        "a program ended while the network still held its device memory: how ranks that are killed end",
        confidence=0.8, source="gpud; signals S151",
    ),
    "driver.peermem.failed": row(
        _SW, "software.driver", _NODE, Verdict.SUSPECT, "device memory cannot be registered with the network",
        urgency=Urgency.JOB_END, confidence=0.6, remedy=Remedy.REBOOT, source="kernel",
    ),
    "driver.version_mismatch": row(
        _SW, "software.driver", _NODE, Verdict.SUSPECT, "a driver's module and what uses it are of two versions",
        urgency=Urgency.JOB_END, confidence=0.8, remedy=Remedy.FIX_CONFIG,
        corroborate="after an update without a restart; or one image with other libraries", source="field reports",
    ),
    "driver.load_failed": row(
        _SW, "gpu.init", _NODE, Verdict.FAULTY, "the driver started no card of this node", urgency=Urgency.NOW,
        confidence=0.85, remedy=Remedy.REBOOT, source="kernel",
    ),
    "driver.probe_failed": row(
        _GPU, "gpu.init", _NODE, Verdict.SUSPECT, "the driver could not start a card", urgency=Urgency.NOW,
        confidence=0.7, remedy=Remedy.REBOOT, corroborate="a card that was lost before says which one", source="kernel",
    ),
    "driver.stack": row(
        _SW, "gpu.driver_hang", _NODE, Verdict.BENIGN, "a task stood in the accelerators' driver when its stack was printed",
        confidence=0.3, source="kernel",
    ),
    "driver.hung": row(
        _GPU, "gpu.driver_hang", _NODE, Verdict.SUSPECT, "a task has waited for minutes in the accelerators' driver",
        urgency=Urgency.NEXT_CHECKPOINT, confidence=0.7, remedy=Remedy.REBOOT,
        corroborate="a code of one card beside it; whether the job stands still too", source="signals S147",
    ),
    "driver.nouveau": row(
        _SW, "software.driver", _NODE, Verdict.SUSPECT, "another driver holds the cards", urgency=Urgency.JOB_END,
        confidence=0.8, remedy=Remedy.FIX_CONFIG, source="kernel",
    ),
}  # fmt: skip

_AMD: dict[str, Row] = {
    "amdgpu": row(_GPU, "gpu.compute_engine", _CARD, Verdict.WATCH, "something about a card", confidence=0.3, source="project"),
    "amdgpu.lost": row(
        _GPU, "gpu.fallen_off_bus", _CARD, Verdict.FAULTY, "the card is gone from the bus", urgency=Urgency.NOW,
        confidence=0.95, remedy=Remedy.REBOOT, source="driver source",
    ),
    "amdgpu.memory.uncorrectable": row(
        _GPU, "gpu.memory.dbe", _CARD, Verdict.FAULTY, "the card's memory lost data that could not be corrected",
        urgency=Urgency.NOW, confidence=0.9, remedy=Remedy.RESET_DEVICE, source="signals S222",
    ),
    "amdgpu.fatal": row(
        _GPU, "gpu.compute_engine", _CARD, Verdict.FAULTY, "the card raised a fatal hardware error: only a reset clears it",
        urgency=Urgency.NOW, confidence=0.9, remedy=Remedy.RESET_DEVICE, source="driver source; field reports",
    ),
    "amdgpu.memory.corrected": row(
        _GPU, "gpu.memory.sbe_rate", _CARD, Verdict.WATCH, "the card's memory corrected an error", confidence=0.8,
        source="driver source",
    ),
    "amdgpu.memory.retired": row(
        _GPU, "gpu.memory.remap_failed", _CARD, Verdict.FAULTY, "the card has more bad pages than it bears",
        urgency=Urgency.NEXT_CHECKPOINT, confidence=0.85, remedy=Remedy.REPLACE, source="driver source",
    ),
    "amdgpu.reset": row(
        _GPU, "gpu.driver_hang", _CARD, Verdict.SUSPECT, "the driver resets the card: what ran on it is lost",
        urgency=Urgency.NOW, confidence=0.7, remedy=Remedy.VALIDATE, source="driver source",
    ),
    "amdgpu.hang": row(
        _GPU, "gpu.driver_hang", _CARD, Verdict.SUSPECT, "the card's scheduler of queues does not answer: only a reset helps",
        urgency=Urgency.NOW, confidence=0.75, remedy=Remedy.RESET_DEVICE, corroborate="a reset that follows",
        source="driver source; field reports",
    ),
    "amdgpu.hang.unplaced": row(
        _GPU, "gpu.driver_hang", _NODE, Verdict.SUSPECT, "the queues of a card could not be stopped: only a reset helps",
        urgency=Urgency.NOW, confidence=0.6, remedy=Remedy.RESET_DEVICE, corroborate="a reset that follows names the card",
        source="driver source; field reports",
    ),
    "amdgpu.reset_done": row(
        _GPU, "gpu.driver_hang", _CARD, Verdict.BENIGN, "the card came back from a reset", source="driver source",
    ),
    "amdgpu.reset_failed": row(
        _GPU, "gpu.driver_hang", _CARD, Verdict.FAULTY, "the card did not come back from a reset", urgency=Urgency.NOW,
        confidence=0.9, remedy=Remedy.REBOOT, source="driver source",
    ),
    "amdgpu.ring_timeout": row(
        _GPU, "gpu.compute_engine", _CARD, Verdict.WATCH, "work on the card did not finish in time: program or card",
        confidence=0.5, corroborate="a reset that follows; the same card again", source="driver source",
    ),
    "amdgpu.page_fault": row(
        Cause.APPLICATION, "software.app", Scope.JOB, Verdict.SUSPECT, "a program used an address that it does not own",
        confidence=0.6, source="driver source",
    ),
    "amdgpu.firmware": row(
        _GPU, "gpu.firmware", _CARD, Verdict.FAULTY, "the card's power and clock firmware does not answer",
        urgency=Urgency.NOW, confidence=0.8, remedy=Remedy.REBOOT, source="driver source",
    ),
    "amdgpu.init_failed": row(
        _GPU, "gpu.init", _CARD, Verdict.FAULTY, "the driver could not start the card", urgency=Urgency.NOW,
        confidence=0.85, remedy=Remedy.REBOOT, source="driver source",
    ),
}  # fmt: skip

ROWS: dict[str, Row] = {**_MODULES, **_AMD}
