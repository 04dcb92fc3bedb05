"""The labelled captures of real controllers: what each one shows, and the verdict that is right for it. Labels in our words."""

import pytest
from tests.evidence.bmc.judged import bad, capture, read, signals_of

from keepstep.core.root_cause import root_causes
from keepstep.core.signal import Context

# file -> (what is wrong now: (class, scope, part), …; classes that must be there as history or watch)
LABELS = {
    "redfish/dgx_h100_viking_health.json": ((), {"gpu.firmware", "common_cause", "node.hw"}),
    "redfish/dgx_h100_viking_hgx_eventlog.json": (
        (("common_cause", "node", ""), ("gpu.firmware", "node", "gpu/sxm")),
        set(),
    ),
    "redfish/dgx_h100_viking_bmc_sel.json": ((), set()),
    "redfish/gh200_health.json": ((), {"bmc"}),
    "redfish/gb_nvswitch_tray_health.json": ((), {"bmc"}),
    "redfish/dell_health.json": ((), set()),
    "redfish/lenovo_health.json": ((), set()),
    "redfish/hpe_health.json": ((("storage.local", "disk", "disk/DA00001C"),), {"power.psu", "node.hw"}),
    "redfish/hpe_xl675d_a100_health.json": ((("storage.local", "disk", "disk/3"),), {"node.hw"}),
    "redfish/cray_ex235n_a100_health.json": ((), {"node.power"}),
    "redfish/cray_ex235a_mi250x_health.json": ((), {"node.power"}),
    "redfish/cray_cmm_leak_events.json": ((("leak", "rack", ""),), {"node.hw"}),
}


@pytest.mark.parametrize("name", LABELS)
def test_a_real_capture_gets_the_right_verdict(name):
    wrong, watched = LABELS[name]
    signals = signals_of(capture(name))
    now = {
        (s.row.failure_class, s.row.scope.value, s.seen.part)
        for s in signals
        if s.row.verdict.value in ("suspect", "faulty")
    }
    for failure_class, scope, part in now:
        assert any(failure_class == c and scope == s and part.startswith(p) for c, s, p in wrong), (
            failure_class,
            scope,
            part,
        )
    for failure_class, scope, part in wrong:
        assert any(failure_class == c and scope == s and p.startswith(part) for c, s, p in now), (
            failure_class,
            scope,
            part,
        )
    assert watched <= {s.row.failure_class for s in signals if s.row.verdict.value == "watch"}


@pytest.mark.parametrize("name", [name for name, (wrong, _) in LABELS.items() if not wrong])
def test_a_healthy_capture_isolates_nothing(name):
    assert not any(signal.row.isolate for signal in signals_of(capture(name)))


@pytest.mark.parametrize("name", LABELS)
def test_a_capture_is_understood_whole(name):
    reading = read(capture(name))
    assert reading.reader == "redfish" and reading.records > 0 and reading.not_understood_count == 0


def test_six_cards_with_the_same_error_are_one_incident_of_the_node():
    causes = root_causes(signals_of(capture("redfish/dgx_h100_viking_hgx_eventlog.json")), Context())
    assert [(cause.part, cause.row.scope.value, cause.row.isolate) for cause in causes] == [("", "node", False)]


def test_a_failed_drive_is_one_incident_and_leaves_the_cards_alone():
    for name in ("redfish/hpe_health.json", "redfish/hpe_xl675d_a100_health.json"):
        causes = root_causes(signals_of(capture(name)), Context())
        assert [cause.row.scope.value for cause in causes] == ["disk"], name


def test_parts_that_are_well_are_evidence_against_a_fault():
    reading = read(capture("redfish/dgx_h100_viking_health.json"))
    assert {f"gpu/sxm{number}" for number in range(1, 9)} <= {fine.part for fine in reading.fine}


SEL = {
    2: ("node.hw", "watch", ""),
    3: ("node.hw", "faulty", ""),
    4: ("bmc", "benign", ""),
    5: ("node.hw", "faulty", ""),
    6: ("unclassified", "watch", ""),
    7: ("node.hw", "faulty", "pci/0000:5d:03"),
    8: ("bmc", "benign", ""),
    9: ("bmc", "benign", ""),
    10: ("cpu", "faulty", "cpu/"),
    11: ("unclassified", "watch", ""),
}


def test_each_line_of_the_event_log_gets_its_verdict():
    signals = signals_of(capture("sel/ipmitool_sel_lines.txt"))
    told = {signal.seen.line: signal for signal in signals}
    assert set(told) == set(SEL)
    for line, (failure_class, verdict, part) in SEL.items():
        row = told[line].row
        assert (row.failure_class, row.verdict.value) == (failure_class, verdict), line
        assert told[line].seen.part.startswith(part), line


def test_the_function_of_a_device_on_the_bus_is_kept():
    signals = signals_of(capture("sel/ipmitool_sel_lines.txt"))
    assert next(s for s in signals if s.seen.line == 7).seen.attributes["function"] == "2"


def test_nothing_of_the_captures_is_worse_than_its_label():
    assert bad(signals_of(capture("redfish/dell_health.json"))) == {}
