"""Names of the exporters' metrics, of every generation, and ours. Data only."""

from keepstep.evidence.gpu.smi_names import COLUMNS, THROTTLE

DCGM: dict[str, str] = {
    # Memory errors; names before and after the renaming of 4.6
    "ECC_DBE_VOL_TOTAL": "ecc.volatile", "ECC_DBE_VOL": "ecc.volatile", "ECC_DBE_VOL_DEV": "ecc.volatile.dram",
    "ECC_DBE_VOL_SRM": "ecc.volatile.sram", "ECC_DBE_AGG_TOTAL": "ecc.lifetime", "ECC_DBE_AGG_SRM": "ecc.lifetime.sram",
    "ECC_SBE_VOL_TOTAL": "ecc.corrected", "SRAM_EXCEEDED": "ecc.sram.exceeded", "THRESHOLD_SRM": "ecc.sram.exceeded",
    "RETIRED_SBE": "retired.sbe", "PAGE_RETIRED_SBE_TOTAL": "retired.sbe",
    "RETIRED_DBE": "retired.dbe", "PAGE_RETIRED_DBE_TOTAL": "retired.dbe",
    "RETIRED_PENDING": "retired.pending", "PAGE_RETIRED_PENDING": "retired.pending",
    "UNCORRECTABLE_REMAPPED_ROWS": "remap.uncorrectable", "ROW_REMAP_UNCORRECTABLE_TOTAL": "remap.uncorrectable",
    "CORRECTABLE_REMAPPED_ROWS": "remap.correctable", "ROW_REMAP_CORRECTABLE_TOTAL": "remap.correctable",
    "ROW_REMAP_FAILURE": "remap.failed", "ROW_REMAP_FAILED": "remap.failed",
    "ROW_REMAP_PENDING": "remap.pending", "BANK_REMAP_AVAIL_NONE": "remap.banks.none",
    "BANKS_REMAP_ROWS_AVAIL_NONE": "remap.banks.none",
    "BANK_REMAP_AVAIL_LOW": "remap.banks.low", "BANKS_REMAP_ROWS_AVAIL_LOW": "remap.banks.low",
    "MEMORY_UNREPAIRABLE": "memory.unrepairable", "MEMORY_UNREPAIRABLE_FLAG": "memory.unrepairable",
    # State
    "XID_ERRORS": "xid.last", "XID_ERROR": "xid.last",
    "GPU_RECOVERY_ACTION": "recovery", "GET_GPU_RECOVERY_ACTION": "recovery",
    # Heat, power, clocks
    "GPU_TEMP": "temperature", "GPU_TEMP_CELSIUS": "temperature", "GPU_MAX_OP_TEMP": "temperature.max",
    "GPU_MAX_OP_TEMP_CELSIUS": "temperature.max", "SLOWDOWN_TEMP": "temperature.slowdown",
    "GPU_TEMP_SLOWDOWN_CELSIUS": "temperature.slowdown", "GPU_TEMP_LIMIT": "temperature.margin",
    "GPU_TEMP_MARGIN_CELSIUS": "temperature.margin", "MEMORY_TEMP": "temperature.memory",
    "MEMORY_TEMP_CELSIUS": "temperature.memory", "MEM_MAX_OP_TEMP": "temperature.memory.max",
    "MEMORY_MAX_OP_TEMP_CELSIUS": "temperature.memory.max", "POWER_USAGE": "power", "BOARD_POWER_WATTS": "power",
    "ENFORCED_POWER_LIMIT": "power.limit", "BOARD_POWER_LIMIT_ENFORCED_WATTS": "power.limit",
    "SM_CLOCK": "clock.sm", "MAX_SM_CLOCK": "clock.sm.max", "GPU_UTIL": "utilisation",
    # PCI Express
    "PCIE_LINK_WIDTH": "pcie.width", "PCIE_MAX_LINK_WIDTH": "pcie.width.max", "PCIE_LINK_GEN": "pcie.gen",
    "PCIE_MAX_LINK_GEN": "pcie.gen.max", "PCIE_REPLAY_COUNTER": "pcie.replay", "PCIE_REPLAY_TOTAL": "pcie.replay",
    # Links
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": "nvlink.replay", "NVLINK_REPLAY_ERROR_TOTAL": "nvlink.replay",
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "nvlink.recovery", "NVLINK_RECOVERY_ERROR_TOTAL": "nvlink.recovery",
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "nvlink.crc", "NVLINK_CRC_FLIT_ERROR_TOTAL": "nvlink.crc",
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "nvlink.crc", "NVLINK_CRC_DATA_ERROR_TOTAL": "nvlink.crc",
    "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": "nvlink.recovery_failed",
    "NVLINK_RECOVERY_FAILED_TOTAL": "nvlink.recovery_failed",
    "NVLINK_COUNT_EFFECTIVE_BER_FLOAT": "nvlink.ber", "NVLINK_EFFECTIVE_BER_RATIO": "nvlink.ber",
    "C2C_LINK_ERROR_INTR": "c2c.errors", "C2C_LINK_ERROR_REPLAY": "c2c.errors",
    "FABRIC_MANAGER_STATUS": "fabric.state", "FABRIC_HEALTH_SUMMARY": "fabric.summary",
    "CLOCKS_EVENT_REASONS": "throttle", "CLOCK_THROTTLE_REASONS": "throttle", "CLOCKS_THROTTLE_REASONS": "throttle",
}  # fmt: skip
"""Behind ``DCGM_FI_DEV_`` (or, before version 2 of the exporter, ``dcgm_`` in lower case)."""

