"""Management controllers that speak Redfish, through the client library sushy. The optional extra ``redfish`` brings it."""

from keepstep.adapters.redfish.bmc import RedfishBmc

__all__ = ["RedfishBmc"]
