"""Reader of Redfish: resources, collections, bundles, mockups, logs and events of any maker. Owns their putting together."""

import re

import msgspec

from keepstep.core.observation import Observation, Same
from keepstep.evidence.bmc.bundle import Body, bodies, kind_of_body, looks_like_redfish
from keepstep.evidence.bmc.counters import counters_of
from keepstep.evidence.bmc.entries import Entry, conditions_of, entry_of, observations_of
from keepstep.evidence.bmc.names import part_of_path
from keepstep.evidence.bmc.states import State, states_of
from keepstep.evidence.bmc.times import CLOCK, estimate_offset_s, read_time
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Fine, Reader, Reading

NAME = "redfish"
_KEPT_WELL = ("gpu/", "nvswitch/", "psu/", "disk/", "cpu/", "dimm/", "nic/")
"""Parts whose good state is worth a record: it speaks against what a log has kept."""
_MEASURED = ("sensor", "temperature", "inlet", "voltage", "leak", "nvlink", "battery", "other")
"""A sane reading of a part does not say that the part is well."""
_LOGS = ("LogEntry", "Event")


def recognise(document: Document) -> float:
    text = document.data[:512].lstrip(b"\xef\xbb\xbf \t\r\n")
    stream = text.startswith((b"data:", b"id:", b"event:", b"retry:", b":")) and re.search(rb"^data: ?\{", text, re.M)
    if text[:1] not in (b"{", b"[") and not stream:
        return 0.0
    marks = looks_like_redfish(document.data)
    if marks == 0:
        return 0.0
    return 0.9 if b'"@odata.' in document.data[: 256 * 1024] and marks >= 2 else 0.55 if marks >= 2 else 0.4


def read(document: Document) -> Reading:
    """Everything that a document of Redfish says. What cannot be opened is counted; whole resources in it are still read."""
    found, broken = bodies(document)
    reading = read_bodies(found, document.path)
    for line, text in broken:
        reading.puzzled(line, text)
    if document.json is None and not broken:
        reading.puzzled(1, "no valid JSON: only whole resources in it were read")
    return reading


def read_bodies(found: list[Body], file: str) -> Reading:
    """The same for resources that are at hand already: a live controller's answers."""
    reading = _Collector(file)
    entries: list[Entry] = []
    for body in found:
        kind = kind_of_body(body.body)
        reading.reading.records += 1
        if kind in _LOGS:
            entry = entry_of(body.path, body.body, body.line)
            if entry is not None:
                entries.append(entry)
            continue
        entries.extend(conditions_of(body.body, body.line))
        status = body.body.get("Status")
        if isinstance(status, dict):
            entries.extend(conditions_of(status, body.line))
        reading.resource(body, kind)
    observations = observations_of(entries, "")
    reading.offset(observations)
    return reading.finished(observations)


