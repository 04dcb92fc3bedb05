"""Services of the node that a user declares: by pid file or by systemd unit. Owns the looking; must not restart anything."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.adapters.local import procfs
from keepstep.adapters.probe import Probes
from keepstep.core.figures import whole

_DEADLINE_S = 10.0
_PID_FILE_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Service:
    """Raises ValueError unless it says exactly one way to look."""

    name: str
    pidfile: str = ""
    unit: str = ""

    def __post_init__(self) -> None:
        if bool(self.pidfile) == bool(self.unit):
            raise ValueError("write either pidfile or unit")
        if self.unit and "." not in self.unit:
            object.__setattr__(self, "unit", f"{self.unit}.service")


async def standing(services: Sequence[Service], probes: Probes) -> dict[str, str]:
    """Name -> why it does not run, empty where it does. A service of which nothing can be said is left out."""
    found = {one.name: _by_pid(one.pidfile) for one in services if one.pidfile}
    units = [one for one in services if one.unit]
    systemctl = shutil.which("systemctl")
    if units and systemctl is not None:
        asked = dict.fromkeys(one.unit for one in units)
        said = await probes.run(
            [systemctl, "show", "--property=Id,ActiveState,LoadState", "--", *asked], _DEADLINE_S, name="systemctl"
        )
        states = _states(said.stdout.decode("utf-8", "replace"), list(asked)) if said.outcome == "ok" else {}
        found |= {one.name: states[one.unit] for one in units if one.unit in states}
    return found


def _states(text: str, asked: Sequence[str]) -> dict[str, str]:
    """One paragraph for each unit, in the order of the question: an alias answers with its own name."""
    states = {}
    for unit, paragraph in zip(asked, text.strip().split("\n\n"), strict=False):
        fields = dict(line.partition("=")[::2] for line in paragraph.splitlines())
        active = fields.get("ActiveState", "")
        if active in ("active", "reloading", "activating", "refreshing"):
            states[unit] = ""
        elif active:
            missing = fields.get("LoadState") == "not-found"
            states[unit] = f"unit {unit} is {'not installed' if missing else active}"
    return states


def _by_pid(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            words = file.read(_PID_FILE_BYTES).split()
    except OSError as error:
        return f"{path}: {error.strerror}"
    pid = whole(words[0]) if words else None
    if pid is None:
        return f"{path} holds no pid"
    found = procfs.stat(pid)
    if found is None or found.state in "ZX":
        return f"pid {words[0]} of {path} does not live"
    return ""
