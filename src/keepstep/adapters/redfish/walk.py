"""Which resources of a Redfish service are read at a look, and in what order. Must not judge them.

What is asked most often comes first, so that a look that runs out of time has seen it: power, logs, summaries. Everything
else is optional: services answer 404 or 500 for parts of the tree, and go on well.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keepstep.adapters.redfish.connection import NotReadable, NotThere
from keepstep.evidence.bmc.bundle import Body

Get = Callable[[str], Any]
MAX_PAGES = 10
MAX_MEMBERS = 256
MAX_ENTRIES = 2000
LOGS = (
    "SEL",
    "Sel",
    "EventLog",
    "Event",
    "IML",
    "XID",
    "PlatformLog",
    "ActiveLog",
    "StandardLog",
    "Log1",
    "FaultLog",
    "Lclog",
)
"""Logs of hardware events. Audit, journal, dump and diagnostic logs are not read."""
_NOT_HARDWARE = re.compile(
    r"audit|journal|dump|crash|diagnostic|debug|security|\bsl\b|maintenance|postcode|faultlist|selftest", re.I
)
_NUMBER = re.compile(r"(\d+)$")


class Walk:
    """One look's walk. Collects bodies, and what could not be read."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self.bodies: list[Body] = []
        self.missing: list[str] = []
        """Why, for a person."""
        self.unread: list[str] = []
        self.seen: set[str] = set()
        self.owners: list[dict[str, Any]] = []

    def state(self, root: Mapping[str, Any], deep: bool) -> list[dict[str, Any]]:
        """Systems, and the owners of logs; with ``deep`` every part below them. Returns the systems."""
        systems = list(self._members(_link(root, "Systems")))
        managers = list(self._members(_link(root, "Managers")))
        self.take(_link(root, "ServiceConditions"))
        chassis = list(self._members(_link(root, "Chassis")))
        if deep:
            for body in chassis:
                self._chassis(body)
            for body in systems:
                self._system(body)
        self.owners = [*systems, *managers, *chassis]
        return systems

    def logs(self, cursor: Mapping[str, str]) -> tuple[list[Body], dict[str, str]]:
        """(records newer than the cursor, new cursor). A log that the cursor does not know gives all of its records."""
        fresh: list[Body] = []
        after: dict[str, str] = dict(cursor)
        for owner in self.owners:
            for service in self._members(_link(owner, "LogServices")):
                path = _link(service, "Entries")
                name = str(service.get("Id", ""))
                if not path or path in self.seen or (_NOT_HARDWARE.search(name) and name not in LOGS):
                    continue
                self.seen.add(path)
                entries = list(self._entries(path))
                new, last = newer(entries, cursor.get(path))
                fresh.extend(new)
                if last is not None:
                    after[path] = last
        return fresh, after

    def take(self, path: str) -> dict[str, Any] | None:
        """The resource at a path, kept; None where it cannot be read, or was before."""
        if not path or path in self.seen:
            return None
        self.seen.add(path)
        body = self._read(path)
        if isinstance(body, dict):
            self.bodies.append(Body(path=path, body=body))
            return body
        for one in body if isinstance(body, list) else []:
            if isinstance(one, dict):
                self.bodies.append(Body(path=str(one.get("@odata.id", path)), body=one))
        return None

    def _read(self, path: str) -> Any:
        try:
            return self._get(path)
        except NotThere:
            return None
        except NotReadable as error:
            self.missing.append(str(error)[:200])
            self.unread.append(path)
            return None

    def _members(self, path: str) -> Iterator[dict[str, Any]]:
        """Every member of a collection, whether it is a link or expanded."""
        if not path:
            return
        collection = self._read(path)
        members = collection.get("Members") if isinstance(collection, dict) else None
        for member in (members if isinstance(members, list) else [])[:MAX_MEMBERS]:
            at = member.get("@odata.id") if isinstance(member, dict) else None
            if not isinstance(at, str):
                continue
            if len(member) > 1 and "@odata.type" in member:
                if at not in self.seen:
                    self.seen.add(at)
                    self.bodies.append(Body(path=at, body=member))
                yield member
                continue
            body = self.take(at)
            if body is not None:
                yield body

    def _chassis(self, body: dict[str, Any]) -> None:
        self.take(_link(body, "Thermal"))
        self.take(_link(body, "Power"))
        for name, lists in (("ThermalSubsystem", ("Fans", "Pumps")), ("PowerSubsystem", ("PowerSupplies",))):
            subsystem = self.take(_link(body, name))
            for list_name in lists:
                for _ in self._members(_link(subsystem or {}, list_name)):
                    pass
            leaks = self.take(_link(subsystem or {}, "LeakDetection"))
            for _ in self._members(_link(leaks or {}, "LeakDetectors")):
                pass
        for adapter in self._members(_link(body, "NetworkAdapters")):
            for _ in self._members(_link(adapter, "Ports") or _link(adapter, "NetworkPorts")):
                pass

    def _system(self, body: dict[str, Any]) -> None:
        for processor in self._members(_link(body, "Processors")):
            self.take(_link(processor, "Metrics"))
            summary = processor.get("MemorySummary")
            self.take(_link(summary if isinstance(summary, dict) else {}, "Metrics"))
        for memory in self._members(_link(body, "Memory")):
            self.take(_link(memory, "Metrics"))
        for storage in self._members(_link(body, "Storage")):
            drives = storage.get("Drives")
            for drive in drives[:MAX_MEMBERS] if isinstance(drives, list) else []:
                if isinstance(drive, dict):
                    self.take(str(drive.get("@odata.id", "")))

    def _entries(self, path: str) -> Iterator[Body]:
        """The records of a log, page by page."""
        count = 0
        for _ in range(MAX_PAGES):
            page = self._read(path)
            members = page.get("Members") if isinstance(page, dict) else page
            for member in members if isinstance(members, list) else []:
                if isinstance(member, dict) and len(member) > 1 and count < MAX_ENTRIES:
                    count += 1
                    yield Body(path=str(member.get("@odata.id", f"{path}/{member.get('Id', count)}")), body=member)
            more = page.get("Members@odata.nextLink") or page.get("@odata.nextLink") if isinstance(page, dict) else None
            path = more if isinstance(more, str) else str(more.get("@odata.id", "")) if isinstance(more, dict) else ""
            if not path or path in self.seen:
                return
            self.seen.add(path)


def newer(entries: list[Body], last: str | None) -> tuple[list[Body], str | None]:
    """(records after the last one that was read, the last one now). All of them where the log was cleared in between."""
    numbered = sorted(
        ((number, body) for body in entries if (number := _number(body)) is not None), key=lambda pair: pair[0]
    )
    if not numbered:
        return ([], "0" if last is not None else None) if not entries else (_by_name(entries, last))
    top = numbered[-1][0]
    seen = int(last) if last is not None and last.isdecimal() else -1
    if seen > top:
        seen = -1  # the log was cleared: its numbers began again
    return [body for number, body in numbered if number > seen], str(top)


def _by_name(entries: list[Body], last: str | None) -> tuple[list[Body], str | None]:
    """Logs whose records have no numbers: what stands after the one that was last."""
    names = [str(body.body.get("Id", body.path)) for body in entries]
    at = names.index(last) if last in names else -1
    return entries[at + 1 :], names[-1]


def _number(body: Body) -> int | None:
    found = _NUMBER.search(str(body.body.get("Id", "")) or body.path)
    return int(found[1][-18:]) if found is not None else None


def _link(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    path = value.get("@odata.id") if isinstance(value, dict) else None
    return path if isinstance(path, str) else ""
