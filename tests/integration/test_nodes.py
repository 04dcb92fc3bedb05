"""Faults of nodes and of capacity: a launcher and its ranks die together, with a spare, without one, elastic or fixed."""

import time

import pytest

from .driver import Cluster, Run, kill_all, kill_hard


def node_of(run: Run, rank: int, step: int = 15) -> str:
    return run.reached(step)[rank].node


@pytest.mark.parametrize("lost", [(0, 2), pytest.param((2, 0), marks=pytest.mark.deep)], ids=str)
def test_a_zygote_is_replaced_by_its_launcher_and_C21_nodes_lost_one_after_another_by_spares(
    run: Run, lost: tuple[int, int]
) -> None:
    """The second node goes during the recovery from the first. C6, B16: no node is special, not the one of rank 0, which
    hosts the store. B11: what is lost is replaced, not all."""
    holds = ("--hold", "30", "--hold", "60:2", "--hold", "100:0")
    run.start(*run.light("--steps", "120", *holds), nproc=1, nodes="3", options=("--spares", "2"))
    lines = run.at_work(15)
    before = run.launchers()
    kill_hard(_parent(lines[1].pid))  # the rank of a zygote ends with it
    run.reached(30, generation=2)
    assert run.launchers() == before
    run.closed(1)
    lines = run.reached(59, generation=2)
    time.sleep(0.5)  # for the copies of the last step to reach the other nodes
    assert {line.node for line in run.trace() if line.generation == 1} == {line.node for line in lines}
    first, second = (lines[rank].node for rank in lost)
    kill_all([before[first], lines[lost[0]].pid])
    kill_hard(run.eventually("the incident", lambda: run.live().incident) and before[second])
    run.reached(60)
    run.eventually("the end of the incidents", lambda: not run.live().incident)
    after = run.launchers()
    run.release(generation=0)
    run.finish()
    faults = run.faults()
    assert {fault.state for fault in faults} == {"recovered"}
    assert all(fault.lost_steps is not None and fault.lost_steps <= 2 for fault in faults)
    attempts = [attempt for number in range(len(faults)) for attempt in run.incident(number).attempts]
    assert {first} <= {node for attempt in attempts for node in attempt.lost_nodes} <= {first, second}
    assert {attempt.cause for attempt in attempts if attempt.lost_nodes} == {"host_software"}
    last = max(line.generation for line in run.trace())
    nodes = {line.node for line in run.trace() if line.generation == last}
    assert nodes.isdisjoint({first, second}) and lines[1].node in nodes and len(nodes) == 3
    living = {node: pid for node, pid in before.items() if node not in (first, second)}
    assert living == after, "B18: the others' launchers live on"


def test_a_lost_node_without_a_spare_in_an_elastic_job(run: Run) -> None:
    run.start(*run.light("--steps", "60", "--elastic", "--hold", "30"), nproc=1, nodes="1:2")
    lost = node_of(run, 1)
    kill_hard(run.launchers()[lost])
    run.finish(bit_equal=False)
    (fault,) = run.faults()
    assert fault.state == "recovered"
    second = [x for x in run.trace() if x.generation == 2]
    assert {x.world_size for x in second} == {1} and {x.node for x in second}.isdisjoint({lost})
    assert max(x.step for x in second) == 59
    reasons = [action.reason for action in run.incident().actions if action.stage == "place"]
    assert any("elastic: 1 of 2 nodes" in reason for reason in reasons)