class _Collector:
    """Collects one document's reading."""

    def __init__(self, file: str) -> None:
        self.reading = Reading(reader=NAME, file=file)
        self.now_s: float | None = None
        self.hosts: set[str] = set()
        self.well: dict[str, str] = {}
        self.ill: set[str] = set()

    def resource(self, body: Body, kind: str) -> None:
        for state in states_of(body.path, kind, body.body):
            self._state(state, body.line)
        for state in counters_of(body.path, kind, body.body):
            self._state(state, body.line)
        if kind == "ServiceConditions":
            self._summary(body)
        if kind == "ComputerSystem":
            self._system(body)
        if kind in ("Processor", "Chassis", "Drive"):
            self._names(body)
        if kind in ("Manager", "LogService"):
            at_s, clock = read_time(body.body.get("DateTime"))
            if at_s is not None and clock == CLOCK:
                self.now_s = max(at_s, self.now_s or at_s)

    def _state(self, state: State, line: int) -> None:
        if not state.signal:
            self.reading.fine.append(Fine(part=state.part, text=state.text, file=self.reading.file, line=line))
            if state.part.startswith(_KEPT_WELL) and state.attributes.get("kind") not in _MEASURED:
                self.well.setdefault(state.part, state.text)
            return
        self.ill.add(state.part)
        self.reading.observations.append(
            Observation(
                signal=state.signal,
                part=state.part,
                detail=state.text[:500],
                attributes=state.attributes,
                source=NAME,
                line=line,
            )
        )

    def _summary(self, body: Body) -> None:
        """The roll-up of a service stands at its top, not in a Status."""
        health = str(body.body.get("HealthRollup", ""))
        if health in ("Critical", "Warning"):
            signal = f"bmc.rollup.{health.lower()}"
            held = body.body.get("Conditions")
            count = len(held) if isinstance(held, list) else 0
            text = f"{body.path}: HealthRollup {health}, {count} conditions held"
            self._state(State(signal=signal, part="", text=text, attributes={"record": "latched"}), body.line)

    def _system(self, body: Body) -> None:
        host = body.body.get("HostName")
        if isinstance(host, str) and host.strip() and host != "localhost":
            self.hosts.add(host.strip().split(".")[0])
        power = body.body.get("PowerState")
        if power == "Off":
            attributes = {"record": "state", "path": body.path}
            self._state(
                State(signal="bmc.power.off", part="", text=f"{body.path}: PowerState Off", attributes=attributes),
                body.line,
            )
        elif power == "On":
            progress = body.body.get("BootProgress")
            last = progress.get("LastState") if isinstance(progress, dict) else ""
            self.reading.fine.append(
                Fine(
                    part="", text=f"{body.path}: power on {last or ''}".strip(), file=self.reading.file, line=body.line
                )
            )

    def _names(self, body: Body) -> None:
        """The names of one card: its place, its UUID, its serial number."""
        part = part_of_path(body.path)
        if not part.startswith(("gpu/", "disk/")):
            return
        names = [part]
        uuid, serial = body.body.get("UUID"), body.body.get("SerialNumber")
        if part.startswith("gpu/") and isinstance(uuid, str) and len(uuid) == 36:
            names.append(f"gpu/GPU-{uuid.lower()}")
        if isinstance(serial, str) and len(serial) > 3 and serial.isalnum():
            names.append(f"{part.split('/')[0]}/serial:{serial}")
        if len(names) > 1:
            self.reading.same.append(Same(parts=tuple(names)))

    def offset(self, observations: list[Observation]) -> None:
        """How far the controller's clock is off, where messages hold the host's time as well."""
        pairs = [(seen.at_s, float(seen.attributes["host_s"])) for seen in observations
                 if seen.at_s is not None and seen.clock == CLOCK and "host_s" in seen.attributes]  # fmt: skip
        found = estimate_offset_s(pairs)
        if found is not None and abs(found[0]) > 600:
            text = f"host clock minus controller clock: {found[0]:.0f} s, within {found[1]:.0f} s over {len(pairs)} records"
            attributes = {"value": f"{found[0]:.0f}", "spread_s": f"{found[1]:.0f}"}
            self.reading.observations.append(
                Observation(signal="bmc.clock.offset", part="bmc", detail=text, attributes=attributes, source=NAME)
            )

    def finished(self, observations: list[Observation]) -> Reading:
        reading = self.reading
        reading.observations.extend(observations)
        for part, text in self.well.items():
            if part not in self.ill:
                attributes = {"record": "state"}
                reading.observations.append(
                    Observation(signal="bmc.part.ok", part=part, detail=text, attributes=attributes, source=NAME)
                )
        if self.now_s is not None:
            reading.observations.append(
                Observation(
                    signal="bmc.clock",
                    part="bmc",
                    at_s=self.now_s,
                    clock=CLOCK,
                    source=NAME,
                    detail="the controller's own time when it was read",
                )
            )
        reading.node = next(iter(self.hosts)) if len(self.hosts) == 1 else ""
        reading.observations = [
            msgspec.structs.replace(x, file=reading.file, node=reading.node) for x in reading.observations
        ]
        reading.fine = [msgspec.structs.replace(x, node=reading.node) for x in reading.fine]
        reading.same = [msgspec.structs.replace(x, node=reading.node) for x in reading.same]
        return reading


READER = Reader(
    name=NAME,
    text="Redfish: resources, collections, bundles, event logs and events of a management controller",
    recognise=recognise,
    read=read,
)
