"""The names under which the state query (text and XML, all generations) says things, and ours. Data only.

Paths are spelled alike for both forms: lower case, words joined by ``_``, levels by ``/``, relative to the device.
"""

PATHS: dict[str, str] = {
    "product_name": "name", "serial": "serial", "serial_number": "serial", "performance_state": "pstate",
    "ecc_mode/current_ecc": "mode.ecc", "ecc_mode/current": "mode.ecc", "mig_mode/current_mig": "mode.mig",
    "mig_mode/current": "mode.mig",
    "persistence_mode": "mode.persistence",
    "gpu_recovery_action": "recovery",
    "gpu_reset_status/reset_required": "reset.required",
    "gpu_reset_status/drain_and_reset_recommended": "reset.drain",
    "gpu_reset_status/gpu_recovery_action": "recovery",
    # PCI Express
    "pci/pci_gpu_link_info/link_widths/current_link_width": "pcie.width", "pci/gpu_link_info/link_width/current": "pcie.width",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "pcie.width.max", "pci/gpu_link_info/link_width/max": "pcie.width.max",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "pcie.gen", "pci/gpu_link_info/pcie_generation/current": "pcie.gen",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "pcie.gen.max", "pci/gpu_link_info/pcie_generation/max": "pcie.gen.max",
    "pci/replay_counter": "pcie.replay", "pci/replays_since_reset": "pcie.replay",
    # Memory errors: the present generation
    "ecc_errors/volatile/sram_uncorrectable": "ecc.volatile.sram",
    "ecc_errors/volatile/dram_uncorrectable": "ecc.volatile.dram",
    "ecc_errors/volatile/dram_correctable": "ecc.corrected",
    "ecc_errors/aggregate/sram_uncorrectable": "ecc.lifetime.sram", "ecc_errors/aggregate/dram_uncorrectable": "ecc.lifetime",
    "ecc_errors/volatile/sram_uncorrectable_parity": "ecc.volatile.sram",
    "ecc_errors/volatile/sram_uncorrectable_secded": "ecc.volatile.sram",
    "ecc_errors/volatile/sram_uncorrectable_sec_ded": "ecc.volatile.sram",
    "ecc_errors/aggregate/sram_uncorrectable_parity": "ecc.lifetime.sram",
    "ecc_errors/aggregate/sram_uncorrectable_secded": "ecc.lifetime.sram",
    "ecc_errors/aggregate/sram_uncorrectable_sec_ded": "ecc.lifetime.sram",
    "ecc_errors/aggregate/sram_threshold_exceeded": "ecc.sram.exceeded",
    "ecc_errors/volatile/sram_threshold_exceeded": "ecc.sram.exceeded",
    "ecc_errors/sram_threshold_exceeded": "ecc.sram.exceeded",
    "ecc_errors/channel_repair_pending": "repair.pending", "ecc_errors/tpc_repair_pending": "repair.pending",
    "ecc_error_count/volatile_count/sram_uncorrectable": "ecc.volatile.sram",
    "ecc_errors/volatile_count/sram_uncorrectable": "ecc.volatile.sram",
    # … and the one before it
    "ecc_errors/volatile/double_bit/total": "ecc.volatile", "ecc_errors/volatile/single_bit/total": "ecc.corrected",
    "ecc_errors/aggregate/double_bit/total": "ecc.lifetime",
    # Retired pages
    "retired_pages/multiple_single_bit_retirement/retired_count": "retired.sbe", "retired_pages/single_bit_ecc": "retired.sbe",
    "retired_pages/double_bit_retirement/retired_count": "retired.dbe", "retired_pages/double_bit_ecc": "retired.dbe",
    "retired_pages/pending_retirement": "retired.pending", "retired_pages/pending_blacklist": "retired.pending",
    "retired_pages/pending_page_blacklist": "retired.pending", "retired_pages/pending": "retired.pending",
    "retired_pages/pending_page_retirement": "retired.pending",
    # Remapped rows
    "remapped_rows/remapped_row_corr": "remap.correctable", "remapped_rows/correctable_error": "remap.correctable",
    "remapped_rows/remapped_row_unc": "remap.uncorrectable", "remapped_rows/uncorrectable_error": "remap.uncorrectable",
    "remapped_rows/remapped_row_pending": "remap.pending", "remapped_rows/pending": "remap.pending",
    "remapped_rows/remapped_row_failure": "remap.failed", "remapped_rows/remapping_failure_occurred": "remap.failed",
    "remapped_rows/row_remapper_histogram/row_remapper_histogram_none": "remap.banks.none",
    "remapped_rows/bank_remap_availability_histogram/none": "remap.banks.none",
    "remapped_rows/row_remapper_histogram/row_remapper_histogram_low": "remap.banks.low",
    "remapped_rows/bank_remap_availability_histogram/low": "remap.banks.low",
    # Temperature
    "temperature/gpu_temp": "temperature", "temperature/gpu_current_temp": "temperature", "temperature/gpu": "temperature",
    "temperature/gpu_temp_slow_threshold": "temperature.slowdown", "temperature/gpu_slowdown_temp": "temperature.slowdown",
    "temperature/gpu_temp_max_gpu_threshold": "temperature.max", "temperature/gpu_max_operating_temp": "temperature.max",
    "temperature/gpu_temp_tlimit": "temperature.margin", "temperature/gpu_t_limit_temp": "temperature.margin",
    "temperature/gpu_temp_slow_tlimit_threshold": "temperature.margin.slowdown",
    "temperature/gpu_slowdown_t_limit_temp": "temperature.margin.slowdown",
    "temperature/memory_temp": "temperature.memory", "temperature/memory_current_temp": "temperature.memory",
    "temperature/gpu_temp_max_mem_threshold": "temperature.memory.max",
    "temperature/memory_max_operating_temp": "temperature.memory.max",
    # Power, clocks, use
    "gpu_power_readings/power_draw": "power", "gpu_power_readings/instant_power_draw": "power",
    "gpu_power_readings/average_power_draw": "power", "gpu_power_readings/instantaneous_power_draw": "power",
    "power_readings/power_draw": "power", "power_readings/enforced_power_limit": "power.limit",
    "gpu_power_readings/current_power_limit": "power.limit", "power_readings/power_limit": "power.limit",
    "clocks/sm_clock": "clock.sm", "clocks/sm": "clock.sm",
    "max_clocks/sm_clock": "clock.sm.max", "max_clocks/sm": "clock.sm.max",
    "utilization/gpu_util": "utilisation", "utilization/gpu": "utilisation",
    # Fabric
    "fabric/state": "fabric.state", "fabric/status": "fabric.status",
}  # fmt: skip

