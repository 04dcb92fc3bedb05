"""What is shown of a recovery, and what the proof says, on a recorded journal."""

import io
from pathlib import Path

import msgspec
from rich.console import Console

from keepstep.core.incident import IncidentState
from keepstep.demo.driver import Act
from keepstep.demo.faults import Done
from keepstep.demo.losses import Final, Loss, finals, losses, redone
from keepstep.demo.plan import DemoPlan
from keepstep.demo.proof import problems_of_act, problems_of_losses, problems_of_weights
from keepstep.demo.reference import Reference
from keepstep.demo.report import Outcome, show_report, text_curve
from keepstep.demo.stages import segments
from keepstep.demo.view import Lines, LiveView
from keepstep.demo.watch import Watch

LOSSES = [Loss(1, step, f"{5 - step / 20:.4f}") for step in range(1, 23)]
FINALS = [Final(rank, 60, "a" * 64) for rank in range(4)]


def outcome(**changes: object) -> Outcome:
    made = Outcome(reference=Reference(LOSSES, FINALS), losses=LOSSES, finals=FINALS, problems=[], exit_code=0)
    return msgspec.structs.replace(made, **changes)


def shown(plan: DemoPlan, watch: Watch, act: Act, found: Outcome) -> str:
    paper = io.StringIO()
    show_report(Console(file=paper, width=120), plan.out, watch, [act], found)
    return paper.getvalue()


def test_the_report_tells_the_incident_the_time_line_and_the_proof(plan: DemoPlan, watch: Watch, act: Act) -> None:
    text = shown(plan, watch, act, outcome())
    assert "SIGKILL to rank 3" in text and "ranks at fault: 3" in text
    assert "verifying" in text and "step 20, disk" in text
    assert "1 faults, 1 recoveries" in text and "bit for bit" in text and "a" * 64 in text
    assert "NOT as promised" not in text
    assert "ranks at fault: 3" in (plan.out / "report.txt").read_text()
    assert (plan.out / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_says_what_was_not_as_promised(plan: DemoPlan, watch: Watch, act: Act) -> None:
    text = shown(plan, watch, act, outcome(problems=["the final weights differ"], finals=[]))
    assert "NOT as promised" in text and "the final weights differ" in text and "recoveries," not in text


def test_a_look_that_found_nothing_wrong_is_no_fault(watch: Watch) -> None:
    (incident,) = watch.faults()
    incident.state = IncidentState.NO_FAULT
    assert watch.faults() == []


def test_segments_end_with_the_first_new_step(watch: Watch) -> None:
    incident = watch.faults()[0]
    cut = segments(incident)
    assert [one.stage for one in cut] == ["isolating", "selecting", "restarting", "verifying"]
    assert abs(sum(one.seconds for one in cut) - incident.downtime_s) < 1e-9


def test_a_right_recovery_has_no_problem(watch: Watch, act: Act) -> None:
    assert problems_of_act(act, watch) == []


def test_wrong_promises_are_found(watch: Watch, act: Act) -> None:
    act.done = Done(text="x", rank=1, node="n0", resource="device/n0/0", rejected="0" * 20, server_restart=True)
    found = "\n".join(problems_of_act(act, watch))
    for expected in ("rank 1 was not named", "node n0 was not named", "device/n0/0 was not named", "may be used again",
                     "was not refused", "no new server"):  # fmt: skip
        assert expected in found


def test_an_act_without_an_incident_is_a_problem(watch: Watch, act: Act) -> None:
    act.incident = None
    assert "no incident" in problems_of_act(act, watch)[0]
    act.done = None
    assert "not injected" in problems_of_act(act, watch)[0]


def test_weights_must_be_equal_complete_and_of_the_last_step() -> None:
    assert problems_of_weights(FINALS, FINALS, 60) == []
    assert "differ" in problems_of_weights(FINALS, [*FINALS[:3], Final(3, 60, "b" * 64)], 60)[0]
    assert "ranks [0, 1, 2]" in problems_of_weights(FINALS, FINALS[:3], 60)[0]
    assert "ended at step 60" in problems_of_weights(FINALS, FINALS, 61)[0]


def test_every_logged_loss_must_be_the_reference_s() -> None:
    reference = Reference(LOSSES, FINALS)
    assert problems_of_losses(reference, [*LOSSES[3:], Loss(2, 20, LOSSES[19].loss)]) == []
    assert "step 20 (generation 2)" in problems_of_losses(reference, [*LOSSES, Loss(2, 20, "9.9")])[0]


def test_losses_and_finals_are_read_from_what_ranks_print(tmp_path: Path) -> None:
    for generation, steps in ((1, (1, 2)), (2, (2, 3))):
        folder = tmp_path / "n0" / f"g{generation}"
        folder.mkdir(parents=True)
        lines = [f"step {step} loss {4 - step}.0000 generation {generation}" for step in steps]
        (folder / "rank0.log").write_text("\n".join(["noise", *lines, "step 4 lo"]))
    found = losses(tmp_path)
    assert [(one.generation, one.step) for one in found] == [(1, 1), (1, 2), (2, 2), (2, 3)] and redone(found) == 1
    (tmp_path / "final.txt").write_text(f"final 1 60 {'b' * 64}\nfinal 0 60 {'a' * 64}\n")
    assert [one.rank for one in finals(tmp_path / "final.txt")] == [0, 1] and finals(tmp_path / "none") == []


def test_the_text_curve_carries_the_faults(act: Act) -> None:
    curve = text_curve(LOSSES, [act])
    assert "1" in curve.splitlines()[0] and curve.count("•") == len(LOSSES)
    assert "no step" in text_curve([], [act])


def test_lines_and_live_view_show_the_recorded_job(watch: Watch, act: Act) -> None:
    paper = io.StringIO()
    console = Console(file=paper, width=130)
    lines = Lines(console, 60)
    lines.say("fault 1 of 1")
    lines.show(watch, [act])
    assert "fault 1 of 1" in paper.getvalue() and "inc-0002 diagnose: host_software" in paper.getvalue()
    console.print(LiveView(console, 60).render(watch, [act]))
    assert "a rank is killed" in paper.getvalue() and "recovered" in paper.getvalue()
