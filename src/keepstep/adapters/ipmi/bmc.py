"""One node's controller over IPMI: drives ``ipmitool -I lanplus -C 3``. Owns the calls and the cursor of the event log.

The cipher suite is always given: without it every call asks for the suites first, which costs ten seconds at many controllers.
The password goes through the environment, never through the command line, where every user of the machine could read it.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from typing import Literal

from keepstep.core.observation import Observation
from keepstep.evidence.bmc import sel, sensors
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reading
from keepstep.ports import BmcReading

CALL_S = 12.0
LOOK_S = 40.0
SENSORS_EVERY = 4
LAST = "sel"
MAX_OUTPUT_BYTES = 4 * 1024 * 1024
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}|[0-9A-Fa-f:.]{2,45}")
"""A name, or an address of either version; nothing that ipmitool could take for an option."""
Power = Literal["on", "off", "unknown"]


class NoAnswer(OSError):
    """The controller did not answer, or refused."""


class IpmiBmc:
    """Blocks; one caller at a time. ``address`` is ``host`` or ``host:port``."""

    def __init__(self, address: str, user: str, password: str) -> None:
        host, _, port = address.rpartition(":") if address.count(":") == 1 else (address, "", "")
        if _HOST.fullmatch(host) is None or (port and not port.isdecimal()):
            raise ValueError(f"{address!r} is no address of an IPMI controller: host or host:port")
        self._command = ["-I", "lanplus", "-C", "3", "-R", "1", "-N", "3", "-H", host, "-U", user, "-E"]
        self._command += ["-p", port] if port else []
        self._environment = {
            "IPMI_PASSWORD": password,
            "LC_ALL": "C",
            "TZ": "UTC",
            "PATH": os.environ.get("PATH", os.defpath),
        }
        self._name = address
        self._looks = 0

    def look(self, cursor: Mapping[str, str]) -> BmcReading:
        """Power and chassis state, new records of the event log, now and then the sensors."""
        deadline_s = time.monotonic() + LOOK_S
        try:
            chassis = sensors.read(Document("", self._call("chassis", "status")))
        except NoAnswer as error:
            dark = Observation(signal="bmc.unreachable", part="bmc", detail=str(error)[:300], source="ipmi")
            return BmcReading(reachable=False, detail=str(error)[:300], cursor=dict(cursor), observations=(dark,))
        observations = list(chassis.observations)
        missing: list[str] = []
        news, after = self._log(cursor, missing, deadline_s)
        observations += news
        full = self._looks % SENSORS_EVERY == 0
        if full:
            observations += self._sensors(missing, deadline_s).observations
        self._looks += 1
        bad = any(not seen.signal.startswith(("bmc.power.off", "bmc.power.past")) for seen in chassis.observations)
        return BmcReading(
            reachable=True, power=_power(chassis), health="Warning" if bad else "OK", detail="; ".join(missing)[:300],
            observations=tuple(observations), cursor=after, complete=full and not missing,
        )  # fmt: skip

    def _log(
        self, cursor: Mapping[str, str], missing: list[str], deadline_s: float
    ) -> tuple[list[Observation], dict[str, str]]:
        after = dict(cursor)
        try:
            text = self._call("sel", "elist", until_s=deadline_s)
        except NoAnswer as error:
            missing.append(str(error))
            return [], after
        records = list(sel.records_of(Document("", text), Reading(reader=sel.NAME, file="")))
        numbers = [int(record.number, 16) for record in records]
        last = int(cursor[LAST], 16) if LAST in cursor else None
        top = max(numbers, default=0)
        after[LAST] = f"{top:x}"
        if last is None:
            return [], after  # everything before the first look is history
        if top < last:
            last = 0  # the log was cleared: its numbers began again
        fresh = [record for record, number in zip(records, numbers, strict=True) if number > last]
        told = [sel.observation_of(record, seq) for seq, record in enumerate(fresh)]
        return [seen for seen in told if seen is not None], after

    def _sensors(self, missing: list[str], deadline_s: float) -> Reading:
        try:
            return sensors.read(Document("", self._call("sdr", "elist", "full", until_s=deadline_s)))
        except NoAnswer as error:
            missing.append(str(error))
            return Reading(reader=sensors.NAME, file="")

    def power(self) -> Power:
        try:
            return _power(sensors.read(Document("", self._call("chassis", "power", "status"))))
        except NoAnswer:
            return "unknown"

    def switch(self, to: Literal["on", "off", "cycle"]) -> str:
        try:
            self._call("chassis", "power", to)
        except NoAnswer as error:
            return str(error)[:300]
        return ""

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _call(self, *arguments: str, until_s: float | None = None) -> bytes:
        """What the program prints. Raises NoAnswer, also where the program is not there."""
        program = shutil.which("ipmitool", path=self._environment["PATH"])
        if program is None:
            raise NoAnswer("the program ipmitool is not installed on the server's machine")
        limit_s = CALL_S if until_s is None else min(CALL_S, until_s - time.monotonic())
        if limit_s <= 0:
            raise NoAnswer(f"ipmitool {' '.join(arguments)}: no time left for it in this look")
        try:
            done = subprocess.run(
                [program, *self._command, *arguments], env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NoAnswer(
                f"{self._name} did not answer `ipmitool {' '.join(arguments)}` within {limit_s:.0f} s"
            ) from None
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", errors="replace").strip().splitlines()
            raise NoAnswer(f"{self._name}: {said[-1][:200] if said else f'ipmitool ended with {done.returncode}'}")
        return done.stdout[:MAX_OUTPUT_BYTES]


def _power(reading: Reading) -> Power:
    if any(seen.signal == "bmc.power.off" for seen in reading.observations):
        return "off"
    return (
        "on"
        if any("power" in fine.text.lower() and fine.text.lower().rstrip().endswith("on") for fine in reading.fine)
        else "unknown"
    )
