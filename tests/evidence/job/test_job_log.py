"""What jobs print, in the forms of many versions: each line's meaning, and who is left as the culprit when all is told."""

import json
from pathlib import Path

import pytest

from keepstep.core.catalog.row import Verdict
from keepstep.core.combine import judge
from keepstep.core.observation import Observation
from keepstep.core.signal import Context, Signal
from keepstep.evidence.document import Document
from keepstep.evidence.job import READERS
from keepstep.evidence.job.log import READER

DATA = Path(__file__).parents[4] / "shared" / "data"


def read(text: str) -> list[Observation]:
    document = Document("job.out", text.encode())
    assert max(READERS, key=lambda reader: reader.recognise(document)) is READER, "another reader is surer"
    return READER.read(document).observations


def judged(text: str, *more: Observation) -> list[Signal]:
    return [s for s in judge([*read(text), *more], Context()) if s.row.verdict is not Verdict.BENIGN]


def raised(line: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n{line}\n'


LINES = [
    ("[rank3]:[E1 06:24:44 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
     "WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600020 milliseconds before "
     "timing out.", "job.collective_timeout", "rank/3"),
    ("[E ProcessGroupNCCL.cpp:821] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
     "OpType=BROADCAST, Timeout(ms)=1800000) ran for 1805324 milliseconds before timing out.",
     "job.collective_timeout", "rank/5"),
    ("[E ProcessGroupNCCL.cpp:566] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLGATHER, "
     "TensorShape=[4, 4], Timeout(ms)=1800000) ran for 1804123 milliseconds before timing out.", "job.collective_timeout",
     "rank/2"),
    ("[rank2]: torch.distributed.DistBackendError: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
     "OpType=REDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1000) ran for 1020 milliseconds before timing out.",
     "job.collective_timeout", "rank/2"),
    ("[rank1]:[E ProcessGroupNCCL.cpp:1709] [PG 3 Rank 1] Timeout at NCCL work: 9, last enqueued NCCL work: 9, last completed "
     "NCCL work: 8.", "job.collective_progress", "rank/1"),
    ("[E ProcessGroupNCCL.cpp:1282] [PG 0 Rank 4] Heartbeat monitor timed out! Process will be terminated after dumping debug "
     "info. workMetaList_.size()=3", "job.watchdog_stuck", "rank/4"),
    ("RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1047, unhandled system error, NCCL "
     "version 2.8.4", "job.comm.system", "job"),
    ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:957, unhandled cuda error, NCCL version 2.7.8",
     "job.comm.cuda", "job"),
    ("ncclInternalError: Internal check failed.", "job.comm.internal", "job"),
    ("10.0.0.7: n7:11:22 [1] transport/net_ib.cc:1102 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<3210> with error "
     "12, opcode 0, len 32, vendor err 129", "job.peer_unreachable", "link/10.0.0.9"),
    ("n7:11:22 [1] transport/net_ib.cc:1102 NCCL WARN NET/IB : Got completion with error 5, opcode 1, len 0, vendor err 249",
     "job.comm.flushed", "process/11"),
    ("n7:11:22 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", "", ""),
    ("n7:11:22 [1] include/socket.h:423 NCCL WARN Net : Connection closed by remote peer n8<41234>",
     "job.peer_lost", "process/11"),
    ("n7:11:22 [0] NCCL WARN NET/IB : mlx5_2:1 Got async event : port error", "job.nic_event", "nic/mlx5_2/1"),
    ("n7:11:22 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
     "job.comm.verbs",
     "process/11"),
    ("n7:11:22 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found", "job.comm.config", "process/11"),
    ("[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [10.1.2.3]:42: Connection reset by peer", "job.peer_lost",
     "job"),
    ("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
     "operation to complete", "job.collective_timeout", "job"),
    ("E0321 1 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -11) local_rank: 2 (pid: 77) "
     "of binary: p",
     "job.exit.segv", "process/77"),
    ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 5) of binary: /bin/python",
     "job.exit.error", "process/5"),
    ("[2024-01-01 10:00:00,000] [ERROR] [launch.py:321:sigkill_handler] ['/bin/python', 'train.py'] exits with "
     "return code = -9",
     "job.exit.sigkill", "job"),
    ("slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***", "job.preempted", "job"),
    ("slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***",
     "job.time_limit", "job"),
    ("slurmstepd: error: Detected 2 oom_kill events in StepId=8.0. Some of the step tasks have been OOM Killed.",
     "job.oom_killed", ""),
    ("srun: error: Node failure on gpu-22", "job.node_failure", ""),
    ("srun: error: n3: task 5: Bus error (core dumped)", "job.exit.bus", "rank/5"),
    ("mpirun noticed that process rank 3 with PID 99 on node n4 exited on signal 9 (Killed).", "job.exit.sigkill", "rank/3"),
    ("Fatal Python error: Segmentation fault", "job.exit.segv", "job"),
    ("RuntimeError: DataLoader worker (pid 42) is killed by signal: Killed.", "job.error.dataloader_killed", "job"),
    ("[default2]:RuntimeError: CUDA error: device-side assert triggered", "job.error.cuda_assert", "rank/2"),
    ("4: RuntimeError: CUDA error: an illegal memory access was encountered", "job.error.cuda_illegal", "rank/4"),
    ("[1,6]<stderr>:RuntimeError: CUDA error: unspecified launch failure", "job.error.cuda_launch", "rank/6"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "job.error.cuda_ecc", "job"),
    ("RuntimeError: CUDA error: no CUDA-capable device is detected", "job.error.cuda_no_device", "job"),
    ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "job.error.cuda_busy", "job"),
    ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.20 GiB total capacity)", "job.error.cuda_oom",
     "job"),
    ("(Worker pid=12, ip=10.0.0.3) torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1 GiB.", "job.error.cuda_oom",
     "job"),
    ("OSError: [Errno 28] No space left on device", "job.error.no_space", "job"),
    ("[rank0]: OSError: [Errno 116] Stale file handle: '/nfs/x'", "job.error.shared_storage", "rank/0"),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
     "job.error.nan", "job"),
    ("[ERROR] 2024-07-03-19:45:13 (PID:1, Device:3, RankID:11) ERR02200 DIST call hccl api failed.", "job.collective_timeout",
     "rank/11"),
    ("[default0]:[rank12]:[E817 17:40:34 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 12] Process group watchdog thread "
     "terminated with exception: CUDA error: uncorrectable ECC error encountered", "job.error.cuda_ecc", "rank/12"),
    ("E0228 00:35:58.954000 724855 torch/distributed/elastic/multiprocessing/api.py:732] RuntimeError: CUDA error: "
     "CUDA-capable device(s) is/are busy or unavailable", "job.error.cuda_busy", "job"),
    ("Volatile uncorrectable ECC errors: 0", "", ""),
    ("UserWarning: CUDA initialization: No CUDA GPUs are available", "", ""),
    ('{"log":"RuntimeError: CUDA error: device-side assert triggered\\n","stream":"stderr","time":"2025-01-01T00:00:00Z"}',
     "job.error.cuda_assert", "job"),
    ("Killing subprocess 123", "job.launcher_stops", "process/123"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "signal", "part"), LINES, ids=[f"{i}-{row[1]}" for i, row in enumerate(LINES)])
