"""Real torch jobs: unmodified torchrun scripts, the rendezvous store, progress without an SDK, stacks of a hang."""

import os
import signal
import socket
from collections.abc import Callable

import pytest

from keepstep.adapters.local import procfs
from keepstep.core.facts import RankStack, StacksTaken
from keepstep.core.intents import CollectStacks
from keepstep.wire.messages import Beat

from .driver import Bench, alive, eventually

pytest.importorskip("torch")

TORCHRUN_SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert rank == int(os.environ["RANK"]) and dist.get_world_size() == int(os.environ["WORLD_SIZE"])
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if step == 2:
            print("stepping", flush=True)
        if len(sys.argv) > 2:
            time.sleep(float(sys.argv[2]))
    if rank == 0 and len(sys.argv) > 3:
        time.sleep(float(sys.argv[3]))
    dist.destroy_process_group()
    print("finished", rank, flush=True)

if __name__ == "__main__":
    main()
"""


def store_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def test_unmodified_torchrun_script_from_start_to_end_and_over_a_restart(bench: Bench) -> None:
    joined = bench.start(TORCHRUN_SCRIPT)
    assert joined.store, "a fresh store is offered before the first launch"
    script = bench.argv
    bench.argv = (*script, "1000000", "0.01")
    launched = bench.launch(1, store=joined.store)
    assert launched.warm, launched.why_cold
    bench.wait_log(0, "stepping")
    bench.wait_log(1, "stepping")

    def ticking(_: object) -> Beat | None:
        beats = [m for m in bench.server.said if isinstance(m, Beat) and len(m.ranks) == 2]
        return next((m for m in beats if all(r.phase == "step" and r.step >= 3 for r in m.ranks)), None)

    assert bench.server.wait("progress of a script without an SDK", ticking).ranks[0].step_time_s > 0

    os.kill(launched.pids[0], signal.SIGKILL)
    # Its peer may notice, and end, before the launcher has heard of the kill.
    first = next((end for end in bench.exits(1) if end.rank == 0), None) or next(
        e for e in bench.exits(2) if e.rank == 0
    )
    assert first.signal == signal.SIGKILL
    assert first.step >= 3 and first.phase == "step"
    fenced = bench.fence(1)
    assert not any(alive(pid) for pid in launched.pids.values())
    assert fenced.store not in ("", joined.store), "C3: no key of an older generation can be seen"
    with pytest.raises(ConnectionRefusedError), socket.create_connection(store_address(joined.store), timeout=60):
        pass

    bench.argv = (*script, "4", "0.1")
    again = bench.launch(2, store=fenced.store)
    assert again.warm, again.why_cold
    assert sorted((end.rank, end.exit_code) for end in bench.exits(2, generation=2)) == [(0, 0), (1, 0)]
    assert "finished 1" in bench.wait_log(1, "finished", generation=2)
    assert bench.end() == 0


def test_C7_store_outlives_ranks_that_finish_early_and_victims_are_marked(bench: Bench) -> None:
    joined = bench.start(
        "import os, sys, time\nimport torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\n"
        "if rank == 1: sys.exit(0)\n"
        "time.sleep(0.5)\n"
        "store = dist.distributed_c10d._get_default_store()\n"
        "store.set('late', 'yes'); print('store says', store.get('late'), flush=True)\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    bench.launch(1, store=joined.store)
    ends = {end.rank: end for end in bench.exits(2)}
    assert (ends[1].exit_code, ends[1].error) == (0, None)
    assert "store says b'yes'" in bench.wait_log(0, "store says")
    error = ends[0].error
    assert error is not None and error.victim, "it only says that its peer went away"


def test_each_fence_offers_a_store_that_nobody_can_have_used(bench: Bench) -> None:
    joined = bench.start("import torch\nimport time\ntime.sleep(600)\n", nproc=1)
    seen = [joined.store]
    for generation in (1, 2, 3):
        # Twice without a launch that we saw: another node may have used the store all the same.
        if generation != 2:
            bench.launch(generation, nproc=1, store=seen[-1])
        seen.append(bench.fence(generation).store)
    assert len(set(seen)) == 4
    again = bench.fence(3)
    assert again.store == seen[-1], "nothing newer is known: the offer still stands"
    with socket.create_connection(store_address(again.store), timeout=60):
        pass


def test_stacks_of_running_waiting_and_stopped_ranks(bench: Bench) -> None:
    joined = bench.start(
        "import os, signal, time\nimport torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\n"
        "def spin():\n"
        "    print('spinning', flush=True)\n"
        "    while True: pass\n"
        "def reduce_gradients():\n"
        "    print('reducing', flush=True)\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "def halted():\n"
        "    print('halting', flush=True)\n"
        "    while True: time.sleep(600)\n"
        "(spin, reduce_gradients, halted)[rank]()\n",
        nproc=3,
    )
    pids = bench.launch(1, nproc=3, store=joined.store).pids
    for rank, word in enumerate(("spinning", "reducing", "halting")):
        bench.wait_log(rank, word)
    os.kill(pids[2], signal.SIGSTOP)
    eventually(lambda: getattr(procfs.stat(pids[2]), "state", "") == "T", "the stop")
    look = CollectStacks(job=bench.job, node=bench.node, session=bench.session, generation=1)

    def looked() -> dict[int, RankStack]:
        outcome = bench.answer(bench.order(look))
        assert isinstance(outcome, StacksTaken)
        return {one.rank: one for one in outcome.stacks}

    # A look is short: on a busy machine a rank may not have had its turn in it, nor whoever looks at it from outside.
    def seen(rank: int, what: str, fits: Callable[[RankStack], bool]) -> None:
        eventually(lambda: fits(looked()[rank]), what)

    def shows(it: RankStack, function: str) -> bool:
        return any(frame.endswith(function) and "script.py:" in frame for frame in it.frames)

    seen(0, "a rank at work", lambda it: shows(it, " spin") and it.frames[0].endswith(" spin") and not it.waiting)
    seen(0, "a rank that uses its CPU", lambda it: it.cpu_s > 0)
    # Its own frame and that of all_reduce are there some microseconds after the word that it prints.
    seen(1, "a rank that waits for its peers", lambda it: it.waiting and shows(it, " reduce_gradients"))
    # From outside, since it cannot answer.
    seen(2, "a stopped rank", lambda it: it.process_state == "T" and shows(it, " halted") and not it.waiting)
