"""Each trap that real controllers were seen to set, as a test with its name. Samples are written here, in the formats."""

import pytest
from tests.evidence.bmc.judged import bad, capture, collection, document, log_entry, read, signals_of

from keepstep.evidence.bmc.times import BOOT_CLOCK, UNSET_CLOCK, estimate_offset_s, host_time, read_time


def _sensor(**more: object) -> dict[str, object]:
    return {
        "@odata.id": "/redfish/v1/Chassis/1/Sensors/Temp_1", "@odata.type": "#Sensor.v1_2_0.Sensor", "Id": "Temp_1",
        "Name": "Board Temp", "ReadingType": "Temperature", **more,
    }  # fmt: skip


@pytest.mark.parametrize("stamp", ["0000-00-00T00:00:00Z", "9999-12-31T23:59:59Z", "", None, 17, "yesterday"])
def test_a_time_that_no_calendar_knows_is_no_time(stamp):
    assert read_time(stamp) == (None, "")


@pytest.mark.parametrize("stamp", ["1970-01-01T00:00:20+00:00", "1999-12-31T12:00:39+00:00", "2000-01-01T00:15:20Z"])
def test_a_clock_that_was_never_set_keeps_its_order_only(stamp):
    seconds, clock = read_time(stamp)
    assert seconds is not None and clock == UNSET_CLOCK


def test_the_offset_of_a_controllers_clock_comes_from_the_times_in_its_messages():
    assert host_time("[Tue Dec 5 23:25:41 UTC 2023][1][00] XID 62") is not None
    assert host_time("[Tue Feb 10 16:03:24 UTC 1970][1][00] SXID 0") is None
    assert estimate_offset_s([(0.0, 100.0), (50.0, 150.0), (60.0, 400.0)]) == (100.0, 240.0)
    assert estimate_offset_s([(0.0, 100.0)]) is None


def test_the_offset_of_the_captured_clock_is_stable_for_months():
    reading = read(capture("redfish/dgx_h100_viking_health.json"))
    found = next(seen for seen in reading.observations if seen.signal == "bmc.clock.offset")
    days = float(found.attributes["value"]) / 86400
    assert 1307 < days < 1308 and float(found.attributes["spread_s"]) < 600


def test_a_latched_roll_up_with_every_part_well_is_history():
    conditions = {
        "@odata.id": "/redfish/v1/ServiceConditions", "@odata.type": "#ServiceConditions.v1_0_0.ServiceConditions",
        "HealthRollup": "Critical",
        "Conditions": [{"Message": "GPU_SXM_2 '[Tue Dec 5 23:25:41 UTC 2023][1][00] XID 79 gone'", "Severity": "Critical",
                        "MessageArgs": ["GPU_SXM_2 Driver Event Message"], "Timestamp": "2020-05-07T17:07:25+00:00"}],
    }  # fmt: skip
    card = {
        "@odata.id": "/redfish/v1/Systems/HGX/Processors/GPU_SXM_2", "@odata.type": "#Processor.v1_13_0.Processor",
        "ProcessorType": "GPU", "Status": {"Health": "OK", "State": "Enabled"},
    }  # fmt: skip
    signals = signals_of(document({"/redfish/v1/ServiceConditions": conditions, str(card["@odata.id"]): card}))
    assert bad(signals) == {}
    assert {signal.row.verdict.value for signal in signals if signal.key == "bmc.rollup.critical"} == {"watch"}


def test_a_recent_error_counts_although_the_part_says_that_it_is_well():
    card = {
        "@odata.id": "/redfish/v1/Systems/HGX/Processors/GPU_SXM_2", "@odata.type": "#Processor.v1_13_0.Processor",
        "ProcessorType": "GPU", "Status": {"Health": "OK", "State": "Enabled"},
    }  # fmt: skip
    manager = {
        "@odata.id": "/redfish/v1/Managers/BMC",
        "@odata.type": "#Manager.v1_1.Manager",
        "DateTime": "2024-05-01T10:05:00Z",
    }
    entry = log_entry(4, "GPU_SXM_2 Driver Event Message '[Wed May 1 10:00:00 UTC 2024][1][00] XID 79 gone'")
    assert ("xid.79", "gpu/sxm2") in bad(signals_of(document([card, manager, entry])))


