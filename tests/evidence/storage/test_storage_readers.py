"""Drives, arrays and file systems as tools print them: hand-written samples of each form."""

import json
from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Scope, Verdict
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import read

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "smart"


def keys(text: str | bytes) -> list[tuple[str, str]]:
    reading = read(Document("sample", text if isinstance(text, bytes) else text.encode()))
    assert reading is not None, "no reader knows this form"
    seen = [(x.signal, x.part) for x in reading.observations]
    return [(key, part) for key, part in seen if CATALOG.row(key).verdict is not Verdict.BENIGN]


def nvme(name: str = "nvme0", exit_status: int = 0, passed: bool | None = True, **log: int) -> dict[str, object]:
    health = {
        "critical_warning": 0, "temperature": 40, "available_spare": 100, "available_spare_threshold": 10,
        "percentage_used": 3, "media_errors": 0, "num_err_log_entries": 12,
    } | log  # fmt: skip
    return {
        "smartctl": {"version": [7, 3], "exit_status": exit_status, "argv": ["smartctl", "-j", "-a", f"/dev/{name}"]},
        "device": {"name": f"/dev/{name}", "type": "nvme", "protocol": "NVMe"},
        "serial_number": f"S{name}", "smart_status": {"passed": passed},
        "nvme_smart_health_information_log": health, "temperature": {"current": health["temperature"]},
    }  # fmt: skip


def test_a_healthy_drive_is_evidence_against() -> None:
    reading = read(Document("x", json.dumps(nvme()).encode()))
    assert reading is not None
    assert reading.observations == []
    assert [fine.part for fine in reading.fine] == ["disk/nvme0"]


@pytest.mark.parametrize(
    ("log", "key"),
    [
        ({"available_spare": 3}, "smart.failed"),
        ({"critical_warning": 1}, "smart.failed"),
        ({"critical_warning": 4}, "smart.failed"),
        ({"critical_warning": 8}, "smart.read_only"),
        ({"critical_warning": 2}, "smart.hot"),
        ({"media_errors": 7}, "smart.media_errors"),
        ({"percentage_used": 104}, "smart.worn"),
    ],
)
def test_each_way_to_be_ill_has_its_signal(log: dict[str, int], key: str) -> None:
    assert keys(json.dumps(nvme(**log))) == [(key, "disk/nvme0")]


def test_a_drive_that_passes_with_no_spare_blocks_is_failed_all_the_same() -> None:
    """Trap: the self-assessment says passed, the blocks are used up."""
    assert keys(json.dumps(nvme(passed=True, available_spare=0))) == [("smart.failed", "disk/nvme0")]


def test_spare_at_the_limit_is_not_below_it() -> None:
    assert keys(json.dumps(nvme(available_spare=10))) == []


def test_merged_reports_are_read_each_at_its_line() -> None:
    merged = {f"nvme{i}.json": nvme(f"nvme{i}", **({"media_errors": 2} if i == 2 else {})) for i in range(4)}
    text = json.dumps(merged, indent=1)
    reading = read(Document("x", text.encode()))
    assert reading is not None
    (seen,) = reading.observations
    assert (seen.part, seen.line) == ("disk/nvme2", text[: text.index('"nvme2.json"')].count("\n") + 1)


def test_a_drive_that_refuses_the_question_is_suspected_and_one_that_was_not_asked_is_not() -> None:
    base = {"smartctl": {"exit_status": 4, "messages": [{"string": "Read NVMe SMART/Health Information failed"}]},
            "device": {"name": "/dev/nvme5"}}  # fmt: skip
    assert keys(json.dumps(base)) == [("smart.missing", "disk/nvme5")]
    base["smartctl"] = {"exit_status": 2, "messages": [{"string": "Permission denied"}]}
    assert keys(json.dumps(base)) == []


def test_a_far_longer_error_log_than_the_neighbours_is_watched() -> None:
    merged = {f"nvme{i}": nvme(f"nvme{i}", num_err_log_entries=150_000 if i == 1 else 31) for i in range(4)}
    assert keys(json.dumps(merged)) == [("smart.errors", "disk/nvme1")]


ATA = {
    "smartctl": {"exit_status": 0}, "device": {"name": "/dev/sdb"}, "smart_status": {"passed": True},
    "ata_smart_attributes": {"table": [{"id": 197, "name": "Current_Pending_Sector", "raw": {"value": 16}}]},
}  # fmt: skip


