"""``keepstep diagnose``: a folder of evidence from a run that died, told as one incident. Owns the command and its JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from keepstep.cli.terminal import JsonOption, fail, print_json

if TYPE_CHECKING:
    from keepstep.core.root_cause import RootCause
    from keepstep.core.signal import Signal
    from keepstep.evidence.diagnosis import Diagnosed
    from keepstep.evidence.reading import Reading

EXIT_FAULT = 3
"""Exit code where an incident was found, so that scripts can tell."""


class SignalView(Struct, kw_only=True, rename={"class_": "class"}):
    file: str
    line: int
    signal: str
    """Key of the catalogue: ``keepstep catalog explain KEY``."""
    cause: str
    class_: str
    scope: str
    resource: str
    verdict: str
    job_urgency: str
    confidence: float
    count: int
    text: str
    detail: str
    because: tuple[str, ...]


class FileView(Struct, kw_only=True):
    file: str
    read_as: str
    node: str
    records: int
    signals: list[SignalView]
    not_understood: list[tuple[int, str]]
    not_understood_count: int


class EvidenceView(Struct, kw_only=True):
    file: str
    line: int
    text: str


class IncidentView(Struct, kw_only=True, rename={"class_": "class"}):
    cause: str
    class_: str
    scope: str
    resource: str
    members: tuple[str, ...]
    confidence: float
    verdict: str
    job_urgency: str
    resource_action: str
    job_action: str
    summary: str
    evidence_for: list[EvidenceView]
    evidence_against: list[EvidenceView]
    explains: list[EvidenceView]


class DiagnosisView(Struct, kw_only=True):
    catalog: str
    files: list[FileView]
    incidents: list[IncidentView]
    unread: list[str]
    would_help: list[str]


def diagnose(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files and folders; any mix, any names.")],
    catalog: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file of your own rows, see `keepstep catalog`.", show_default=False),
    ] = None,
    all_signals: Annotated[bool, typer.Option("--all", help="Also list signals that mean no fault.")] = False,
    json: JsonOption = False,
) -> None:
    """Find the cause in a folder of evidence: logs, dumps and reports are recognised by their content.

    Exit code 0 where nothing is wrong, 3 where an incident was found, 1 where nothing could be read.
    """
    from keepstep.cli.catalog import load

    found = _diagnosed(paths, catalog)
    if json:
        print_json(view(found, load(catalog).version))
    else:
        from keepstep.cli.diagnose_text import render
        from keepstep.cli.tables import show_all

        show_all(*render(found, all_signals=all_signals))
    if not found.readings:
        raise typer.Exit(1)
    if found.incidents:
        raise typer.Exit(EXIT_FAULT)


def _diagnosed(paths: list[Path], catalog: Path | None) -> "Diagnosed":
    from keepstep.cli.catalog import load
    from keepstep.cli.evidence_files import CannotRead, documents
    from keepstep.cli.evidence_progress import Progress
    from keepstep.evidence.diagnosis import diagnose as judge
    from keepstep.evidence.recognise import read

    rows = load(catalog)
    readings, unread = [], []
    try:
        with Progress() as progress:
            for path, document in documents(paths):
                if isinstance(document, CannotRead):
                    unread.append(str(document))
                    continue
                progress.at(path, len(document.data))
                reading = read(document)
                if reading is None:
                    unread.append(str(path))
                else:
                    readings.append(reading)
    except CannotRead as error:
        fail(str(error))
    return judge(readings, unread, rows)


def view(found: "Diagnosed", catalog_version: str) -> DiagnosisView:
    """The JSON document."""
    by_file: dict[str, list[Signal]] = {}
    for signal in found.signals:
        by_file.setdefault(signal.seen.file, []).append(signal)
    return DiagnosisView(
        catalog=catalog_version,
        files=[_file(reading, by_file.get(reading.file, [])) for reading in found.readings],
        incidents=[_incident(cause, found) for cause in found.incidents],
        unread=found.unread,
        would_help=found.missing,
    )


def _file(reading: "Reading", signals: "list[Signal]") -> FileView:
    return FileView(
        file=reading.file,
        read_as=reading.reader,
        node=reading.node,
        records=reading.records,
        signals=[_signal(signal) for signal in signals],
        not_understood=reading.not_understood,
        not_understood_count=reading.not_understood_count,
    )


def _signal(signal: "Signal") -> SignalView:
    from keepstep.evidence.diagnosis import resource_of

    row, seen = signal.row, signal.seen
    return SignalView(
        file=seen.file,
        line=seen.line,
        signal=seen.signal,
        cause=row.cause.value,
        class_=row.failure_class,
        scope=row.scope.value,
        resource=resource_of(seen) or row.scope.value,
        verdict=row.verdict.value,
        job_urgency=row.urgency.value,
        confidence=row.confidence,
        count=seen.count,
        text=row.text,
        detail=seen.detail,
        because=signal.because,
    )


def _incident(cause: "RootCause", found: "Diagnosed") -> IncidentView:
    against = found.against.get(cause.resource, [])
    return IncidentView(
        cause=cause.row.cause.value,
        class_=cause.row.failure_class,
        scope=cause.row.scope.value,
        resource=cause.resource,
        members=cause.members,
        confidence=cause.confidence,
        verdict=cause.row.verdict.value,
        job_urgency=cause.row.urgency.value,
        resource_action=cause.resource_action,
        job_action=cause.job_action,
        summary=cause.summary,
        evidence_for=[_evidence(signal) for signal in cause.signals],
        evidence_against=[EvidenceView(file=x.file, line=x.line, text=x.text) for x in against],
        explains=[_evidence(signal) for signal in cause.explained],
    )


def _evidence(signal: "Signal") -> EvidenceView:
    seen = signal.seen
    many = f" (x{seen.count})" if seen.count > 1 else ""
    return EvidenceView(file=seen.file, line=seen.line, text=f"{signal.row.text}{many}: {seen.detail}")
