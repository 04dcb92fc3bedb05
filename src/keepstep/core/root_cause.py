"""Root causes: many signals, one incident. Joins what is one part's story, then what one story explains. Pure.

The same functions serve ``keepstep diagnose`` on a folder and the engine on the last minutes of a fleet. Time decides only
where two signals were timed by the same clock; between clocks, what belongs together is decided by part and by class.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, field

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict
from keepstep.core.explains import can_share, explains, precedence
from keepstep.core.incident import Cause, Urgency
from keepstep.core.observation import kind_of
from keepstep.core.signal import Context, Signal, within

ONE_STORY_S = 600.0
"""Signals further apart on one clock are not made one story across parts."""
TOGETHER_S = 300.0
"""Members of a domain that fail of the same class within this share a cause."""
RANKS_NAMED = 8
DOMAIN_MIN = 3
DOMAIN_FRACTION = 0.5
PORTS_MIN = 4
MAX_COMPARED = 256
"""Stories that one story is compared with."""

Name = TypeVar("Name", bound=str)

_REACHES_OTHERS = ("nvlink", "c2c", "derived", "nic.transport")
"""Classes that a fault of one card or port shows on another."""

_TOGETHER_BY_STATE = (
    "gpu.lost",
    "gpu.fallen_off_bus",
    "gpu.power",
    "gpu.thermal",
    "gpu.init",
    "power",
    "nvlink",
    "nic.lost",
)

_ENDS_THE_PROGRAM = ("gpu.memory.contained",)
"""Classes of a card that stays in service while the program that met the fault has ended."""

_SEVERITY = {Verdict.BENIGN: 0, Verdict.WATCH: 1, Verdict.SUSPECT: 2, Verdict.FAULTY: 3}
_HASTE = {Urgency.NONE: 0, Urgency.JOB_END: 1, Urgency.NEXT_CHECKPOINT: 2, Urgency.NOW: 3}


class RootCause(Struct, frozen=True, kw_only=True):
    """One incident's cause, with what speaks for it."""

    row: Row
    """Cause, class, scope, verdict, urgency, remedy; of the signal that says most."""
    node: str
    part: str
    members: tuple[str, ...] = ()
    """What shares it, where it is a domain's: resources by their printed names."""
    confidence: float = 0.0
    signals: tuple[Signal, ...] = ()
    """Evidence, the strongest first."""
    explained: tuple[Signal, ...] = ()
    """Signals of other parts that this one explains."""
    against: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        """As people and tools name it: ``node7/gpu/0000:9b:00``, ``gpu/0000:9b:00``, ``node7``; all of the ranks at fault,
        ``rank/9, rank/14``; ``node`` or ``rack`` where the evidence does not say which."""
        if self.row.scope is Scope.JOB and self.members:
            return ", ".join(self.members[:RANKS_NAMED])
        unnamed = self.row.scope is Scope.DEPENDENCY and kind_of(self.part) in ("job", "rank", "process")
        return (not unnamed and printed(self.node, self.part)) or self.row.scope.value

    @property
    def summary(self) -> str:
        few = self.row.scope is Scope.JOB and len(self.members) <= RANKS_NAMED
        many = f" ({len(self.members)} of them)" if self.members and not few else ""
        name = self.resource if self.part or self.node else f"this {self.row.scope.value}"
        return f"{name}{many}: {self.row.text}"

    @property
    def resource_action(self) -> str:
        return resource_action(self.row)

    @property
    def job_action(self) -> str:
        return job_action(self.row)


def printed(node: str, part: str) -> str:
    if kind_of(part) in ("dependency", "rack", "switch", "job", "rank") or not node:
        return part
    return f"{node}/{part}" if part else node


