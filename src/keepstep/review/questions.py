"""The questions that are asked of incidents afterwards, each with a sentence as the answer. Pure; owns the sentences."""

from collections.abc import Callable

from msgspec import Struct

from keepstep.review.estimates import LEAST_TREND
from keepstep.review.figures import Loss, Rate, Review
from keepstep.review.wording import count, duration, hours, number, percent


class Answer(Struct, frozen=True, kw_only=True):
    key: str
    question: str
    sentence: str
    figures: str
    """Where in the review the numbers stand."""


def answers(review: Review) -> tuple[Answer, ...]:
    return tuple(
        Answer(key=key, question=question, sentence=ask(review), figures=figures)
        for key, question, figures, ask in QUESTIONS
    )


def how_much_was_productive(review: Review) -> str:
    time = review.time
    if time.ettr is None:
        return "No job had GPUs in this time."
    worst = time.badput[0] if time.badput else None
    most = (
        f" The largest part of the rest was {_badput(worst.category, worst.cause)}: {hours(worst.gpu_h)}."
        if worst
        else ""
    )
    return (
        f"{percent(time.ettr)} of {hours(time.total_gpu_h)} of {count(time.n, 'job')} was productive (ETTR); "
        f"{percent(time.goodput)} since the first verified steps (goodput).{most}"
    )


def _badput(category: str, cause: str) -> str:
    return f"{category} by {cause}" if cause else category


def what_it_cost(review: Review) -> str:
    cost = review.cost
    if not cost.n:
        return "Nothing: no fault incident ended in this time."
    first = cost.by_class[0]
    return f"{hours(cost.gpu_h)} over {count(cost.n, 'incident')}; most for {_loss(first)}."


def _loss(loss: Loss) -> str:
    return f"{loss.name}: {hours(loss.gpu_h)} in {count(loss.incidents, 'incident')}"


def which_models_fail_most(review: Review) -> str:
    return _most(review.failures.by_device_model, "device model", "GPU-hours between faults of a device")


def which_jobs_fail_most(review: Review) -> str:
    return _most(review.failures.by_label, "model label", "GPU-hours between faults of its jobs")


def _most(rates: tuple[Rate, ...], what: str, unit: str) -> str:
    sure = sorted((x for x in rates if x.mttf_h is not None), key=lambda x: (x.mttf_h or 0.0, x.name))
    if not sure:
        failed = sum(x.failures for x in rates)
        return f"Too few to say: {count(failed, 'fault')} over {count(len(rates), what)}."
    told = "; ".join(
        f"{x.name}: {number(x.mttf_h)} {unit} ({number(x.low_h)} to {number(x.high_h)}, n = {x.failures})"
        for x in sure[:3]
    )
    return f"By {what}, the worst first: {told}."


def how_much_is_lost_between_checkpoints(review: Review) -> str:
    lost = review.recoveries.lost_s
    if not lost.n:
        return "Nothing: no recovery ended in this time."
    if lost.p50 is None:
        return f"Too few to say: {count(lost.n, 'recovery', 'recoveries')}, the most was {duration(lost.max)} of work."
    late = f", {duration(lost.p95)} at the 95th percentile" if lost.p95 is not None else ""
    of = count(lost.n, "recovery", "recoveries")
    return f"{duration(lost.p50)} of work at the median of {of}{late}, {duration(lost.max)} at most."


def how_often_the_first_restart_succeeds(review: Review) -> str:
    first = review.recoveries.first_restart
    if first.value is None:
        return f"Too few to say: {first.hits} of {first.n}."
    return f"{percent(first.value)} ({first.hits} of {first.n}; {percent(first.low)} to {percent(first.high)})."


def how_long_recovery_takes(review: Review) -> str:
    whole = next((x.every for x in review.recoveries.stages if x.stage == "all"), None)
    if whole is None or not whole.n:
        return "No recovery ended in this time."
    if whole.p50 is None:
        return f"Too few to say: {count(whole.n, 'recovery', 'recoveries')}, {duration(whole.max)} at most."
    stages = [x for x in review.recoveries.stages if x.stage != "all" and x.every.p50 is not None]
    slow = max(stages, key=lambda x: x.every.p50 or 0.0, default=None)
    late = f", {duration(whole.p95)} at the 95th percentile" if whole.p95 is not None else ""
    where = f"; the longest stage is {slow.stage} ({duration(slow.every.p50)})" if slow is not None else ""
    return f"{duration(whole.p50)} at the median of {whole.n}{late}{where}."


