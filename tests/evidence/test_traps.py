"""Each trap of the published captures, by its number, end to end: what looks like a fault and is none, and the reverse."""

import json
import pickle
from typing import ClassVar

from keepstep.core.root_cause import RootCause
from keepstep.evidence.diagnosis import Diagnosed, diagnose
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import read


def found(*texts: str | bytes) -> Diagnosed:
    documents = [
        Document(f"evidence{at}", text if isinstance(text, bytes) else text.encode()) for at, text in enumerate(texts)
    ]
    return diagnose([reading for document in documents if (reading := read(document)) is not None])


def only(*texts: str | bytes) -> RootCause:
    (incident,) = found(*texts).incidents
    return incident


def entry(number: int, created: str, message: str, severity: str = "Critical", **more: object) -> dict[str, object]:
    place = f"/redfish/v1/Systems/1/LogServices/EventLog/Entries/{number}"
    return {
        "@odata.id": place, "@odata.type": "#LogEntry.v1_9_0.LogEntry", "Id": str(number), "Created": created,
        "EntryType": "Event", "Severity": severity, "Message": message, **more,
    }  # fmt: skip


def collection(*entries: dict[str, object]) -> str:
    return json.dumps({"@odata.id": "/redfish/v1/Systems/1/LogServices/EventLog/Entries", "Members": list(entries)})


def processor(name: str, health: str | None = "OK", state: str = "Enabled", **more: object) -> dict[str, object]:
    return {
        "@odata.id": f"/redfish/v1/Systems/HGX/Processors/{name}", "@odata.type": "#Processor.v1_13_0.Processor", "Id": name,
        "ProcessorType": "GPU", "Status": {"State": state, "Health": health}, **more,
    }  # fmt: skip


def bundle(*resources: dict[str, object]) -> str:
    return json.dumps({"resources": {str(x["@odata.id"]): x for x in resources}})


LOST = (
    "[ 1843.3] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
    "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    "               NVRM: fallen off the bus and is not responding to commands.\n"
)


def test_trap_1_a_card_that_fell_off_the_bus_without_any_xid_is_lost() -> None:
    incident = only(LOST)
    assert incident.row.failure_class == "gpu.fallen_off_bus"
    assert "0000:b3:00" in incident.resource
    assert incident.resource_action.startswith("quarantine")


def test_trap_2_errors_of_the_port_above_and_the_lost_card_are_one_incident() -> None:
    incident = only(
        "[ 1000.1] pcieport 0000:b2:00.0: AER: Correctable error message received from 0000:b3:00.0\n"
        "[ 1000.2] pcieport 0000:b2:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)\n"
        "[ 1000.3] pcieport 0000:b2:00.0:    [12] Timeout\n"
        "[ 1104.5] NVRM: Xid (PCI:0000:b3:00): 79, pid=12, name=python, GPU has fallen off the bus.\n"
    )
    assert incident.part == "gpu/0000:b3:00"


def test_trap_3_a_controller_whose_clock_is_years_off_is_not_compared_with_the_host() -> None:
    kernel = "2024-02-02T10:00:00+00:00 n1 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
    for created in ("1970-01-01T00:00:12Z", "2020-06-01T01:02:03Z", "0000-00-00T00:00:00Z", "9999-12-31T00:00:00Z"):
        log = collection(
            entry(1, created, "Power Supply 1 AC input is lost", "Warning"), entry(2, created, "Log cleared", "OK")
        )
        lost = [x for x in found(kernel, log).incidents if x.row.failure_class == "gpu.fallen_off_bus"]
        assert len(lost) == 1, created


def test_trap_4_a_summary_that_is_critical_over_healthy_parts_and_boot_notices_is_no_fault() -> None:
    system = {
        "@odata.id": "/redfish/v1/Systems/HGX", "@odata.type": "#ComputerSystem.v1_16_0.ComputerSystem", "Id": "HGX",
        "Status": {"State": "Enabled", "Health": "OK", "HealthRollup": "Critical"},
    }  # fmt: skip
    cards = [processor(f"GPU_SXM_{n}") for n in range(1, 9)]
    notice = entry(7, "2020-06-01T01:02:03Z", "NVSWITCH 2 driver event: SXID 0 SMBPBI server is online")
    assert found(bundle(system, *cards), collection(notice)).incidents == []