def resource_action(row: Row) -> str:
    """What becomes of the resource, apart from the job: ``quarantine+reset_device``, ``validate``, ``watch``, ``none`` …;
    ``notify_owner`` of a dependency."""
    if row.scope is Scope.JOB or row.verdict is Verdict.BENIGN:
        return "none"
    if row.scope is Scope.DEPENDENCY:
        return "notify_owner"
    if row.isolate:
        return "quarantine" if row.remedy is Remedy.NONE else f"quarantine+{row.remedy.value}"
    if row.remedy is not Remedy.NONE and row.verdict in (Verdict.SUSPECT, Verdict.FAULTY):
        return str(row.remedy.value)
    return "watch"


def job_action(row: Row) -> str:
    """What the running job should do: ``continue``, ``restart``, ``restart_elsewhere``, ``wait`` …"""
    if row.scope is Scope.DEPENDENCY:
        return "wait"
    if row.urgency is Urgency.NONE:
        ended = row.scope is Scope.JOB or row.failure_class in _ENDS_THE_PROGRAM
        return "restart" if ended and _SEVERITY[row.verdict] >= 2 else "continue"
    if row.urgency is Urgency.NEXT_CHECKPOINT:
        return "move_at_next_checkpoint"
    if row.urgency is Urgency.JOB_END:
        return "move_at_job_end"
    return "restart_elsewhere" if row.isolate else "restart"


class _Story(Struct, kw_only=True):
    """What is told about one part, while causes are being found."""

    node: str
    part: str
    signals: list[Signal]
    explained: list[Signal] = field(default_factory=list)
    members: tuple[str, ...] = ()
    row: Row | None = None
    """Of the group, where it is one."""

    led: tuple[int, Signal] | None = None

    @property
    def lead(self) -> Signal:
        """The signal that says most. Kept: it is asked for once for every other story."""
        if self.led is None or self.led[0] != len(self.signals):
            self.led = (len(self.signals), _leading(self.signals, self.part == "job"))
        return self.led[1]

    @property
    def verdict_row(self) -> Row:
        return self.row or self.lead.row


def _weight(signal: Signal) -> tuple[int, int, float, int]:
    row = signal.row
    return _SEVERITY[row.verdict], _HASTE[row.urgency], row.confidence, -precedence(row.failure_class)


def _leading(signals: list[Signal], of_a_job: bool) -> Signal:
    """The signal that says most; in a job's story that is the one that explains the others, however sure those are."""
    lead = max(signals, key=_weight)
    if of_a_job:
        bad = [signal for signal in signals if _SEVERITY[signal.row.verdict] >= 2]
        classes = {s.row.failure_class for s in bad if explains(s.row.failure_class, lead.row.failure_class)}
        lead = max((s for s in bad if s.row.failure_class in classes), key=_weight, default=lead)
    return lead


def root_causes(
    signals: Sequence[Signal], context: Context, domains: dict[str, dict[str, str]] | None = None
) -> list[RootCause]:
    """Every incident that the signals tell of, the worst first; none where nothing is wrong.

    ``domains``: node -> kind (``rack``, ``switch``, ``power``, ``driver`` …) -> name.
    """
    stories = _stories(signals, context)
    stories = _share_node(stories)
    stories = _share_domain(stories, domains or {})
    stories = _explain(stories)
    causes = [_cause(story) for story in stories if _SEVERITY[story.verdict_row.verdict] >= 2]
    return sorted(causes, key=lambda x: (-_SEVERITY[x.row.verdict], -_HASTE[x.row.urgency], -x.confidence, x.resource))


# ---- one part, one story


def _stories(signals: Sequence[Signal], context: Context) -> list[_Story]:
    found: dict[tuple[str, str], _Story] = {}
    jobs: list[_Story] = []
    for signal in signals:
        if signal.row.verdict is Verdict.BENIGN:
            continue
        node, part = _subject(signal, context)
        if part == "job":
            _of_job(signal, jobs)
            continue
        story = found.setdefault((node, part), _Story(node=node, part=part, signals=[]))
        story.signals.append(signal)
    return [*found.values(), *jobs]


