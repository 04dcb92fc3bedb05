"""Evidence for the tests: the example of a node that lost a card, and files that are healthy or tell of a program's bug."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "evidence"
LOST_CARD = (EXAMPLE / "kernel.log").read_text()

HEALTHY_KERNEL = """\
Mar  4 09:00:01 gpu-18 kernel: [   12.000001] systemd[1]: Started Journal Service.
Mar  4 09:00:02 gpu-18 kernel: [   13.000001] nvidia 0000:9b:00.0: enabling device (0140 -> 0142)
Mar  4 09:00:03 gpu-18 kernel: [   14.000001] EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode.
"""

OWN_BUG = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/train/train.py", line 41, in <module>
[rank3]:     config["optimiser"]
[rank3]: KeyError: 'optimiser'
"""

HEALTHY_CARD = """\

==============NVSMI LOG==============

Timestamp                                 : Wed Mar  4 09:20:00 2026
Driver Version                            : 550.90.07
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:9B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU UUID                              : GPU-11111111-2222-3333-4444-555555555555
    Minor Number                          : 3
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
"""
