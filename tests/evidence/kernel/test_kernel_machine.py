"""The machine in kernel logs: machine checks, memory, crashes, lock-ups, limits, services, driver modules."""

from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Scope, Verdict
from keepstep.core.incident import Urgency
from keepstep.evidence.document import Document
from keepstep.evidence.kernel.reader import read

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "kernel_log"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the collection of real cases is not here")

HARDWARE = [
    ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: cc00008000010091", "host.mce.corrected", "cpu/12"),
    ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bd80000000100134", "host.mce.uncorrected", "cpu/12"),
    ("mce: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 5: be00000000800400", "host.mce.fatal", "cpu/0"),
    ("mce: [Hardware Error]: Machine check events logged", "host.mce.corrected", ""),
    ("STATUS fa00000000400405 MCGSTATUS 0", "host.mce.fatal", ""),
    ("Aug  1 10:00:00 n1 mcelog[9]: STATUS 8c00004000010090 MCGSTATUS 0", "host.mce.corrected", ""),
    ("[Hardware Error]: Corrected error, no action required.", "host.mce.corrected", ""),
    ("[Hardware Error]: Deferred error, no action required.", "host.mce.uncorrected", ""),
    ("[Hardware Error]: System Fatal error.", "host.mce.fatal", ""),
    ("{1}[Hardware Error]: event severity: fatal", "host.cper.fatal", ""),
    ("{2}[Hardware Error]: event severity: recoverable", "host.cper.recoverable", ""),
    ("{3}[Hardware Error]: event severity: corrected", "host.cper.corrected", ""),
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1 offset:0x0 grain:32)",
     "host.memory.corrected", "dimm/CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
    ("EDAC MC1: 2 UE memory scrubbing error on DIMM_A1 (channel:0 slot:0)", "host.memory.uncorrected", "dimm/DIMM_A1"),
    ('EDAC MC0: CE page 0x283, offset 0xce0, grain 8, syndrome 0x6ec3, row 0, channel 1, label "DIMM_B1": i82875p CE',
     "host.memory.corrected", "dimm/DIMM_B1"),
    ("Aug  1 10:00:00 n1 rasdaemon[9]: mc_event: 2025-08-01 10:00:00 +0000 "
     "1 Uncorrected error: memory read error on DIMM_A1 (mc: 0)",
     "host.memory.uncorrected", "dimm/DIMM_A1"),
    ("Memory failure: 0x12a4c5: recovery action for dirty LRU page: Recovered", "host.memory.uncorrected", ""),
    ("MCE 0x12a4c5: Killing python3:4242 due to hardware memory corruption fault at 7f0000000000",
     "host.memory.uncorrected", ""),
    ("mce: CPU12: Package temperature above threshold, cpu clock throttled (total events = 1)", "host.cpu.hot", "cpu/12"),
    ("thermal thermal_zone0: critical temperature reached (105 C), shutting down", "host.thermal.critical", ""),
    ("Uhhuh. NMI received for unknown reason 2c on CPU 0.", "host.nmi.unknown", ""),
]  # fmt: skip