def are_writes_getting_slower(review: Review) -> str:
    trend = review.saves.trend
    if trend.per_day is None:
        within = ", all within a day" if trend.n >= LEAST_TREND else ""
        return f"Too few to say: {count(trend.n, 'save')}{within}."
    word = {"rising": "Yes", "falling": "No, faster", "steady": "No"}[trend.verdict]
    slower = [x.job for x in review.saves.jobs if x.trend.verdict == "rising"]
    which = f" Slower by themselves: {', '.join(slower[:5])}." if slower else ""
    return (
        f"{word}: {percent(trend.per_day, signed=True)} a day beside the median of each job "
        f"({percent(trend.low, signed=True)} to {percent(trend.high, signed=True)}, n = {trend.n}).{which}"
    )


def which_rack_fails_more(review: Review) -> str:
    racks = review.failures.racks
    if not racks:
        return "No rack is known: nodes do not say where they stand."
    more = [x for x in racks if x.verdict == "more than chance"]
    if more:
        told = "; ".join(f"{x.rack}: {x.failures}, {number(x.expected)} expected (p = {x.p:.2g})" for x in more)
        return f"More than chance would give: {told}."
    total = sum(x.failures for x in racks)
    if any(x.verdict == "as chance" for x in racks):
        top = max(racks, key=lambda x: x.failures)
        return f"None, beyond chance: {top.rack} has the most, {top.failures} of {total}, which {len(racks)} racks can give."
    return f"Too few to say: {count(total, 'root cause')} in {count(len(racks), 'rack')}."


def is_it_getting_worse(review: Review) -> str:
    failures = review.failures
    if failures.trend_p is None:
        return f"Too few to say: {count(failures.n, 'fault')} in {count(len(failures.weeks), 'week')}."
    said = f"(p = {failures.trend_p:.2g}, n = {failures.n})"
    if failures.trend == "steady":
        return f"No: per GPU-hour, faults come as often as before {said}."
    return f"Per GPU-hour, faults come {failures.trend}, week by week {said}."


def was_it_right(review: Review) -> str:
    trust = review.trust
    if not trust.rules:
        return "No rule has taken anything out of service."
    wrong = trust.preemptions_unnecessary
    share = f", {percent(wrong.value)} of those that are judged" if wrong.value is not None else ""
    return (
        f"{trust.isolations_right.hits} of {count(trust.isolations_right.n, 'judged isolation')} were right. "
        f"{count(trust.preemptions, 'preemption')}, {wrong.hits} unnecessary{share}; {trust.pending} not judged yet."
    )


def what_fails_again(review: Review) -> str:
    if not review.lemons:
        return "Nothing failed twice in this time."
    told = "; ".join(f"{x.kind} {x.name}: {x.failures} times" for x in review.lemons[:5])
    return f"{told}."


def do_recoveries_work(review: Review) -> str:
    drills = review.drills
    if not drills.n:
        return "Not tried: no drill ended in this time."
    noticed, back = drills.detection_s, drills.recovery_s
    took = f"; noticed after {duration(noticed.max)} at most" if noticed.n else ""
    took += f", recovered from in {duration(back.max)} at most" if back.n else ""
    failed = [x.id for x in drills.latest if x.state == "failed"]
    which = f" Failed: {', '.join(failed[:5])}." if failed else ""
    return f"{drills.passed.hits} of {count(drills.n, 'drill')} passed{took}.{which}"


def what_is_being_repaired(review: Review) -> str:
    repairs = review.repairs
    if not repairs.orders:
        return "No repair order was open."
    oldest = f", the oldest for {duration(repairs.oldest_s)}" if repairs.oldest_s is not None else ""
    back = repairs.returned
    return f"{repairs.opened} opened, {repairs.open} open{oldest}; {back.hits} of {back.n} that left repair work again."


QUESTIONS: tuple[tuple[str, str, str, Callable[[Review], str]], ...] = (
    ("productive", "How much of the time was productive?", "time", how_much_was_productive),
    ("cost", "What did faults cost?", "cost", what_it_cost),
    ("models", "Which device models fail most?", "failures.by_device_model", which_models_fail_most),
    ("labels", "Which models in training fail most?", "failures.by_label", which_jobs_fail_most),
    ("lost", "How much is lost between checkpoints?", "recoveries.lost_s", how_much_is_lost_between_checkpoints),
    (
        "first_restart",
        "How often does the first restart succeed?",
        "recoveries.first_restart",
        how_often_the_first_restart_succeeds,
    ),
    ("recovery", "How long does a recovery take?", "recoveries.stages", how_long_recovery_takes),
    ("drills", "Do recoveries work when they are tried?", "drills", do_recoveries_work),
    ("writes", "Are checkpoint writes getting slower?", "saves.trend", are_writes_getting_slower),
    ("rack", "Which rack fails more?", "failures.racks", which_rack_fails_more),
    ("trend", "Do faults come more often?", "failures.weeks", is_it_getting_worse),
    ("right", "Were the rules right?", "trust", was_it_right),
    ("again", "What fails again and again?", "lemons", what_fails_again),
    ("repair", "What is being repaired?", "repairs", what_is_being_repaired),
)
"""(key, question, where its figures stand, how it is answered)"""
