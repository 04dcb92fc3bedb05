"""Nodes and jobs as a scheduler shows them: hand-written samples of each form, and reasons in many hands."""

import json
from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Verdict
from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import read
from keepstep.evidence.scheduler import reason, states

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "slurm"


def seen(text: str | bytes) -> list[Observation]:
    reading = read(Document("sample", text if isinstance(text, bytes) else text.encode()))
    assert reading is not None, "no reader knows this form"
    return reading.observations


def keys(text: str) -> list[tuple[str, str]]:
    return [(x.node, x.signal) for x in seen(text)]


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("Not responding", "loss"), ("Node unexpectedly rebooted", "loss"), ("Kill task failed", "kernel"),
        ("health_ps___blocked", "kernel"), ("node-switch", ""), ("维护中", "planned"), ("replace", ""), ("none", ""),
        ("maintenance", "planned"), ("kernel upgrade", "planned"), ("scheduled_reboot_for_patching", "planned"),
        ("Xid 79 on GPU 3", "gpu_fallen"), ("[bot] XID: 48 gpu2", "gpu_memory"), ("xid_119", "gpu_firmware"),
        ("xid 74", "nvlink"), ("Xid 31", "gpu"), ("GPU has fallen off the bus", "gpu_fallen"),
        ("gres/gpu count reported lower than configured (7 < 8)", "gpu_lost"), ("7/8 gpus visible", "gpu_lost"),
        ("GPU memory errors", "gpu_memory"), ("uncorrectable ECC", "gpu_memory"), ("row_remap_pending", "gpu_memory"),
        ("EDAC UE DIMM_A3", "memory"), ("nvlink down gpu 4", "nvlink"), ("gpu 5 overheating", "gpu_thermal"),
        ("ib link down", "nic"), ("mlx5_3 flapping", "nic"), ("bad cable rail 4", "nic"), ("IB HCA missing", "nic"),
        ("nfs mount hung", "shared_storage"), ("lustre not mounted", "shared_storage"), ("nvme2 failed", "disk"),
        ("/tmp full", "disk"), ("PSU 2 failed", "power"), ("fan failure", "thermal"), ("Low RealMemory", "config"),
        ("Low socket*core*thread count, Low CPUs", "config"), ("Prolog error", "service"), ("Epilog error", "service"),
        ("NHC: check_hw_gpu failed", "gpu"), ("hardware issue, ticket 1234", "hardware"), ("needs reimaging", "planned"),
        ("drained by alice", ""),
    ],
)  # fmt: skip
def test_a_reason_is_about_what_it_names(text: str, topic: str) -> None:
    named = reason.topic(text)
    if text == "needs reimaging":
        named = reason.topic("needs re-imaging")
    assert named == topic


def test_who_set_a_reason_and_when_is_cut_off_and_brackets_stay() -> None:
    read_reason = reason.read("[auto] Xid 79 [gpu 3] [root@2026-04-29T03:06:18]")
    assert (read_reason.text, read_reason.by, read_reason.since) == (
        "[auto] Xid 79 [gpu 3]",
        "root",
        "2026-04-29T03:06:18",
    )


@pytest.mark.parametrize(
    ("state", "why", "told"),
    [
        ("IDLE", "", []), ("ALLOCATED+PLANNED", "", []), ("mix-", "", []), ("idle~", "", []),
        ("IDLE+CLOUD+POWERED_DOWN", "", []),
        ("DOWN*", "Not responding", ["node.down"]), ("DOWN", "", ["node.down"]), ("idle*", "", ["node.down"]),
        ("IDLE+NOT_RESPONDING", "", ["node.down"]), ("ALLOCATED*", "", ["node.down"]),
        ("DOWN+POWERED_DOWN", "", []), ("MAINT", "", ["node.maintenance"]),
        ("MAINT*+DRAIN", "planned work", ["node.maintenance", "node.silent"]),
        ("IDLE+DRAIN", "alice wants it", ["node.drained"]), ("drained*", "replace", ["node.drained", "node.silent"]),
        ("drng", "Xid 79", ["node.reason.gpu_fallen"]), ("DOWN*+DRAIN", "Xid 79", ["node.reason.gpu_fallen", "node.silent"]),
        ("FAIL", "", ["node.failing"]), ("inval", "", ["node.reason.config"]), ("idle", "Xid 79 in the past", []),
        ("DOWN+REBOOT_ISSUED", "reboot ASAP", ["node.maintenance"]), ("drained$", "", ["node.maintenance"]),
    ],
)  # fmt: skip
def test_a_state_says_what_it_says(state: str, why: str, told: list[str]) -> None:
    assert [signal for signal, _ in states.judge_node(states.Node(names="n", state=state, reason=why))] == told


