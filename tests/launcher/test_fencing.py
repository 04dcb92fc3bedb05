"""Nothing is left behind, nothing foreign is touched, and orders that come twice or late change nothing."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec

from keepstep.adapters.local import LocalHost, procfs, sweep
from keepstep.core.facts import Done, Failed, Fenced, GateFinished, Launched, RankExited
from keepstep.core.ids import DrillId, NodeId, Session, device_resource, node_resource
from keepstep.core.intents import CollectStacks, Fence, Inject, Quarantine, Release, ResetDevice, RunGate
from keepstep.launcher import pidfds

from .driver import DEADLINE_S, Bench, alive, clean_environment, eventually

SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
WITH_GRANDCHILD = (
    "import os, subprocess, sys, time\n"
    # A session of its own and a full pipe: neither process group, parent nor SIGPIPE ends it.
    "r, w = os.pipe()\n"
    "code = 'import os, time\\nwhile True: os.write(1, bytes(65536))'\n"
    "child = subprocess.Popen([sys.executable, '-c', code], stdout=w, start_new_session=True)\n"
    "forked = os.fork()\n"
    "if forked == 0:\n"
    "    os.setsid(); time.sleep(600)\n"
    "print('children', child.pid, forked, flush=True)\n"
    "time.sleep(600)\n"
)


def children_of(bench: Bench, rank: int, generation: int = 1) -> list[int]:
    words = bench.wait_log(rank, "children", generation).split()
    return [int(word) for word in words[1:3]]


def test_A3_fence_finds_children_that_left_their_parents(bench: Bench) -> None:
    bench.start(WITH_GRANDCHILD)
    pids = bench.launch().pids
    grandchildren = children_of(bench, 0) + children_of(bench, 1)
    os.kill(pids[0], signal.SIGKILL)
    bench.exits(1)
    fenced = bench.fence()
    assert (fenced.proof, fenced.killed) == ("killed", 5)
    assert not [pid for pid in (*pids.values(), *grandchildren) if alive(pid)]
    assert len(bench.server.facts(RankExited)) == 1, "what we kill ourselves is no news"


def test_fence_of_a_node_where_nothing_ran(bench: Bench) -> None:
    bench.start(SLEEPER)
    fenced = bench.fence(4)
    assert (fenced.generation, fenced.proof, fenced.killed) == (4, "nothing_ran", 0)


def test_newer_generation_is_not_touched_by_a_fence_of_an_older_one(bench: Bench) -> None:
    bench.start(SLEEPER)
    pids = bench.launch(2).pids
    outcome = bench.answer(bench.order(Fence(job=bench.job, node=bench.node, session=bench.session, generation=1)))
    assert isinstance(outcome, Failed) and outcome.reason.startswith("superseded")
    assert all(alive(pid) for pid in pids.values())


def test_repeated_order_is_answered_again_and_not_carried_out_again(bench: Bench) -> None:
    bench.start(SLEEPER)
    intent = bench.launch_intent()
    number = bench.order(intent)
    first = bench.answer(number)
    bench.order(intent, number)
    assert bench.answer(number, nth=2) == first
    assert sorted(one.pid for one in sweep.marked(bench.token, range(1, 2))) == sorted(first.pids.values())


def test_stale_and_foreign_orders_are_refused(bench: Bench) -> None:
    bench.start(SLEEPER)
    bench.fence(3)
    for generation in (2, 3):
        outcome = bench.answer(bench.order(bench.launch_intent(generation)))
        assert isinstance(outcome, Failed) and outcome.reason.startswith("superseded")
    bench.launch(4)
    look = CollectStacks(job=bench.job, node=bench.node, session=bench.session, generation=3)
    assert isinstance(bench.answer(bench.order(look)), Failed)
    foreign = Fence(job=bench.job, node=bench.node, session=Session("someone-else"), generation=4)
    outcome = bench.answer(bench.order(foreign))
    assert isinstance(outcome, Failed) and "someone-else" in outcome.reason
    second = bench.answer(bench.order(bench.launch_intent(4)))
    assert isinstance(second, Failed) and "launched here before" in second.reason
    assert bench.server.facts(RankExited) == []


def test_a_drill_hits_the_present_generation_only(bench: Bench) -> None:
    """Somebody else's ranks, or those that came after, are none of its business: they were not chosen."""
    bench.start(SLEEPER)
    bench.fence(3)
    pids = bench.launch(4).pids
    drill = Inject(
        job=bench.job, node=bench.node, session=bench.session, generation=3, drill=DrillId("d"), kind="kill-rank", rank=0
    )  # fmt: skip
    for changed in (
        {},
        {"generation": 5},
        {"generation": 4, "session": Session("other")},
        {"generation": 4, "rank": 7},
    ):
        assert isinstance(bench.answer(bench.order(msgspec.structs.replace(drill, **changed))), Failed), changed
    assert all(alive(pid) for pid in pids.values())
    outcome = bench.answer(bench.order(msgspec.structs.replace(drill, generation=4)))
    assert outcome == Done(detail=f"SIGKILL to rank 0 (pid {pids[0]})")
    assert bench.server.next_fact(RankExited).rank == 0