def test_an_nvswitch_that_comes_online_is_a_boot_notice_whatever_its_severity():
    said = "[Tue Jan  6 18:43:24 UTC 1970][13828096][00] SXID 0 dNVSWITCH SMBPBI server is online.en"
    text = f"NVSwitch_1 Driver Event Message '{said}'"
    signals = signals_of(document(collection(log_entry(1, text))))
    assert [(s.key, s.row.verdict.value) for s in signals] == [("bmc.nvswitch.online", "benign")]


def test_a_byte_shifted_event_is_one_event_with_its_code_put_right():
    stamp = "[Fri Jan 23 00:00:55 UTC 1970]"
    texts = [f"{stamp}[1][00] SXID 9 eNon-fatal", f"{stamp}[2][00] SXID 9 eSeverity 0 Engine instance 60 Sub-engine instance 0",
             f"{stamp}[3][02] SXID 9 eData {{0x00200000"]  # fmt: skip
    entries = [
        log_entry(n, text, MessageArgs=["NVSwitch_1 Driver Event Message", text]) for n, text in enumerate(texts)
    ]
    found = read(document(collection(*entries))).observations
    assert [(seen.signal, seen.part, seen.count, seen.attributes["link"]) for seen in found] == [
        ("sxid.20009", "nvswitch/1", 3, "60")
    ]


def test_a_card_that_keeps_to_its_power_limit_is_well():
    text = "GPU_SXM_1 ThrottleReason has detected errors of type 'xyz.ThrottleReasons.SWPowerCap'."
    assert {s.row.verdict.value for s in signals_of(document(collection(log_entry(1, text, "Warning"))))} == {"benign"}


@pytest.mark.parametrize(
    "text",
    ["Event subscription test event", "This is a test message.",
     "The requested Certificate Export operation cannot be completed",
     "The resource property Firmware Update Service has detected errors of type 'No Matching Devices'."],
)  # fmt: skip
def test_tries_and_refusals_are_no_faults(text):
    assert bad(signals_of(document(collection(log_entry(1, text))))) == {}


@pytest.mark.parametrize("state", ["Absent", "Disabled", "StandbyOffline", "Starting", "StandbySpare", "Updating"])
def test_critical_health_of_what_is_not_in_use_is_no_fault(state):
    assert bad(signals_of(document(_sensor(Reading=20, Status={"Health": "Critical", "State": state})))) == {}


@pytest.mark.parametrize("reading", [None, -524288, 1e12, float("nan")])
def test_critical_health_of_a_sensor_without_a_sane_reading_is_no_fault(reading):
    assert bad(signals_of(document(_sensor(Reading=reading, Status={"Health": "Critical", "State": "Enabled"})))) == {}


@pytest.mark.parametrize("health", [None, "NA", "N/A", "", "Unknown"])
def test_health_that_is_not_given_is_no_fault(health):
    drive = {"@odata.type": "#Drive.v1_7_0.Drive", "@odata.id": "/redfish/v1/Systems/1/Storage/1/Drives/2", "Name": "Drive",
             "Status": {"Health": health, "State": "Enabled"}}  # fmt: skip
    assert bad(signals_of(document(drive))) == {}


def test_the_controllers_word_counts_for_more_than_a_crossed_limit():
    limits = {"UpperCritical": {"Reading": 90}}
    well = _sensor(Reading=95, Thresholds=limits, Status={"Health": "OK", "State": "Enabled"})
    assert bad(signals_of(document(well))) == {}
    ill = _sensor(Reading=95, Thresholds=limits, Status={"Health": "Critical", "State": "Enabled"})
    assert bad(signals_of(document(ill))) == {("bmc.temperature.critical", "sensor/Board Temp"): "suspect"}


