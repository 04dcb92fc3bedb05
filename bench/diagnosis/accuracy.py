"""Accuracy: every labelled case end to end, and false faults on the sets that are known to be harmless. Owns the judging."""

import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from bench.diagnosis.cases import Case, SignalWant, Want, all_cases
from keepstep.core.root_cause import RootCause
from keepstep.core.signal import Signal
from keepstep.evidence.diagnosis import Diagnosed, diagnose
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reading
from keepstep.evidence.recognise import read


class Judged(Struct, kw_only=True):
    case: Case
    wrong: str = ""
    """Why it is wrong; empty where it is right."""


def diagnosed(documents: Iterable[tuple[str, bytes]]) -> Diagnosed:
    readings: list[Reading] = []
    unread = []
    for name, content in documents:
        reading = read(Document(name, content))
        if reading is None:
            unread.append(name)
        else:
            readings.append(reading)
    return diagnose(readings, unread)


def judged(case: Case) -> Judged:
    found = diagnosed(case.documents)
    if not found.readings and not case.unread:
        return Judged(case=case, wrong="nobody knows its form")
    return Judged(case=case, wrong=_wrong(case, found))


def _wrong(case: Case, found: Diagnosed) -> str:
    if case.signal is not None and not any(_is_signal(signal, case.signal) for signal in found.signals):
        return f"no signal {_plain(case.signal)} among {[s.key for s in found.signals][:6]}"
    if case.no_quarantine and (out := [x for x in found.incidents if "quarantine" in x.resource_action]):
        return f"isolates: {told(out)}"
    if case.any_incident:
        return ""
    left = list(found.incidents)
    for want in case.wants:
        hit = next((cause for cause in left if fits(cause, want)), None)
        if hit is None:
            return f"not found: {_plain(want)}; said: {told(found.incidents)}"
        left.remove(hit)
    more = [cause for cause in left if not any(fits(cause, want) for want in case.optional)]
    return f"too much: {told(more)}" if more else ""


def fits(found: RootCause, want: Want) -> bool:
    row = found.row
    return (
        _one_of(row.cause.value, want.cause)
        and _begins(row.failure_class, want.class_)
        and _one_of(row.scope.value, want.scope)
        and _holds(found.resource, want.resource)
        and _holds(found.resource_action, want.action)
        and found.job_action.startswith(want.job)
        and found.confidence <= want.at_most
    )


def _is_signal(found: Signal, want: SignalWant) -> bool:
    return (
        found.key.startswith(want.key.partition("*")[0])
        and found.key.endswith(want.key.partition("*")[2])
        and _begins(found.row.failure_class, want.class_)
        and _one_of(found.row.scope.value, want.scope)
        and found.seen.part.startswith(want.part)
        and _one_of(found.row.verdict.value, want.verdict)
    )


def _one_of(value: str, wanted: str) -> bool:
    return not wanted or value in wanted.split("|")


def _begins(value: str, wanted: str) -> bool:
    """Whether the class is one of those wanted or lies below one; the reference itself sometimes names two."""
    named = value.split("|")
    return not wanted or any(
        one.startswith(other.removesuffix(".*")) or other.startswith(one)
        for one in named
        for other in wanted.split("|")
    )


def _holds(value: str, wanted: str) -> bool:
    return wanted[1:] not in value if wanted[:1] == "!" else wanted in value


def told(found: Sequence[RootCause]) -> str:
    return "; ".join(
        f"{x.row.cause.value} {x.row.failure_class} {x.row.scope.value} {x.resource} {x.resource_action}/{x.job_action} "
        f"({x.signals[0].key})"
        for x in found[:4]
    ) or "nothing"  # fmt: skip


def _plain(want: Want | SignalWant) -> str:
    return ", ".join(
        f"{name.rstrip('_')}={value}"
        for name in want.__struct_fields__
        if (value := getattr(want, name)) and value != 1.0
    )


# ---- harmless sets

_PLACES = {
    "ADDR": "0000:9b:00.0", "NVMEn1": "nvme3n1", "NVME": "nvme3", "HEX": "0x1f", "MEM_ADDR": "[mem 0x1f]", "HOST_NUM": "host2",
    "CPU_NUM": "CPU 12", "NUM_KB": "4096K", "MB_S": "9000 MB/s", "UUID": "5d1c", "TIME": "10:00:00", "DATE": "2024-01-11",
}  # fmt: skip


