"""One node's controller over Redfish: a look, the power state, a change of power. Owns its cursor's meaning and its limits."""

import time
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
import sushy

from keepstep.adapters.redfish.connection import TRIPS, Connection, NotReachable, NotReadable
from keepstep.adapters.redfish.walk import Walk
from keepstep.core.observation import Observation
from keepstep.evidence.bmc.bundle import Body
from keepstep.evidence.bmc.redfish import read_bodies
from keepstep.ports import BmcReading

LOOK_S = 25.0
DEEP_EVERY = 4
"""Every so many looks the parts are walked as well; each look sees power, logs and summaries."""
FRESH_S = 900.0
"""At the first look, records younger than this on the controller's own clock are news; all others are history."""
Power = Literal["on", "off", "unknown"]
_RESETS = {"on": sushy.ResetType.ON, "off": sushy.ResetType.FORCE_OFF, "cycle": sushy.ResetType.FORCE_RESTART}
_RANK = {"": 0, "OK": 1, "Warning": 2, "Critical": 3}


class RedfishBmc:
    """Blocks; one caller at a time."""

    def __init__(self, url: str, user: str, password: str, fingerprint: str = "", verify: bool | str = True) -> None:
        self._connection = Connection(url, user, password, fingerprint, verify)
        self._looks = 0

    def look(self, cursor: Mapping[str, str]) -> BmcReading:
        """Everything that the service says now, and what its logs say since the cursor."""
        deadline_s = time.monotonic() + LOOK_S
        deep = self._looks % DEEP_EVERY == 0
        walk = Walk(lambda path: self._connection.get(path, deadline_s))
        try:
            root = self._root(deadline_s)
            systems = walk.state(root, deep)
            fresh, after = walk.logs(cursor)
        except NotReachable as error:
            return BmcReading(
                reachable=False, detail=str(error)[:300], cursor=dict(cursor), observations=(_dark(error),)
            )
        self._looks += 1
        reading = _reading(walk, systems, fresh, (dict(cursor), after))
        return msgspec.structs.replace(reading, complete=deep, unread=tuple(walk.unread))

    def _root(self, deadline_s: float) -> dict[str, Any]:
        try:
            root = self._connection.get("/redfish/v1/", deadline_s)
        except NotReadable as error:
            raise NotReachable(str(error)) from error
        if not isinstance(root, dict):
            raise NotReachable(f"{self._connection.url}: the root is no Redfish service")
        return root

    def power(self) -> Power:
        try:
            system = self._system()
            return _power({"PowerState": system.power_state.value if system is not None and system.power_state else ""})
        except (NotReachable, *TRIPS):
            return "unknown"

    def switch(self, to: Literal["on", "off", "cycle"]) -> str:
        try:
            system = self._system()
            if system is None:
                return f"{self._connection.url} has no system to switch"
            system.reset_system(_RESETS[to])
        except (NotReachable, *TRIPS) as error:
            return str(error).splitlines()[0][:300]
        return ""

    def _system(self) -> Any:
        """The host: the first system that can be switched. A board of accelerators is a system too, without a switch."""
        systems = self._connection.root().get_system_collection().get_members()
        able = [system for system in systems if (system.json.get("Actions") or {}).get("#ComputerSystem.Reset")]
        chosen = next(iter([*able, *systems]), None)
        if chosen is not None:
            chosen.refresh(force=True)
        return chosen

    def close(self) -> None:
        self._connection.close()


def _reading(
    walk: Walk, systems: list[dict[str, Any]], fresh: list[Body], cursors: tuple[dict[str, str], dict[str, str]]
) -> BmcReading:
    before, after = cursors
    state = read_bodies(walk.bodies, "")
    logs = read_bodies(fresh, "")
    now_s = max((seen.at_s for seen in state.observations if seen.signal == "bmc.clock" and seen.at_s), default=None)
    news = [seen for seen in logs.observations if _is_news(seen, before, now_s)]
    observations = [seen for seen in state.observations if seen.signal not in ("bmc.clock", "bmc.part.ok")]
    host = next(
        (body for body in systems if (body.get("Actions") or {}).get("#ComputerSystem.Reset")),
        systems[0] if systems else {},
    )
    progress = host.get("BootProgress")
    return BmcReading(
        reachable=True, power=_power(host), health=_health(systems),
        boot=str(progress.get("LastState") or "") if isinstance(progress, dict) else "",
        detail="; ".join(walk.missing)[:300], observations=(*observations, *news), same=tuple(state.same), cursor=after,
    )  # fmt: skip


def _is_news(seen: Observation, before: Mapping[str, str], now_s: float | None) -> bool:
    """Newer than the cursor; in a log that the cursor does not know: young on the controller's own clock."""
    log = seen.attributes.get("log", "")
    if log in before or f"{log}/" in before:
        return True
    return seen.clock == "bmc" and seen.at_s is not None and now_s is not None and now_s - seen.at_s <= FRESH_S


def _power(system: Mapping[str, Any]) -> Power:
    state = str(system.get("PowerState", "")).lower()
    return cast(Power, state) if state in ("on", "off") else "unknown"


def _health(systems: list[dict[str, Any]]) -> str:
    worst = ""
    for system in systems:
        status = system.get("Status")
        for name in ("Health", "HealthRollup"):
            said = str(status.get(name) or "") if isinstance(status, dict) else ""
            if _RANK.get(said, 0) > _RANK[worst]:
                worst = said
    return worst


def _dark(error: Exception) -> Observation:
    return Observation(signal="bmc.unreachable", part="bmc", detail=str(error)[:300], source="redfish")
