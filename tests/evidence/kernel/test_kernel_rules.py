"""What company changes: from the lines of a log to the signals after the combination rules."""

from pathlib import Path

import pytest

from keepstep.core.catalog.row import Scope, Verdict
from keepstep.core.combine import judge
from keepstep.core.incident import Cause, Urgency
from keepstep.core.observation import Observation
from keepstep.core.signal import Context, Signal
from keepstep.evidence.document import Document
from keepstep.evidence.kernel.reader import read

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "kernel_log"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the collection of real cases is not here")


def judged(text: str) -> list[Signal]:
    return judge(read(Document("log", text.encode())).observations, Context())


def faults(text: str) -> list[Signal]:
    return [x for x in judged(text) if x.row.verdict in (Verdict.SUSPECT, Verdict.FAULTY)]


def keys(signals: list[Signal]) -> list[str]:
    return [x.key for x in signals]


AER = "[{}] pcieport 0000:00:01.1: AER: PCIe Bus Error: severity={}, type=Data Link Layer, (Receiver ID)\n"


def test_trap_bus_errors_around_a_card_that_fell_off_are_its_echo() -> None:
    text = (
        AER.format("900.1", "Corrected")
        + "[1004.5] NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.\n"
        + "[1005.1] xhci_hcd 0000:09:00.2: Refused to change power state, currently in D3\n"
        + AER.format("1005.3", "Uncorrected (Fatal)")
        + AER.format("3000.0", "Corrected")
    )
    assert keys(faults(text)) == ["xid.79"]
    assert all(x.row.verdict is Verdict.BENIGN for x in judged(text) if x.key.startswith("pcie."))


def test_a_fatal_bus_error_beside_several_lost_cards_is_kept_for_it_may_be_a_switch() -> None:
    lost = "[1004.5] NVRM: Xid (PCI:0000:{}:00): 79, pid=0, GPU has fallen off the bus.\n"
    text = lost.format("09") + lost.format("0a") + AER.format("1005.3", "Uncorrected (Fatal)")
    assert "pcie.aer.fatal" in keys(faults(text))


def test_a_bus_error_alone_is_judged_by_its_severity() -> None:
    assert faults(AER.format("1.0", "Corrected")) == []
    (nonfatal,) = faults(AER.format("1.0", "Uncorrected (Non-Fatal)"))
    assert (nonfatal.row.verdict, nonfatal.row.urgency) == (Verdict.SUSPECT, Urgency.NONE)
    (fatal,) = faults(AER.format("1.0", "Uncorrected (Fatal)"))
    assert (fatal.row.verdict, fatal.row.urgency) == (Verdict.FAULTY, Urgency.NOW)


def test_an_error_that_a_port_announces_and_a_device_describes_is_one() -> None:
    text = (
        "[1.0] pcieport 0000:97:01.0: AER: Uncorrected (Fatal) error received: 0000:9b:00.0\n"
        "[1.1] nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)\n"
    )
    (fault,) = faults(text)
    assert (fault.key, fault.seen.part, fault.row.scope) == ("pcie.aer.fatal.gpu", "gpu/0000:9b:00", Scope.CARD)


def test_a_fatal_error_of_a_port_is_the_one_device_below_it_that_cannot_recover() -> None:
    text = (
        "[9.000] nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)\n"
        "[9.001] snd_hda_intel 0000:03:00.1: AER: can't recover (no error_detected callback)\n"
        "[9.002] pcieport 0000:00:03.0: AER: device recovery failed\n"
        "[9.003] pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0\n"
        "[9.004] pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)\n"
    )
    assert {(x.key, x.seen.part) for x in faults(text)} == {("pcie.recovery_failed.gpu", "gpu/0000:03:00")}


def test_an_address_that_another_line_calls_a_card_is_that_card() -> None:
    text = (
        "[1.0] NVRM: Xid (PCI:0000:9b:00): 43, pid=77, name=python, Ch 00000008\n"
        "[9.0] pcieport 0000:97:01.0: AER: Uncorrected (Fatal) error received: 0000:9b:00.0\n"
    )
    assert ("pcie.aer.fatal.gpu", "gpu/0000:9b:00") in [(x.key, x.seen.part) for x in faults(text)]


