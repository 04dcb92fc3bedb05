"""DLRover's kernel timer (Prometheus text): whether kernels of a job's ranks still finish."""

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.gpu.prometheus import Sample, names_in, samples
from keepstep.evidence.reading import Fine, Reader, Reading

MAX_RANKS = 1 << 20
_HANG = "XPU_TIMER_COMMON_HANG"


def read(document: Document) -> Reading:
    reading = Reading(reader="xpu_timer", file=document.path)
    hangs: dict[tuple[str, str], dict[str, Sample]] = {}
    nodes: set[str] = set()
    for sample in samples(document):
        if not sample.name.upper().startswith("XPU_TIMER_"):
            continue
        reading.records += 1
        if sample.name.upper() == _HANG and len(hangs) < MAX_RANKS:
            job = sample.labels.get("job_name", "")
            rank = sample.labels.get("rank") or sample.labels.get("local_rank") or str(sample.line)
            hangs.setdefault((job, ""), {})[rank] = sample
            nodes.add(sample.labels.get("ip", ""))
    reading.node = nodes.pop() if len(nodes) == 1 else ""
    for (job, _), ranks in hangs.items():
        _judge(job, ranks, reading)
    return reading


def _judge(job: str, ranks: dict[str, Sample], reading: Reading) -> None:
    stuck = sorted((rank for rank, sample in ranks.items() if sample.value > 0), key=_number)
    part = f"job/{job[:200]}"
    if not stuck:
        first = next(iter(ranks.values()))
        reading.fine.append(
            Fine(part=part, text=f"kernels of {len(ranks)} ranks finish", file=reading.file, line=first.line)
        )
        return
    signal = "gpu.job_hang" if len(stuck) == len(ranks) else "gpu.job_hang.some"
    reading.observations.append(
        Observation(
            signal=signal, node=reading.node, part=part, detail=f"{len(stuck)} of {len(ranks)} ranks: kernels do not finish",
            attributes={"ranks": ",".join(stuck[:64]), "of": str(len(ranks)), "job": job[:200]}, source=reading.reader,
            file=reading.file, line=min(ranks[rank].line for rank in stuck),
        )
    )  # fmt: skip


def _number(rank: str) -> tuple[int, str]:
    return (int(rank) if rank.isdecimal() and len(rank) < 10 else 1 << 30, rank)


def _recognise(document: Document) -> float:
    return 0.9 if any(name.upper().startswith("XPU_TIMER_") for name in names_in(document.head)) else 0.0


READER = Reader(name="xpu_timer", text="kernel timer of a job: DLRover's xpu_timer", recognise=_recognise, read=read)
