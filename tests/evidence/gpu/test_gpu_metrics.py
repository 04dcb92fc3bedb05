"""Exporters, samples, diagnostics and AMD's tools. Samples written here, in the tools' formats."""

import json

import pytest

from keepstep.core.catalog import CATALOG, Verdict
from keepstep.evidence.document import Document
from keepstep.evidence.gpu import READERS
from keepstep.evidence.reading import Reading


def read(text: str, reader: str) -> Reading:
    document = Document("it", text.encode())
    best = max(READERS, key=lambda one: one.recognise(document))
    assert best.name == reader
    return best.read(document)


def said(reading: Reading) -> list[tuple[str, str, int]]:
    return [
        (one.signal, one.part, one.line)
        for one in reading.observations
        if CATALOG.row(one.signal).verdict is not Verdict.BENIGN
    ]


def sample(metric: str, gpu: int, value: object, more: str = "") -> str:
    names = f'gpu="{gpu}",UUID="GPU-0000000{gpu}",pci_bus_id="00000000:1{gpu}:00.0"'
    labels = f'{names},modelName="NVIDIA H100 80GB HBM3",Hostname="n7"{more}'
    return f"{metric}{{{labels}}} {value}\n"


@pytest.mark.parametrize(
    ("metric", "value", "signal"),
    [
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1, "gpu.ecc.dbe"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, "gpu.remap.failed"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILED", 1, "gpu.remap.failed"),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, "gpu.remap.pending"),
        ("DCGM_FI_DEV_GPU_RECOVERY_ACTION", 2, "gpu.recovery_action.reboot"),
        ("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", 4, "gpu.recovery_action.drain_reset"),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 0x48, "gpu.throttle.hw_thermal"),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x88, "gpu.throttle.power_brake"),
        ("DCGM_FI_DEV_PAGE_RETIRED_PENDING", 1, "gpu.retired.pending"),
        ("DCGM_FI_DEV_RETIRED_PENDING", 1, "gpu.retired.pending"),
        ("DCGM_FI_DEV_MEMORY_UNREPAIRABLE", 1, "gpu.memory.unrepairable"),
        ("DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY", 2, "gpu.fabric.health"),
        ("DCGM_FI_DEV_XID_ERRORS", 79, "gpu.xid.last"),
        ("accelerator_nvidia_remapped_rows_remapping_pending", 1, "gpu.remap.pending"),
        ("nvidia_smi_gpu_recovery_action", 1, "gpu.recovery_action.reset"),
    ],
)
def test_a_metric_of_either_naming_is_one_signal(metric: str, value: int, signal: str) -> None:
    text = "# TYPE x gauge\n" + sample(metric, 0, 0) + sample(metric, 1, value)
    reading = read(text, "dcgm")
    assert said(reading) == [(signal, "gpu/0000:11:00", 3)]
    assert reading.node == "n7"
    assert [fine.part for fine in reading.fine] == ["gpu/0000:10:00"]


@pytest.mark.parametrize("value", ["NaN", "9223372036854775794", "2147483632", "140737488355328"])
def test_an_exporters_mark_for_no_value_is_no_value(value: str) -> None:
    text = sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 0, value) + sample("DCGM_FI_DEV_GPU_TEMP", 0, value)
    assert read(text, "dcgm").observations == []


def test_the_gauge_of_the_last_xid_is_history_and_a_window_count_is_an_event() -> None:
    gauge = read(sample("DCGM_FI_DEV_XID_ERRORS", 0, 48), "dcgm").observations[0]
    assert gauge.attributes == {"sticky": "true", "xid": "48"}
    assert CATALOG.row(gauge.signal).verdict is Verdict.WATCH
    counted = read(sample("DCGM_EXP_XID_ERRORS_COUNT", 0, 2, ',xid="48"'), "dcgm")
    assert [(one.signal, one.count) for one in counted.observations] == [("xid.48", 2)]


