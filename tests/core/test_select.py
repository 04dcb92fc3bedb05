"""Stage 5: the newest complete state over memory, peers and disk; verified before it is used, or not used."""

from keepstep.core import facts as f
from keepstep.core.decision import Decision
from keepstep.core.incident import IncidentState
from keepstep.core.intents import Fence, Launch, Notify, Restore, VerifyCheckpoint
from keepstep.core.policy import Approvals, Policy

from .build import JOB, Plane, disk, ram, rejected, verified

FULL = {0: ("a", "s"), 1: ("b", "s"), 2: ("c", "s"), 3: ("d", "s")}
"""Four ranks; the group "s" is the same for all of them, as replicated state is."""


def after_fault(n0: f.Inventory | None = None, n1: f.Inventory | None = None, *, policy: Policy | None = None) -> Plane:
    """A recovery whose fences have been answered with these inventories."""
    plane = Plane(policy).start()
    plane.inventories = {k: v for k, v in (("n0", n0), ("n1", n1)) if v is not None}
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    return plane


def chosen(plane: Plane) -> Restore | None:
    assert plane.incident.attempt.restore_chosen
    return plane.incident.attempt.restore


def asked(plane: Plane) -> dict[str, tuple[str, ...]]:
    return {str(i.node): i.held for _, i in plane.pending(VerifyCheckpoint)}


def test_without_any_state_the_job_starts_from_nothing() -> None:
    plane = after_fault()
    assert chosen(plane) is None
    assert [i.restore for _, i in plane.pending(Launch)] == [None, None]


def test_the_newest_disk_checkpoint_is_verified_before_anything_is_launched() -> None:
    plane = after_fault(f.Inventory(disk=(disk(4), disk(8))), f.Inventory(disk=(disk(4), disk(8))))
    assert plane.incident.state is IncidentState.SELECTING
    assert plane.pending(Launch) == []
    assert list(asked(plane)) == ["n0"], "one reader is enough for a shared directory"
    plane.answer(VerifyCheckpoint, verified)
    assert [i.restore and i.restore.step for _, i in plane.pending(Launch)] == [8, 8]


def test_a_rejected_checkpoint_falls_back_to_the_one_before_and_is_never_tried_again() -> None:
    both = f.Inventory(disk=(disk(4), disk(8)))
    plane = after_fault(both, both)
    plane.answer(VerifyCheckpoint, rejected)
    assert plane.job.invalid == ["disk-8"]
    plane.answer(VerifyCheckpoint, verified)
    restore = chosen(plane)
    assert restore is not None
    assert restore.key == "disk-4"
    plane.launch_all()
    plane.now_s += 0.1
    plane.tell(plane.steps(6))
    plane.tell(plane.exited(0, signal=9))
    plane.fence_all()
    assert [i.restore.key for _, i in plane.pending(VerifyCheckpoint)] == ["disk-4"]


def test_a_reader_that_fails_says_nothing_about_the_state() -> None:
    plane = after_fault(f.Inventory(disk=(disk(8),)))
    plane.answer(VerifyCheckpoint, f.Failed(reason="the file server does not answer"))
    assert plane.job.invalid == []
    assert "the file server does not answer" in plane.incident.waits_for, "a person is told what to mend"


def test_the_successor_of_a_launcher_that_could_not_read_is_asked() -> None:
    plane = after_fault(f.Inventory(disk=(disk(8),)))
    plane.answer(VerifyCheckpoint, f.Failed(reason="nobody here has the key"))
    assert plane.incident.state is IncidentState.WAITING
    plane.sessions["n0"] = 1
    plane.tell(plane.joined("n0"))
    assert asked(plane) == {"n0": ()}


def test_memory_is_covered_once_over_the_union_of_the_nodes() -> None:
    mine = {rank: FULL[rank] for rank in (0, 1)}
    theirs = {rank: FULL[rank] for rank in (2, 3)}
    plane = after_fault(
        f.Inventory(ram=(ram(10, mine, ("a", "b", "s")),)), f.Inventory(ram=(ram(10, theirs, ("c", "d", "s")),))
    )
    assert asked(plane) == {"n0": ("a", "b", "s"), "n1": ("c", "d")}
    plane.answer(VerifyCheckpoint, verified, node="n0")
    assert plane.incident.state is IncidentState.SELECTING, "one half is not all of it"
    plane.answer(VerifyCheckpoint, verified, node="n1")
    restore = chosen(plane)
    assert restore is not None
    assert (restore.tier, restore.step, restore.peers) == ("ram", 10, ("n0:9000", "n1:9000"))


def test_a_mirror_on_a_survivor_covers_a_lost_node() -> None:
    plane = Plane().start(spares=1)
    plane.inventories = {"n0": f.Inventory(ram=(ram(10, FULL, ("a", "b", "c", "d", "s")),))}
    plane.tell(plane.silent("n1"))
    plane.tell(plane.witnessed("n1", "process_gone"))
    plane.fence_all()
    assert list(asked(plane)) == ["n0"]
    plane.verify_all()
    restore = chosen(plane)
    assert restore is not None
    assert restore.step == 10


def test_the_same_step_comes_from_memory_rather_than_from_disk() -> None:
    plane = after_fault(f.Inventory(ram=(ram(10, FULL, ("a", "b", "c", "d", "s")),), disk=(disk(10),)))
    restore = chosen(plane)
    assert restore is not None
    assert restore.tier == "ram"


