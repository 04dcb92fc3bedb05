"""The live kernel log of this node: the device, the journal, or a file that somebody writes it to."""

from keepstep.adapters.kmsg.source import KernelLogSource

__all__ = ["KernelLogSource"]
