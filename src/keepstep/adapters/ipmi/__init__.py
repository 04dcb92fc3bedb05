"""Management controllers that speak IPMI over LAN, through the program ipmitool."""

from keepstep.adapters.ipmi.bmc import IpmiBmc

__all__ = ["IpmiBmc"]