def test_trap_5_what_is_absent_starting_or_reads_nothing_is_no_fault() -> None:
    absent = processor("GPU_SXM_1", "Critical", "Absent")
    starting = processor("GPU_SXM_2", "Critical", "Starting")
    sensors = [
        {
            "@odata.id": f"/redfish/v1/Chassis/1/Sensors/{number}", "@odata.type": "#Sensor.v1_2_0.Sensor", "Id": str(number),
            "Name": "GPU temperature", "ReadingType": "Temperature", "Reading": reading,
            "Status": {"State": "Enabled", "Health": "OK"}, "Thresholds": {"LowerCritical": {"Reading": 5}},
        }
        for number, reading in enumerate((None, -524288))
    ]  # fmt: skip
    assert found(bundle(absent, starting, *sensors)).incidents == []


def test_trap_6_a_leak_that_only_the_controller_knows_is_a_fault() -> None:
    incident = only(
        json.dumps({
            "@odata.id": "/redfish/v1/Chassis/1/ThermalSubsystem/LeakDetection/LeakDetectors/1",
            "@odata.type": "#LeakDetector.v1_1_0.LeakDetector", "Id": "1", "Name": "Leak detector", "DetectorState": "Critical",
            "Status": {"State": "Enabled", "Health": "Critical"},
        })
    )  # fmt: skip
    assert incident.row.failure_class == "leak"


def test_trap_7_power_capping_and_the_test_events_of_a_listener_are_harmless() -> None:
    log = collection(
        entry(1, "2024-01-01T00:00:00Z", "GPU_SXM_3 ThrottleReasons changed to SWPowerCap", "Warning"),
        entry(2, "2024-01-01T00:00:00Z", "This is a test event of the event listener", "Warning",
              MessageId="EventLog.1.0.TestEvent"),
    )  # fmt: skip
    assert found(log).incidents == []


def test_trap_8_forty_flaps_in_a_minute_and_four_cards_without_power_are_one_incident_each() -> None:
    flaps = "".join(f"[{100 + n}.1] mlx5_core 0000:9a:00.0 ib0: Link {'down' if n % 2 else 'up'}\n" for n in range(40))
    assert len(found(flaps).incidents) == 1
    power = collection(*(
        entry(n, "2024-01-01T00:00:00Z", f"The gpu{n} Power resource has detected a fatal fault.",
              MessageId="ResourceEvent.1.0.ResourceErrorThresholdExceeded")
        for n in range(4)
    ))  # fmt: skip
    assert len(found(power).incidents) <= 1


def test_trap_9_a_counter_that_stands_at_its_maximum_is_blind() -> None:
    text = (
        "# Port counters: Lid 12 port 1\nPortSelect:......................1\nCounterSelect:...................0x0000\n"
        "SymbolErrorCounter:..............0\nLinkErrorRecoveryCounter:........0\nLinkDownedCounter:...............255\n"
        "PortRcvErrors:...................0\nPortXmitDiscards:................0\n"
    )
    assert found(text).incidents == []


def test_trap_10_a_failed_data_drive_makes_the_server_critical_and_leaves_the_cards_alone() -> None:
    system = {
        "@odata.id": "/redfish/v1/Systems/1", "@odata.type": "#ComputerSystem.v1_16_0.ComputerSystem", "Id": "1",
        "Status": {"State": "Enabled", "Health": "Critical", "HealthRollup": "Critical"},
    }  # fmt: skip
    drive = {
        "@odata.id": "/redfish/v1/Systems/1/Storage/1/Drives/3", "@odata.type": "#Drive.v1_8_0.Drive", "Id": "3",
        "Name": "Bay 3", "Status": {"State": "Enabled", "Health": "Critical"},
    }  # fmt: skip
    incident = only(bundle(system, drive, processor("GPU_1"), processor("GPU_2")))
    assert incident.row.scope.value == "disk"


def test_trap_11_slots_of_the_controller_are_not_indices_of_the_driver() -> None:
    incident = only(bundle(*(processor(f"GPU_SXM_{n}", "Critical" if n == 3 else "OK") for n in range(1, 9))))
    assert "sxm3" in incident.resource
    assert "gpu/3" not in incident.resource


def test_trap_12_one_invalid_document_does_not_hide_the_others() -> None:
    broken = '{"@odata.id": "/redfish/v1/TelemetryService/MetricReports/1", "MetricValues": [{"MetricValue": "1",}, ]'
    good = bundle(processor("GPU_SXM_1", "Critical"))
    assert only(broken, good).row.scope.value == "card"


def test_trap_13_a_watchdog_that_noticed_after_seven_hours_was_blocked_itself() -> None:
    incident = only(
        "[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96120, "
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25624887 milliseconds before timing out.\n"
    )
    assert incident.row.failure_class == "hang"
    assert any("blocked" in signal.seen.detail for signal in incident.signals)
    assert incident.resource_action == "none"


