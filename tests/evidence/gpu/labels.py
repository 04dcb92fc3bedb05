"""What is true of the collected captures: our own words, keyed by file. The bench computes its figures from the same table."""

from pathlib import Path

DATA = Path(__file__).parents[3].parent / "shared" / "data"

Truth = set[tuple[str, str, str, str]]
"""(part, failure class, verdict, urgency) of everything that is worse than benign."""

_LIMIT = ("gpu.memory.remap", "faulty", "next_checkpoint")

LABELS: dict[str, Truth] = {
    "nvidia_smi/telegraf_a100-sxm4-v12.xml": set(),
    "nvidia_smi/telegraf_a10g.xml": set(),
    "nvidia_smi/telegraf_tesla-t4.xml": set(),
    "nvidia_smi/telegraf_rtx-3090-v12.xml": set(),
    "nvidia_smi/telegraf_gtx-1070-ti.xml": set(),
    "nvidia_smi/azure_orig_nvsmi8_output.txt": set(),
    "nvidia_smi/azure_bad_nvsmi8_output.txt": {
        (f"gpu/000{number}:00:00", *_LIMIT) for number in (1, 2, 4, 6, 8)
    },
    "nvidia_smi/azure_good_nvlink_status.txt": set(),
    "nvidia_smi/gpud_nvidia-smi.nvlink.status.a100": set(),
    "nvidia_smi/gpud_lspci.nn.a100": set(),
    "nvidia_smi/gpud_lspci.nn.a10": set(),
    "dcgm/dlrover_hang_xpu_timer_metric_all": {("job/aistudio-155220033", "hang", "faulty", "now")},
    "dcgm/dlrover_hang_xpu_timer_metric_some": {("job/aistudio-155220033", "hang", "suspect", "now")},
    "dcgm/dlrover_normal_xpu_timer_metric_0": set(),
    "dcgm/dlrover_xpu_timer_metric_single": set(),
    "dcgm/superbench_monitor.jsonl": set(),
}  # fmt: skip