def test_unreadable_sectors_are_suspected_and_a_failed_assessment_is_a_fault() -> None:
    assert keys(json.dumps(ATA)) == [("smart.media_errors", "disk/sdb")]
    assert ("smart.failed", "disk/sdb") in keys(json.dumps(ATA | {"smart_status": {"passed": False}}))


SMARTCTL = """smartctl 7.2 2020-12-30 r5155 [x86_64-linux-5.15.0] (local build)
Copyright (C) 2002-20, Bruce Allen, Christian Franke, www.smartmontools.org

=== START OF SMART DATA SECTION ===
SMART overall-health self-assessment test result: {result}

SMART/Health Information (NVMe Log 0x02)
Critical Warning:                   0x{warning:02x}
Temperature:                        38 Celsius
Available Spare:                    {spare}%
Available Spare Threshold:          10%
Percentage Used:                    1%
Data Units Read:                    12,345,678 [6.32 TB]
Media and Data Integrity Errors:    {errors}
Error Information Log Entries:      1,310
"""


def test_smartctl_as_text_is_read() -> None:
    assert keys(SMARTCTL.format(result="PASSED", warning=0, spare=100, errors=0)) == []
    assert [k for k, _ in keys(SMARTCTL.format(result="PASSED", warning=0, spare=4, errors=0))] == ["smart.failed"]
    assert [k for k, _ in keys(SMARTCTL.format(result="FAILED!", warning=0, spare=100, errors=0))] == ["smart.failed"]
    assert [k for k, _ in keys(SMARTCTL.format(result="PASSED", warning=0, spare=99, errors="1,024"))] == [
        "smart.media_errors"
    ]


def test_ata_attributes_as_text_are_read() -> None:
    text = (
        "smartctl 7.1 2019-12-30 r5022 [x86_64-linux-5.4.0] (local build)\n"
        "SMART overall-health self-assessment test result: PASSED\n"
        "ID# ATTRIBUTE_NAME          FLAG     VALUE WORST THRESH TYPE      UPDATED  WHEN_FAILED RAW_VALUE\n"
        "  5 Reallocated_Sector_Ct   0x0033   001   001   036    Pre-fail  Always   FAILING_NOW 4096\n"
        "194 Temperature_Celsius     0x0022   069   055   000    Old_age   Always       -       31 (Min/Max 18/45)\n"
        "197 Current_Pending_Sector  0x0012   100   100   000    Old_age   Always       -       0\n"
    )
    assert [k for k, _ in keys(text)] == ["smart.failed", "smart.media_errors"]


NVME_LOG = """Smart Log for NVME device:nvme3n1 namespace-id:ffffffff
critical_warning                    : {warning}
temperature                         : 36 C
available_spare                     : 100%
available_spare_threshold           : 10%
percentage_used                     : 0%
media_errors                        : {errors}
num_err_log_entries                 : 4
"""


def test_the_log_of_nvme_cli_is_read_in_both_forms() -> None:
    assert keys(NVME_LOG.format(warning="0", errors="0")) == []
    assert keys(NVME_LOG.format(warning="0x4", errors="0")) == [("smart.failed", "disk/nvme3")]
    log = {
        "critical_warning": 0,
        "temperature": 309,
        "avail_spare": 100,
        "spare_thresh": 10,
        "percent_used": 0,
        "media_errors": 3,
    }
    assert [k for k, _ in keys(json.dumps(log))] == ["smart.media_errors"]


def test_a_full_shared_file_system_is_a_dependency_and_a_full_tmpfs_is_nothing() -> None:
    text = (
        "Filesystem                Type     Size  Used Avail Use% Mounted on\n"
        "tmpfs                     tmpfs     51G   51G     0 100% /run\n"
        "/dev/loop3                squashfs  64M   64M     0 100% /snap/core20/1\n"
        "/dev/nvme0n1p2            ext4     1.8T  1.8T     0 100% /\n"
        "/dev/nvme1n1              xfs      7.0T  6.8T  0.2T  97% /local\n"
        "filer01:/export/ckpt      nfs4     900T  899T  0.5T 100% /checkpoints\n"
    )
    assert keys(text) == [
        ("space.full", "mount//"), ("space.low", "mount//local"), ("space.full.shared", "dependency/nfs:filer01"),
    ]  # fmt: skip
    assert CATALOG.row("space.full.shared").scope is Scope.DEPENDENCY