@needs_data
def test_trap_six_losses_of_carrier_are_one_flapping_link() -> None:
    seen = read(Document("syslog", (DATA / "azure_1dev_6flap_syslog").read_bytes())).observations
    (fault,) = [x for x in judge(seen, Context()) if x.row.verdict is not Verdict.BENIGN]
    assert (fault.key, fault.seen.part, fault.seen.count) == ("nic.flap", "nic/ib6", 6)
    assert (fault.row.verdict, fault.row.failure_class, fault.row.scope) == (Verdict.FAULTY, "nic.link", Scope.NIC)
    assert fault.row.urgency is Urgency.NEXT_CHECKPOINT


def carrier(name: str, minute: int, state: str) -> str:
    return f"Aug 17 06:{minute:02d}:01 n1 systemd-networkd[53]: {name}: {state} carrier\n"


def test_two_losses_of_carrier_are_ordinary() -> None:
    text = "".join(carrier("ens3", x, state) for x in (1, 9) for state in ("Lost", "Gained"))
    assert faults(text) == []


def test_a_loss_that_driver_and_daemon_both_tell_counts_once() -> None:
    driver = "Aug 17 06:{:02d}:01 n1 kernel: mlx5_core 0000:41:00.0 ens3: Link {}\n"
    text = "".join(
        driver.format(x, "down") + carrier("ens3", x, "Lost") + driver.format(x, "up") + carrier("ens3", x, "Gained")
        for x in (1, 9)
    )
    assert faults(text) == []
    three = text + driver.format(20, "down") + carrier("ens3", 20, "Lost")
    assert [(x.key, x.seen.count) for x in faults(three)] == [("nic.flap", 3)]


def test_losses_of_carrier_that_lie_hours_apart_are_no_flapping() -> None:
    text = "".join(f"Aug {day} 06:00:01 n1 systemd-networkd[5]: ens3: Lost carrier\n" for day in (11, 12, 13, 14))
    assert faults(text) == []


def test_trap_forty_flaps_in_one_minute_over_many_ports_are_one_fault_of_the_fabric() -> None:
    text = "".join(
        carrier(f"ib{port}", 1, state) for _ in range(5) for port in range(8) for state in ("Lost", "Gained")
    )
    (fault,) = faults(text)
    assert (fault.key, fault.row.scope, fault.row.isolate) == ("nic.flap.many", Scope.FABRIC, False)


def test_a_training_port_that_stays_down_is_lost_and_another_is_not_known() -> None:
    (fault,) = faults(carrier("ib3", 1, "Lost") + carrier("eno1", 1, "Lost"))
    assert (fault.key, fault.seen.part, fault.row.urgency) == ("nic.link_lost", "nic/ib3", Urgency.NOW)
    assert faults(carrier("ib3", 1, "Lost") + carrier("ib3", 2, "Gained")) == []


MODERN_OOM = """\
[101.1] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[101.2] CPU: 3 PID: 4242 Comm: python3 Tainted: P OE 5.15.0
[101.3] memory: usage 67108864kB, limit 67108864kB, failcnt 77
[101.4] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/c,task={0},pid=4242,uid=0
[101.5] Memory cgroup out of memory: Killed process 4242 ({0}) total-vm:99kB, anon-rss:98kB, file-rss:0kB
[101.6] oom_reaper: reaped process 4242 ({0}), now anon-rss:0kB
"""  # noqa: E501

LEGACY_OOM = """\
[101.1] python invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=0
[101.3] Task in /docker/abc killed as a result of limit of {0}
[101.5] Killed process 77 (evil-program2) total-vm:1460016kB, anon-rss:1414008kB, file-rss:4kB
"""


def test_one_kill_for_memory_is_one_signal_with_its_group_and_victim() -> None:
    (signal,) = judged(MODERN_OOM.format("postgres"))
    assert (signal.key, signal.seen.part, signal.seen.attributes["cgroup"]) == (
        "host.oom.cgroup",
        "process/4242",
        "/kubepods/pod1",
    )
    assert (signal.row.cause, signal.row.scope, signal.row.verdict) == (Cause.APPLICATION, Scope.JOB, Verdict.SUSPECT)


