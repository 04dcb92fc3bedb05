"""Captures of a healthy machine's tools, with one value changed where a test wants it. Written by hand in the tools' forms."""

from collections.abc import Mapping, Sequence

CARDS = ("1B", "43", "52", "61")
RULE = "_" * 44

_QUERY = """
GPU 00000000:{pci}:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-aaaaaaaa-bbbb-cccc-dddd-0000000000{pci}
    GPU Reset Status
        Reset Required                    : {reset}
        Drain and Reset Recommended       : N/A
    GPU Recovery Action                   : {recovery}
    PCI
        Bus Id                            : 00000000:{pci}:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : {width}
        Replays Since Reset               : 0
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : {idle}
        SW Power Cap                      : {cap}
        HW Slowdown                       : {slow}
            HW Thermal Slowdown           : {hot}
            HW Power Brake Slowdown       : {brake}
        SW Thermal Slowdown               : Not Active
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {dram}
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : {sram}
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {dram}
            SRAM Threshold Exceeded       : {exceeded}
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : {corrected}
        Uncorrectable Error               : {uncorrected}
        Pending                           : {pending}
        Remapping Failure Occurred        : {failed}
    Temperature
        GPU Current Temp                  : {temp}
        GPU T.Limit Temp                  : 40 C
        GPU Shutdown T.Limit Temp         : -8 C
        GPU Slowdown T.Limit Temp         : -2 C
    Fabric
        State                             : {fabric}
        Status                            : {status}
"""
_HEALTHY = {
    "reset": "No", "recovery": "None", "width": "16x", "idle": "Not Active", "cap": "Not Active", "slow": "Not Active",
    "hot": "Not Active", "brake": "Not Active", "dram": "0", "sram": "0", "exceeded": "No", "corrected": "0",
    "uncorrected": "0", "pending": "No", "failed": "No", "temp": "45 C", "fabric": "Completed", "status": "Success",
}  # fmt: skip


def query(changed: Mapping[str, Mapping[str, str]]) -> str:
    """``nvidia-smi -q`` of four cards; ``changed``: card -> what is not as usual."""
    head = f"\n==============NVSMI LOG==============\n\nDriver Version : 570.86.15\n\nAttached GPUs : {len(CARDS)}"
    return head + "".join(_QUERY.format(pci=pci, **{**_HEALTHY, **changed.get(pci, {})}) for pci in CARDS)


_XML = """<gpu id="00000000:{pci}:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>
<uuid>GPU-aaaaaaaa-bbbb-cccc-dddd-0000000000{pci}</uuid><gpu_recovery_action>{recovery}</gpu_recovery_action>
<pci><pci_bus_id>00000000:{pci}:00.0</pci_bus_id></pci><performance_state>P0</performance_state>
<clocks_event_reasons><clocks_event_reason_hw_power_brake_slowdown>{brake}</clocks_event_reason_hw_power_brake_slowdown>
<clocks_event_reason_hw_thermal_slowdown>{hot}</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons>
<ecc_errors><volatile><dram_uncorrectable>{dram}</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>{uncorrected}</remapped_row_unc>
<remapped_row_pending>{pending}</remapped_row_pending><remapped_row_failure>{failed}</remapped_row_failure></remapped_rows>
<temperature><gpu_temp>{temp}</gpu_temp></temperature></gpu>
"""


def xml(changed: Mapping[str, Mapping[str, str]]) -> str:
    """``nvidia-smi -q -x`` of four cards."""
    cards = "".join(_XML.format(pci=pci, **{**_HEALTHY, **changed.get(pci, {})}) for pci in CARDS)
    return f'<?xml version="1.0" ?>\n<nvidia_smi_log><attached_gpus>4</attached_gpus>\n{cards}</nvidia_smi_log>\n'


def table(ecc: Mapping[str, str], name: Mapping[str, str]) -> str:
    """``nvidia-smi``: the count of uncorrectable errors, and the name, of cards that are not as usual."""
    line = "+-----------------------------------------+------------------------+----------------------+"
    rows = [
        "+-----------------------------------------------------------------------------------------+",
        "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |",
        line.replace("+", "|"),
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|=========================================+========================+======================|",
    ]
    for number, pci in enumerate(CARDS):
        called = name.get(pci, "NVIDIA H100 80GB HBM3")
        errors = "ERR!" if called == "ERR!" else ecc.get(pci, "0")
        rows += [
            f"|   {number}  {called:30}  On | 00000000:{pci}:00.0 Off | {errors:>20} |",
            "| N/A    35C     P0          110W /  700W |       4MiB /  81559MiB |       0%      Default |",
            "|                                         |                        |             Disabled |",
            line,
        ]
    return "\n".join(rows) + "\n"


def exporter(values: Mapping[str, float | Sequence[float]]) -> str:
    """An exporter's page of eight cards: one value for all of them, or one for each."""
    lines = []
    for metric, value in values.items():
        lines.append(f"# TYPE {metric} gauge")
        for number in range(8):
            labels = (
                f'gpu="{number}",UUID="GPU-0000000{number}-1111-2222-3333-444444444444",'
                f'pci_bus_id="00000000:{27 + number:02X}:00.0",modelName="NVIDIA H100 80GB HBM3",Hostname="node3"'
            )
            lines.append(f"{metric}{{{labels}}} {value if isinstance(value, int | float) else value[number]}")
    return "\n".join(lines) + "\n"


def links(inactive: Sequence[tuple[int, int]]) -> str:
    """``nvidia-smi nvlink -s`` of two cards; (card, link) of links that are down."""
    lines = []
    for card in range(2):
        lines.append(f"GPU {card}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{card}-1111-2222-3333-444444444444)")
        lines += [
            f"\t Link {link}: {'<inactive>' if (card, link) in inactive else '26.562 GB/s'}" for link in range(18)
        ]
    return "\n".join(lines) + "\n"


def bug_report(*sections: tuple[str, str]) -> str:
    """The text of the driver's bug report: each output between two rules, under its command or file."""
    head = (
        f"{RULE}\n\nStart of NVIDIA bug report log file.  Please include this file.\n\n"
        "nvidia-bug-report.sh Version: 34275571\n\nDate: Sat Mar  1 10:00:00 UTC 2025\n"
        "uname: Linux node9 5.15.0-91-generic #101-Ubuntu SMP x86_64 GNU/Linux\ncommand line flags:\n\n"
    )
    return (
        head + "".join(f"{RULE}\n\n{title}\n{text}\n" for title, text in sections) + f"{RULE}\n\nEnd of the log file.\n"
    )