def test_inodes_run_out_too() -> None:
    text = "Filesystem      Inodes  IUsed IFree IUse% Mounted on\n/dev/sda1      6553600 6553600     0  100% /\n"
    assert keys(text) == [("space.full", "mount//")]


def test_a_file_system_that_went_read_only_is_suspected_and_an_image_is_not() -> None:
    text = (
        "sysfs on /sys type sysfs (rw,nosuid,nodev,noexec,relatime)\n"
        "/dev/sda2 on / type ext4 (ro,relatime,errors=remount-ro)\n"
        "/dev/loop0 on /snap/x type squashfs (ro,nodev,relatime)\n"
        "filer:/x on /x type nfs4 (rw,relatime,vers=4.2)\n"
    )
    assert keys(text) == [("mount.read_only", "mount//")]
    assert keys("/dev/sda2 / ext4 rw,relatime 0 0\nproc /proc proc rw 0 0\nfiler:/x /x nfs4 ro 0 0\n") == []


def test_arrays_are_read() -> None:
    text = (
        "Personalities : [raid1] [raid6] [raid5] [raid4]\n"
        "md0 : active raid1 nvme1n1p1[1] nvme0n1p1[0]\n      523712 blocks super 1.2 [2/2] [UU]\n\n"
        "md1 : active raid5 sdd1[3] sdc1[1](F) sdb1[0]\n      1953260544 blocks super 1.2 level 5 [3/2] [U_U]\n"
        "      [=>...................]  recovery =  5.1% (50000000/976630272) finish=80.1min speed=190000K/sec\n\n"
        "unused devices: <none>\n"
    )
    assert keys(text) == [("md.degraded", "disk/sdc1"), ("md.degraded", "disk/md1"), ("md.rebuilding", "disk/md1")]


def test_a_scan_and_a_report_without_the_question_say_nothing_of_health() -> None:
    scan = {"smartctl": {"exit_status": 0}, "devices": [{"name": "/dev/sda", "type": "scsi"}]}
    assert read(Document("x", json.dumps(scan).encode())) is None
    info = {
        "smartctl": {"argv": ["smartctl", "-i", "-j", "/dev/sda"], "exit_status": 0},
        "device": {"name": "/dev/sda"},
    }
    assert keys(json.dumps(info)) == []
    virtual = {"smartctl": {"argv": ["smartctl", "-a", "/dev/vda"], "exit_status": 4}, "device": {"name": "/dev/sda"},
               "smart_support": {"available": False}}  # fmt: skip
    assert keys(json.dumps(virtual)) == []


def test_lustre_and_array_details_are_read() -> None:
    text = (
        "UUID                       bytes        Used   Available Use% Mounted on\n"
        "scratch-MDT0000_UUID        1.5T      200.0G        1.3T  14% /scratch[MDT:0]\n"
        "scratch-OST0000_UUID       90.0T       89.9T      100.0G 100% /scratch[OST:0]\n"
        "OST0001             : inactive device\n"
    )
    assert keys(text) == [
        ("space.full.shared", "dependency/lustre:scratch"),
        ("mount.stale", "dependency/lustre:unnamed"),
    ]
    detail = "/dev/md127:\n           Version : 1.2\n     Raid Level : raid1\n          State : clean, degraded \n"
    assert keys(detail) == [("md.degraded", "disk/md127")]


LABELS = {
    "gcm_learn_good.json": set(), "gcm_cache_good.json": set(),
    "gcm_learn_bad_nvme9.json": {("smart.failed", "disk/nvme9")},
    "gcm_learn_missing_smartdata.json": {("smart.missing", "disk/nvme7")},
}  # fmt: skip


@pytest.mark.skipif(not DATA.exists(), reason="the collected captures are absent")
@pytest.mark.parametrize("name", sorted(LABELS))
def test_a_capture_is_judged_as_labelled(name: str) -> None:
    told = {x for x in keys((DATA / name).read_bytes()) if CATALOG.row(x[0]).verdict is not Verdict.WATCH}
    assert told == LABELS[name]
