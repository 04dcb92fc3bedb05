"""The state query in its forms: samples written here, in the tools' formats."""

import pytest

from keepstep.core.catalog import CATALOG, Verdict
from keepstep.evidence.document import Document
from keepstep.evidence.gpu import READERS
from keepstep.evidence.reading import Reading


def read(text: str, reader: str = "") -> Reading:
    document = Document("it", text.encode())
    best = max(READERS, key=lambda one: one.recognise(document))
    assert best.recognise(document) > 0.3
    assert not reader or best.name == reader
    return best.read(document)


def said(reading: Reading) -> list[tuple[str, str, int]]:
    return [
        (one.signal, one.part, one.line)
        for one in reading.observations
        if CATALOG.row(one.signal).verdict is not Verdict.BENIGN
    ]


QUERY = """\

==============NVSMI LOG==============

Timestamp                                 : Sat Aug  1 10:00:00 2026
Driver Version                            : 570.124.06
CUDA Version                              : 12.8

Attached GPUs                             : 1
GPU 00000000:9B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Serial Number                         : 1650000000001
    GPU UUID                              : GPU-4fe00000-0000-0000-0000-000000000001
    GPU Reset Status
        Reset Required                    : {required}
        Drain and Reset Recommended       : No
    GPU Recovery Action                   : {action}
    PCI
        Bus Id                            : 00000000:9B:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : {generation}
            Link Width
                Max                       : 16x
                Current                   : {width}
        Replays Since Reset               : 0
    Fan Speed                             : N/A
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : {slowdown}
            HW Thermal Slowdown           : {thermal}
            HW Power Brake Slowdown       : {brake}
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                  : 124567 us
        HW Thermal Slowdown               : 99999999 us
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : {secded}
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {dram}
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
            SRAM Threshold Exceeded       : {sram}
        Channel Repair Pending            : No
        TPC Repair Pending                : No
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : {rows}
        Pending                           : {pending}
        Remapping Failure Occurred        : {failed}
        Bank Remap Availability Histogram
            Max                           : 2560 bank(s)
            High                          : 0 bank(s)
            Partial                       : 0 bank(s)
            Low                           : 0 bank(s)
            None                          : 0 bank(s)
    Temperature
        GPU Current Temp                  : 62 C
        GPU T.Limit Temp                  : {margin}
        GPU Shutdown T.Limit Temp         : -8 C
        GPU Slowdown T.Limit Temp         : -2 C
        GPU Max Operating T.Limit Temp    : 0 C
        Memory Current Temp               : 70 C
    Fabric
        State                             : {fabric}
        Status                            : Success
        Health
            Bandwidth                     : {bandwidth}
            Route Recovery in progress    : False
            Route Unhealthy               : False
            Access Timeout Recovery       : False
    Processes                             : None
"""
WELL = {
    "required": "No", "action": "None", "generation": "5", "width": "16x", "slowdown": "Not Active", "thermal": "Not Active",
    "brake": "Not Active", "secded": "0", "dram": "0", "sram": "No", "rows": "0", "pending": "No", "failed": "No",
    "margin": "20 C", "fabric": "Completed", "bandwidth": "Full",
}  # fmt: skip


def query(**changes: str) -> str:
    return QUERY.format(**(WELL | changes))