THROTTLE: dict[str, str] = {
    "gpu_idle": "throttle.idle", "idle": "throttle.idle", "sw_power_cap": "throttle.sw_power",
    "hw_slowdown": "throttle.hw_slowdown", "hw_thermal_slowdown": "throttle.hw_thermal",
    "hw_power_brake_slowdown": "throttle.power_brake", "hw_power_brake": "throttle.power_brake",
    "sw_thermal_slowdown": "throttle.sw_thermal",
}  # fmt: skip
"""Last word of a path below "clocks throttle reasons" or, since 535, "clocks event reasons"."""

FABRIC_BAD: dict[str, tuple[str, ...]] = {
    "bandwidth": ("degraded",), "degraded_bandwidth": ("true", "yes", "degraded"),
    "route_unhealthy": ("true", "yes"), "access_timeout_recovery": ("true", "yes"),
    "summary": ("unhealthy", "limited capacity"), "health_summary": ("unhealthy",),
}  # fmt: skip
"""Below fabric/health: what is said of an unhealthy fabric. A route recovery in progress heals by itself."""

COLUMNS: dict[str, str] = {
    "ecc.errors.uncorrected.volatile.total": "ecc.volatile", "ecc.errors.uncorrected.volatile.device_memory": "ecc.volatile",
    "ecc.errors.uncorrected.volatile.sram": "ecc.volatile.sram", "ecc.errors.uncorrected.volatile.dram": "ecc.volatile.dram",
    "ecc.errors.uncorrected.aggregate.total": "ecc.lifetime", "ecc.errors.uncorrected.aggregate.sram": "ecc.lifetime.sram",
    "ecc.errors.corrected.volatile.total": "ecc.corrected",
    "retired_pages.sbe": "retired.sbe", "retired_pages.single_bit_ecc.count": "retired.sbe",
    "retired_pages.dbe": "retired.dbe", "retired_pages.double_bit.count": "retired.dbe",
    "retired_pages.pending": "retired.pending",
    "remapped_rows.correctable": "remap.correctable", "remapped_rows.uncorrectable": "remap.uncorrectable",
    "remapped_rows.pending": "remap.pending", "remapped_rows.failure": "remap.failed",
    "gpu_recovery_action": "recovery", "reset_status.reset_required": "reset.required",
    "reset_status.drain_and_reset_recommended": "reset.drain",
    "pcie.link.width.current": "pcie.width", "pcie.link.width.max": "pcie.width.max",
    "pcie.link.gen.current": "pcie.gen", "pcie.link.gen.max": "pcie.gen.max", "pcie.link.gen.gpucurrent": "pcie.gen",
    "temperature.gpu": "temperature", "temperature.memory": "temperature.memory",
    "temperature.gpu.tlimit": "temperature.margin",
    "power.draw": "power", "power.limit": "power.limit", "clocks.sm": "clock.sm", "clocks.current.sm": "clock.sm",
    "clocks.max.sm": "clock.sm.max", "utilization.gpu": "utilisation", "pstate": "pstate", "name": "name", "gpu_name": "name",
    "serial": "serial", "gpu_serial": "serial", "fabric.state": "fabric.state", "fabric.status": "fabric.status",
    "ecc.errors.uncorrected.aggregate.sram.thresholdexceeded": "ecc.sram.exceeded",
}  # fmt: skip
"""Columns of ``--query-gpu``; those of throttle reasons end as ``THROTTLE`` says."""
