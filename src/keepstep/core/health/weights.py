"""The fitted numbers of the health score, as data. Written by ``python -m bench.health fit``; not to be edited.

Weights: nats for a strength of 1 in the first hour, the 5 after it, the 18 after those; from simulated fleets with
known truth. Recurrence: LANL's systems with even numbers. Base rates: published, to be replaced by a fleet's own.
"""

from keepstep.core.health.forecast import Model

MODEL = Model(
    base_per_h={
        "gpu": 1.266e-05,
        "nic": 1.98e-06,
        "node": 2.078e-05,
    },
    intercepts={
        "gpu": (-1.206, -1.212, -1.183),
        "nic": (-1.254, -1.212, -1.111),
        "node": (-0.843, -0.842, -0.805),
    },
    weights={
        "ecc_corrected.surge": (0.05, 0.042, 0.027),
        "ecc_corrected.sustained": (1.636, 1.726, 1.879),
        "ecc_uncorrected.level": (0.107, 0.125, 0.325),
        "ecc_uncorrected.rate": (0.0, 0.309, 0.537),
        "rows_remapped.level": (0.0, 0.0, 0.01),
        "rows_remapped.rate": (1.776, 1.747, 1.839),
        "pcie_replays.rising": (0.12, 0.124, 0.056),
        "pcie_replays.sustained": (0.978, 0.933, 0.977),
        "pcie_resets.rate": (0.42, 0.375, 0.653),
        "pcie_resets.rising": (0.234, 0.27, 0.0),
        "nvlink_errors.rising": (0.045, 0.078, 0.069),
        "nvlink_errors.sustained": (1.599, 1.557, 1.463),
        "throttle_s.rising": (1.109, 1.092, 1.088),
        "nic_symbol_errors.sustained": (1.826, 1.827, 1.811),
        "link_downed.rate": (0.794, 0.875, 0.637),
        "link_downed.rising": (0.82, 0.712, 0.85),
        "dram_corrected.rising": (0.158, 0.098, 0.071),
        "dram_corrected.sustained": (1.844, 1.902, 1.82),
        "temperature_c.spread": (1.474, 1.404, 1.348),
        "temperature_c.alone": (0.062, 0.12, 0.0),
        "margin_c.near": (0.845, 0.506, 0.099),
        "step_time_ratio.slow": (1.258, 1.136, 0.818),
        "together.memory_heat_pcie": (0.0, 0.11, 1.894),
    },
    recurrence={
        "past_failures.within_1d": 0.991,
        "past_failures.within_7d": 0.775,
        "past_failures.within_30d": 0.331,
        "past_failures.within_90d": 0.078,
        "past_failures.repeated": 0.688,
    },
    recurrence_weight=(0.913, 0.926, 0.938),
    per_node={
        "gpu": 8,
        "nic": 8,
        "node": 1,
    },
)
