"""Drills against a real job: real faults by order of the server, recovered from and scored."""

from keepstep.adapters.server_link.tool import ToolClient
from keepstep.core.drill import Drill, DrillKind, DrillState
from keepstep.server.replay import replay
from keepstep.wire.requests import BeginDrill

from .driver import Run


def drills(run: Run) -> list[Drill]:
    """As the journal has them, oldest first."""
    journal = run.open_journal()
    try:
        return list(replay(journal).world.drills.values())
    finally:
        journal.close()


def drilled(run: Run, kind: DrillKind, *, rank: int, generation: int) -> Drill:
    """Asks for one when every rank is at work, and waits until it is over."""
    run.reached(10 * generation, generation=generation)
    address = run.state.address()
    assert address is not None
    with ToolClient(address, run.state.token(), timeout_s=60.0) as server:
        name = server.act(BeginDrill(job=run.name, kind=kind, rank=rank)).subject

    def over() -> Drill | None:
        return next((x for x in drills(run) if x.id == name and not x.open), None)

    return run.eventually(f"the end of {name}", over)


def test_a_job_goes_through_one_drill_of_each_kind_bit_equal(run: Run) -> None:
    run.start(*run.light("--steps", "5000"), nodes="2", options=("--spares", "1"))
    lost = run.reached(5)[3].node
    kinds: tuple[DrillKind, ...] = ("kill-rank", "stop-rank", "lose-node")
    for generation, kind in enumerate(kinds, start=1):
        drill = drilled(run, kind, rank=3, generation=generation)
        assert drill.state is DrillState.PASSED, (drill, run.said())
        assert [mark.question for mark in drill.marks if mark.good] == [
            "detected", "blamed", "isolated", "restarted", "verified", "recovered",
        ]  # fmt: skip
    assert lost not in {line.node for line in run.reached(40, generation=4)}
    found = drills(run)
    assert [(x.kind, x.rank, x.node) for x in found] == [
        ("kill-rank", 3, lost),
        ("stop-rank", 3, lost),
        ("lose-node", None, lost),
    ]
    assert len({x.incident for x in found}) == 3 == len(run.closed(3))
    run.front.terminate()
    run.finish(130)
