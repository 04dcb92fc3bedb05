"""Services that a node needs for training and that systemd reports about. Owns which those are; must not judge a restart.

Only these are read: a log-rotation that failed says nothing about a node.
"""

import re
from collections.abc import Sequence

from keepstep.core.observation import Observation
from keepstep.evidence.kernel.frames import Record, seen

_SERVICES = (
    ("fabric_manager", re.compile(r"nvidia-fabricmanager|fabric ?manager", re.I)),
    ("imex", re.compile(r"nvidia-imex|\bIMEX\b")),
    ("persistence", re.compile(r"nvidia-persistenced|NVIDIA Persistence Daemon", re.I)),
    ("dcgm", re.compile(r"nvidia-dcgm|dcgm-exporter|\bDCGM\b|nv-hostengine")),
    ("slurm", re.compile(r"\bslurmd\b|Slurm node daemon", re.I)),
    ("kubelet", re.compile(r"\bkubelet\b|Kubernetes Node Agent|Kubernetes Kubelet", re.I)),
    ("container_runtime", re.compile(
        r"\b(?:containerd|docker|crio|cri-o)\.service|containerd container runtime|Docker Application Container Engine"
        r"|Container Runtime Interface for OCI", re.I,
    )),
    ("munge", re.compile(r"\bmunge(?:d)?\b|MUNGE authentication", re.I)),
    ("rdma", re.compile(r"\bopenibd?\.service|openibd - configure Mellanox|\brdma-load-modules@", re.I)),
)  # fmt: skip

_FAILED = re.compile(
    r"Failed with result '(?P<result>[\w-]{1,24})'|entered failed state|Failed to start \S"
    r"|Main process exited, code=(?:exited|killed|dumped), status=(?P<status>[^\s]{1,24})"
)
_UP = re.compile(r"(?:^|: )Started (?!Session )\S")

HINTS = ("Failed ", "failed state", "Main process exited", "Started ")

_OK_STATUS = ("0/SUCCESS", "15/TERM")


def match(record: Record) -> Sequence[Observation] | None:
    if record.program != "systemd" and not (not record.framed and record.text.startswith("systemd[")):
        return None
    text = record.text[:400]
    failed = _FAILED.search(text)
    if failed is None and _UP.search(text) is None:
        return None
    name = next((name for name, regex in _SERVICES if regex.search(text)), "")
    if not name or (failed is not None and failed["status"] in _OK_STATUS):
        return ()
    signal = f"host.service.{name}" if failed is not None else "host.service.up"
    return (seen(record, signal, f"service/{name}", {"service": name}),)