def test_a_rank_that_a_drill_stopped_goes_on_by_itself(bench: Bench) -> None:
    bench.start(SLEEPER)
    pids = bench.launch(1).pids
    drill = Inject(
        job=bench.job, node=bench.node, session=bench.session, generation=1, drill=DrillId("d"), kind="stop-rank", rank=0,
        for_s=1.0,
    )  # fmt: skip
    assert bench.answer(bench.order(drill)) == Done(detail=f"SIGSTOP to rank 0 (pid {pids[0]})")
    # A machine that stands still for a second may show the second state only.
    states = []

    def went_on() -> bool:
        states.append((procfs.stat(pids[0]) or procfs.ProcessStat("", 0, 0, 0)).state)
        return len(states) > 1 and states[-1] != "T"

    eventually(went_on, "the end of the stop")
    assert set(states) - {"T"} <= {"S", "R"}


def test_A7_grace_is_not_spent_on_a_stopped_rank(bench: Bench) -> None:
    bench.start(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('goodbye', flush=True), sys.exit(0)))\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    pids = bench.launch().pids
    bench.wait_log(0, "up")
    bench.wait_log(1, "up")
    os.kill(pids[1], signal.SIGSTOP)
    eventually(lambda: (procfs.stat(pids[1]) or procfs.ProcessStat("", 0, 0, 0)).state == "T", "the stop")
    # With a grace of an hour the fence ends only because nobody waits for the stopped rank.
    bench.fence(grace_s=3600.0)
    bench.wait_log(0, "goodbye")
    assert "goodbye" not in bench.log_text(1)


def test_grace_ends_in_sigkill(bench: Bench) -> None:
    bench.start(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    pids = bench.launch().pids
    bench.wait_log(0, "up")
    bench.wait_log(1, "up")
    assert bench.fence(grace_s=0.2).killed == 2
    assert not any(alive(pid) for pid in pids.values())


def test_A1_ranks_and_helpers_die_with_their_launcher(bench: Bench) -> None:
    bench.start(WITH_GRANDCHILD)
    pids = bench.launch().pids
    grandchildren = children_of(bench, 0)
    children_of(bench, 1)
    everything = [one.pid for one in sweep.marked(bench.token)]
    assert set(pids.values()) < set(everything)
    assert bench.process is not None
    os.kill(bench.process.pid, signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in pids.values()), "the end of the ranks")
    # Strays are the witness's to end: it is asked about a launcher that is gone.
    LocalHost().sweep(bench.job, bench.node, bench.session)
    # One that was ending by itself has lost its mark, and takes a moment longer.
    eventually(lambda: not any(alive(pid) for pid in (*everything, *grandchildren)), "the end of all that it left")