def test_power_cap_idle_and_the_power_health_watch_are_ordinary() -> None:
    text = sample("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0, 0x5) + sample(
        "DCGM_EXP_GPU_HEALTH_STATUS", 0, 10, ',health_watch="POWER"'
    )
    assert said(read(text, "dcgm")) == []


def test_a_device_without_series_among_its_siblings_is_dead() -> None:
    text = "".join(sample("DCGM_FI_DEV_GPU_TEMP", gpu, 40) for gpu in range(8) if gpu != 5)
    assert said(read(text, "dcgm")) == [("gpu.dead", "gpu/5", 0)]


def test_a_device_in_slices_is_not_missing() -> None:
    text = "".join(sample("DCGM_FI_DEV_GPU_TEMP", gpu, 40, ',GPU_I_ID="1"' if gpu == 2 else "") for gpu in range(4))
    assert said(read(text, "dcgm")) == []


def test_nodes_in_one_scrape_are_kept_apart() -> None:
    one = sample("DCGM_FI_DEV_ROW_REMAP_PENDING", 0, 1)
    reading = read(one + one.replace("n7", "n8").replace(" 1\n", " 0\n"), "dcgm")
    assert [(seen.node, seen.signal) for seen in reading.observations] == [("n7", "gpu.remap.pending")]
    assert reading.node == ""


def test_slices_in_metrics_have_a_parent() -> None:
    text = sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 0, 1, ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="3"')
    seen = read(text, "dcgm").observations[0]
    assert (seen.part, seen.attributes["parent"]) == ("gpu/0000:10:00/mig3", "gpu/0000:10:00")


def test_a_hang_of_some_ranks_is_told_from_one_of_all() -> None:
    def dump(*stuck: int) -> str:
        lines = [
            f'XPU_TIMER_COMMON_HANG{{ip="10.0.0.1",job_name="j",rank="{rank}"}} {int(rank in stuck)}'
            for rank in range(4)
        ]
        return "\n".join(lines)

    assert [one[0] for one in said(read(dump(0, 1, 2, 3), "xpu_timer"))] == ["gpu.job_hang"]
    some = read(dump(1, 3), "xpu_timer")
    assert [one[0] for one in said(some)] == ["gpu.job_hang.some"]
    assert some.observations[0].attributes["ranks"] == "1,3"
    assert said(read(dump(), "xpu_timer")) == []


def test_a_device_that_stops_giving_samples_is_dead() -> None:
    rows: list[dict[str, object]] = [{f"gpu_temperature:{gpu}": 40 for gpu in range(4)} for _ in range(5)]
    rows += [{f"gpu_temperature:{gpu}": 40 for gpu in range(3)} for _ in range(3)]
    text = "\n".join(json.dumps(row) for row in rows)
    assert said(read(text, "gpu_samples")) == [("gpu.dead", "gpu/3", 5)]
    errors = json.dumps({"gpu_uncorrected_ecc:0": 0, "gpu_uncorrected_ecc:1": 2})
    assert said(read(errors, "gpu_samples")) == [("gpu.ecc.dbe", "gpu/1", 1)]


def _diagnostic(*results: dict[str, object]) -> str:
    tests = [{"name": "memory", "results": list(results)}]
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}})


def test_a_diagnostic_is_read_by_its_codes() -> None:
    reading = read(
        _diagnostic(
            {"entity_group": "GPU", "entity_id": 0, "status": "Pass"},
            {"gpu_id": "1", "status": "Fail", "warnings": [{"warning": "row remap failure", "error_id": 80}]},
            {
                "gpu_id": "2",
                "status": "Fail",
                "warnings": [{"warning": "the call DCGM_ST_NOT_SUPPORTED", "error_id": 67}],
            },
            {"gpu_id": "3", "status": "Fail", "warnings": [{"warning": "below", "error_id": 30}]},
            {"gpu_id": "4", "status": "Fail", "warnings": "Memory mismatch at 0x1"},
            {"gpu_id": "5", "status": "Skip", "info": "Skipped"},
        ),
        "dcgm_diag",
    )
    assert [one[:2] for one in said(reading)] == [
        ("gpu.remap.failed", "gpu/1"), ("gpu.driver.tool", "gpu/2"), ("gpu.diag.warning", "gpu/3"), ("gpu.diag.memory",
        "gpu/4"),
    ]  # fmt: skip
    assert [fine.part for fine in reading.fine] == ["gpu/0"]