def test_a_lost_node_in_a_fixed_job_is_waited_for_C4_C22_a_new_one_comes_A8_and_one_under_its_old_name(
    cluster: Cluster,
) -> None:
    cluster.serve()
    script = cluster.light("--steps", "90", "--hold", "30", "--hold", "60:2")
    first, second = (cluster.launch(node, *script) for node in ("one", "two"))
    cluster.reached(15)
    kill_hard(second)
    live = cluster.waiting()
    assert "needs 2 healthy nodes" in live.last_reason and "--node NAME" in live.last_reason
    assert not cluster.faults()[0].closed_s
    third = cluster.launch("three", *script)
    cluster.reached(30, generation=2)
    cluster.closed(1)
    assert {x.node for x in cluster.trace() if x.generation == 2} == {"one", "three"}
    kill_hard(third)
    again = cluster.launch("three", *script)  # another session
    cluster.reached(89, generation=3)
    assert (cluster.exit_code(first), cluster.exit_code(again)) == (0, 0)
    assert [fault.state for fault in cluster.faults()] == ["recovered", "recovered"]
    assert {x.node for x in cluster.trace() if x.generation == 3} == {"one", "three"}
    cluster.check_trace()
    cluster.check_nothing_left()


def test_a_fixed_job_gives_up_after_its_wait_for_capacity(run: Run) -> None:
    run.start(*run.light("--steps", "5000"), nproc=1, nodes="2", options=("--capacity-wait-s", "1.5"))
    lost = node_of(run, 1)
    kill_hard(run.launchers()[lost])
    run.finish(75)
    assert run.job().state == "failed"
    assert "1 of 2 healthy nodes after waiting" in run.output.read_text()
    assert run.faults()[0].state == "escalated"


@pytest.mark.parametrize("victims", [pytest.param("launcher", marks=pytest.mark.deep), "launcher and zygote"])
def test_A1_a_launcher_is_killed_and_its_ranks_survive_for_a_moment(run: Run, victims: str) -> None:
    """The kernel's notice to the ranks is switched off in the script: they outlive their launcher until they are swept."""
    run.start(
        *run.light("--steps", "80", "--alone", "--hold", "40", "--fault", "outlive@2:5", "--fault", "outlive@3:5"),
        nodes="2", options=("--spares", "1"),
    )  # fmt: skip
    lines = run.at_work(15)
    lost = lines[2].node
    kill_all([run.launchers()[lost], *([_parent(lines[2].pid)] if victims != "launcher" else [])])
    run.finish(bit_equal=False)
    assert run.faults()[0].state == "recovered"
    assert {x.node for x in run.trace() if x.generation == 2}.isdisjoint({lost})
    assert run.incident().attempts[0].fenced[lost] == "process_gone"


def _parent(pid: int) -> int:
    from keepstep.adapters.local import procfs

    found = procfs.stat(pid)
    assert found is not None
    return found.parent


@pytest.mark.parametrize("cured", [False, True], ids=["stays broken", "is cured"])
def test_a_device_that_fails_again_and_again_is_quarantined(run: Run, cured: bool) -> None:
    """Three failures; then it is held, the job goes on elsewhere, and it comes back only through its gate."""
    run.start(*run.light("--steps", "150", "--hold", "120:0"), options=("--spares", "1"))
    lines = run.reached(10)
    bad = lines[1]
    resource = f"device/{bad.node}/{bad.slot}"
    folder = run.state.path / "faults"
    folder.mkdir()
    kind = "fail_ranks" if cured else "broken"
    (folder / f"{bad.node}-{bad.slot}").write_text(f'{{"kind": "{kind}", "after_s": 0}}')
    kill_hard(bad.pid)
    held = run.eventually("a hold on the device", lambda: [x for x in holds(run, resource) if x])
    assert held and run.resource(resource).failures >= 3
    run.reached(100)
    end = "probation" if cured else "repair"
    run.eventually(f"{resource} in {end}", lambda: run.resource(resource).state == end)
    run.release(generation=0)
    run.finish()
    assert run.job().exit_code == 0
    good = max(x.generation for x in run.trace() if x.rank == 1)
    assert bad.node not in {x.node for x in run.trace() if x.generation == good}
    assert (run.resource(resource).allocatable, bool(holds(run, resource))) == (cured, not cured)
    if not cured:
        assert resource in run.state.repairs.read_text()


def holds(run: Run, resource: str) -> list[str]:
    return [held.reason for held in run.resource(resource).holds]