def test_a_trainer_that_its_group_killed_is_the_applications_fault() -> None:
    (signal,) = judged(MODERN_OOM.format("python3"))
    assert (signal.row.cause, signal.row.verdict, signal.row.isolate) == (Cause.APPLICATION, Verdict.FAULTY, False)


@pytest.mark.parametrize(("limit", "key"), [("/docker/abc", "host.oom.cgroup"), ("/", "host.oom.global")])
def test_an_older_kernel_names_the_group_on_its_own_line(limit: str, key: str) -> None:
    assert keys(judged(LEGACY_OOM.format(limit))) == [key]


def test_two_kills_are_two_signals() -> None:
    text = LEGACY_OOM.format("/") + LEGACY_OOM.format("/docker/x").replace("101.", "901.").replace(" 77 ", " 78 ")
    assert keys(judged(text)) == ["host.oom.global", "host.oom.cgroup"]


def test_a_search_for_a_victim_without_a_kill_is_no_fault() -> None:
    assert faults("[1.0] postgres invoked oom-killer: gfp_mask=0x280da, order=0, oom_score_adj=0\n") == []


def test_a_rank_that_ended_with_the_killed_process_makes_it_urgent() -> None:
    seen = read(Document("log", MODERN_OOM.format("postgres").encode())).observations
    end = Observation(signal="rank.ended", part="rank/3", attributes={"pid": "4242"})
    kill = next(x for x in judge([*seen, end], Context()) if x.key == "host.oom.cgroup")
    assert (kill.row.verdict, kill.row.urgency) == (Verdict.FAULTY, Urgency.NOW)


HUNG = """\
[5001.1] INFO: task pt_main_thread:77 blocked for more than 120 seconds.
[5001.2]       Tainted: P           OE     5.15.0-1053-nvidia
[5001.3] task:pt_main_thread  state:D stack:    0 pid:   77 ppid:     1 flags:0x00004002
[5001.4] Call Trace:
[5001.5]  <TASK>
[5001.6]  __schedule+0x24e/0x590
[5001.7]  {0}
[5001.8]  vfs_read+0x9f/0x1a0
"""


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        ("nfs_wait_bit_killable+0x1e/0x70 [nfs]", "nfs"), ("rpc_wait_bit_killable+0x1e/0xb0 [sunrpc]", "nfs"),
        ("cl_sync_io_wait+0x21/0x300 [obdclass]", "lustre"), ("request_wait_answer+0x11/0x200 [fuse]", "fuse"),
        ("ceph_mdsc_do_request+0x1/0x2 [ceph]", "ceph"), ("kxWaitCommon+0x1/0x2 [mmfslinux]", "gpfs"),
    ],
)  # fmt: skip
def test_a_hung_task_in_a_network_file_system_is_the_servers(frame: str, name: str) -> None:
    hung = next(x for x in judged(HUNG.format(frame)) if x.key == "host.hung_task")
    assert (hung.row.scope, hung.row.failure_class) == (Scope.DEPENDENCY, "storage.shared")
    assert hung.because == (f"waits for {name}",)


def test_a_silent_server_and_the_tasks_that_wait_for_it_are_one_dependency() -> None:
    text = "[5000.0] nfs: server 10.0.0.1 not responding, still trying\n" + HUNG.format(
        "nfs_wait_bit_killable+0x1e/0x70 [nfs]"
    )
    assert {x.seen.part for x in judged(text)} == {"dependency/nfs:10.0.0.1"}


def test_a_hung_task_elsewhere_is_watched() -> None:
    hung = next(x for x in judged(HUNG.format("io_schedule+0x46/0x80")) if x.key == "host.hung_task")
    assert (hung.row.scope, hung.row.verdict) == (Scope.NODE, Verdict.WATCH)


