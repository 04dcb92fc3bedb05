"""Readers of what tools and exporters say of accelerators."""

from keepstep.evidence.gpu import (
    amd_smi,
    dcgm,
    dcgm_diag,
    gpu_samples,
    lspci,
    nvidia_smi_table,
    nvidia_smi_text,
    nvidia_smi_xml,
    nvlink_status,
    xpu_timer,
)
from keepstep.evidence.reading import Reader

READERS: tuple[Reader, ...] = (
    nvidia_smi_xml.READER, nvidia_smi_text.READER, nvidia_smi_table.READER, nvlink_status.READER, lspci.READER,
    dcgm.READER, xpu_timer.READER, gpu_samples.READER,
    dcgm_diag.READER, amd_smi.READER,
)  # fmt: skip