def test_d22_a_newer_state_on_disk_beats_an_older_one_in_memory() -> None:
    plane = after_fault(f.Inventory(ram=(ram(100, FULL, ("a", "b", "c", "d", "s")),), disk=(disk(200),)))
    restore = chosen(plane)
    assert restore is not None
    assert (restore.tier, restore.step) == ("disk", 200)


def test_d13_shards_of_different_steps_are_no_state() -> None:
    behind = f.Inventory(ram=(ram(9, {2: FULL[2], 3: FULL[3]}, ("c", "d", "s")),))
    ahead = f.Inventory(ram=(ram(10, {0: FULL[0], 1: FULL[1]}, ("a", "b", "s")),), disk=(disk(4),))
    plane = after_fault(ahead, behind)
    restore = chosen(plane)
    assert restore is not None
    assert (restore.tier, restore.step) == ("disk", 4)


def test_d3_a_partial_set_is_no_state_even_if_every_rank_is_listed() -> None:
    """All ranks are known, but the bytes of one group are nowhere."""
    plane = after_fault(f.Inventory(ram=(ram(10, FULL, ("a", "b", "c", "s")),), disk=(disk(4),)))
    restore = chosen(plane)
    assert restore is not None
    assert (restore.tier, restore.step) == ("disk", 4)


def test_d3_parts_of_two_generations_are_never_mixed() -> None:
    old = f.RamOffer(step=10, generation=1, world_size=4, parts={0: ("a",), 1: ("b",)}, held=("a", "b"))
    new = f.RamOffer(step=10, generation=2, world_size=4, parts={2: ("c",), 3: ("d",)}, held=("c", "d"))
    plane = after_fault(f.Inventory(ram=(old,)), f.Inventory(ram=(new,)))
    assert chosen(plane) is None


def test_d4_a_node_that_is_not_heard_offers_nothing() -> None:
    plane = Plane().start(spares=1)
    plane.inventories = {"n0": f.Inventory(disk=(disk(4),)), "n1": f.Inventory(disk=(disk(8),))}
    plane.tell(plane.joined("n0"), plane.joined("n1"))
    plane.tell(plane.silent("n1"))
    plane.tell(plane.witnessed("n1", "process_gone"))
    plane.fence_all()
    restore = chosen(plane)
    assert restore is not None
    assert restore.step == 4


# ---- nothing valid


def nothing_valid(policy: Policy | None = None) -> Plane:
    plane = Plane(policy).start()
    plane.tell(f.CheckpointCommitted(job=JOB, generation=1, step=8, key="disk-8", world_size=4))
    plane.inventories = {"n0": f.Inventory(disk=(disk(8),))}
    plane.tell(plane.exited(1, signal=9))
    plane.fence_all()
    plane.answer(VerifyCheckpoint, rejected)
    return plane


def why(plane: Plane) -> str:
    """Of what was chosen last."""
    return [x.reason for _, x in plane.journal if isinstance(x, Decision) and x.stage == "select"][-1]


def test_saved_state_of_which_none_is_valid_is_a_person_s_question() -> None:
    plane = nothing_valid()
    assert plane.incident.state is IncidentState.WAITING
    assert plane.pending(Launch) == []
    assert "approve a start from nothing" in plane.incident.waits_for
    assert [i.level for _, i in plane.pending(Notify)][-1] == "page"


def test_an_approval_starts_from_nothing() -> None:
    plane = nothing_valid()
    plane.tell(f.Approved(subject=plane.incident.id, by="eve", granted=True))
    assert [i.restore for _, i in plane.pending(Launch)] == [None, None]
    assert (
        why(plane)
        == "none of the saved states is valid (newest committed step 8); a person approved a start from nothing"
    )


def test_policy_may_allow_a_start_from_nothing() -> None:
    plane = nothing_valid(Policy(approvals=Approvals(start_from_nothing=True)))
    assert [i.restore for _, i in plane.pending(Launch)] == [None, None]
    assert "none of the saved states is valid" in why(plane) and "the policy allows" in why(plane)


def test_a_node_that_brings_state_back_ends_the_wait() -> None:
    plane = nothing_valid()
    plane.inventories["n1"] = f.Inventory(disk=(disk(6),))
    plane.tell(plane.joined("n1"))
    assert plane.incident.state is IncidentState.SELECTING
    assert [i.restore.key for _, i in plane.pending(VerifyCheckpoint)] == ["disk-6"]


# ---- late verifications


def test_a_verification_that_is_overdue_is_asked_again() -> None:
    plane = after_fault(f.Inventory(disk=(disk(8),)))
    [(number, _)] = plane.pending(VerifyCheckpoint)
    plane.tell(f.Overdue(intent=number, waited_s=600.0))
    assert len(plane.pending(VerifyCheckpoint)) == 2
    plane.answer(VerifyCheckpoint, verified)
    assert plane.incident.state is IncidentState.RESTARTING


def test_an_answer_about_another_candidate_verifies_nothing() -> None:
    plane = after_fault(f.Inventory(disk=(disk(4), disk(8))))
    [(number, _)] = plane.pending(VerifyCheckpoint)
    plane.tell(f.Overdue(intent=number, waited_s=600.0))
    plane.tell(f.Answered(intent=number, outcome=f.CheckpointRejected(key="disk-8", reason="bit flip")))
    late = [n for n, i in plane.pending(VerifyCheckpoint) if i.restore.key == "disk-8"]
    plane.tell(*(f.Answered(intent=n, outcome=f.CheckpointVerified(key="disk-8")) for n in late))
    assert plane.incident.state is IncidentState.SELECTING
    assert plane.incident.attempt.verified_by == []
    assert plane.pending(Fence) == []
