"""One incident afterwards: what happened when, why it was believed, what was done, what it cost, what is left to do.

Pure; owns the shapes and the reading of the stages. Times are seconds since the epoch, ``after_s`` seconds since the incident
was opened (negative before it).
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from keepstep.review.records import DrillRecord, FaultRecord, IncidentRecord
from keepstep.review.wording import count, duration, hours, number

How = Literal["measured", "estimated", "not told"]


class Point(Struct, frozen=True, array_like=True):
    after_s: float
    step: int
    loss: float | None
    step_time_s: float


class Evidence(Struct, frozen=True, kw_only=True):
    entry: int
    """Journal entry that it rests on."""
    source: str
    text: str
    supports: bool
    attempt: int = 1


class Order(Struct, frozen=True, kw_only=True):
    number: int
    kind: str
    node: str
    answer: str
    took_s: float | None


class Decided(Struct, frozen=True, kw_only=True):
    entry: int
    after_s: float
    stage: str
    reason: str
    orders: tuple[Order, ...] = ()


class Moment(Struct, frozen=True, kw_only=True):
    """A point of the way from the fault to where the job had been."""

    what: str
    """``fault``, ``detected``, ``diagnosed``, ``isolated``, ``state selected``, ``placed``, ``restored``, ``first step``,
    ``verified``, ``caught up``."""
    after_s: float | None
    """None where it did not come to it, or nothing tells it."""
    how: How = "measured"
    text: str = ""


class Costs(Struct, frozen=True, kw_only=True):
    ranks: int
    downtime_s: float
    lost_steps: int
    redone_s: float
    gpu_h: float
    checkpoint_age_s: float | None
    restored_step: int | None
    restored_from: str


class FollowUp(Struct, frozen=True, kw_only=True):
    what: str
    why: str


class Postmortem(Struct, frozen=True, kw_only=True):
    record: IncidentRecord
    moments: tuple[Moment, ...]
    evidence_for: tuple[Evidence, ...]
    evidence_against: tuple[Evidence, ...]
    decisions: tuple[Decided, ...]
    cost: Costs
    before: tuple[Point, ...]
    """How the job went until then; empty where the server did not see it."""
    after: tuple[Point, ...]
    follow_up: tuple[FollowUp, ...]
    root: FaultRecord | None = None
    """The fault on a resource or a domain that it goes back to."""
    sources: tuple[str, ...] = ()
    """Who was heard."""
    answers: tuple[tuple[str, str], ...] = ()
    """(question, answer) of what is always asked."""
    drill: DrillRecord | None = None
    """The drill that led to it; None where none did (``record.drill``), or where it is not known any more."""


class Account(Struct, frozen=True, kw_only=True):
    """What the journal says of one incident."""

    record: IncidentRecord
    evidence: tuple[Evidence, ...]
    """Of every attempt, oldest first."""
    decisions: tuple[Decided, ...]
    began_s: float | None = None
    """When the fault itself began, where a symptom tells how long it had gone on."""
    verified_step: int = -1
    rejected: tuple[str, ...] = ()
    before: tuple[Point, ...] = ()
    after: tuple[Point, ...] = ()
    root: FaultRecord | None = None
    repeats: int = 0
    """Root causes on the same part or node before this one, as far as the journal goes."""
    drill: DrillRecord | None = None


def postmortem(told: Account) -> Postmortem:
    record = told.record
    moments = _moments(told)
    return Postmortem(
        record=record,
        moments=moments,
        evidence_for=tuple(x for x in told.evidence if x.supports),
        evidence_against=tuple(x for x in told.evidence if not x.supports),
        decisions=told.decisions,
        cost=Costs(
            ranks=record.ranks,
            downtime_s=record.downtime_s,
            lost_steps=record.lost_steps,
            redone_s=record.redone_s,
            gpu_h=record.lost_gpu_s / 3600,
            checkpoint_age_s=record.checkpoint_age_s,
            restored_step=record.restored_step,
            restored_from=record.restored_from,
        ),
        before=told.before,
        after=told.after,
        follow_up=tuple(_follow_up(told)),
        root=told.root,
        sources=tuple(dict.fromkeys(x.source for x in told.evidence)),
        answers=_answers(told, moments),
        drill=told.drill,
    )


# ---- the way


def _moments(told: Account) -> tuple[Moment, ...]:
    record = told.record
    began = told.began_s - record.opened_s if told.began_s is not None else None
    started = _last(told.decisions, "restart", launches=True)
    chosen = _last(told.decisions, "select", until=started)
    placed = _last(told.decisions, "place", until=started)
    return (
        Moment(what="fault", after_s=began, how="estimated" if began is not None else "not told", text=record.summary),
        Moment(what="detected", after_s=0.0, text=_reason(_first(told.decisions, "correlate"))),
        _moment("diagnosed", _diagnosed(told.decisions, started)),
        _moment("isolated", _last(told.decisions, "isolate", until=started)),
        _moment("state selected", chosen),
        _moment("placed", placed),
        _moment("restored", _after_launch(told.decisions, started)),
        _first_step(record),
        _moment("verified", _last(told.decisions, "verify") if record.state == "recovered" else None),
        _caught_up(told),
    )


def _moment(what: str, found: Decided | None) -> Moment:
    if found is None:
        return Moment(what=what, after_s=None, how="not told")
    return Moment(what=what, after_s=found.after_s, text=found.reason)


def _reason(found: Decided | None) -> str:
    return found.reason if found is not None else ""


def _first(decisions: Iterable[Decided], stage: str) -> Decided | None:
    return next((x for x in decisions if x.stage == stage), None)


def _last(
    decisions: Sequence[Decided], stage: str, *, until: Decided | None = None, launches: bool = False
) -> Decided | None:  # fmt: skip
    """Of the attempt that lived, since it is the last one."""
    for found in reversed(decisions):
        if until is not None and found.entry > until.entry:
            continue
        if found.stage == stage and (not launches or any(x.kind == "Launch" for x in found.orders)):
            return found
    return None


def _diagnosed(decisions: Sequence[Decided], started: Decided | None) -> Decided | None:
    """The one that was acted on. What is heard after the fence is looked at too, and mostly changes nothing."""
    before = [x for x in decisions if started is None or x.entry <= started.entry]
    fenced = next((x for x in reversed(before) if any(o.kind == "Fence" for o in x.orders)), None)
    acted = _last(before, "diagnose", until=fenced) if fenced is not None else None
    return acted or _last(before, "diagnose")


def _after_launch(decisions: Sequence[Decided], started: Decided | None) -> Decided | None:
    """What was said when every node of the new generation had answered."""
    if started is None:
        return None
    return next((x for x in decisions if x.entry > started.entry and x.stage == "restart" and not x.orders), None)


def _first_step(record: IncidentRecord) -> Moment:
    if record.state != "recovered":
        return Moment(what="first step", after_s=None, how="not told")
    return Moment(
        what="first step", after_s=record.downtime_s, text="every rank completed a step of the new generation"
    )


def _caught_up(told: Account) -> Moment:
    """When the job was again where it had been: seen on the curve, else first step plus the work that was lost."""
    record = told.record
    if record.state != "recovered" or record.kind != "fault":
        return Moment(what="caught up", after_s=None, how="not told")
    goal = f"step {record.step_before} again"
    later = (x for x in told.after if x.after_s >= record.downtime_s and x.step >= record.step_before)
    if (seen := next(later, None)) is not None:
        return Moment(what="caught up", after_s=seen.after_s, text=goal)
    return Moment(what="caught up", after_s=record.downtime_s + record.redone_s, how="estimated", text=goal)


# ---- what is left to do


def _follow_up(told: Account) -> Iterable[FollowUp]:
    """What a drill broke is as it was meant to be: of it only the bad marks are left to do."""
    record = told.record
    if record.drill:
        for mark in told.drill.marks if told.drill is not None else ():
            if not mark.good:
                yield FollowUp(what=f"Find out why it was not {mark.question} well enough", why=mark.text)
        return
    if record.state == "escalated":
        yield FollowUp(what=f"Find out why {record.job} was not recovered", why=_why_given_up(told))
    if record.cause in ("unknown", "undiagnosed"):
        yield FollowUp(what="Find the cause", why="nothing that was seen names one; the same will happen again")
    elif record.confidence < 0.7:
        yield FollowUp(what="Confirm the cause", why=f"it is believed at {record.confidence:.0%} only")
    if record.cause == "application":
        yield FollowUp(what="Tell the owner of the job", why="a restart does not mend a program")
    if told.repeats:
        where = ", ".join((*record.serials, *record.nodes)) or "the same place"
        yield FollowUp(what=f"Repair or retire {where}", why=f"it had failed {count(told.repeats, 'time')} before")
    if record.approvals:
        yield FollowUp(
            what="Let policy allow it next time, or leave it as it is on purpose",
            why=f"it waited {duration(record.stage_s.get('waiting', 0.0))} for a person",
        )
    if record.attempts > 1:
        yield FollowUp(what="See why the first restart failed", why=f"{record.attempts} generations were started")
    if told.rejected:
        yield FollowUp(what="Check the checkpoint store", why=f"{count(len(told.rejected), 'state')} did not verify")
    if record.kind == "fault" and record.restored_step is None and record.attempts and record.step_before > 0:
        yield FollowUp(what="Save checkpoints", why="the job began again from nothing")
    if record.redone_s > max(60.0, record.downtime_s):
        yield FollowUp(
            what="Save more often (`keepstep checkpoint plan`)",
            why=f"{duration(record.redone_s)} of work was lost, more than the recovery itself took",
        )


def _answers(told: Account, moments: tuple[Moment, ...]) -> tuple[tuple[str, str], ...]:
    record, spoken = told.record, {x.what: x for x in moments}
    hit = ", ".join((*record.resources, *record.nodes)) or "no resource"
    if record.restored_step is not None:
        restored = f"step {record.restored_step} from {record.restored_from}"
    else:
        restored = "none: the job began again from nothing" if record.attempts else "none"
    age = (
        f"{duration(record.checkpoint_age_s)} at the fault" if record.checkpoint_age_s is not None else "none was known"
    )
    reached = f"; step {record.step_before} was reached" if record.step_before >= 0 else ""
    return (
        ("What failed?", f"{record.cause} ({record.confidence:.0%}): {record.summary or 'not known'}"),
        ("What was affected?", f"{record.job}, {count(record.ranks, 'rank')}; {hit}"),
        ("Which state was restored?", restored),
        ("How old was the newest checkpoint?", f"{age}{reached}"),
        ("How much work was lost?", f"{count(record.lost_steps, 'step')}, {duration(record.redone_s)}"),
        ("How many restarts?", count(record.attempts, "generation was", "generations were") + " started"),
        ("What was replaced?", ", ".join(record.replaced) or "nothing"),
        ("How long did it take?", _how_long(record, spoken["caught up"])),
        ("What did it cost?", f"{hours(record.lost_gpu_s / 3600)} ({number(record.ranks)} GPUs)"),
        ("Did a person have to act?", _who_acted(record)),
        ("How did it end?", _ended(told)),
    )


def _how_long(record: IncidentRecord, caught: Moment) -> str:
    if record.state != "recovered":
        return f"{duration(record.downtime_s)} until it was {'given up' if record.state == 'escalated' else 'closed'}"
    told = f"{duration(record.downtime_s)} to the first step"
    if caught.after_s is None:  # a first start has nowhere to come back to
        return told
    about = "about " if caught.how == "estimated" else ""
    return f"{told}; {about}{duration(caught.after_s)} to where it had been"


def _who_acted(record: IncidentRecord) -> str:
    said = count(record.approvals, "word") + " of a person" if record.approvals else "no"
    return f"{said}; it was given up, and is a person's since then" if record.state == "escalated" else said


def _ended(told: Account) -> str:
    state = told.record.verdict or told.record.state
    if told.record.state != "escalated":
        return state
    why = _why_given_up(told)
    return why if why.startswith(state) else f"{state}: {why}"


def _why_given_up(told: Account) -> str:
    """What the last decision before its end said: that one gave it up. The verdict is one word."""
    said = next((x.reason for x in reversed(told.decisions) if x.stage != "review"), "")
    return said or told.record.verdict or "it was escalated"
