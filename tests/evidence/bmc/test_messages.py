"""What texts of controllers mean: one table over makers, each a sentence in its maker's manner, written for this test."""

import pytest

from keepstep.evidence.bmc.entries import entry_of, observations_of

CRITICAL, WARNING, OK = "Critical", "Warning", "OK"

MEANINGS = [
    # (message id, message, severity, key; "-key" where it says that the condition is over; "" where it says nothing)
    # Dell
    ("IDRAC.2.8.PSU0003", "The power input for power supply 1 is lost.", CRITICAL, "bmc.psu.input_lost"),
    ("IDRAC.2.8.PSU0001", "Power supply 2 failed.", CRITICAL, "bmc.psu.failed"),
    ("IDRAC.2.8.PSU0017", "Power supply 1 is operating normally.", OK, "-bmc"),
    ("IDRAC.2.8.RDU0012", "Power supply redundancy is lost.", CRITICAL, "bmc.psu.redundancy"),
    ("IDRAC.2.8.RDU0011", "The power supplies are redundant.", OK, "-bmc.psu.redundancy"),
    ("IDRAC.2.8.FAN0001", "Fan 3A RPM is less than the lower critical threshold.", CRITICAL, "bmc.fan.failed"),
    ("IDRAC.2.8.TMP0118", "The system inlet temperature is greater than the upper warning threshold.", WARNING,
     "bmc.threshold.noncritical"),
    ("IDRAC.2.8.TMP0120", "The system inlet temperature is greater than the upper critical threshold.", CRITICAL,
     "bmc.temperature.inlet"),
    ("IDRAC.2.8.CPU0000", "CPU 1 has an internal error (IERR).", CRITICAL, "bmc.cpu.ierr"),
    ("IDRAC.2.8.CPU0001", "CPU 2 has a thermal trip (over-temperature) event.", CRITICAL, "bmc.cpu.thermal_trip"),
    ("IDRAC.2.8.CPU0700", "CPU 1 initialization error detected.", CRITICAL, "bmc.event.critical"),
    ("IDRAC.2.8.CPU0704", "CPU 1 machine check error detected.", CRITICAL, "bmc.cpu.ierr"),
    ("IDRAC.2.8.MEM0001", "Multi-bit memory errors detected on a memory device at location(s) DIMM_A3.", CRITICAL,
     "bmc.memory.uncorrectable"),
    ("IDRAC.2.8.MEM0702", "Correctable memory error rate exceeded for DIMM_B2.", CRITICAL, "bmc.memory.corrected_limit"),
    ("IDRAC.2.8.MEM0701", "Correctable memory error rate exceeded for DIMM_B2.", WARNING, "bmc.memory.corrected_limit"),
    ("IDRAC.2.8.PCI1318", "A fatal error was detected on a component at bus 58 device 0 function 0.", CRITICAL,
     "bmc.pcie.fatal"),
    ("IDRAC.2.8.PCI1360", "A bus fatal error was detected on a component at slot 3.", CRITICAL, "bmc.pcie.fatal"),
    ("IDRAC.2.8.PDR1001", "Fault detected on drive 2 in disk drive bay 1.", CRITICAL, "bmc.drive.failed"),
    ("IDRAC.2.8.PDR16", "Predictive failure reported for Disk 4 in Backplane 1 of RAID Controller in Slot 3.", WARNING,
     "bmc.drive.predicted"),
    ("IDRAC.2.8.VDR8", "Virtual Disk 0 on RAID Controller in Slot 3 has become degraded.", WARNING, "bmc.storage.degraded"),
    ("IDRAC.2.8.SEC0031", "The chassis is open while the power is off.", CRITICAL, "bmc.intrusion"),
    ("IDRAC.2.8.SEC0033", "The chassis was closed while the power is off.", OK, ""),
    ("IDRAC.2.8.ASR0001", "The watchdog timer reset the system.", CRITICAL, "bmc.watchdog"),
    ("IDRAC.2.8.OSE0001", "A runtime critical stop occurred.", CRITICAL, "bmc.os.stop"),
    ("IDRAC.2.8.SWC9005", "The requested SecureBoot Certificate Export operation cannot be completed.", CRITICAL,
     "bmc.request.refused"),
    ("IDRAC.2.8.JCP038", "Unable to run the configuration job because of a fatal error.", CRITICAL, ""),
    ("IDRAC.2.8.USR0032", "The session for root from 10.0.0.9 using REDFISH is logged off.", OK, "bmc.notice"),
    ("IDRAC.2.8.LOG007", "The previous log entry was repeated 3 times.", OK, "bmc.notice"),
    ("IDRAC.2.8.SUP0518", "Successfully updated the firmware of the NIC.", OK, ""),
    ("IDRAC.2.8.RED023", "Unable to update the firmware: the image is invalid.", CRITICAL, "bmc.firmware.update_failed"),
    # HPE
    ("", "Uncorrectable Memory Error - DIMM 7 of processor 1 has failed", CRITICAL, "bmc.memory.uncorrectable"),
    ("", "System Power Supply Failure (Power Supply 3)", CRITICAL, "bmc.psu.failed"),
    ("", "System Power Supply: General Failure (Power Supply 1)", CRITICAL, "bmc.psu.failed"),
    ("", "System Fan Failure (Fan 4, Location System)", CRITICAL, "bmc.fan.failed"),
    ("", "System Fans Not Redundant", WARNING, "bmc.fan.warning"),
    ("", "Uncorrectable PCI Express Error Detected. Slot 5 (Segment 0x0, Bus 0x3B, Device 0x0, Function 0x0)", CRITICAL,
     "bmc.pcie.fatal"),
    ("", "ASR Detected by System ROM", CRITICAL, "bmc.watchdog"),
    ("", "Drive Array Device Failure. The following drive should be replaced: Port 2I Box 1 Bay 4", WARNING,
     "bmc.drive.failed"),
    ("", 'The overall security state of the system is at "Risk".', WARNING, "bmc.notice"),
    ("", "Server reset.", WARNING, "bmc.power.state"),
    ("", "Server power restored.", OK, "bmc.power.state"),
    # Lenovo
    ("PlatformEvents.FQXSPPW0009I", "Power Supply 1 has lost input.", CRITICAL, "bmc.psu.input_lost"),
    ("FQXSPCA0003N", "The Processor CPU 2 has a Critical temperature: thermal trip.", CRITICAL, "bmc.cpu.thermal_trip"),
    ("FQXSPMA0008N", "An uncorrectable bus error has been detected on the memory subsystem, DIMM 5.", CRITICAL,
     "bmc.memory.uncorrectable"),
    ("FQXSPIO0010I", "Fault in slot PCIe 3 on system: PCI Uncorrectable error.", CRITICAL, "bmc.pcie.fatal"),
    # Supermicro and OpenBMC
    ("OpenBMC.0.1.PowerSupplyFailed", "Power supply 1 failed.", CRITICAL, "bmc.psu.failed"),
    ("OpenBMC.0.1.PowerSupplyPowerLost", "Power supply 1 input power lost.", CRITICAL, "bmc.psu.input_lost"),
    ("OpenBMC.0.1.SensorThresholdCriticalHighGoingHigh",
     "TEMP_GPU_4 sensor crossed a critical high threshold going high. Reading=98 Threshold=95.", CRITICAL, "bmc.gpu.thermal"),
    ("OpenBMC.0.1.SensorThresholdCriticalHighGoingLow",
     "TEMP_GPU_4 sensor crossed a critical high threshold going low. Reading=88 Threshold=95.", OK, "-bmc.gpu.thermal"),
    ("OpenBMC.0.1.SensorThresholdWarningHighGoingHigh",
     "TEMP_CPU sensor crossed a warning high threshold going high. Reading=88 Threshold=85.", WARNING,
     "bmc.threshold.noncritical"),
    ("OpenBMC.0.1.SensorThresholdCriticalLowGoingLow",
     "FAN_2_TACH sensor crossed a critical low threshold going low. Reading=0 Threshold=1000.", CRITICAL, "bmc.fan.failed"),
    ("OpenBMC.0.1.CPUThermalTrip", "CPU 1 thermal trip.", CRITICAL, "bmc.cpu.thermal_trip"),
    ("OpenBMC.0.1.LeakageDetectedError", "A leakage was detected by sensor 2.", CRITICAL, "bmc.leak"),
    ("OpenBMC.0.1.DCPowerOff", "Host system DC power is off", OK, "bmc.power.state"),
    ("", "DIMM P1-DIMMC1 uncorrectable ECC error", CRITICAL, "bmc.memory.uncorrectable"),
    # DMTF's own registries
    ("Environmental.1.0.LeakDetectedCritical", "Leak detector 'Manifold' reports a leak in a critical state.", CRITICAL,
     "bmc.leak.cabinet"),
    ("Environmental.1.0.LeakDetectedNormal", "Leak detector 'Tray1' has returned to normal.", OK, "-bmc.leak"),
    ("StorageDevice.1.1.DriveFailure", "A failure condition exists on drive `Bay 4`.", CRITICAL, "bmc.drive.failed"),
    ("StorageDevice.1.1.DriveFailureCleared", "A failure condition was cleared on drive `Bay 4`.", OK, "-bmc.drive.failed"),
    ("StorageDevice.1.1.DrivePredictiveFailure", "A predictive failure condition exists on drive `Bay 4`.", WARNING,
     "bmc.drive.predicted"),
    ("Power.1.0.PowerSupplyFailed", "Power supply `PSU2` has failed.", CRITICAL, "bmc.psu.failed"),
    ("ResourceEvent.1.3.ResourceStatusChangedCritical",
     "The health of resource `/redfish/v1/Chassis/1/PowerSubsystem/PowerSupplies/PSU1` has changed to Critical.", CRITICAL,
     "bmc.psu.failed"),
    ("ResourceEvent.1.3.ResourceStatusChangedOK",
     "The health of resource `/redfish/v1/Chassis/1/PowerSubsystem/PowerSupplies/PSU1` has changed to OK.", OK, "-bmc"),
    ("ResourceEvent.1.0.TestMessage", "This is a test event.", CRITICAL, "bmc.test"),
    ("Base.1.8.AccessDenied", "The authentication credentials included with this request are missing or invalid.", CRITICAL,
     "bmc.request.refused"),
    ("Update.1.0.TransferFailed", "Transfer of image 'bmc.bin' to 'BMC' failed.", CRITICAL, "bmc.firmware.update_failed"),
    ("NetworkDevice.1.0.ConnectionDropped", "The connection of network adapter `NIC1` port 1 was lost: link down.", WARNING,
     "bmc.nic.link"),
    # accelerators
    ("ResourceEvent.1.0.ResourceErrorsDetected",
     "The resource property GPU_SXM_3 ThrottleReason has detected errors of type 'x.ThrottleReasons.HWPowerBrakeSlowdown'.",
     WARNING, "bmc.gpu.power_brake"),
    ("ResourceEvent.1.0.ResourceErrorsDetected",
     "The resource property GPU_SXM_3 ThrottleReason has detected errors of type 'x.ThrottleReasons.SWPowerCap'.", WARNING,
     "bmc.gpu.power_cap"),
    ("ResourceEvent.1.0.ResourceErrorsDetected",
     "The resource property GPU_SXM_2 Row Remapping Failure has detected errors of type 'row remapping failed'.", CRITICAL,
     "bmc.gpu.remap_failed"),
    # Cray
    ("CrayAlerts.HardwareCriticalFaultDetected",
     "The CPU0 VDD Voltage resource has detected a critical fault indicating that it is far above normal operating conditions.",
     CRITICAL, "bmc.voltage.critical"),
    ("CrayAlerts.HardwareFaultsCleared", "All hardware reported faults have been cleared for CPU0 VDD Voltage.", OK, "-bmc"),
    # what nobody knows
    ("Oem.1.0.Zwirbel", "The zwirbel is in an unexpected condition.", CRITICAL, "bmc.event.critical"),
    ("Oem.1.0.Zwirbel", "The zwirbel is in an unexpected condition.", WARNING, "bmc.event.warning"),
    ("Oem.1.0.Zwirbel", "The zwirbel turns.", OK, ""),
]  # fmt: skip