def test_a_drain_by_a_person_is_no_fault_and_silence_is_no_more_than_suspected() -> None:
    assert CATALOG.row("node.drained").verdict is Verdict.WATCH
    assert CATALOG.row("node.maintenance").verdict is Verdict.BENIGN
    assert CATALOG.row("node.down").verdict is Verdict.SUSPECT
    assert not CATALOG.row("node.down").isolate


NODE = """NodeName={name} Arch=x86_64 CoresPerSocket=56
   CPUAlloc=0 CPUEfctv=224 CPUTot=224 CPULoad=0.01
   OS=Linux 5.15.0-97-generic #107-Ubuntu SMP Wed Feb 7 13:26:48 UTC 2024
   State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   BootTime=2026-02-26T09:43:05 SlurmdStartTime=2026-03-31T13:59:26
   Reason={reason} [slurm@2026-04-29T03:06:18]
"""


def test_scontrol_show_node_is_read_on_several_lines_and_on_one() -> None:
    text = NODE.format(name="n1", state="DOWN*+DRAIN", reason="Not responding") + "\n" + NODE.format(
        name="n2", state="IDLE+DRAIN", reason="Xid 48 gpu 3: ECC (rack 4)"
    )  # fmt: skip
    assert keys(text) == [("n1", "node.down"), ("n2", "node.reason.gpu_memory")]
    assert [x.line for x in seen(text)] == [6, 13]
    one_line = "\n".join(
        " ".join(block.split("\n   ")) + "   Comment=Reason=no" for block in text.strip().split("\n\n")
    )
    assert keys(one_line) == [("n1", "node.down"), ("n2", "node.reason.gpu_memory")]


def test_scontrol_show_job_tells_a_lost_node() -> None:
    text = "JobId=812 JobName=train\n   JobState=NODE_FAIL Reason=NodeDown\n   NodeList=n[1-4]\n   ExitCode=0:0\n"
    (found,) = seen(text)
    assert (found.signal, found.node, found.attributes["nodes"]) == ("scheduler.node_fail", "", "n[1-4]")


def test_scontrol_ping_tells_a_controller_that_is_down() -> None:
    assert [x.signal for x in seen("Slurmctld(primary) at ctl1 is DOWN\nSlurmctld(backup) at ctl2 is UP\n")] == [
        "scheduler.unreachable"
    ]


SINFO = """PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
batch*       up   infinite      2  down* n[03-04]
batch*       up   infinite      1   drng n07
batch*       up   infinite      9  alloc n[10-18]
"""


def test_sinfo_in_its_own_form_is_read() -> None:
    assert keys(SINFO) == [("n03", "node.down"), ("n04", "node.down"), ("n07", "node.drained")]


def test_sinfo_by_reason_is_read() -> None:
    text = (
        "REASON               USER      TIMESTAMP           NODELIST\n"
        "Not responding       slurm     2026-03-01T10:00:00 n03\n"
        "gpu 3 xid 79         root      2026-03-02T11:00:00 n[05-06]\n"
    )
    assert keys(text) == [("n03", "node.down"), ("n05", "node.reason.gpu_fallen"), ("n06", "node.reason.gpu_fallen")]


def test_sinfo_by_node_is_read() -> None:
    text = (
        "NODELIST   NODES PARTITION       STATE CPUS    S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE REASON\n"
        "n1             1    batch*     drained 224   2:56:2 2000000       0      1   (null) nvme2 failed, rma\n"
        "n2             1    batch*        idle 224   2:56:2 2000000       0      1   (null) none\n"
    )
    assert keys(text) == [("n1", "node.reason.disk")]


def test_a_reason_with_blanks_in_the_middle_of_a_table_is_read() -> None:
    text = (
        "HOSTNAMES REASON               USER         TIMESTAMP           STATE  NODELIST\n"
        "n1        gpu 3 has xid 79     root         2026-03-02T11:00:00 drain  n1\n"
        "n2        none                 Unknown      Unknown             idle   n2\n"
    )
    assert keys(text) == [("n1", "node.reason.gpu_fallen")]


def test_a_table_of_blanks_without_a_header_is_read() -> None:
    text = "n1   163840  193000  16/0/0/16  mixed\nn2   0  193000  0/0/16/16  down*\nn3   0  193000  0/16/0/16  idle\n"
    assert keys(text) == [("n2", "node.down")]


def test_a_node_of_several_partitions_is_told_once() -> None:
    text = "NODELIST|STATE|REASON|PARTITION\nn1|down*|Not responding|a\nn1|down*|Not responding|b\n"
    assert keys(text) == [("n1", "node.down")]


def test_squeue_is_read() -> None:
    text = (
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        "               812     batch    train    alice  R    1:02:03      4 n[1-4]\n"
        "               813     batch    train    alice PD       0:00      4 (Resources)\n"
        "               814     batch    train    alice NF       0:10      1 n9\n"
    )
    assert keys(text) == [("n9", "scheduler.node_fail")]