def test_a_tool_that_could_not_run_is_no_fault_of_the_device() -> None:
    reading = read(
        _diagnostic({"gpu_id": "0", "status": "Fail", "warnings": [{"warning": "API call failed", "error_id": 64}]}),
        "dcgm_diag",
    )
    assert CATALOG.row(reading.observations[0].signal).verdict is Verdict.WATCH


def test_the_table_of_a_diagnostic_is_read() -> None:
    text = """\
Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
| DCGM Version              | 3.3.5                                          |
|-----  Hardware  ----------+------------------------------------------------|
| GPU Memory                | Pass - All                                     |
| PCIe                      | Fail - GPU: 3                                  |
| Warning                   | GPU 3 Detected 5 double-bit ECC errors.        |
+---------------------------+------------------------------------------------+
"""
    assert said(read(text, "dcgm_diag")) == [("gpu.ecc.dbe", "gpu/3", 8)]


def test_the_health_watch_is_read() -> None:
    tree = {"body": {"Overall Health": {"value": "Failure"}, "GPU": {"children": {"2": {"children": {
        "Errors": {"children": {"Memory": {"value": "A pending retired page has been detected in GPU 2."}}},
    }}}}}}  # fmt: skip
    assert said(read(json.dumps(tree), "dcgm_diag")) == [("gpu.retired.pending", "gpu/2", 0)]
    healthy = {"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}
    assert said(read(json.dumps(healthy), "dcgm_diag")) == []


def test_amd_devices_are_read_from_json_and_text() -> None:
    def entry(gpu: int, errors: int) -> dict[str, object]:
        return {
            "gpu": gpu, "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": errors},
            "temperature": {"edge": "N/A", "hotspot": {"value": 45,
            "unit": "C"}}, "usage": {"gfx_activity": {"value": 3, "unit": "%"}},
        }  # fmt: skip

    assert said(read(json.dumps([entry(0, 0), entry(1, 2)]), "amd_smi")) == [("gpu.ecc.dbe", "gpu/1", 0)]
    text = """\
GPU: 0
    TEMPERATURE:
        EDGE: N/A
        HOTSPOT: 45 °C
    ECC:
        TOTAL_CORRECTABLE_COUNT: 0
        TOTAL_UNCORRECTABLE_COUNT: 4
GPU: 1
    ECC:
        TOTAL_CORRECTABLE_COUNT: N/A
        TOTAL_UNCORRECTABLE_COUNT: N/A
"""
    assert said(read(text, "amd_smi")) == [("gpu.ecc.dbe", "gpu/0", 7)]
    cards = {"card0": {"Temperature (Sensor junction) (C)": "45.0", "GPU use (%)": "0", "PCI Bus": "0000:C1:00.0"}}
    healthy = read(json.dumps(cards), "amd_smi")
    assert said(healthy) == []
    assert [fine.part for fine in healthy.fine] == ["gpu/0000:c1:00"]


def test_an_answer_of_the_query_interface_is_read() -> None:
    metric = {"__name__": "DCGM_FI_DEV_ROW_REMAP_FAILURE", "gpu": "1", "UUID": "GPU-1", "Hostname": "n7"}
    results = [{"metric": metric, "value": [1700000000.0, "1"]}]
    text = json.dumps({"status": "success", "data": {"resultType": "vector", "result": results}})
    assert said(read(text, "dcgm")) == [("gpu.remap.failed", "gpu/GPU-1", 0)]


def test_times_of_both_forms_stand_behind_a_value() -> None:
    old = 'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0"} 1 1700000000000\n'
    new = 'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="1"} 1 1700000000.5\n# EOF\n'
    assert [one[1] for one in said(read(old + new, "dcgm"))] == ["gpu/0", "gpu/1"]