def line_of(text: str, words: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


def test_a_healthy_card_is_well_and_all_its_names_are_one() -> None:
    reading = read(query(), "nvidia_smi_text")
    assert said(reading) == []
    assert [fine.part for fine in reading.fine] == ["gpu/0000:9b:00"]
    assert reading.same[0].parts == ("gpu/0000:9b:00", "gpu/GPU-4fe00000-0000-0000-0000-000000000001", "gpu/0")


@pytest.mark.parametrize(
    ("changes", "signal", "words"),
    [
        ({"action": "Reset"}, "gpu.recovery_action.reset", "GPU Recovery Action"),
        ({"action": "Reboot"}, "gpu.recovery_action.reboot", "GPU Recovery Action"),
        ({"action": "Drain P2P"}, "gpu.recovery_action.drain_p2p", "GPU Recovery Action"),
        ({"action": "Drain and Reset"}, "gpu.recovery_action.drain_reset", "GPU Recovery Action"),
        ({"required": "Yes"}, "gpu.recovery_action.reset", "Reset Required"),
        ({"secded": "2"}, "gpu.ecc.dbe", "SEC-DED"),
        ({"dram": "1"}, "gpu.ecc.dbe", "DRAM Uncorrectable"),
        ({"sram": "Yes"}, "gpu.ecc.sram", "SRAM Threshold Exceeded"),
        ({"pending": "Yes"}, "gpu.remap.pending", "        Pending                           : Yes"),
        ({"failed": "Yes"}, "gpu.remap.failed", "Remapping Failure Occurred"),
        ({"slowdown": "Active", "thermal": "Active"}, "gpu.throttle.hw_thermal", "HW Thermal Slowdown           : Active"),
        ({"slowdown": "Active", "brake": "Active"}, "gpu.throttle.power_brake", "HW Power Brake Slowdown"),
        ({"slowdown": "Active"}, "gpu.throttle.hw_slowdown", "HW Slowdown"),
        ({"width": "8x"}, "gpu.pcie.width", "Current                   : 8x"),
        ({"fabric": "Not Started"}, "gpu.fabric.state", "State                             : Not"),
        ({"fabric": "In Progress"}, "gpu.fabric.joining", "State                             : In"),
        ({"bandwidth": "Degraded"}, "gpu.fabric.health", "Bandwidth"),
    ],
)  # fmt: skip
def test_one_changed_field_is_one_signal_at_its_line(changes: dict[str, str], signal: str, words: str) -> None:
    text = query(**changes)
    assert said(read(text)) == [(signal, "gpu/0000:9b:00", line_of(text, words))]


def test_a_failed_remap_and_a_pending_one_are_both_said() -> None:
    assert [signal for signal, _, _ in said(read(query(failed="Yes", pending="Yes", rows="8")))] == [
        "gpu.remap.failed", "gpu.remap.pending",
    ]  # fmt: skip


def test_the_power_cap_and_a_slow_link_at_idle_are_ordinary() -> None:
    reading = read(query(generation="1"))
    assert said(reading) == []
    assert [one.signal for one in reading.observations] == ["gpu.throttle.sw_power"]


def test_a_thermal_margin_of_zero_or_below_is_not_believed_by_itself() -> None:
    assert said(read(query(margin="0 C"))) == []
    assert said(read(query(margin="-5 C"))) == []


def test_not_available_is_neither_zero_nor_a_fault() -> None:
    text = query(**dict.fromkeys(WELL, "N/A"))
    reading = read(text)
    assert said(reading) == []


def test_text_and_xml_of_one_state_say_the_same() -> None:
    xml = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><attached_gpus>1</attached_gpus>
<gpu id="00000000:9B:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>
<uuid>GPU-4fe00000-0000-0000-0000-000000000001</uuid>
<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>
<ecc_errors><volatile><dram_uncorrectable>3</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>Yes</remapped_row_failure></remapped_rows>
<clocks_event_reasons><clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons>
</gpu></nvidia_smi_log>"""
    text = query(required="Yes", dram="3", pending="Yes", failed="Yes", thermal="Active")
    one, other = read(xml, "nvidia_smi_xml"), read(text, "nvidia_smi_text")
    assert [(signal, part) for signal, part, _ in said(one)] == [(signal, part) for signal, part, _ in said(other)]
    assert [line for _, _, line in said(one)] == [6, 7, 8, 8, 9]


def test_the_older_names_of_memory_errors_are_read() -> None:
    xml = """<nvidia_smi_log><gpu id="0000:05:00.0"><ecc_errors><volatile>
<single_bit><total>5</total></single_bit>
<double_bit><device_memory>1</device_memory><total>1</total></double_bit>
</volatile></ecc_errors></gpu></nvidia_smi_log>"""
    assert said(read(xml)) == [("gpu.ecc.dbe", "gpu/0000:05:00", 3)]


def test_entities_are_refused_and_nothing_is_fetched() -> None:
    bomb = """<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>
<nvidia_smi_log><gpu id="0000:05:00.0"><uuid>&b;</uuid></gpu></nvidia_smi_log>"""
    reading = read(bomb)
    assert reading.observations == []
    assert reading.not_understood_count == 1
    fetched = '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/hostname">]><nvidia_smi_log><gpu><uuid>&f;</uuid></gpu></nvidia_smi_log>'
    assert read(fetched).observations == []


def test_a_report_cut_off_says_what_it_said_so_far() -> None:
    xml = '<nvidia_smi_log>\n<gpu id="0000:05:00.0">\n<remapped_rows><remapped_row_failure>Yes</remapped_row_failure>'
    assert said(read(xml)) == [("gpu.remap.failed", "gpu/0000:05:00", 3)]


TABLE = """\
Sat Aug  1 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   33C    P0             71W /  700W |       1MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:43:00.0 Off |                    2 |
| N/A   34C    P0             71W /  700W |       1MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   2  NVIDIA H100 80GB HBM3          On  |   00000000:52:00.0 Off |                 ERR! |
| N/A  ERR!   ERR!            ERR! / ERR! |        ERR! / ERR!     |   ERR!       Default |
|                                         |                        |                 ERR! |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
"""


def test_the_table_names_cards_with_errors() -> None:
    assert said(read(TABLE)) == [("gpu.ecc.dbe", "gpu/0000:43:00", 13), ("gpu.unreadable", "gpu/0000:52:00", 17)]


@pytest.mark.parametrize(
    ("line", "signal", "part"),
    [
        ("No devices were found", "gpu.none", ""),
        ("Failed to initialize NVML: Driver/library version mismatch", "gpu.driver.mismatch", ""),
        ("Failed to initialize NVML: Unknown Error", "gpu.driver.access", ""),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the driver is there.",
            "gpu.driver.down", "",
        ),
        (
            "Unable to determine the device handle for GPU 0000:4F:00.0: GPU is lost.  Reboot the system to recover this GPU",
            "gpu.lost", "gpu/0000:4f:00",
        ),
        ("Unable to determine the device handle for GPU0000:4F:00.0: Unknown Error", "gpu.lost", "gpu/0000:4f:00"),
        ("Unable to determine the device handle for gpu 0000:0B:00.0: Insufficient External Power", "gpu.power.aux",
        "gpu/0000:0b:00"),
        ("Unable to determine the device handle for GPU 0000:0B:00.0: GPU requires reset", "gpu.reset_required",
        "gpu/0000:0b:00"),
    ],
)  # fmt: skip
def test_a_complaint_in_place_of_an_answer_is_understood(line: str, signal: str, part: str) -> None:
    assert said(read(line + "\n")) == [(signal, part, 1)]


def test_columns_of_a_query_are_read_by_their_names() -> None:
    text = (
        "index, pci.bus_id, ecc.errors.uncorrected.volatile.total, remapped_rows.pending, gpu_recovery_action, power.draw [W]\n"
        "0, 00000000:1B:00.0, 0, 0, None, 71.20\n"
        "1, 00000000:43:00.0, 4, 1, Reset, [N/A]\n"
        "2, 00000000:52:00.0, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n"
        "3, 00000000:9B:00.0, [N/A], [N/A], [N/A], [Unknown Error]\n"
    )
    assert said(read(text)) == [
        ("gpu.recovery_action.reset", "gpu/0000:43:00", 3),
        ("gpu.ecc.dbe", "gpu/0000:43:00", 3),
        ("gpu.remap.pending", "gpu/0000:43:00", 3),
        ("gpu.lost", "gpu/0000:52:00", 4),
        ("gpu.unreadable", "gpu/0000:9b:00", 5),
    ]


def _card(number: int, width: str = "16x", use: int = 98, clock: int = 1900, heat: int = 60) -> str:
    return f"""<gpu id="0000:{number:02x}:00.0"><product_name>NVIDIA L40S</product_name>
<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width><current_link_width>{width}</current_link_width>
</link_widths></pci_gpu_link_info></pci><utilization><gpu_util>{use} %</gpu_util></utilization>
<temperature><gpu_temp>{heat} C</gpu_temp></temperature><clocks><sm_clock>{clock} MHz</sm_clock></clocks></gpu>"""


def _node(*cards: str, attached: int = 0) -> str:
    return f"<nvidia_smi_log><attached_gpus>{attached or len(cards)}</attached_gpus>{''.join(cards)}</nvidia_smi_log>"


def test_half_a_link_is_a_signal_only_where_siblings_have_more() -> None:
    assert said(read(_node(*(_card(n, "8x") for n in range(1, 5))))) == []
    assert [one[:2] for one in said(read(_node(_card(1), _card(2, "8x"), _card(3))))] == [
        ("gpu.pcie.width", "gpu/0000:02:00")
    ]


def test_a_card_slower_and_hotter_than_its_busy_siblings_stands_out() -> None:
    cards = [_card(n) for n in range(1, 8)]
    assert said(read(_node(*cards, _card(8)))) == []
    slow = said(read(_node(*cards, _card(8, clock=900, heat=85))))
    assert [one[:2] for one in slow] == [
        ("gpu.clock.peers", "gpu/0000:08:00"),
        ("gpu.temperature.peers", "gpu/0000:08:00"),
    ]
    assert said(read(_node(*cards, _card(8, clock=300, use=0)))) == []


def test_a_query_of_one_chosen_card_is_no_missing_card() -> None:
    assert said(read(_node(_card(1), attached=8))) == []
    assert [one[0] for one in said(read(_node(*(_card(n) for n in range(1, 8)), attached=8)))] == ["gpu.count"]


def test_of_repeated_reports_the_last_one_counts() -> None:
    bad, good = query(pending="Yes"), query()
    assert said(read(bad + good)) == []
    assert said(read(good + bad)) == [
        ("gpu.remap.pending", "gpu/0000:9b:00", line_of(good + bad, "Pending                           : Yes"))
    ]
    one = (
        '<nvidia_smi_log>\n<gpu id="0000:05:00.0"><remapped_rows>\n'
        "<remapped_row_failure>{}</remapped_row_failure></remapped_rows></gpu></nvidia_smi_log>\n"
    )
    assert said(read(one.format("Yes") + one.format("No"))) == []
    assert said(read(one.format("No") + one.format("Yes"))) == [("gpu.remap.failed", "gpu/0000:05:00", 6)]


def test_a_listing_of_retired_pages_is_counted() -> None:
    rows = "".join(f"GPU-00000001, 0x{page:x}, Double Bit ECC\n" for page in range(61))
    text = "gpu_uuid, retired_pages.address, retired_pages.cause\nGPU-00000002, 0x1, Single Bit ECC\n" + rows
    assert said(read(text)) == [("gpu.retired.limit", "gpu/GPU-00000001", 63)]