def _of_job(signal: Signal, jobs: list[_Story]) -> None:
    """What a job says within some minutes is one story; hours later, on the same clock, it is another."""
    for story in reversed(jobs[-MAX_COMPARED:]):
        if within(story.signals[-1], signal, ONE_STORY_S):
            story.signals.append(signal)
            return
    jobs.append(_Story(node="", part="job", signals=[signal]))


def _subject(signal: Signal, context: Context) -> tuple[str, str]:
    """What a signal is about: its part, unless its scope says that it is about more."""
    seen, scope = signal.seen, signal.row.scope
    part = context.parts.canonical(seen.node, seen.part)
    if scope in (Scope.DEPENDENCY, Scope.RACK, Scope.FABRIC, Scope.FLEET) and part:
        return ("", part) if kind_of(part) in ("dependency", "rack", "switch") else (seen.node, part)
    if scope is Scope.JOB:
        return "", "job"
    if scope is Scope.NODE and kind_of(part) in ("gpu", "rank", "process", "job"):
        return seen.node, ""
    return seen.node, part


# ---- what is shared


def _share_node(stories: list[_Story]) -> list[_Story]:
    """The same class on most cards (or ports, drives) of a node at once is the node's, not theirs."""
    groups: dict[tuple[str, str, str], list[_Story]] = {}
    for story in stories:
        row = story.verdict_row
        if story.part and row.scope in (Scope.CARD, Scope.NIC, Scope.DISK) and _SEVERITY[row.verdict] >= 2:
            groups.setdefault((story.node, kind_of(story.part), row.failure_class), []).append(story)
    merged: list[_Story] = []
    gone: list[int] = []
    for (node, kind, _), members in groups.items():
        if len(members) < DOMAIN_MIN or not _at_once([story.lead for story in members]):
            continue
        merged.append(_grouped(node, "", Scope.NODE, members, f"{len(members)} {kind}s of one node at once: {{text}}"))
        gone += [id(story) for story in members]
    kept = [story for story in stories if id(story) not in gone]
    for group in merged:
        own = next((s for s in kept if (s.node, s.part) == (group.node, "")), None)
        if own is not None and own.verdict_row.failure_class == group.verdict_row.failure_class:
            group.signals += own.signals
            kept.remove(own)
    return kept + merged


def _at_once(leads: list[Signal]) -> bool:
    """Whether several parts failed together. A level without a time (pages retired in years) says nothing of the kind; that
    several parts are not there at all, or without power, does."""
    if any(lead.seen.at_s is None for lead in leads):
        return all(lead.row.failure_class.startswith(_TOGETHER_BY_STATE) for lead in leads) or _every_port(leads)
    return all(within(leads[0], lead, TOGETHER_S) for lead in leads)


def _every_port(leads: list[Signal]) -> bool:
    """The same of so many ports of one node, each with a cable of its own, is not their cables."""
    ports = all(kind_of(lead.seen.part) == "nic" for lead in leads)
    return ports and len(leads) >= PORTS_MIN and len({lead.key for lead in leads}) == 1


def _share_domain(stories: list[_Story], domains: dict[str, dict[str, str]]) -> list[_Story]:
    """The same class on many nodes of a rack, a switch, a power domain or a driver version is the domain's."""
    groups: dict[str, list[_Story]] = {}
    for story in stories:
        row = story.verdict_row
        if story.node and row.scope in (Scope.NODE, Scope.NIC, Scope.CARD) and _SEVERITY[row.verdict] >= 2:
            groups.setdefault(row.failure_class, []).append(story)
    for failure_class, members in groups.items():
        shared = shared_domain([story.node for story in members], domains, _members(domains), failure_class)
        if shared is None:
            continue
        kind, name = shared
        inside = [story for story in members if domains[story.node].get(kind) == name]
        scope = Scope.FABRIC if kind == "switch" else Scope.RACK if kind in ("rack", "power") else Scope.FLEET
        part = f"{kind}/{name}"
        group = _grouped("", part, scope, inside, f"the same on {len(inside)} nodes of {part}: {{text}}")
        stories = [story for story in stories if all(story is not member for member in inside)] + [group]
    return stories


