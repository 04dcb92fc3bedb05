"""The names under which AMD's tools say things, and ours. Data only. Paths as in ``smi_names``."""

AMD: dict[str, str] = {
    # amd-smi metric
    "ecc/total_uncorrectable_count": "ecc.volatile", "ecc/total_uncorrectable": "ecc.volatile",
    "ecc/total_correctable_count": "ecc.corrected", "ecc/total_correctable": "ecc.corrected",
    "temperature/edge": "temperature.edge", "temperature/hotspot": "temperature", "temperature/mem": "temperature.memory",
    "temperature/hotspot_temperature": "temperature", "temperature/mem_temperature": "temperature.memory",
    "temperature/edge_temperature": "temperature.edge",
    "usage/gfx_activity": "utilisation", "usage/gfx_usage": "utilisation", "power/socket_power": "power",
    "power/current_power": "power",
    "pcie/width": "pcie.width", "pcie/current_lanes": "pcie.width", "pcie/max_width": "pcie.width.max",
    "pcie/replay_count": "pcie.replay", "pcie/replay": "pcie.replay",
    "clock/gfx_0/clk": "clock.sm", "clock/gfx_0/max_clk": "clock.sm.max", "clock/gfx/clk": "clock.sm",
    # amd-smi static
    "limit/slowdown_hotspot_temperature": "temperature.slowdown", "limit/max_hotspot_temperature": "temperature.slowdown",
    "limit/slowdown_hotspot": "temperature.slowdown", "limit/slowdown_mem": "temperature.memory.max",
    "limit/slowdown_vram_temperature": "temperature.memory.max", "limit/max_power": "power.limit",
    "bus/max_pcie_width": "pcie.width.max", "asic/market_name": "name", "asic/asic_serial": "serial",
    "board/product_name": "name",
    # throttling: accumulated residency says that it happened; the status says that it is so now
    "throttle/prochot_violation_status": "throttle.power_brake", "throttle/ppt_violation_status": "throttle.sw_power",
    "throttle/socket_thermal_violation_status": "throttle.hw_thermal",
    "throttle/vr_thermal_violation_status": "throttle.hw_thermal",
    "throttle/hbm_thermal_violation_status": "throttle.hw_thermal",
    "violation/prochot_violation_status": "throttle.power_brake",
    "power/throttle_status": "throttle.amd", "violation/socket_thermal_violation_status": "throttle.hw_thermal",
    # bad pages
    "retired": "retired.list", "pending": "retired.pending.list", "un_res": "retired.unreservable.list",
}  # fmt: skip

ROCM: tuple[tuple[str, str], ...] = (
    ("temperature (sensor junction)", "temperature"), ("temperature (sensor memory)", "temperature.memory"),
    ("temperature (sensor edge)", "temperature.edge"), ("gpu use (%)", "utilisation"),
    ("average graphics package power", "power"),
    ("current socket graphics package power", "power"), ("max graphics package power", "power.limit"),
    ("card series", "name"), ("card model", "name"), ("serial number", "serial"), ("pci bus", "pci"), ("unique id", "uuid"),
    ("pcie replay count", "pcie.replay"),
)  # fmt: skip
"""rocm-smi: how a key begins, in lower case."""