def test_a_line_means(line: str, signal: str, part: str) -> None:
    found = READER.read(Document("x", line.encode())).observations
    assert [(x.signal, x.part) for x in found] == ([(signal, part)] if signal else [])


RAISED = [
    ("UnicodeDecodeError: 'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte", "job.error.data"),
    ("PIL.UnidentifiedImageError: cannot identify image file 'a.jpg'", "job.error.data"),
    ("OSError: image file is truncated (4 bytes not processed)", "job.error.data"),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "job.error.checkpoint"),
    ("RuntimeError: Error(s) in loading state_dict for Model:", "job.error.checkpoint"),
    ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "job.error.dns"),
    ("botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation",
     "job.error.dependency"),
    ("requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://x", "job.error.dependency"),
    ("ConnectionRefusedError: [Errno 111] Connection refused", "job.error.refused"),
    ("BrokenPipeError: [Errno 32] Broken pipe", "job.peer_lost"),
    ("torch.distributed.DistNetworkError: The client socket has timed out after 600s while trying to connect to (m, 29500).",
     "job.rendezvous"),
    ("OSError: [Errno 5] Input/output error", "job.error.io"),
    ("OSError: [Errno 122] Disk quota exceeded", "job.error.quota"),
    ("OSError: [Errno 24] Too many open files: 'x'", "job.error.limits"),
    ("MemoryError", "job.error.host_memory"),
    ("KeyboardInterrupt", "job.interrupted"),
    ("ValueError: shapes do not match", "job.error.application"),
    ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 17 got signal: 15", "job.exit.sigterm"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "signal"), RAISED)
def test_an_exception_means(line: str, signal: str) -> None:
    assert [x.signal for x in read(raised(line))] == [signal]


def timeout(rank: int, seq: int = 8, ran_ms: int = 600_020) -> str:
    return (
        f"[rank{rank}]:[E1 06:24:44 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for {ran_ms} "
        "milliseconds before timing out.\n"
    )


