"""``keepstep checkpoint adopt``: checkpoints of other libraries, checked and taken into the log. Owns the conversation only."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from keepstep.cli.checkpoint_place import (
    DAMAGED,
    WRONG_INPUT,
    JobOption,
    StoreOption,
    open_place,
    told,
)
from keepstep.cli.terminal import JsonOption, fail, print_json, step

if TYPE_CHECKING:
    from keepstep.checkpoint.repository.repository import Repository


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one path."""

    path: str
    format: str
    step: int | None
    adopted: bool
    key: str
    """Of its record; empty if it was refused, or only looked at."""
    fresh: bool
    """False: it was adopted before, as it is."""
    size_bytes: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    missing_parts: tuple[str, ...]


def adopt(
    path: Annotated[
        list[Path],
        typer.Argument(
            help="A checkpoint (DCP, torch.save, Lightning, Hugging Face Trainer, safetensors, Orbax), or a directory of them.",
            show_default=False,
        ),
    ],
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and adopt what is completed below PATH, until Ctrl-C.")
    ] = False,
    settle_s: Annotated[
        float, typer.Option(min=0.0, help="With --watch: adopt what has not changed for so long.", metavar="S")
    ] = 30.0,
    poll_s: Annotated[float, typer.Option(min=0.01, help="With --watch: between two looks.", metavar="S")] = 5.0,
    finite: Annotated[
        bool, typer.Option("--finite/--no-finite", help="Refuse values that are NaN or infinite.")
    ] = True,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look and judge only.")] = False,
    store: StoreOption = None,
    job: JobOption = None,
    json: JsonOption = False,
) -> None:
    """Recognise, check and hash checkpoints of other libraries, and register them. Their files stay as they are.

    What is incomplete or damaged is refused, with every reason. Exit code 1 if anything was.
    """
    from keepstep.checkpoint.stores.selftest import selftest

    if watch and len(path) > 1:
        fail("--watch takes one directory", WRONG_INPUT)
    missing = [str(one) for one in path if not one.exists()]
    if missing:
        fail(f"there is no {missing[0]}", WRONG_INPUT)
    with told():
        repository = open_place(store, job, new=True)
        if not repository.log.tail() and not dry_run:
            # A store proves itself before it holds its first record.
            selftest(repository.store)
        desk = _Desk(repository, finite=finite, reason=reason, dry_run=dry_run)
        if watch:
            _watch(desk, path[0], settle_s, poll_s, json=json)
            return
        answers = [desk.take(one) for root in path for one in _checkpoints(root)]
    if json:
        print_json({"store": repository.store.name, "job": repository.job, "checkpoints": answers})
    else:
        _print(answers)
    if not all(answer.adopted or (dry_run and not answer.problems) for answer in answers):
        raise typer.Exit(DAMAGED)


class _Desk:
    """Takes in one path after another."""

    def __init__(self, repository: "Repository", *, finite: bool, reason: str, dry_run: bool) -> None:
        self._repository, self._finite, self._reason, self._dry_run = repository, finite, reason, dry_run

    def take(self, path: Path) -> Answer:
        from keepstep.checkpoint.adopt.adopted import adopt as look
        from keepstep.checkpoint.adopt.recognise import recognise
        from keepstep.checkpoint.errors import StateInvalid
        from keepstep.checkpoint.repository.adopted import register
        from keepstep.cli.checkpoint_progress import bar

        with bar(path.name) as progress:
            try:
                found = look(path, finite=self._finite, progress=progress.move)
            except StateInvalid as error:
                foreign = recognise(path)
                return Answer(
                    path=str(path), format="" if foreign is None else foreign.format, adopted=False, key="", fresh=False,
                    step=None if foreign is None else foreign.step, size_bytes=0, problems=(str(error),), warnings=(),
                    missing_parts=(),
                )  # fmt: skip
        known = None if found.problems or self._dry_run else register(self._repository, found, self._reason)
        return Answer(
            path=found.path, format=found.format, step=found.step, adopted=known is not None,
            key="" if known is None else known.key, fresh=known is not None and known.fresh,
            size_bytes=sum(file.size_bytes for file in found.files), problems=found.problems, warnings=found.warnings,
            missing_parts=found.missing_parts,
        )  # fmt: skip


def _checkpoints(path: Path) -> list[Path]:
    """The checkpoint that ``path`` is, or those directly in it, by step."""
    from keepstep.checkpoint.adopt.recognise import recognise, recognise_all

    if not path.is_dir() or recognise(path) is not None:
        return [path]
    found = [Path(foreign.path) for foreign in recognise_all(path) if foreign.format != "keepstep"]
    return found or [path]


def _watch(desk: _Desk, root: Path, settle_s: float, poll_s: float, *, json: bool) -> None:
    """With ``json``: one document a line."""
    from keepstep.checkpoint.adopt.watch import Watcher

    if not root.is_dir():
        fail(f"--watch needs a directory: {root} is none", WRONG_INPUT)
    watcher = Watcher(root, settle_s=settle_s)
    try:
        while True:
            for found in watcher.poll():
                answer = desk.take(Path(found.foreign.path))
                if json:
                    typer.echo(msgspec.json.encode(answer).decode())
                else:
                    typer.echo(_sentence(answer))
            time.sleep(poll_s)
    except KeyboardInterrupt:
        return


def _sentence(answer: Answer) -> str:
    head = f"{answer.path}: "
    if answer.problems:
        return head + f"refused: {'; '.join(answer.problems)}"
    return head + f"step {step(answer.step)}, {answer.format}, adopted as {answer.key.lstrip('0') or '–'}"


def _print(answers: list[Answer]) -> None:
    from keepstep.cli.checkpoint_progress import size
    from keepstep.cli.tables import show, table

    made = table("key", "step", "format", "size", "result", "path", "notes", flexible=("path", "notes"))
    for answer in answers:
        if answer.problems:
            result = "refused"
        else:
            result = ("adopted" if answer.fresh else "known") if answer.adopted else "fit"
        notes = [*answer.problems, *answer.warnings]
        notes += [f"without {', '.join(answer.missing_parts)}"] if answer.missing_parts else []
        made.add_row(
            answer.key.lstrip("0") or "–", step(answer.step), answer.format or "–", size(answer.size_bytes), result,
            answer.path, "; ".join(notes) or "–",
        )  # fmt: skip
    show(made, "nothing there is a checkpoint")