def _members(domains: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], dict[str, None]]:
    """(kind, name) of a domain -> its nodes."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for node, of in domains.items():
        for domain in of.items():
            found.setdefault(domain, {})[node] = None
    return found


def shared_domain(
    nodes: Sequence[Name],
    domains: Mapping[Name, Mapping[str, str]],
    members: Mapping[tuple[str, str], Mapping[Name, None]],
    failure_class: str,
    known: Sequence[tuple[str, str] | None] = (),
) -> tuple[str, str] | None:
    """(kind, name) of the tightest domain of which at least half are among ``nodes``, and that holds most of them.

    Of kinds that can share trouble of the class. ``known`` are domains that are not asked about: their trouble is known.
    """
    distinct = list(dict.fromkeys(nodes))
    if len(distinct) < DOMAIN_MIN:
        return None
    hits: dict[tuple[str, str], int] = {}
    for node in distinct:
        for domain in domains.get(node, {}).items():
            hits[domain] = hits.get(domain, 0) + 1
    best: tuple[float, tuple[str, str]] | None = None
    for domain, hit in sorted(hits.items()):
        share = hit / len(members[domain])
        if domain in known or not can_share(domain[0], failure_class):
            continue
        if hit < DOMAIN_MIN or share < DOMAIN_FRACTION or hit < DOMAIN_FRACTION * len(distinct):
            continue
        if best is None or share > best[0]:
            best = (share, domain)
    return best[1] if best is not None else None


def _grouped(node: str, part: str, scope: Scope, members: list[_Story], text: str) -> _Story:
    lead = max((story.lead for story in members), key=_weight)
    row = Row(
        cause=_shared_cause(lead.row, scope),
        urgency=lead.row.urgency,
        isolate=lead.row.isolate and scope is Scope.NODE,
        confidence=lead.row.confidence,
        text=text.format(text=lead.row.text),
        failure_class=lead.row.failure_class,
        scope=scope,
        verdict=lead.row.verdict,
        remedy=Remedy.FACILITY if _is_heat(lead.row) and scope is Scope.RACK else lead.row.remedy,
        source=lead.row.source,
    )
    return _Story(
        node=node,
        part=part,
        signals=[signal for story in members for signal in story.signals],
        members=tuple(printed(story.node, story.part) for story in members),
        row=row,
    )


def _is_heat(row: Row) -> bool:
    return row.failure_class.startswith(("gpu.thermal", "thermal"))


def _shared_cause(row: Row, scope: Scope) -> Cause:
    """Several cards that fail together are not several device faults: it is what they share. Of a rack's heat, its cooling."""
    if scope is Scope.RACK and _is_heat(row):
        return Cause.POWER
    return Cause.HOST_HARDWARE if row.cause is Cause.DEVICE else row.cause


# ---- what explains what


def _explain(stories: list[_Story]) -> list[_Story]:
    """Consequences join the story that explains them; causes are taken from the top of the table down."""
    order = sorted(stories, key=_rootedness)
    kept: list[_Story] = []
    causes: dict[str, dict[str, list[_Story]]] = {}
    for story in order:
        root = next((cause for cause in _candidates(story, causes) if _explained_by(story, cause)), None)
        if root is None:
            kept.append(story)
            if _SEVERITY[story.verdict_row.verdict] >= 2:
                causes.setdefault(story.node, {}).setdefault(story.verdict_row.failure_class, []).append(story)
        else:
            root.explained += story.signals + story.explained
    return kept


def _rootedness(story: _Story) -> tuple[int, int, bool]:
    """Causes first; of one class the worst, and the one that has a name."""
    row = story.verdict_row
    unnamed = not story.part or (row.scope is Scope.DEPENDENCY and kind_of(story.part) != "dependency")
    return precedence(row.failure_class), -_SEVERITY[row.verdict], unnamed