def report(rank: int, code: int, others: str = "") -> str:
    return (
        f"Failures:\n{others or '  <NO_OTHER_FAILURES>'}\n-----\nRoot Cause (first observed failure):\n[0]:\n"
        f"  time      : 2025-05-21_15:43:03\n  host      : node-1\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: 1{rank})\n  error_file: <N/A>\n  traceback : Signal {-code} received by PID 1{rank}\n"
    )


def test_many_reports_of_one_timeout_are_one_hang_and_the_silent_rank_is_suspected() -> None:
    found = judged("".join(timeout(rank) for rank in range(8) if rank != 5))
    hangs = [s for s in found if s.key.startswith("job.hang")]
    assert [s.seen.part for s in hangs] == ["rank/5"]
    assert len(found) == 2, "the first report and the hang"


def test_where_all_that_is_heard_of_reports_nobody_is_named() -> None:
    found = judged("".join(timeout(rank) for rank in range(3)))
    assert [s.key for s in found] == ["job.collective_timeout", "job.hang.unlocated"]
    assert found[1].seen.attributes["reporters"] == "0-2"


def test_numbers_of_several_groups_are_not_compared() -> None:
    """Trap 14."""
    found = judged(timeout(0, 96120) + timeout(0, 96117) + timeout(7, 64088))
    assert [s.key for s in found if s.key.startswith("job.hang")] == ["job.hang.unlocated"]


def test_a_timeout_seven_hours_late_says_that_the_watchdog_was_blocked() -> None:
    """Trap 13."""
    found = judged(timeout(0, ran_ms=25_624_887) + timeout(1, ran_ms=25_624_900))
    assert found[-1].seen.attributes["watchdog_blocked"] == "yes"


def test_the_rank_whose_watchdog_stands_is_suspected() -> None:
    stuck = (
        "[rank5]:[E PG.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 5] ProcessGroupNCCL's watchdog got stuck for "
        "480 seconds\n"
    )
    found = judged(stuck + timeout(0) + timeout(1))
    assert [s.seen.part for s in found if s.key == "job.hang"] == ["rank/5"]


def test_ranks_that_a_desync_report_names_are_suspected() -> None:
    text = (
        timeout(0)
        + " - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        + "   - [1, 3] joined but didn't finish collective #5 (count from 1)\n"
    )
    assert [s.seen.attributes["ranks"] for s in judged(text) if s.key == "job.hang"] == ["1,3"]


def test_an_error_of_one_rank_makes_victims_of_the_others() -> None:
    text = (
        "".join(f"[rank3]: {line}\n" for line in raised("torch.OutOfMemoryError: CUDA out of memory.").splitlines())
        + timeout(0) + timeout(1)
        + "W1 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 11 closing signal SIGTERM\n"
        + report(3, 1)
    )  # fmt: skip
    assert [(s.key, s.seen.part) for s in judged(text)] == [("job.error.cuda_oom", "rank/3")]


def test_a_kill_is_told_once_with_its_node_and_rank() -> None:
    text = "ERROR:torch.distributed.elastic:failed (exitcode: -9) local_rank: 0 (pid: 10) of binary: p\n" + report(
        0, -9
    )
    assert [(s.key, s.seen.node, s.seen.part) for s in judged(text)] == [("job.exit.sigkill", "node-1", "rank/0")]


def test_what_fails_after_the_root_cause_is_a_victim() -> None:
    later = "[1]:\n  time      : x\n  host      : node-2\n  rank      : 9 (local_rank: 1)\n  exitcode  : -6 (pid: 77)\n"
    assert [s.seen.part for s in judged(report(0, -11, later))] == ["rank/0"]


def test_the_end_by_a_time_limit_leaves_no_fault() -> None:
    text = (
        "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2024-02-03T04:05:06 DUE TO TIME LIMIT ***\n"
        + raised("torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15")
        + "srun: error: n1: tasks 0-7: Killed\n"
    )
    assert judged(text) == []


def test_an_error_beside_a_fatal_xid_is_its_echo_and_alone_it_is_software() -> None:
    text = raised("RuntimeError: CUDA error: an illegal memory access was encountered")
    alone = judged(text)
    assert [(s.key, s.row.failure_class) for s in alone] == [("job.error.cuda_illegal", "software.app")]
    fallen = Observation(signal="device.lost", node="n1", part="gpu/0000:9b:00")
    beside = judged(text, Observation(signal="xid.79", node="n1", part="gpu/0000:9b:00"), fallen)
    if any(s.key == "xid.79" and s.row.verdict is Verdict.FAULTY for s in beside):
        assert not any(s.key == "job.error.cuda_illegal" for s in beside)


def test_the_peer_that_most_name_is_the_suspect() -> None:
    line = (
        "{}:1:2 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer {}<1> with status=12 opcode=0 len=0 "
        "vendor err 129\n"
    )
    text = "".join(line.format(f"n{at}", "10.0.0.9") for at in range(4)) + line.format("n9", "10.0.0.1")
    found = {s.seen.part: s.row.verdict for s in judged(text)}
    assert found == {"link/10.0.0.9": Verdict.SUSPECT, "link/10.0.0.1": Verdict.WATCH}


