"""What a rank sees, and what the server hears of its end. Scripts do not import torch: that is not the point here."""

import json
import os
import signal
from pathlib import Path

from keepstep.adapters.local import procfs, sweep
from keepstep.core.facts import Failed, Launched, RankExited
from keepstep.wire.messages import Beat

from .driver import Bench, alive, eventually

SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def test_environment_is_torchruns_and_ours(bench: Bench) -> None:
    bench.start(
        "import json, os, sys\n"
        "print(json.dumps({'env': dict(os.environ), 'argv': sys.argv, 'path0': sys.path[0],\n"
        "                  'main': __name__, 'file': __file__}))\n"
    )
    bench.argv = (*bench.argv, "--lr", "0.1")
    bench.launch(generation=3, checkpoint_dir="/some/where")
    bench.exits(2)
    seen = json.loads(bench.wait_log(1, "\n", generation=3).splitlines()[0])
    env = seen["env"]
    assert {name: env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"], env["ROLE_RANK"], env["ROLE_NAME"]) == (
        "0",
        "1",
        "1",
        "default",
    )
    assert env["TORCHELASTIC_RUN_ID"] == bench.job
    assert env["TORCHELASTIC_RESTART_COUNT"] == "2"
    assert env["MASTER_ADDR"] == "127.0.0.1" and int(env["MASTER_PORT"]) > 0
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["KEEPSTEP_GENERATION"] == "0000000003"
    assert env["KEEPSTEP_TOKEN"] == bench.token
    assert env["KEEPSTEP_CHECKPOINT_DIR"] == "/some/where"
    assert seen["argv"] == [*bench.argv]
    assert seen["path0"] == str(bench.folder)
    assert (seen["main"], seen["file"]) == ("__main__", bench.argv[0])


def test_fence_token_is_in_the_initial_environment_of_warm_and_cold_ranks(bench: Bench) -> None:
    bench.start(SLEEPER)
    for pid in bench.launch(generation=7).pids.values():
        with open(f"/proc/{pid}/environ", "rb") as file:
            block = file.read().split(b"\0")
        assert b"KEEPSTEP_GENERATION=0000000007" in block
        assert f"KEEPSTEP_TOKEN={bench.token}".encode() in block


def test_module_runs_as_main(bench: Bench) -> None:
    bench.script("import sys\nprint('module', __name__, sys.argv[1:])\n", "mymodule.py")
    bench.start("", argv=("-m", "mymodule", "a", "b"))
    bench.launch()
    bench.exits(2)
    assert "module __main__ ['a', 'b']" in bench.wait_log(0, "module")


def test_exit_codes_and_signals_are_reported(bench: Bench) -> None:
    bench.start(
        "import os, signal, sys\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 1: sys.exit(17)\n"
        "if rank == 2: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "if rank == 3: sys.exit('a message')\n",
        nproc=4,
    )
    bench.launch(nproc=4)
    ends = {end.rank: end for end in bench.exits(4)}
    assert (ends[0].exit_code, ends[0].signal, ends[0].error) == (0, None, None)
    assert (ends[1].exit_code, ends[1].signal) == (17, None)
    assert (ends[2].exit_code, ends[2].signal) == (None, signal.SIGSEGV)
    assert ends[2].error is not None and "Segmentation fault" in ends[2].error.message
    assert ends[3].exit_code == 1
    assert "a message" in bench.wait_log(3, "message")


def test_killed_rank_is_reported_once_and_alone(bench: Bench) -> None:
    bench.start(SLEEPER)
    pids = bench.launch().pids
    os.kill(pids[1], signal.SIGKILL)
    (end,) = bench.exits(1)
    assert (end.rank, end.slot, end.signal, end.pid, end.generation) == (1, 1, signal.SIGKILL, pids[1], 1)
    assert alive(pids[0])
    bench.fence()
    assert bench.end() == 0
    assert len(bench.server.facts(RankExited)) == 1


