"""NVIDIA's devices as a source. Owns which of two children speaks: the library's, or, without its binding, the tool's."""

import shutil

from keepstep.adapters.devices.source import DeviceSource

TOOL_INTERVAL_S = 60.0


class NvmlSource(DeviceSource):
    """Events as they happen and counters every ``interval_s``; with the tool alone no events, and once a minute at most."""

    name = "nvml"
    module = "keepstep.adapters.nvml.probe"
    library = "pynvml"

    def child(self) -> str:
        if found := super().child():
            return found
        if shutil.which("nvidia-smi") is None:
            return ""
        self._interval_s = max(self._interval_s, TOOL_INTERVAL_S)
        return "keepstep.adapters.nvml.query"