def test_a_kill_on_a_node_whose_kernel_ran_out_of_memory_was_for_that() -> None:
    oom = Observation(signal="host.oom.killed", node="node-1")
    kill = next(s for s in judged(report(0, -9), oom) if s.key == "job.exit.sigkill")
    assert kill.row.confidence > 0.8
    elsewhere = judged(report(0, -9), Observation(signal="host.oom.killed", node="node-2"))
    assert next(s for s in elsewhere if s.key == "job.exit.sigkill").row.confidence < 0.8


def test_a_chain_of_exceptions_is_the_particular_one() -> None:
    text = raised("OSError: [Errno 28] No space left on device: '/c'") + (
        "\nDuring handling of the above exception, another exception occurred:\n\n"
        + raised("RuntimeError: save failed")
    )
    assert [x.signal for x in read(text)] == ["job.error.no_space"]


def test_an_error_that_the_program_survived_is_no_fault() -> None:
    steps = "".join(
        f" iteration {n:8d}/    1000 | consumed samples: {n * 10} | elapsed time per iteration (ms): 15.5 | lm "
        f"loss: 2.1E+00 |\n"
        for n in range(5, 9)
    )
    assert judged(raised("ConnectionError: tracker unavailable") + steps) == []
    assert [s.key for s in judged(steps + raised("ValueError: no"))] == ["job.error.application"]


def test_steps_of_a_healthy_job_say_nothing() -> None:
    hf = "\n".join(
        f"{{'loss': {3 - n / 50:.3f}, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'epoch': {n / 9:.2f}}}"
        for n in range(40)
    )
    assert read(hf) == []


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("train_log/bloom_meg_gpt2_perf_n16.out", []),
        ("train_log/dlrover_training_events_0.log", [("job.data_regression", 2)]),
        (
            "train_log/dlrover_training.log",
            [("job.collective_timeout", 37), ("job.hang.unlocated", 37)],
        ),
    ],
)
def test_the_real_logs_say_what_is_known_of_them(file: str, expected: list[tuple[str, int]]) -> None:
    path = DATA / file
    if not path.exists():
        pytest.skip("no shared data")
    assert [(s.key, s.seen.line) for s in judged(path.read_text(errors="replace"))] == expected


EXCERPTS = {
    "allreduce_timeout_all": ("job.collective_timeout", "job.hang.unlocated"),
    "rank7_behind": ("job.collective_timeout", "job.hang.unlocated"),
    "ib_err12": ("job.peer_unreachable",),
    "ib_err12_old_fmt": ("job.peer_unreachable",),
    "hccl_blocking": ("job.collective_timeout", "job.hang.unlocated"),
}


def test_the_excerpts_of_public_reports_are_classed() -> None:
    path = DATA / "nccl_log" / "github_issue_excerpts.jsonl"
    if not path.exists():
        pytest.skip("no shared data")
    rows = [json.loads(line) for line in path.read_text().splitlines() if line]
    assert {row["id"]: tuple(s.key for s in judged("\n".join(row["lines"]))) for row in rows} == EXCERPTS


def test_the_error_file_of_a_rank_that_its_launcher_ended_names_a_victim() -> None:
    path = DATA / "elastic" / "error_signal15_jeanzay.json"
    if not path.exists():
        pytest.skip("no shared data")
    document = Document("x", path.read_bytes())
    reader = max(READERS, key=lambda r: r.recognise(document))
    found = judge(reader.read(document).observations, Context())
    assert [(s.key, s.row.verdict) for s in found] == [("job.exit.sigterm", Verdict.BENIGN)]


@pytest.mark.parametrize(
    ("value", "signal"),
    [
        ({"message": {"message": "RuntimeError: CUDA out of memory.", "extraInfo": {"py_callstack": "T", "timestamp": "1"}}},
         "job.error.cuda_oom"),
        ({"message": {"message": "ValueError: x", "errorTraits": {}, "extraInfo": {"py_callstack": "a", "timestamp": "9"}}},
         "job.error.application"),
        ({"message": "RuntimeError: NCCL error in: x.cpp:1, unhandled system error", "timestamp": 17}, "job.comm.system"),
    ],
)  # fmt: skip
def test_an_error_file_of_any_version_is_classed(value: object, signal: str) -> None:
    document = Document("attempt_0/3/error.json", json.dumps(value).encode())
    reader = max(READERS, key=lambda r: r.recognise(document))
    assert [(x.signal, x.attributes["local_rank"]) for x in reader.read(document).observations] == [(signal, "3")]