def test_exception_leaves_error_file_record_and_traceback(bench: Bench) -> None:
    bench.start(
        "import os\n"
        "def train_one(step):\n"
        "    if os.environ['RANK'] == '1': raise ValueError(f'loss is nan at step {step}')\n"
        "    import time; time.sleep(600)\n"
        "train_one(12)\n"
    )
    bench.launch()
    (end,) = bench.exits(1)
    assert end.rank == 1 and end.error is not None
    assert (end.error.kind, end.error.message, end.error.victim) == ("ValueError", "loss is nan at step 12", False)
    assert end.error.signature == "ValueError@script.py:train_one<script.py:<module>: loss is nan at step #"
    written = json.loads((bench.logs / "g1" / "rank1.error.json").read_text())
    assert written["message"]["message"] == "ValueError: loss is nan at step 12"
    assert "in train_one" in written["message"]["extraInfo"]["py_callstack"]
    assert int(written["message"]["extraInfo"]["timestamp"]) > 0
    log = bench.wait_log(1, "ValueError: loss")
    assert "rank_main" not in log and "runpy" not in log


def test_error_is_reported_before_the_interpreter_has_unwound(bench: Bench) -> None:
    bench.start("import atexit, time\natexit.register(time.sleep, 600)\nraise KeyError('lost')\n", nproc=1)
    pids = bench.launch(nproc=1).pids
    (end,) = bench.exits(1)
    assert (end.error is not None and end.error.kind, end.exit_code) == ("KeyError", None)
    assert alive(pids[0])


def test_F6_big_error_text_is_bounded(bench: Bench) -> None:
    bench.start("raise RuntimeError('x' * 10_000_000)\n")
    bench.launch()
    for end in bench.exits(2):
        assert end.error is not None
        assert len(end.error.message.encode()) <= 2048
        assert len(end.error.traceback.encode()) <= 16 * 1024
        assert "bytes left out" in end.error.message


def test_output_goes_to_log_files_and_with_prefix_to_the_launcher(bench: Bench) -> None:
    bench.start(
        "import os, sys\nprint('out of', os.environ['RANK'])\nprint('err', file=sys.stderr)\nprint('no newline', end='')\n"
    )
    bench.launch()
    bench.exits(2)
    assert bench.end() == 0
    assert bench.log_text(1).splitlines()[0] == "out of 1"
    assert sorted(line for line in bench.said().splitlines() if line.startswith("[r1]")) == [
        "[r1] err",
        "[r1] no newline",
        "[r1] out of 1",
    ]


def test_output_that_cannot_be_logged_does_not_hold_up_a_rank(bench: Bench) -> None:
    bench.start(
        "for _ in range(200): print('y' * 100_000)\nprint('end')\n", "--log-dir", str(bench.folder / "logs"), nproc=1
    )
    target = bench.folder / "logs" / bench.node / "g1"
    target.mkdir(parents=True)
    (target / "rank0.log").symlink_to("/dev/full")
    bench.launch(nproc=1)
    (end,) = bench.exits(1)
    assert end.exit_code == 0
    assert bench.end() == 0
    assert bench.said().count("cannot write") == 1
    assert "[r0] end" in bench.said()


def test_signals_and_random_state_are_those_of_a_fresh_interpreter(bench: Bench) -> None:
    bench.start(
        "import os, random, signal, sys, threading\n"
        "print('handlers', [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGCHLD)] == [signal.SIG_DFL] * 2,\n"
        "      signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(0, []),\n"
        "      'pgid', os.getpgid(0) == os.getpid(), 'threads', threading.active_count())\n"
        "print('random', random.random())\n"
    )
    bench.launch()
    bench.exits(2)
    bench.wait_log(0, "random")
    bench.wait_log(1, "random")
    assert "handlers True True set() pgid True threads 1" in bench.log_text(0)
    assert bench.log_text(0).splitlines()[1] != bench.log_text(1).splitlines()[1]