def _candidates(story: _Story, causes: Mapping[str, Mapping[str, list[_Story]]]) -> Iterator[_Story]:
    """Causes whose class explains the story's, of its own node and of none. What has no node of its own is compared with
    those of all nodes. Bounded: beyond some hundreds there is no telling."""
    row = story.verdict_row
    nodes = list(causes) if not story.node or row.scope is Scope.JOB else [story.node, ""]
    left = MAX_COMPARED
    for node in nodes:
        for failure_class, some in causes.get(node, {}).items():
            if failure_class == row.failure_class or explains(failure_class, row.failure_class):
                yield from some[:left]
                left -= min(left, len(some))
                if not left:
                    return


def _explained_by(story: _Story, cause: _Story) -> bool:
    row, other = story.verdict_row, cause.verdict_row
    if _SEVERITY[other.verdict] < 2:
        return False
    if not explains(other.failure_class, row.failure_class) and not _told_of_the_node(story, cause):
        return False
    if other.verdict is Verdict.SUSPECT and row.verdict is Verdict.FAULTY and row.scope is not Scope.JOB:
        return False
    if story.node and cause.node and story.node != cause.node and row.scope is not Scope.JOB:
        return False
    if _another_part(story, cause) and not row.failure_class.startswith(_REACHES_OTHERS):
        return False
    if not cause.node and other.scope in (Scope.RACK, Scope.FABRIC) and story.node:
        inside = any(member == story.node or member.startswith(story.node + "/") for member in cause.members)
        if cause.members and not inside:
            return False
    return within(cause.lead, story.lead, ONE_STORY_S)


def _told_of_the_node(story: _Story, cause: _Story) -> bool:
    """The same class of one node, once with a part of it and once without; or of one dependency, once without its name."""
    row, other = story.verdict_row, cause.verdict_row
    if row.failure_class != other.failure_class:
        return False
    if row.verdict is Verdict.SUSPECT and not story.part and story.node and story.node == cause.node:
        return True
    if row.scope is not other.scope:
        return False
    if row.scope is Scope.DEPENDENCY:
        return kind_of(story.part) != "dependency" and kind_of(cause.part) == "dependency"
    return row.scope is Scope.NODE and story.node == cause.node and "" in (story.part, cause.part)


def _another_part(story: _Story, cause: _Story) -> bool:
    """Two cards, two ports, two drives: trouble of the one does not explain that of the other."""
    kind = kind_of(story.part)
    return kind == kind_of(cause.part) and kind in ("gpu", "nic", "disk", "dimm") and story.part != cause.part


def _cause(story: _Story) -> RootCause:
    lead = story.lead
    ordered = [lead, *(s for s in sorted(story.signals, key=_weight, reverse=True) if s is not lead)]
    part, members = story.part, story.members
    if part == "job":
        part, members = _culprits(ordered)
    return RootCause(
        row=story.verdict_row,
        node=story.node,
        part=part,
        members=members,
        confidence=_confidence(ordered, story.explained),
        signals=tuple(ordered),
        explained=tuple(story.explained),
    )


def _culprits(ordered: list[Signal]) -> tuple[str, tuple[str, ...]]:
    """The rank or process that a job's story is about; all of them where several tell the same."""
    lead = ordered[0]
    alike = [
        s.seen.part
        for s in ordered
        if s.row.failure_class == lead.row.failure_class and s.row.verdict is lead.row.verdict
    ]
    parts = list(dict.fromkeys(part for part in alike if part and part != "job"))
    return (lead.seen.part or "job"), tuple(parts) if len(parts) > 1 else ()


def _confidence(signals: list[Signal], explained: list[Signal]) -> float:
    """The strongest signal; what other sources and explained symptoms add closes part of the gap to certainty."""
    doubt = 1.0 - signals[0].row.confidence
    told = {signals[0].seen.source}
    for signal in (*signals, *explained):
        if signal.seen.source not in told:
            told.add(signal.seen.source)
            doubt *= 0.6 if _SEVERITY[signal.row.verdict] >= 2 else 0.85
    return round(min(0.99, 1.0 - doubt), 3)