KERNEL = [
    ("Kernel panic - not syncing: hung_task: blocked tasks", "host.panic", ""),
    ("Kernel Panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)", "host.panic", ""),
    ("Kernel panic - not syncing: Out of memory: system-wide panic_on_oom is enabled", "host.oom.panic", ""),
    ("BUG: unable to handle kernel NULL pointer dereference at           (null)", "host.oops", ""),
    ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "host.oops", ""),
    ("BUG: unable to handle page fault for address: ffffb5c0c0000000", "host.oops", ""),
    ("kernel BUG at fs/ext4/inode.c:2721!", "host.oops", ""),
    ("Oops: 0002 [#1] SMP", "host.oops", ""),
    ("Internal error: Oops: 96000004 [#1] SMP", "host.oops", ""),
    ("general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] SMP NOPTI", "host.oops", ""),
    ("watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [cuda-EvtHandlr:2255424]", "host.soft_lockup", ""),
    ("NMI watchdog: BUG: soft lockup - CPU#5 stuck for 22s! [kworker/5:1:77]", "host.soft_lockup", ""),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", "host.hard_lockup", ""),
    ("INFO: task kworker/u8:3:123 blocked for more than 120 seconds.", "host.hung_task", ""),
    ("INFO: task pt_main_thread:77 blocked for more than 241 seconds.", "host.hung_task", ""),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "host.rcu_stall", ""),
    ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "host.rcu_stall", ""),
    ("INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 3-... }", "host.rcu_stall", ""),
    ("clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too large:",
     "host.clock_unstable", ""),
    ("BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 34s!", "host.workqueue_lockup", ""),
    ("unregister_netdevice: waiting for eth0 to become free. Usage count = 1", "host.netdev_stuck", ""),
    ("irq 16: nobody cared (try booting with the \"irqpoll\" option)", "host.irq_lost", ""),
    ("python3: page allocation failure: order:5, mode:0x40cc0(GFP_KERNEL|__GFP_COMP)", "host.page_allocation", ""),
    ("INFO: task python3:77 blocked in I/O wait for more than 122 seconds.", "host.hung_task", ""),
    ("SError Interrupt on CPU12, code 0x00000000be000011 -- SError", "host.mce.fatal", "cpu/12"),
    ("Aug  1 10:00:00 n1 systemd-shutdown[1]: Rebooting.", "host.shutdown", ""),
    ("VFS: file-max limit 1000000 reached", "host.limit.files", ""),
    ("nf_conntrack: nf_conntrack: table full, dropping packet", "host.limit.conntrack", ""),
    ("neighbour: arp_cache: neighbor table overflow!", "host.limit.neighbours", ""),
    ("cgroup: fork rejected by pids controller in /kubepods/pod1", "host.limit.pids", ""),
    ("reboot: Restarting system", "host.shutdown", ""),
]  # fmt: skip

PROGRAMS = [
    ("pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in "
     "libnccl.so.2[7f7c+d3]",
     "host.segfault.nccl", "process/2536443"),
    ("python[77]: segfault at 0 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libcuda.so.550.54[7f7c+d3]",
     "host.segfault.library", "process/77"),
    ("python3.11[77]: segfault at 0 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 likely on CPU 3 (core 1, socket 0)",
     "host.segfault", "process/77"),
    ("traps: python3[1234] general protection fault ip:7f1 sp:7f2 error:0 in libtorch_cuda.so[7f3+5]",
     "host.segfault", "process/1234"),
    ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/kubepods/pod1,"
     "task_memcg=/kubepods/pod1/c1,task=python3,pid=863987,uid=0", "host.oom.cgroup", "process/863987"),
    ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/user.slice,"
     "task=my tool,pid=1001,uid=0", "host.oom.global", "process/1001"),
    ("Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB",
     "host.oom.cgroup", "process/4242"),
    ("Out of memory: Killed process 4242 (Plex Media Server) total-vm:1kB", "host.oom.global", "process/4242"),
    ("Killed process 4242, UID 500, (ntpd) total-vm:1kB, anon-rss:1kB", "host.oom.killed", "process/4242"),
    ("Killed process 4242 (java), UID 1000, total-vm:1kB, anon-rss:1kB", "host.oom.killed", "process/4242"),
    ("Memory cgroup out of memory: Kill process 4242 (a b) score 1001 or sacrifice child", "host.oom.cgroup", "process/4242"),
    ("Aug  1 10:00:00 n1 systemd-coredump[9]: Process 77 (python3) of user 0 dumped core.", "host.segfault", "process/77"),
    ("Killed process 4242 (python3.4) total-vm:1kB, anon-rss:1kB", "host.oom.killed", "process/4242"),
    ("python3 invoked oom-killer: gfp_mask=0x280da, order=0, oom_score_adj=0", "host.oom.note", ""),
]  # fmt: skip

MODULES = [
    ("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
     "driver.peermem.context", ""),
    ("NVRM: API mismatch: the client has the version 535.129.03, but", "driver.version_mismatch", ""),
    ("nvidia: version magic '5.15.0-91-generic SMP mod_unload ' should be '5.15.0-94-generic SMP mod_unload '",
     "driver.version_mismatch", ""),
    ("nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client", "driver.version_mismatch", ""),
    ("NVRM: The NVIDIA GPU 0000:9b:00.0 (PCI ID: 10de:2330)\nNVRM: installed in this system is not supported by the\n",
     "driver.version_mismatch", ""),
    ("NVRM: None of the NVIDIA devices were initialized.", "driver.load_failed", ""),
    ("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", "amdgpu.reset", "gpu/0000:c1:00"),
    ("amdgpu 0000:c1:00.0: amdgpu: GPU reset end with ret = -110", "amdgpu.reset_failed", "gpu/0000:c1:00"),
    ("amdgpu 0000:c1:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block",
     "amdgpu.memory.uncorrectable", "gpu/0000:c1:00"),
    ("amdgpu 0000:c1:00.0: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=1, emitted seq=3",
     "amdgpu.ring_timeout", "gpu/0000:c1:00"),
]  # fmt: skip