def test_cold_start_says_why(bench: Bench) -> None:
    bench.start("import os\nprint('cold', os.environ['RANK'], os.environ['KEEPSTEP_GENERATION'])\n", "--cold-start")
    launched = bench.launch()
    assert (launched.warm, launched.why_cold) == (False, "--cold-start was given")
    assert {end.exit_code for end in bench.exits(2)} == {0}
    assert "cold 1 0000000001" in bench.wait_log(1, "cold")


def test_threads_of_a_preloaded_module_forbid_a_warm_start(bench: Bench) -> None:
    bench.script(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n", "busy.py"
    )
    bench.start("print('fine')\n", "--preload", "busy")
    launched = bench.launch()
    assert not launched.warm
    assert "threads of their own" in launched.why_cold
    assert {end.exit_code for end in bench.exits(2)} == {0}


def test_preload_that_fails_is_a_cold_start_with_its_reason(bench: Bench) -> None:
    bench.start("print('fine')\n", "--preload", "no_such_module_anywhere")
    launched = bench.launch()
    assert not launched.warm and "import of no_such_module_anywhere failed" in launched.why_cold


def test_zygote_lost_ends_its_ranks_and_is_replaced(bench: Bench) -> None:
    bench.start(SLEEPER)
    pids = bench.launch().pids
    with open(f"/proc/{pids[0]}/stat") as file:
        zygote = int(file.read().rpartition(")")[2].split()[1])
    os.kill(zygote, signal.SIGKILL)
    assert {end.rank for end in bench.exits(2)} == {0, 1}
    eventually(lambda: not any(alive(pid) for pid in pids.values()), "the end of the ranks")
    bench.fence(1)
    again = bench.launch(generation=2)
    assert all(alive(pid) for pid in again.pids.values())


def test_virtual_device_fault_hits_every_rank_on_it(bench: Bench) -> None:
    (bench.state / "faults").mkdir()
    (bench.state / "faults" / f"{bench.node}-1").write_text(
        json.dumps({"kind": "fail_ranks", "message": "fell off the bus"})
    )
    bench.start(SLEEPER)
    for generation in (1, 2):
        bench.launch(generation)
        end = bench.exits(generation)[-1]
        assert (end.generation, end.rank, end.slot) == (generation, 1, 1)
        assert end.error is not None and end.error.kind == "DeviceFault"
        bench.fence(generation)


def test_script_that_does_not_exist_any_more_is_an_error_of_the_rank(bench: Bench) -> None:
    bench.start(SLEEPER)
    os.unlink(bench.argv[0])
    bench.launch()
    assert all(end.error is not None and end.error.kind == "FileNotFoundError" for end in bench.exits(2))


def test_a_zygote_that_is_slow_to_take_its_orders_is_waited_for(bench: Bench) -> None:
    """More orders than the socket between them holds."""
    bench.start(SLEEPER, nproc=4)
    eventually(lambda: "zygote ready" in bench.said(), "the zygote")
    (zygote,) = [one.pid for one in sweep.marked(bench.token) if b"keepstep.launcher.zygote" in command_line(one.pid)]
    os.kill(zygote, signal.SIGSTOP)
    eventually(lambda: (seen := procfs.stat(zygote)) is not None and seen.state == "T", "the stop")
    bench.argv = (*bench.argv, "z" * 100_000)
    order = bench.order(bench.launch_intent(nproc=4))
    seen = len(bench.server.beats())
    bench.server.wait("beats", lambda said: len([m for m in said if isinstance(m, Beat)]) > seen + 5 or None)
    os.kill(zygote, signal.SIGCONT)
    outcome = bench.answer(order)
    assert isinstance(outcome, Launched) and all(alive(pid) for pid in outcome.pids.values()), outcome


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_launch_of_a_generation_that_is_too_big_for_a_message_fails_clearly(bench: Bench) -> None:
    bench.start(SLEEPER)
    bench.argv = (*bench.argv, "z" * 300_000)
    outcome = bench.answer(bench.order(bench.launch_intent()))
    assert isinstance(outcome, Failed) and "shorten the arguments" in outcome.reason
