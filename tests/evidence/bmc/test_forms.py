"""Forms in which evidence of controllers is kept: each is recognised by its content, and says the same."""

import json

import pytest
from tests.evidence.bmc.judged import bad, collection, document, log_entry, read, signals_of

from keepstep.evidence.recognise import recognise

PSU = {
    "@odata.id": "/redfish/v1/Chassis/1/PowerSubsystem/PowerSupplies/PSU1", "@odata.type": "#PowerSupply.v1_3_0.PowerSupply",
    "Id": "PSU1", "Name": "PSU1", "Status": {"Health": "Critical", "State": "Enabled"},
}  # fmt: skip
FAILED = {("bmc.psu.failed", "psu/1"): "faulty"}
OLD_POWER = {
    "@odata.id": "/redfish/v1/Chassis/1/Power", "@odata.type": "#Power.v1_3_0.Power",
    "PowerSupplies": [{"MemberId": "0", "Name": "PSU1", "Status": {"Health": "Critical", "State": "Enabled"}},
                      {"MemberId": "1", "Name": "PSU2", "Status": {"Health": "OK", "State": "Enabled"}}],
}  # fmt: skip
FORMS = {
    "a resource": PSU,
    "a list": [PSU],
    "a bundle": {"resources": {PSU["@odata.id"]: PSU}},
    "paths": {PSU["@odata.id"]: PSU},
    "a collection": {"@odata.type": "#PowerSupplyCollection.PowerSupplyCollection", "Members": [PSU]},
    "json lines": json.dumps(PSU)
    + "\n"
    + json.dumps({"@odata.id": "/redfish/v1", "@odata.type": "#ServiceRoot.v1.S"})
    + "\n",
    "an indented resource": json.dumps(PSU, indent=2),
    "the old list": OLD_POWER,
    "answers": json.dumps({"path": PSU["@odata.id"], "body": PSU}) + "\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_redfish_says_the_same(form):
    evidence = document(FORMS[form])
    reader = recognise(evidence)
    assert reader is not None and reader.name == "redfish"
    assert bad(signals_of(evidence)) == FAILED


def test_an_event_as_it_is_sent_is_read():
    event = {"@odata.type": "#Event.v1_4_0.Event", "Id": "1", "Name": "Event", "Events": [
        {"MessageId": "Power.1.0.PowerSupplyFailed", "Message": "Power supply `PSU1` has failed.", "Severity": "Critical",
         "EventType": "Alert", "OriginOfCondition": {"@odata.id": PSU["@odata.id"]}}]}  # fmt: skip
    assert bad(signals_of(document(event))) == FAILED


def test_the_line_of_a_resource_in_an_indented_bundle_is_told():
    text = json.dumps({"resources": {"/redfish/v1/Chassis/1": {"Id": "1"}, PSU["@odata.id"]: PSU}}, indent=1)
    (seen,) = read(document(text)).observations
    assert (
        text.splitlines()[seen.line - 1].strip().startswith('"/redfish/v1/Chassis/1/PowerSubsystem/PowerSupplies/PSU1"')
    )


def test_records_come_in_the_order_of_their_numbers():
    over = log_entry(12, "Power supply 1 is operating normally.", "OK")
    begun = log_entry(9, "Power supply 1 failed.")
    assert bad(signals_of(document(collection(over, begun)))) == {}
    later = log_entry(13, "Power supply 1 failed.")
    assert bad(signals_of(document(collection(over, later)))) == FAILED


SENSORS = {
    "ipmitool sensor": (
        "GPU2 Temp | 99.000 | degrees C | cr | na | na | na | 85 | 90 | 95\n"
        "CPU Temp | 45.000 | degrees C | ok | na | na | na | 85 | 90 | 95\n",
        {"bmc.gpu.thermal"},
    ),
    "ipmitool sdr": (
        "Fan1 | no reading | ns\nVCORE | 0.40 Volts | lcr\nTemp | 45 degrees C | ok\n",
        {"bmc.voltage.critical"},
    ),
    "ipmitool sdr elist": (
        "PS1 Status | 85h | ok | 10.1 | Presence detected, Failure detected\nTemp | 0Eh | ok | 3.1 | 45 degrees C\n",
        {"bmc.psu.failed"},
    ),
    "chassis status": (
        "System Power         : off\nMain Power Fault     : false\nDrive Fault          : true\n",
        {"bmc.power.off", "bmc.drive.failed"},
    ),
    "ipmi-sensors": (
        "ID | Name | Type | State | Reading | Units | Event\n"
        "5 | FAN 2 | Fan | Critical | 0.00 | RPM | 'At or Below (<=) Lower Critical Threshold'\n"
        "4 | Temp | Temperature | Nominal | 39.00 | C | 'OK'\n",
        {"bmc.fan.failed"},
    ),
    "a healthy list": (
        "Temp | 45 degrees C | ok\nIntrusion | 0x00 | ok\nFan1 | no reading | ns\nVBAT | 3.1 Volts | ok\n",
        set(),
    ),
}


@pytest.mark.parametrize("form", SENSORS)
def test_every_form_of_ipmi_sensors_is_read(form):
    text, keys = SENSORS[form]
    evidence = document(text)
    reader = recognise(evidence)
    assert reader is not None and reader.name == "ipmi_sensors"
    assert {key for key, _ in bad(signals_of(evidence))} == keys


BLOCK = """SEL Record ID          : 0001
 Record Type           : 02
 Timestamp             : 01/18/2023 14:49:30
 Sensor Type           : Memory
 Sensor Number         : 87
 Event Type            : Sensor-specific Discrete
 Event Direction       : Assertion Event
 Description           : Uncorrectable ECC

"""
LOGS = {
    "list": "   1 | 01/18/2023 | 14:49:30 | Memory #0x87 | Uncorrectable ECC | Asserted\n",
    "list with a zone": "   1 | 01/18/2023 | 14:49:30 UTC | Memory #0x87 | Uncorrectable ECC | Asserted\n",
    "twelve hours": "   1 | 01/18/23 | 02:49:30 PM CST | Memory #0x87 | Uncorrectable ECC | Asserted\n",
    "elist": "   1 | 01/18/2023 | 14:49:30 | Memory ECC_A | Uncorrectable ECC | Asserted | \n",
    "csv": "1,01/18/2023,14:49:30,Memory #0x87,Uncorrectable ECC,Asserted\n",
    "block": BLOCK,
    "freeipmi": "ID  | Date        | Time     | Name | Type   | State    | Event\n"
                "1   | Jan-18-2023 | 14:49:30 | ECC  | Memory | Critical | Uncorrectable memory error ; OEM Event Data3 = 5h\n",
}  # fmt: skip


@pytest.mark.parametrize("form", LOGS)
def test_every_form_of_an_ipmi_log_is_read(form):
    evidence = document(LOGS[form])
    reader = recognise(evidence)
    assert reader is not None and reader.name == "ipmi_sel"
    (signal,) = signals_of(evidence)
    assert (signal.key, signal.seen.clock) == ("bmc.memory.uncorrectable", "bmc")
    assert signal.seen.at_s == 1674053370.0


EVENTS = [
    ("Power Supply PS1 Status | Power Supply AC lost", "bmc.psu.input_lost"),
    ("Power Supply #0x62 | Failure detected", "bmc.psu.failed"),
    ("Power Supply #0x62 | Predictive failure", "bmc.psu.warning"),
    ("Power Supply PS Redundancy | Redundancy Lost", "bmc.psu.redundancy"),
    ("Fan #0x41 | Lower Critical going low", "bmc.fan.failed"),
    ("Temperature Inlet Temp | Upper Critical going high", "bmc.temperature.inlet"),
    ("Temperature CPU1 Temp | Upper Non-critical going high", "bmc.threshold.noncritical"),
    ("Physical Security #0x51 | General Chassis intrusion", "bmc.intrusion"),
    ("Watchdog2 #0x71 | Hard reset", "bmc.watchdog"),
    ("OS Stop/Shutdown #0x46 | Run-time critical stop", "bmc.os.stop"),
    ("OS Stop/Shutdown #0x46 | OS graceful shutdown", "bmc.power.state"),
    ("Processor #0x65 | Thermal Trip", "bmc.cpu.thermal_trip"),
    ("Processor CATERR | State Asserted", "bmc.cpu.ierr"),
    ("Processor #0x65 | FRB2/Hang in POST failure", "bmc.cpu.failed"),
    ("Processor | Uncorrectable machine check exception", "bmc.cpu.ierr"),
    ("Processor | Correctable machine check error", "bmc.cpu.warning"),
    ("Memory #0x87 | Correctable ECC", "bmc.memory.corrected"),
    ("Memory #0x87 | Correctable ECC logging limit reached", "bmc.memory.corrected_limit"),
    ("Drive Slot / Bay #0x10 | Drive Fault", "bmc.drive.failed"),
    ("Drive Slot / Bay #0x10 | Predictive Failure", "bmc.drive.predicted"),
    ("Drive Slot / Bay #0x10 | In Failed Array", "bmc.storage.degraded"),
    ("Drive Slot / Bay #0x10 | Drive Present", ""),
    ("Power Supply #0x62 | Presence detected", ""),
    ("Critical Interrupt #0x77 | PCI SERR", "bmc.pcie.fatal"),
    ("Critical Interrupt #0x77 | Bus Correctable error", "bmc.pcie.corrected"),
    ("Event Logging Disabled #0x72 | Log area reset/cleared", "bmc.notice"),
    ("System ACPI Power State #0x82 | S0/G0: working", "bmc.power.state"),
    ("System Event #0x83 | Timestamp Clock Sync", "bmc.boot"),
    ("Battery #0x16 | Failed", "bmc.battery"),
]


@pytest.mark.parametrize(("event", "key"), EVENTS)
def test_an_event_of_the_ipmi_log_means_what_the_table_says(event, key):
    seen = read(document(f"   1 | 01/18/2023 | 14:49:30 | {event} | Asserted\n")).observations
    assert [x.signal for x in seen] == ([key] if key else [])


STATES = [
    (
        "Drive",
        "Systems/1/Storage/1/Drives/3",
        {"Status": {"Health": "Critical", "State": "Enabled"}},
        "bmc.drive.failed",
        "disk/3",
    ),
    (
        "Drive",
        "Systems/1/Storage/1/Drives/3",
        {"FailurePredicted": True, "Status": {"Health": "OK", "State": "Enabled"}},
        "bmc.drive.predicted",
        "disk/3",
    ),
    (
        "Processor",
        "Systems/1/Processors/GPU_SXM_4",
        {"ProcessorType": "GPU", "Status": {"Health": "Critical", "State": "Enabled"}},
        "bmc.gpu.critical",
        "gpu/sxm4",
    ),
    (
        "Processor",
        "Systems/1/Processors/GPU_2",
        {"ProcessorType": "GPU", "Status": {"Health": "Critical", "State": "UnavailableOffline"}},
        "bmc.gpu.lost",
        "gpu/bmc2",
    ),
    (
        "Processor",
        "Systems/1/Processors/CPU_1",
        {"ProcessorType": "CPU", "Status": {"Health": "Critical", "State": "Enabled"}},
        "bmc.cpu.failed",
        "cpu/1",
    ),
    (
        "Memory",
        "Systems/1/Memory/DIMM_A1",
        {"Status": {"Health": "Critical", "State": "Enabled"}},
        "bmc.memory.failed",
        "dimm/A1",
    ),
    (
        "Fan",
        "Chassis/1/ThermalSubsystem/Fans/3",
        {"Name": "Fan 3", "Status": {"Health": "Critical", "State": "Enabled"}},
        "bmc.fan.failed",
        "fan/3",
    ),
    (
        "ComputerSystem",
        "Systems/1",
        {"PowerState": "Off", "Status": {"Health": "OK", "State": "Enabled"}},
        "bmc.power.off",
        "",
    ),
    (
        "ComputerSystem",
        "Systems/1",
        {"PowerState": "On", "Status": {"Health": "Critical", "State": "Enabled"}},
        "bmc.rollup.critical",
        "",
    ),
    (
        "NetworkAdapter",
        "Chassis/1/NetworkAdapters/NIC1",
        {"Status": {"Health": "Critical", "State": "Enabled"}},
        "bmc.nic.failed",
        "nic/NIC1",
    ),
    (
        "MemoryMetrics",
        "Systems/1/Memory/GPU_SXM_2_DRAM_0/MemoryMetrics",
        {"Oem": {"Nvidia": {"RowRemappingFailed": True}}},
        "bmc.gpu.remap_failed",
        "gpu/sxm2",
    ),
    (
        "MemoryMetrics",
        "Systems/1/Memory/GPU_SXM_2_DRAM_0/MemoryMetrics",
        {"CurrentPeriod": {"UncorrectableECCErrorCount": 2}},
        "bmc.gpu.memory.uncorrectable",
        "gpu/sxm2",
    ),
    (
        "ProcessorMetrics",
        "Systems/1/Processors/GPU_SXM_2/ProcessorMetrics",
        {"Oem": {"Nvidia": {"SRAMECCErrorThresholdExceeded": True}}},
        "bmc.gpu.memory.sram",
        "gpu/sxm2",
    ),
    (
        "ProcessorMetrics",
        "Systems/1/Processors/GPU_SXM_2/ProcessorMetrics",
        {"PCIeErrors": {"FatalErrorCount": 3}},
        "bmc.gpu.pcie",
        "gpu/sxm2",
    ),
    (
        "ProcessorMetrics",
        "Systems/1/Processors/GPU_SXM_2/ProcessorMetrics",
        {"Oem": {"Nvidia": {"ThrottleReasons": ["HWPowerBrakeSlowdown"]}}},
        "bmc.gpu.power_brake",
        "gpu/sxm2",
    ),
    (
        "PortMetrics",
        "Systems/1/Processors/GPU_SXM_2/Ports/NVLink_3/Metrics",
        {"Oem": {"Nvidia": {"NVLinkErrors": {"TrainingError": True}}}},
        "bmc.gpu.nvlink",
        "gpu/sxm2",
    ),
]


@pytest.mark.parametrize(("kind", "path", "body", "key", "part"), STATES)
def test_the_present_state_of_a_part_means_what_the_table_says(kind, path, body, key, part):
    resource = {"@odata.id": f"/redfish/v1/{path}", "@odata.type": f"#{kind}.v1_0_0.{kind}", **body}
    assert set(bad(signals_of(document(resource)))) == {(key, part)}


def test_a_warning_of_the_rollup_is_explained_by_its_drive():
    drive = {"@odata.id": "/redfish/v1/Systems/1/Storage/1/Drives/3", "@odata.type": "#Drive.v1_0_0.Drive",
             "Status": {"Health": "Critical", "State": "Enabled"}}  # fmt: skip
    system = {"@odata.id": "/redfish/v1/Systems/1", "@odata.type": "#ComputerSystem.v1_0_0.ComputerSystem", "PowerState": "On",
              "Status": {"Health": "Critical", "State": "Enabled"}}  # fmt: skip
    assert set(bad(signals_of(document([system, drive])))) == {("bmc.drive.failed", "disk/3")}