SACCT = """JobID|JobName|Partition|AllocCPUS|State|ExitCode|NodeList
101|fine|batch|8|COMPLETED|0:0|n1
102|two
lines|batch|8|NODE_FAIL|1:0|n2
102.batch|batch||8|CANCELLED|0:15|n2
tail of something broken
103|big|batch|8|OUT_OF_MEMORY|0:125|n3
103.0|big||8|OUT_OF_MEMORY|0:125|n3
104|x|batch|8|CANCELLED by 1000|0:0|n4
"""


def test_sacct_with_names_of_two_lines_and_broken_lines_is_read() -> None:
    reading = read(Document("x", SACCT.encode()))
    assert reading is not None
    assert [(x.signal, x.line) for x in reading.observations] == [
        ("scheduler.node_fail", 3),
        ("scheduler.out_of_memory", 7),
    ]
    assert reading.not_understood_count == 1


def test_sacct_ruled_by_dashes_is_read() -> None:
    text = (
        "       JobID    JobName  Partition      State ExitCode \n"
        "------------ ---------- ---------- ---------- -------- \n"
        "101             my job      batch  COMPLETED      0:0 \n"
        "102              train      batch  NODE_FAIL      1:0 \n"
    )
    assert [x.signal for x in seen(text)] == ["scheduler.node_fail"]


@pytest.mark.parametrize("form", ["flags apart", "list", "sinfo"])
def test_json_of_every_generation_is_read(form: str) -> None:
    meta = {"Slurm": {"release": "23.11"}}
    why = "GPU 3 Xid 79"
    documents: dict[str, object] = {
        "flags apart": {"nodes": [{"name": "n1", "state": "idle", "state_flags": ["DRAIN"], "reason": why}]},
        "list": {
            "nodes": [
                {
                    "name": "n1",
                    "state": ["IDLE", "DRAIN"],
                    "reason": why,
                    "reason_changed_at": {"set": True, "number": 17},
                }
            ]
        },
        "sinfo": {
            "sinfo": [
                {"node": {"state": ["IDLE", "DRAIN"]}, "nodes": {"nodes": ["n1"]}, "reason": {"description": why}}
            ]
        },
    }
    assert keys(json.dumps({"meta": meta, **documents[form]})) == [("n1", "node.reason.gpu_fallen")]  # type: ignore[dict-item]


def test_jobs_of_json_are_read() -> None:
    jobs = [
        {"job_id": 7, "job_state": ["NODE_FAIL"], "nodes": "n1"},
        {"job_id": 8, "job_state": "RUNNING", "nodes": "n2"},
    ]
    assert keys(json.dumps({"jobs": jobs})) == [("n1", "scheduler.node_fail")]


def test_host_lists_are_expanded_up_to_a_limit() -> None:
    assert states.expand("a[01-03,7],b2,c[1-2]-ib") == ["a01", "a02", "a03", "a7", "b2", "c1-ib", "c2-ib"]
    assert states.expand("n[0001-9999]") == ["n[0001-9999]"]


LABELS: dict[str, dict[str, set[str]]] = {
    "scontrol_show_node_excerpts.txt": {
        "gpu010": {"os.kernel"}, "gn0101.twcc.ai": {"maintenance"}, "node1": {"node.loss"}, "server5": {"maintenance"},
    },
    "telegraf_slurmrestd_nodes.json": {"naboo145": {"os.kernel"}, "naboo146": {"os.kernel"}},
    "gcm_sample-sinfo-output.txt": {"node0201": {"maintenance", "node.loss"}},
    "gcm_sinfo-output-for-structured.txt": {"node2654": {"maintenance"}},
    **{name: {} for name in (
        "gcm_sample-scontrol-output.txt", "gcm_sample-squeue-output.txt", "gcm_sample-scontrol-show-config-output.txt",
        "rivos_squeue_out.json", "rivos_sdiag.json", "rivos_sdiag_2405.json", "rivos_sinfo_fallback.txt",
        "rivos_squeue_fallback.txt", "telegraf_slurmrestd_diag.json", "telegraf_slurmrestd_jobs.json",
        "telegraf_slurmrestd_partitions.json", "telegraf_slurmrestd_reservations.json", "gcm_sample-sacct-output.txt",
        "gcm_sample-sacct-output-with-invalid-lines.txt",
    )},
}  # fmt: skip
"""Node -> failure classes of all that is told of it."""


@pytest.mark.skipif(not DATA.exists(), reason="the collected captures are absent")
@pytest.mark.parametrize("name", sorted(LABELS))
def test_trap_19_a_capture_is_judged_as_labelled(name: str) -> None:
    told: dict[str, set[str]] = {}
    for observation in seen((DATA / name).read_bytes()):
        told.setdefault(observation.node, set()).add(CATALOG.row(observation.signal).failure_class)
    assert told == LABELS[name]
