"""Reads series of steps that are no log: JSON with rows of metrics, tables of step times by worker. Judges through core."""

import csv
import math
from collections.abc import Sequence

from keepstep.core.observation import Observation
from keepstep.core.steps import Step, findings
from keepstep.core.stragglers import stragglers
from keepstep.evidence.document import Document
from keepstep.evidence.job.steps import series
from keepstep.evidence.reading import Fine, Reader, Reading

NAME = "step_metrics"
TABLE = "step_times"
MAX_ROWS = 2_000_000
_WORKER = ("worker", "rank", "global_rank", "worker_id", "rank_id")
_WHEN = ("step", "iteration", "time", "batch", "mini_batch", "global_step")
_TOOK = ("batch_time_norm", "batch_time", "step_time", "step_time_s", "duration", "duration_s", "seconds", "compute_s",
         "elapsed", "step_time_ms", "duration_ms")  # fmt: skip


def recognise(document: Document) -> float:
    head = document.data[:65536]
    if b'"loss"' not in head and b'"lm_loss"' not in head and b'"grad_norm"' not in head and b'"step_time' not in head:
        return 0.0
    return 0.7 if next(series(document.json), None) is not None else 0.0


def read(document: Document) -> Reading:
    reading = Reading(reader=NAME, file=document.path)
    for steps in series(document.json):
        reading.records += len(steps)
        reading.observations.extend(observed(steps, document.path, NAME))
    if reading.records and not reading.observations:
        reading.fine.append(Fine(part="job", text=f"{reading.records} steps without a finding", file=document.path))
    return reading


def observed(steps: Sequence[Step], file: str, source: str) -> list[Observation]:
    """What a series of steps shows, as observations of the job."""
    return [
        Observation(
            signal=found.signal, part="job", source=source, file=file, line=found.line, detail=found.text[:500],
            attributes={"step": str(found.step), "value": f"{found.value:.6g}"},
        )
        for found in findings(steps)
    ]  # fmt: skip


def recognise_table(document: Document) -> float:
    if document.is_binary:
        return 0.0
    return 0.7 if _columns(document.head.partition("\n")[0]) is not None else 0.0


def _columns(header: str) -> tuple[int, int, int] | None:
    """Places of worker, step and time in a table of comma-separated values; None where it is none of these."""
    names = [name.strip().strip('"').lower() for name in header.split(",")]
    if len(names) < 3:
        return None
    places = [next((names.index(x) for x in wanted if x in names), -1) for wanted in (_WORKER, _WHEN, _TOOK)]
    return (places[0], places[1], places[2]) if min(places) >= 0 else None


def read_table(document: Document) -> Reading:
    reading = Reading(reader=TABLE, file=document.path)
    lines = document.lines()
    _, header = next(lines, (0, ""))
    places = _columns(header)
    times: dict[int, list[tuple[float, float]]] = {}
    for number, line in lines:
        if places is None or reading.records >= MAX_ROWS:
            break
        reading.records += 1
        try:
            row = next(csv.reader([line]))
            worker, when, took = int(row[places[0]]), float(row[places[1]]), float(row[places[2]])
        except (ValueError, IndexError, StopIteration, csv.Error, OverflowError):
            reading.puzzled(number, line)
            continue
        if math.isfinite(when):
            times.setdefault(worker, []).append((when, took))
    slow = stragglers({worker: [took for _, took in sorted(rows)] for worker, rows in times.items()})
    for found in slow:
        more = 100 * (found.ratio - 1)
        text = f"rank {found.rank} takes {more:.1f} % longer than {found.against} from step {found.since_step} on"
        reading.observations.append(
            Observation(
                signal="job.straggler", part=f"rank/{found.rank}", source=TABLE, file=document.path, detail=text,
                attributes={"rank": str(found.rank), "ratio": f"{found.ratio:.4f}", "against": found.against},
            )
        )  # fmt: skip
    if times and not slow:
        reading.fine.append(Fine(part="job", text=f"no straggler among {len(times)} workers", file=document.path))
    return reading


READER = Reader(name=NAME, text="metrics of training steps, JSON", recognise=recognise, read=read)
TABLE_READER = Reader(name=TABLE, text="step times by worker, CSV", recognise=recognise_table, read=read_table)