SERVICES = [
    ("Aug  1 10:00:00 n1 systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
     "host.service.fabric_manager", "service/fabric_manager"),
    ("Aug  1 10:00:00 n1 systemd[1]: Failed to start NVIDIA fabric manager service.",
     "host.service.fabric_manager", "service/fabric_manager"),
    ("Aug  1 10:00:00 n1 systemd[1]: slurmd.service: Main process exited, code=exited, status=1/FAILURE",
     "host.service.slurm", "service/slurm"),
    ("Aug  1 10:00:00 n1 systemd[1]: Started Kubernetes Kubelet.", "host.service.up", "service/kubelet"),
]  # fmt: skip

QUIET = [
    "mce: CPU supports 32 MCE banks",
    "MCE: In-kernel MCE decoding enabled.",
    "Intel machine check reporting enabled on CPU#0.",
    "EDAC MC0: Giving out device to module amd64_edac controller F19h_M10h: DEV 0000:00:18.3 (INTERRUPT)",
    "EDAC amd64: MC: 0: 16384MB 1: 16384MB",
    "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.",
    "CPU0: Thermal monitoring enabled (TM1)",
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
    "rcu: RCU calculated value of scheduler-enlistment delay is 25 jiffies.",
    "clocksource: Switched to clocksource tsc",
    "INFO: task running normally",
    "INFO: task xyz blocked for more than 60 seconds.",
    "VFS: file-max limit reached",
    "Killed process invalid (test)",
    "oom_reaper: reaped process 4242 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "nvidia-nvswitch3: SMBPBI server is online!",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "Aug  1 10:00:00 n1 systemd[1]: logrotate.service: Failed with result 'exit-code'.",
    "Aug  1 10:00:00 n1 systemd[1]: docker.service: Main process exited, code=exited, status=0/SUCCESS",
]


def found(text: str) -> list[tuple[str, str]]:
    return [(seen.signal, seen.part) for seen in read(Document("log", text.encode())).observations]


@pytest.mark.parametrize(("line", "signal", "part"), [*HARDWARE, *KERNEL, *PROGRAMS, *MODULES, *SERVICES])
def test_a_line_about_the_machine_is_read(line: str, signal: str, part: str) -> None:
    assert found(line) == [(signal, part)]


@pytest.mark.parametrize("line", QUIET)
def test_an_ordinary_line_about_the_machine_says_nothing(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(("line", "signal", "part"), PROGRAMS)
def test_a_program_that_dies_isolates_nothing(line: str, signal: str, part: str) -> None:
    row = CATALOG.row(signal)
    assert row.scope is Scope.JOB
    assert not row.isolate


@needs_data
@pytest.mark.parametrize("name", ["gpud_pstore_dmesg-erst.txt", "gpud_pstore_dmesg.txt"])
def test_a_crash_that_the_firmware_kept_is_the_nodes(name: str) -> None:
    rows = [CATALOG.row(x.signal) for x in read(Document(name, (DATA / name).read_bytes())).observations]
    faults = [row for row in rows if row.verdict is not Verdict.BENIGN]
    assert {(x.failure_class, x.scope, x.verdict, x.urgency) for x in faults} == {
        ("os.kernel", Scope.NODE, Verdict.FAULTY, Urgency.NOW)
    }


@needs_data
def test_a_crash_inside_the_collective_library_is_software() -> None:
    name = "gpud_nccl_segfault.log"
    seen = read(Document(name, (DATA / name).read_bytes())).observations
    assert [(x.signal, x.count) for x in seen] == [("host.segfault.nccl", 2)]
    assert CATALOG.row("host.segfault.nccl").failure_class == "software.nccl"


@needs_data
def test_an_invalid_context_of_peer_memory_is_a_warning_only() -> None:
    name = "gpud_kmsg.2.peermem.log"
    seen = read(Document(name, (DATA / name).read_bytes())).observations
    assert [(x.signal, x.count) for x in seen] == [("driver.peermem.context", 7)]
    assert CATALOG.row("driver.peermem.context").verdict is Verdict.WATCH