def test_components_that_lose_power_in_one_second_are_one_event():
    entries = [log_entry(n, f"The gpu{n} Power resource has detected a fatal fault: it went outside its allowed conditions.",
                         MessageArgs=[f"gpu{n} Power", "outside"]) for n in range(4)]  # fmt: skip
    assert bad(signals_of(document(collection(*entries)))) == {("bmc.power.event", ""): "suspect"}


def test_power_readings_around_a_power_switch_are_transients():
    entries = [log_entry(n, f"The gpu{n} Power resource has detected a fatal fault: it went outside its allowed conditions.",
                         MessageArgs=[f"gpu{n} Power", "outside"]) for n in range(1, 5)]  # fmt: skip
    switched = log_entry(9, "The power state of resource /redfish/v1/Systems/Node0 has changed to type On.", "OK")
    assert bad(signals_of(document(collection(*entries, switched)))) == {}


def test_places_of_a_board_count_from_one_and_are_no_indices():
    card = {"@odata.type": "#Processor.v1_13_0.Processor", "@odata.id": "/redfish/v1/Systems/HGX/Processors/GPU_SXM_1",
            "ProcessorType": "GPU", "SerialNumber": "1650001112223", "UUID": "9dad5bfd-a732-23fe-40ad-465d0cbe5f95",
            "Status": {"Health": "OK", "State": "Enabled"}}  # fmt: skip
    (same,) = read(document(card)).same
    assert same.parts == ("gpu/sxm1", "gpu/GPU-9dad5bfd-a732-23fe-40ad-465d0cbe5f95", "gpu/serial:1650001112223")


def test_broken_json_gives_up_its_whole_resources():
    good = (
        '{"@odata.id": "/redfish/v1/Systems/1/Storage/1/Drives/2", "@odata.type": "#Drive.v1_7_0.Drive",'
        ' "Status": {"Health": "Critical", "State": "Enabled"}}'
    )
    reading = read(document('{"Members": [' + good + ', {"@odata.id": "/redfish/v1/x", "Values": [1, 2,, ]}'))
    assert [seen.signal for seen in reading.observations] == ["bmc.drive.failed"]
    assert reading.not_understood_count == 1


def test_a_time_before_the_clock_was_set_counts_from_the_controllers_start():
    (seen,) = read(
        document("   1 |  Pre-Init  |0000198492| Critical Interrupt #0xa1 | Bus Fatal Error | Asserted\n")
    ).observations
    assert (seen.at_s, seen.clock) == (198492.0, BOOT_CLOCK)


def test_a_condition_that_is_deasserted_is_over_and_an_event_is_not():
    lines = ["1 | 05/01/2024 | 10:00:00 | Temperature #0x30 | Upper Critical going high | Asserted",
             "2 | 05/01/2024 | 10:01:00 | Critical Interrupt #0x90 | Bus Fatal Error | Asserted",
             "3 | 05/01/2024 | 10:02:00 | Temperature #0x30 | Upper Critical going high | Deasserted",
             "4 | 05/01/2024 | 10:03:00 | Critical Interrupt #0x90 | Bus Fatal Error | Deasserted"]  # fmt: skip
    assert set(bad(signals_of(document("\n".join(lines))))) == {("bmc.pcie.fatal", "")}


def test_the_end_of_another_sensors_condition_ends_nothing():
    lines = ["1 | 05/01/2024 | 10:00:00 | Temperature CPU Temp | Upper Critical going high | Asserted",
             "3 | 05/01/2024 | 10:02:00 | Temperature VRM Temp | Upper Critical going high | Deasserted"]  # fmt: skip
    assert set(bad(signals_of(document("\n".join(lines))))) == {
        ("bmc.temperature.critical", "sensor/Temperature CPU Temp")
    }


def test_records_of_a_vendors_own_form_are_kept_raw():
    (seen,) = read(document("  8b | 08/31/2016 | 06:21:15 | OEM record df | 040020 | 12616faaaaaa\n")).observations
    assert seen.signal == "bmc.oem" and seen.attributes["raw"] == "040020 | 12616faaaaaa"