OLD_DCGM: dict[str, str] = {
    "dcgm_xid_errors": "xid.last", "dcgm_ecc_dbe_volatile_total": "ecc.volatile",
    "dcgm_ecc_sbe_volatile_total": "ecc.corrected",
    "dcgm_ecc_dbe_aggregate_total": "ecc.lifetime", "dcgm_retired_pages_sbe": "retired.sbe",
    "dcgm_retired_pages_dbe": "retired.dbe",
    "dcgm_retired_pages_pending": "retired.pending", "dcgm_gpu_temp": "temperature", "dcgm_memory_temp": "temperature.memory",
    "dcgm_sm_clock": "clock.sm", "dcgm_gpu_utilization": "utilisation", "dcgm_power_usage": "power",
    "dcgm_pcie_replay_counter": "pcie.replay", "dcgm_nvlink_replay_error_count_total": "nvlink.replay",
    "dcgm_nvlink_recovery_error_count_total": "nvlink.recovery", "dcgm_nvlink_flit_crc_error_count_total": "nvlink.crc",
}  # fmt: skip

_GPUD: dict[str, str] = {
    "ecc_volatile_total_uncorrected": "ecc.volatile", "ecc_aggregate_total_uncorrected": "ecc.lifetime",
    "ecc_volatile_total_corrected": "ecc.corrected", "remapped_rows_remapping_pending": "remap.pending",
    "remapped_rows_remapping_failed": "remap.failed", "clock_hw_slowdown": "throttle.hw_slowdown",
    "clock_hw_slowdown_thermal": "throttle.hw_thermal", "clock_hw_slowdown_power_brake": "throttle.power_brake",
    "hw_slowdown": "throttle.hw_slowdown", "hw_slowdown_thermal": "throttle.hw_thermal",
    "hw_slowdown_power_brake": "throttle.power_brake", "temperature_current_celsius": "temperature",
    "temperature_slowdown_threshold_celsius": "temperature.slowdown", "nvlink_replay_errors": "nvlink.replay",
    "nvlink_recovery_errors": "nvlink.recovery", "nvlink_crc_errors": "nvlink.crc",
    "utilization_gpu_util_percent": "utilisation", "clock_speed_graphics_mhz": "clock.sm",
}  # fmt: skip
"""gpud. Its gauge of rows remapped for uncorrectable errors is filled from the other count, and so is not read."""

_AMD: dict[str, str] = {
    "gpu_ecc_uncorrect_total": "ecc.volatile", "gpu_ecc_correct_total": "ecc.corrected", "gpu_edge_temperature": "temperature",
    "gpu_junction_temperature": "temperature.junction", "gpu_memory_temperature": "temperature.memory",
    "pcie_replay_count": "pcie.replay", "gpu_health": "healthy", "gpu_gfx_activity": "utilisation",
    "gpu_package_power": "power",
    "gpu_prochot_residency_accumulated": "", "pcie_max": "",
}  # fmt: skip
"""AMD's device-metrics-exporter, with or without the prefix ``amd_``."""


def _all() -> dict[str, str]:
    found: dict[str, str] = dict(OLD_DCGM)
    for name, ours in DCGM.items():
        found[f"DCGM_FI_DEV_{name}"] = ours
    for name, ours in _GPUD.items():
        found[f"accelerator_nvidia_{name}"] = ours
    for name, ours in _AMD.items():
        if ours:
            found[name] = found[f"amd_{name}"] = ours
    for column, ours in COLUMNS.items():
        if ours not in ("name", "serial", "pstate", "fabric.status"):
            found[f"nvidia_smi_{column.replace('.', '_')}"] = ours
    for word, ours in THROTTLE.items():
        for family in ("clocks_throttle_reasons", "clocks_event_reasons"):
            found[f"nvidia_smi_{family}_{word}"] = ours
    return found


METRICS: dict[str, str] = _all()
PREFIXES = ("DCGM_FI_", "DCGM_EXP_", "dcgm_", "accelerator_nvidia_", "nvidia_smi_", "amd_gpu_", "gpu_ecc_", "gpu_edge_")

THROTTLE_BITS: dict[int, str] = {
    0x1: "throttle.idle", 0x4: "throttle.sw_power", 0x8: "throttle.hw_slowdown", 0x20: "throttle.sw_thermal",
    0x40: "throttle.hw_thermal", 0x80: "throttle.power_brake",
}  # fmt: skip
CLOCK_EVENTS: dict[str, str] = {
    "gpu_idle": "throttle.idle", "power_cap": "throttle.sw_power", "hw_slowdown": "throttle.hw_slowdown",
    "sw_thermal": "throttle.sw_thermal", "hw_thermal": "throttle.hw_thermal", "hw_power_brake": "throttle.power_brake",
    "hw_power_break": "throttle.power_brake",
}  # fmt: skip
FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed", 4: "failed"}