class Harmless(Struct, kw_only=True):
    name: str
    count: int
    faults: list[str]


def harmless(data: Path) -> list[Harmless]:
    patterns = (data / "kernel_log" / "imbue_benign_dmesg_patterns.txt").read_text().splitlines()
    lines = [_instance(pattern) for pattern in patterns]
    alert_free = [
        line.partition(" ")[2]
        for line in (data / "loghub" / "BGL_first1750.log").read_text(errors="replace").splitlines()
        if line.startswith("- ")
    ]
    bgl = "\n".join(f"- {line}" for line in alert_free).encode()
    found = [
        _each("kernel lines of 511 healthy nodes", [f"[   12.345678] {line}".encode() for line in lines]),
        _each("ordinary syslog (Linux)", [(data / "loghub" / "Linux_2k.log").read_bytes()], count=2000),
        _each("lines without an alert (BGL)", [bgl], count=len(alert_free)),
    ]
    times = [data / "traces" / f"alibaba_v2020_minibatch_job_{number}.csv" for number in (1, 2)]
    found.append(_each("step times of two real jobs", [path.read_bytes() for path in times]))
    return found


def _instance(pattern: str) -> str:
    """A line that a simple pattern would match."""
    for place in sorted(_PLACES, key=len, reverse=True):
        pattern = pattern.replace(place, _PLACES[place])
    rng = random.Random(7)
    text = re.sub(r"\(\?:", "(", pattern)
    if re.search(r"\\[dw.\[(+-]|\.\*|\[0-9", text):
        while found := re.search(r"\(([^()\\]*(?:\\.[^()\\]*)*)\)([?*+]?)", text):
            text = text[: found.start()] + rng.choice(found[1].split("|")) + text[found.end() :]
        text = re.sub(r"\\d[+*]?", lambda _: str(rng.randrange(100)), text)
        text = re.sub(r"\[([^\]]+)\][+*]?", "1", text)
        text = re.sub(r"\\w[+*]?", "0003", text).replace(".*", "something").replace("\\s*", " ")
        text = re.sub(r"\\(.)", r"\1", text)
    return text


def _each(name: str, documents: list[bytes], count: int = 0) -> Harmless:
    faults = []
    for content in documents:
        found = diagnosed([("document", content)])
        if found.incidents:
            faults.append(f"{content[:120].decode(errors='replace')}: {told(found.incidents)}")
    return Harmless(name=name, count=count or len(documents), faults=faults)


# ---- the page


def _how(results: Sequence[Judged]) -> list[str]:
    """What right means, and for how many cases it means less."""
    lines = [result for result in results if result.case.any_incident]
    loose = [result for result in results if result.case.optional and not result.case.any_incident]
    strict = [result for result in results if result not in lines and result not in loose]
    right = sum(not result.wrong for result in strict)
    return [
        f"- {len(strict)} are judged whole ({right} right): exactly the incidents that the label names, or none, each with "
        "class, scope, resource and actions as far as the label names them.",
        f"- {len(lines)} single lines are judged by their signal only: code, card, class, or that nothing is isolated.",
        f"- {len(loose)} may make the named incident or none: what is right there is open.",
        "- The labels were written from the captures and their notes, but by somebody who had seen a first output; classes "
        "that the field uses side by side are alternatives.",
    ]


def page(data: Path) -> str:
    results = [judged(case) for case in all_cases(data)]
    sets = harmless(data)
    folders: dict[str, list[Judged]] = {}
    for result in results:
        folders.setdefault(result.case.folder, []).append(result)
    right = sum(not result.wrong for result in results)
    rows = [f"| {name} | {sum(not r.wrong for r in some)} | {len(some)} |" for name, some in sorted(folders.items())]
    lines = [
        "Written by `python -m bench.diagnosis accuracy`.", "",
        f"**{right} of {len(results)} labelled cases right: {100 * right / max(len(results), 1):.1f} %.**",
        "",
        *_how(results),
        "",
        "| cases | right | of |", "|---|---|---|", *rows, "", "### Misses", "",
        *([f"- `{r.case.id}`: {r.wrong}" for r in results if r.wrong] or ["none"]), "",
        "### False faults on harmless sets", "", "| set | documents or lines | false faults |", "|---|---|---|",
        *(f"| {x.name} | {x.count} | {len(x.faults)} |" for x in sets), "",
        *(f"- {fault}" for x in sets for fault in x.faults[:10]),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"