def test_trap_14_numbers_of_two_process_groups_are_not_compared() -> None:
    line = (
        "[E ProcessGroupNCCL.cpp:458] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, "
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800400 milliseconds before timing out.\n"
    )
    incident = only(line.format(0, 96120) + line.format(0, 96117) + line.format(7, 64088))
    assert "rank/7" not in incident.resource


def test_trap_15_codes_of_programs_are_not_faults_of_cards_until_they_repeat_in_one_place() -> None:
    texts = {
        13: "Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): Out Of Range Address",
        31: "Ch 00000010, intr 00000000. MMU Fault",
        43: "Ch 00000010", 45: "Ch 00000010", 63: "Row Remapper: New row marked for remapping",
        94: "Contained: SM (0x1). RST: No, D-RST: No",
    }  # fmt: skip
    for code, text in texts.items():
        line = f"[ 100.1] NVRM: Xid (PCI:0000:1b:00): {code}, pid=7, name=python, {text}\n"
        assert not any("quarantine" in x.resource_action for x in found(line).incidents), code
    repeated = "".join(
        f"2025-03-0{day}T10:00:00+00:00 n1 kernel: NVRM: Xid (PCI:0000:5d:00): 13, pid={day}00, name=job{day}, "
        f"{texts[13]}\n"
        for day in (1, 2, 3)
    )
    assert only(repeated).row.scope.value == "card"


class _Run:
    ran: ClassVar[list[str]] = []

    def __reduce__(self) -> tuple[object, ...]:
        return (_Run.ran.append, ("executed",))


def test_trap_16_a_crafted_dump_runs_nothing_and_is_reported() -> None:
    crafted = pickle.dumps({"version": "2.5", "entries": [_Run()], "pg_config": {}})
    _Run.ran.clear()
    signals = found(crafted).signals
    assert _Run.ran == []
    assert [signal.key for signal in signals] == ["job.dump_refused"]


def test_trap_17_a_spike_of_the_loss_that_heals_is_no_reason_to_go_back() -> None:
    losses = [2.2] * 40 + [2.4, 3.0, 5.1, 4.6, 4.0, 3.4, 3.0, 2.8, 2.6, 2.5] + [2.25] * 60
    log = "".join(
        f" iteration {n:8d}/  100000 | consumed samples: {n * 2048} | elapsed time per iteration (ms): 105000.0 | "
        f"learning rate: 6.0E-05 | lm loss: {loss:.6E} | grad norm: {960 if loss > 5 else 0.5} |\n"
        for n, loss in enumerate(losses, 1000)
    )
    assert found(log).incidents == []


def test_trap_18_one_slow_card_shows_in_the_steps_of_the_job() -> None:
    log = "".join(
        f" iteration {n:8d}/  100000 | consumed samples: {n * 2048} | elapsed time per iteration (ms): "
        f"{105_200 if n < 1060 else 111_200}.0 | lm loss: 2.2E+00 |\n"
        for n in range(1000, 1120)
    )
    diagnosed = found(log)
    assert any(signal.key == "job.step_slower" for signal in diagnosed.signals)
    assert not any("quarantine" in x.resource_action for x in diagnosed.incidents)


def test_trap_19_reasons_with_brackets_other_scripts_and_odd_states_are_read() -> None:
    table = (
        "NODELIST|STATE|REASON|TIMESTAMP\n"
        "n[01-02]|MAINT*+DRAIN|维护中 [planned] window|2025-01-01T00:00:00\n"
        "n03|drained|gpu 3 fell off the bus [Xid 79]|2025-01-01T00:00:00\n"
    )
    incidents = found(table).incidents
    assert [x.resource for x in incidents] == ["n03"]
    jobs = "JobID|JobName|State|ExitCode\n1|train\nwith a line break|COMPLETED|0:0\n2|other|COMPLETED|0:0\n"
    assert found(jobs).incidents == []


def test_trap_20_consumed_samples_that_fall_back_are_told() -> None:
    line = "[2025-04-21T23:31:0{}.1] [426] [22b7ca89] [Trainer] [#step] [{}] {}\n"
    log = "".join(
        line.format(n, "END", json.dumps({"global_step": 177018 + n, "consumed_train_samples": samples}))
        for n, samples in enumerate((576_777_624, 576_793_080, 15_456, 30_912))
    )
    assert any(signal.key == "job.data_regression" for signal in found(log).signals)
