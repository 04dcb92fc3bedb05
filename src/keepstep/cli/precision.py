"""``keepstep precision``: how right each rule was. Owns its table; all content is the read side's."""

from typing import TYPE_CHECKING

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, print_json

if TYPE_CHECKING:
    from keepstep.server.precision import PrecisionReport


def precision(state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """Report how right each rule was: what it isolated, which jobs it moved, and what of that was unnecessary."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show, table
    from keepstep.server.precision import PrecisionReport

    found = ask(state_dir, "precision", PrecisionReport)
    if json:
        print_json(found)
        return
    made = table(
        "rule",
        "class",
        "isolated",
        "right",
        "unnecessary",
        "open",
        "jobs moved",
        "unnecessary",
        flexible=("rule", "class"),
    )
    for rule in found.rules:
        made.add_row(
            rule.rule,
            rule.failure_class,
            str(rule.isolations),
            str(rule.confirmed),
            str(rule.unnecessary),
            str(rule.pending),
            str(rule.preemptions),
            str(rule.preemptions_unnecessary),
        )
    show(made, "no rule has isolated anything yet")
    typer.echo(_sum(found))


def _sum(found: "PrecisionReport") -> str:
    judged = found.preemptions - found.pending
    share = f" ({found.unnecessary / judged:.1%} of those that are judged)" if judged else ""
    return (
        f"{found.preemptions} preemptions, {found.unnecessary} unnecessary{share}, {found.pending} not judged yet: "
        "a week must pass after the gate"
    )