def test_A2_wait_for_a_process_that_does_not_end_is_bounded_and_names_it() -> None:
    """Nothing holds SIGKILL off at will, so a process that was not killed stands for one that cannot be."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pidfd = os.pidfd_open(process.pid)
    try:
        assert not sweep.has_ended(pidfd, 0.05)
        assert asyncio.run(pidfds.all_ended([pidfd], 0.05)) is False
        assert sweep.describe_survivor(process.pid).startswith(f"pid {process.pid} ")
        assert f"pid {process.pid}" in str(sweep.Unkillable([sweep.Marked(process.pid, 0, 1)]))
        process.kill()
        assert asyncio.run(pidfds.all_ended([pidfd], 60.0)) is True
    finally:
        os.close(pidfd)
        process.kill()
        process.wait(60)


def test_A5_reused_pid_and_shed_mark_are_not_killed(tmp_path: Path) -> None:
    token = f"job/node/session-{uuid.uuid4().hex}"
    marked_environment = {**clean_environment(), "KEEPSTEP_TOKEN": token, "KEEPSTEP_GENERATION": "0000000002"}
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=clean_environment())
    ours = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=marked_environment)
    try:
        eventually(lambda: bool(sweep.marked(token)), "the mark")
        started = procfs.start_ticks(stranger.pid)
        assert started is not None
        assert sweep.kill(sweep.Marked(stranger.pid, started + 1, 1), token) is None, "another life of this pid"
        assert sweep.kill(sweep.Marked(stranger.pid, started, 1), token) is None, "no mark of ours"
        assert sweep.sweep("job/node/session-other") == 0
        assert sweep.sweep(token, generations=range(2)) == 0, "a newer generation"
        assert sweep.sweep(token, spared={ours.pid}) == 0, "a helper"
        assert (stranger.poll(), ours.poll()) == (None, None)
        assert sweep.sweep(token, generations=range(3)) == 1
        assert ours.wait(60) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        for process in (stranger, ours):
            process.kill()
            process.wait(60)


def test_A5_sweep_never_signals_its_own_ancestors() -> None:
    token = f"job/node/session-{uuid.uuid4().hex}"
    inner = f"from keepstep.adapters.local import sweep; print(sweep.sweep({token!r}))"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    environment = {**clean_environment(), "KEEPSTEP_TOKEN": token, "KEEPSTEP_GENERATION": "0000000001"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout.split() == ["0"]


def test_witness_tells_the_living_the_dead_and_what_it_cannot_know() -> None:
    host, boot = LocalHost(), procfs.boot_id()
    job, node, session = Bench.job, Bench.node, Session("s")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        started = procfs.start_ticks(process.pid) or 0
        assert host.look(job, node, session, boot, process.pid, started).verdict == "alive"
        assert host.look(job, node, session, boot, process.pid, started + 1).verdict == "process_gone"
        assert host.look(job, node, session, "another-boot", process.pid, started).verdict == "no_answer"
        assert host.look(job, node, session, boot, 0, 0).verdict == "no_answer"
        process.kill()
        eventually(lambda: not alive(process.pid), "its end")
        assert host.look(job, node, session, boot, process.pid, started).verdict == "process_gone", "a zombie is gone"
    finally:
        process.kill()
        process.wait(60)
    assert host.look(job, node, session, boot, process.pid, started).verdict == "process_gone"


def test_quarantined_device_is_refused_by_the_node_itself_also_after_a_restart(bench: Bench) -> None:
    bench.start(SLEEPER)
    resource = device_resource(bench.node, 1)
    hold = Quarantine(job=bench.job, node=bench.node, session=bench.session, resource=resource, reason="failed twice")
    assert isinstance(bench.answer(bench.order(hold)), Done)
    assert bench.end() == 0
    bench.start(SLEEPER)
    outcome = bench.answer(bench.order(bench.launch_intent()))
    assert isinstance(outcome, Failed) and outcome.reason == f"{resource} is quarantined here: failed twice"
    assert isinstance(bench.answer(bench.order(bench.launch_intent(nproc=1))), Launched)
    release = Release(job=bench.job, node=bench.node, session=bench.session, resource=resource)
    assert isinstance(bench.answer(bench.order(release)), Done)
    bench.fence(1)
    assert isinstance(bench.answer(bench.order(bench.launch_intent(2))), Launched)


def test_reset_of_a_device_in_use_is_refused(bench: Bench) -> None:
    bench.start(SLEEPER)
    bench.launch()
    resource = device_resource(bench.node, 0)
    reset = ResetDevice(job=bench.job, node=bench.node, session=bench.session, resource=resource)
    assert isinstance(bench.answer(bench.order(reset)), Failed)
    bench.fence()
    assert isinstance(bench.answer(bench.order(reset)), Done)


def test_gate_passes_a_good_device_fails_a_bad_one_and_knows_nothing_of_a_broken_tool(bench: Bench) -> None:
    bench.start(SLEEPER)
    faults = bench.state / "faults"
    faults.mkdir()
    (faults / f"{bench.node}-1").write_text('{"kind": "fail_gate", "message": "wrong bits"}')

    def gate(resource: str) -> GateFinished:
        already = len(bench.server.facts(GateFinished))
        order = RunGate(job=bench.job, node=bench.node, session=bench.session, resource=resource)  # type: ignore[arg-type]
        assert isinstance(bench.answer(bench.order(order)), Done)
        return bench.server.next_fact(GateFinished, already)

    good, bad = gate(device_resource(bench.node, 0)), gate(device_resource(bench.node, 1))
    assert (good.passed, good.serial, good.boot_id) == (True, f"{bench.node}-cpu0", procfs.boot_id())
    assert bad.passed is False and "wrong bits" in bad.detail
    whole = gate(node_resource(NodeId(bench.node)))
    # The engine knows a node by its name; a verdict for another serial is stale there and would never let it back.
    assert (whole.passed, whole.serial) == (False, bench.node)
    (faults / f"{bench.node}-1").write_text("not json")
    assert gate(device_resource(bench.node, 1)).passed is None


def test_end_of_job_ends_everything_and_passes_the_exit_code_on(bench: Bench) -> None:
    bench.start(WITH_GRANDCHILD)
    bench.launch()
    children_of(bench, 0)
    children_of(bench, 1)
    token = bench.token
    assert bench.end(exit_code=23) == 23
    assert sweep.marked(token) == []
    assert list((bench.state / "run").iterdir()) == []


def test_fenced_is_repeatable(bench: Bench) -> None:
    bench.start(SLEEPER)
    bench.launch()
    assert bench.fence(1).proof == "killed"
    again = bench.fence(1)
    assert isinstance(again, Fenced) and (again.proof, again.killed) == ("nothing_ran", 0)
