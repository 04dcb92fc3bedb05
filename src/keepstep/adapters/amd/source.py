"""The source. Owns nothing but its names: the rest is what all vendors share."""

from keepstep.adapters.devices.source import DeviceSource


class AmdSource(DeviceSource):
    """AMD's devices: counters every ``interval_s``."""

    name = "amd"
    module = "keepstep.adapters.amd.probe"
    library = "amdsmi"
