"""A stand-in for AMD's library, imported by the child in place of the real one. Answers from the environment."""

import os


class AmdSmiException(Exception):
    pass


class AmdSmiTemperatureType:
    HOTSPOT = 1
    VRAM = 2


class AmdSmiTemperatureMetric:
    CURRENT = 0
    CRITICAL = 1


def amdsmi_init() -> None:
    if os.environ.get("STANDIN_AMD") == "absent":
        raise AmdSmiException("no driver")


def amdsmi_get_processor_handles() -> list[int]:
    return [0, 1]


def amdsmi_get_gpu_device_bdf(handle: int) -> str:
    return f"0000:c{handle}:00.0"


def amdsmi_get_gpu_device_uuid(handle: int) -> str:
    return f"abcd-{handle}"


def amdsmi_get_gpu_asic_info(handle: int) -> dict[str, str]:
    return {"market_name": "AMD Instinct MI300X", "asic_serial": f"0x{handle}"}


def amdsmi_get_gpu_total_ecc_count(handle: int) -> dict[str, int]:
    return {"correctable_count": 0, "uncorrectable_count": 3 if handle == 1 else 0}


def amdsmi_get_temp_metric(handle: int, kind: int, metric: int) -> int:
    return 110 if metric == AmdSmiTemperatureMetric.CRITICAL else 50


def amdsmi_get_gpu_bad_page_info(handle: int) -> list[dict[str, str]]:
    raise AmdSmiException("not supported")
