"""What management controllers say: Redfish documents, IPMI event logs, IPMI sensors and chassis states."""

from keepstep.evidence.bmc import racadm, redfish, sel, sensors
from keepstep.evidence.reading import Reader

READERS: tuple[Reader, ...] = (redfish.READER, sel.READER, racadm.READER, sensors.READER)