def test_a_leak_that_has_dried_is_still_looked_into():
    entries = [log_entry(1, "Sensor 'A' in the 'Front' cabinet zone has detected a leak.", "Warning"),
               log_entry(2, "All cabinet leak sensors have deactivated, and are reading dry values.", "OK")]  # fmt: skip
    (signal,) = [s for s in signals_of(document(collection(*entries))) if s.key == "bmc.leak.cabinet"]
    assert (signal.row.verdict.value, signal.row.isolate, signal.row.scope.value) == ("suspect", False, "rack")


def test_a_leak_detector_that_is_critical_concerns_its_tray_now():
    detector = {"@odata.type": "#LeakDetector.v1_0_0.LeakDetector", "DetectorState": "Critical", "Name": "Tray leak",
                "@odata.id": "/redfish/v1/Chassis/1/ThermalSubsystem/LeakDetection/LeakDetectors/1",
                "Status": {"Health": "Critical", "State": "Enabled"}}  # fmt: skip
    (signal,) = signals_of(document(detector))
    assert (signal.row.failure_class, signal.row.scope.value, signal.row.urgency.value) == ("leak", "node", "now")


def test_a_detector_that_cannot_be_read_is_no_leak():
    detector = {"@odata.type": "#LeakDetector.v1_0_0.LeakDetector", "DetectorState": "Unavailable", "Name": "Tray leak",
                "@odata.id": "/redfish/v1/Chassis/1/ThermalSubsystem/LeakDetection/LeakDetectors/1"}  # fmt: skip
    assert bad(signals_of(document(detector))) == {}


def test_forty_links_of_a_switch_that_flap_in_a_minute_are_one_event():
    entries = [
        log_entry(
            n, f"The link j{n}p0 has experienced a link flap event due to a PORT_DOWN.", "Warning",
            Created=f"2024-05-01T10:00:{n:02d}+00:00", MessageArgs=[f"j{n}p0", "PORT_DOWN"],
            Links={"OriginOfCondition": {"@odata.id": f"/redfish/v1/Chassis/1/NetworkAdapters/R/NetworkPorts/j{n}p0"}},
        )
        for n in range(1, 41)
    ]  # fmt: skip
    signals = signals_of(document(collection(*entries)))
    assert bad(signals) == {("bmc.link.storm", ""): "suspect"}
    assert {s.row.verdict.value for s in signals if s.key == "bmc.nic.link"} == {"benign"}


def test_a_single_link_that_flaps_is_only_watched():
    (signal,) = signals_of(
        document(collection(log_entry(1, "The link j1p0 has experienced a link flap event.", "Warning")))
    )
    assert (signal.key, signal.row.verdict.value) == ("bmc.nic.link", "watch")


def test_the_journal_of_a_controllers_own_system_says_nothing_about_the_host():
    entry = log_entry(1, "kernel: sd 0:0:0:0: drive failed, kernel panic - not syncing")
    entry["@odata.id"] = "/redfish/v1/Managers/bmc/LogServices/Journal/Entries/1"
    assert signals_of(document(entry)) == []


def test_an_nvswitch_error_that_its_driver_calls_non_fatal_is_only_watched():
    text = "[Fri Dec 8 09:56:18 UTC 2023][264][00] SXID 20009 Non-fatal; Link 16 RX Short Error Rate"
    (signal,) = signals_of(document(collection(log_entry(1, text))))
    assert (signal.key, signal.row.verdict.value, signal.seen.attributes["link"]) == ("sxid.20009", "watch", "16")


def test_a_code_of_the_host_interface_that_lost_its_digits_is_put_right():
    text = "[Wed Jun 24 19:06:47 UTC 1970][1][00] SXID 1 dNon-fatal"
    entry = log_entry(
        1, f"NVSwitch_0 has errors of type '{text}'", MessageArgs=["NVSwitch_0", text, "PRI WRITE PRT error"]
    )
    assert [seen.signal for seen in read(document(entry)).observations] == ["sxid.10001"]