def test_a_file_server_that_answers_again_is_over() -> None:
    lost, ok = "[{}] nfs: server 10.0.0.1 not responding, still trying\n", "[{}] nfs: server 10.0.0.1 OK\n"
    assert faults(lost.format(1) + ok.format(90)) == []
    assert keys(faults(lost.format(1) + ok.format(90) + lost.format(900))) == ["mount.nfs.not_responding"]
    assert keys(faults(lost.format(1) + "[90] nfs: server 10.0.0.2 OK\n")) == ["mount.nfs.not_responding"]


def test_a_lock_up_that_repeats_is_the_nodes_and_one_alone_is_a_suspicion() -> None:
    line = "[{}] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:77]\n"
    (one,) = faults(line.format(1000))
    assert (one.row.verdict, one.row.urgency) == (Verdict.SUSPECT, Urgency.NEXT_CHECKPOINT)
    (many,) = faults(line.format(1000) + line.format(1028))
    assert (many.row.verdict, many.row.isolate) == (Verdict.FAULTY, True)


def test_a_lock_up_whose_stack_stands_in_the_adapters_driver_is_the_adapters() -> None:
    text = (
        "[100.1] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [ksoftirqd/3:29]\n"
        "[100.2] RIP: 0010:mlx5e_poll_ico_cq+0x21/0x700 [mlx5_core]\n[100.3]  mlx5e_napi_poll+0x12a/0x700 [mlx5_core]\n"
    )
    (fault,) = faults(text)
    assert (fault.key, fault.row.failure_class, fault.row.urgency) == ("nic.driver_lockup", "nic.driver", Urgency.NOW)


def test_many_drives_at_once_are_their_controller() -> None:
    line = "[{}] nvme nvme{}: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff\n"
    (fault,) = faults("".join(line.format(100 + x, x) for x in range(4)))
    assert (fault.key, fault.row.scope) == ("disk.controller_fault", Scope.NODE)
    assert len(faults("".join(line.format(100 + 1000 * x, x) for x in range(4)))) == 4


def test_a_service_that_came_back_is_over_and_one_that_did_not_is_suspect() -> None:
    down = "Aug  1 10:00:00 n1 systemd[1]: kubelet.service: Failed with result 'exit-code'.\n"
    up = "Aug  1 10:00:10 n1 systemd[1]: Started kubelet: The Kubernetes Node Agent.\n"
    assert faults(down + up) == []
    assert keys(faults(down)) == ["host.service.kubelet"]


def test_what_a_shutdown_stops_is_no_fault() -> None:
    text = (
        "Aug  1 10:00:00 n1 systemd-logind[9]: System is rebooting.\n"
        "Aug  1 10:00:05 n1 systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.\n"
        "Aug  1 10:00:06 n1 systemd-networkd[5]: ib3: Lost carrier\n"
    )
    assert faults(text) == []


def test_a_firmware_record_is_of_the_part_that_its_section_names() -> None:
    text = (
        "[1.0] {1}[Hardware Error]: event severity: fatal\n[1.0] {1}[Hardware Error]:  Error 0, type: fatal\n"
        "[1.0] {1}[Hardware Error]:   section_type: memory error\n"
    )
    (fault,) = faults(text)
    assert fault.row.failure_class == "dram.host"
    text = text.replace("memory error", "PCIe error") + "[1.0] {1}[Hardware Error]:   device_id: 0000:5e:00.0\n"
    (fault,) = faults(text)
    assert (fault.row.failure_class, fault.seen.part) == ("gpu.pcie", "pci/0000:5e:00.0")


def test_a_reboot_parts_what_lies_before_and_after_it() -> None:
    text = (
        "[9000.0] NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.\n[0.0] Linux version 5.15.0\n"
        + AER.format("9.0", "Uncorrected (Fatal)")
    )
    assert "pcie.aer.fatal" in keys(faults(text))


def test_a_log_of_many_different_signals_stays_cheap() -> None:
    lines = [f"[{x}.1] Killed process {x} (a{x}) total-vm:1kB" for x in range(4000)]
    lines += [f"[{x}.2] nvme nvme{x}: controller is down; will reset: CSTS=0xffffffff" for x in range(4000)]
    lines += [f"[{x}.3] nfs: server s{x} not responding, still trying" for x in range(4000)]
    assert len(judged("\n".join(lines))) >= 10_000