@pytest.mark.parametrize(("message_id", "message", "severity", "key"), MEANINGS)
def test_a_message_of_any_maker_means_what_the_table_says(message_id, message, severity, key):
    body = {"Id": "1", "Message": message, "MessageId": message_id, "Severity": severity}
    entry = entry_of("/redfish/v1/Systems/1/LogServices/EventLog/Entries/1", body, 1)
    assert entry is not None
    seen = observations_of([entry], "")
    if not key:
        assert seen == []
    elif key.startswith("-"):
        assert [x.signal for x in seen] == ["bmc.cleared"]
        assert key == "-bmc" or seen[0].attributes["ends"].startswith(key[1:])
    else:
        assert [x.signal for x in seen] == [key]


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("GPU_SXM_5 Driver Event Message", "gpu/sxm5"),
        ("NVSwitch_2 Driver Event Message", "nvswitch/2"),
        ("The power input for power supply 2 is lost.", "psu/2"),
        ("Multi-bit memory errors detected at location(s) DIMM_A3.", "dimm/A3"),
        ("CPU 1 has an internal error (IERR).", "cpu/1"),
        ("Fan 3A RPM is less than the lower critical threshold.", "fan/3A"),
        ("Bus Fatal Error (Bus fatal:B5d/D03/F02)", "pci/0000:5d:03"),
        ("A fatal error was detected on a component at bus 58 device 0 function 0.", "pci/0000:3a:00"),
        ("Port 1I Box 3 Bay 4", "disk/box3bay4"),
    ],
)
def test_a_message_names_its_part(message, part):
    from keepstep.evidence.bmc.names import part_of_text

    assert part_of_text(message) == part
