"""The Redfish adapter: cursors of logs, and services that answer badly. Against a service whose answers are written here."""

import contextlib
import time
from collections.abc import Iterator

import pytest
from tests.adapters.bmcs import PASSWORD, START_S, USER, Service, emulator, tree
from tests.evidence.bmc.judged import log_entry

pytest.importorskip("sushy", reason="the extra redfish is not installed")

from keepstep.adapters.redfish import RedfishBmc, connection
from keepstep.adapters.redfish.connection import fingerprint_of
from keepstep.adapters.redfish.walk import newer
from keepstep.evidence.bmc.bundle import Body
from keepstep.ports import BmcReading

LOG = "/redfish/v1/Systems/1/LogServices/EventLog/Entries"
OLD = "2024-04-01T10:00:00Z"
DRIVE = "/redfish/v1/Systems/1/Storage/1/Drives/3"


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    tree(service, [log_entry(4, "Power supply 1 failed.", Created=OLD)])
    yield service
    service.close()


@pytest.fixture
def bmc(service: Service) -> Iterator[RedfishBmc]:
    bmc = RedfishBmc(service.url, USER, PASSWORD)
    yield bmc
    bmc.close()


def signals(reading) -> list[str]:
    return [seen.signal for seen in reading.observations]


def test_old_records_at_the_first_look_are_history(bmc):
    reading = bmc.look({})
    assert reading.reachable and reading.health == "OK" and reading.boot == "OSRunning"
    assert signals(reading) == [] and reading.cursor == {LOG: "4"}


def test_a_record_that_is_young_on_the_controllers_clock_is_news_at_the_first_look(service, bmc):
    service.answers[LOG]["Members"].append(log_entry(5, "Power supply 2 failed.", Created="2024-05-01T10:00:00Z"))
    assert signals(bmc.look({})) == ["bmc.psu.failed"]


def test_only_records_after_the_cursor_are_told(service, bmc):
    cursor = bmc.look({}).cursor
    service.answers[LOG]["Members"].append(log_entry(5, "CPU 1 has an internal error (IERR).", Created=OLD))
    reading = bmc.look(cursor)
    assert signals(reading) == ["bmc.cpu.ierr"]
    assert signals(bmc.look(reading.cursor)) == []


def test_a_log_that_was_cleared_begins_again(service, bmc):
    cursor = bmc.look({}).cursor
    service.answers[LOG]["Members"] = [log_entry(1, "CPU 1 has an internal error (IERR).", Created=OLD)]
    reading = bmc.look(cursor)
    assert signals(reading) == ["bmc.cpu.ierr"] and reading.cursor == {LOG: "1"}


def test_pages_of_a_log_are_followed(service, bmc):
    cursor = bmc.look({}).cursor
    service.answers[LOG]["Members@odata.nextLink"] = f"{LOG}?page=2"
    service.answers[f"{LOG}?page=2"] = {"Members": [log_entry(6, "Power supply 1 failed.", Created=OLD)]}
    assert signals(bmc.look(cursor)) == ["bmc.psu.failed"]


def test_a_failed_drive_is_told_as_a_state(service, bmc):
    service.answers[DRIVE]["Status"]["Health"] = "Critical"
    reading = bmc.look({})
    assert [(seen.signal, seen.part) for seen in reading.observations] == [("bmc.drive.failed", "disk/3")]
    assert reading.complete


@pytest.mark.parametrize("answer", [500, 503, b"{not json", b"", b"[[[[", [1, 2], "text", None])
def test_a_part_of_the_tree_that_answers_badly_costs_only_itself(service, bmc, answer):
    service.answers["/redfish/v1/Chassis/1/Power"] = answer
    service.answers[DRIVE]["Status"]["Health"] = "Critical"
    reading = bmc.look({})
    assert reading.reachable and signals(reading) == ["bmc.drive.failed"]


def test_what_gave_no_answer_is_told_as_unread_and_what_is_not_there_is_not(service, bmc):
    service.answers["/redfish/v1/Chassis/1/Power"] = 500
    service.answers["/redfish/v1/Systems/1/Storage"] = 404
    assert bmc.look({}).unread == ("/redfish/v1/Chassis/1/Power",)


def test_whole_resources_in_broken_json_are_read(service, bmc):
    service.answers["/redfish/v1/Chassis/1/Power"] = (
        b'{"@odata.id": "/redfish/v1/Chassis/1/PowerSupplies/1", "@odata.type": "#PowerSupply.v1_1_0.PowerSupply",'
        b' "Name": "PSU1", "Status": {"Health": "Critical", "State": "Enabled"}},, {"x": '
    )
    assert signals(bmc.look({})) == ["bmc.psu.failed"]


def test_parts_are_walked_at_some_looks_only(service, bmc):
    bmc.look({})
    service.asked.clear()
    reading = bmc.look({})
    assert DRIVE not in service.asked and not reading.complete and reading.power == "on"


def test_audit_logs_are_left_alone(service, bmc):
    path = "/redfish/v1/Systems/1/LogServices/AuditLog"
    service.answers["/redfish/v1/Systems/1/LogServices"]["Members"].append({"@odata.id": path})
    service.answers[path] = {
        "@odata.id": path,
        "@odata.type": "#LogService.L",
        "Id": "AuditLog",
        "Entries": {"@odata.id": f"{path}/Entries"},
    }
    bmc.look({})
    assert f"{path}/Entries" not in service.asked


def answered(address: str, password: str, fingerprint: str = "") -> BmcReading:
    """The emulator is a process of this machine, which may be busy: where it was too slow it is asked again."""
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.closing(RedfishBmc(address, USER, password, fingerprint)) as bmc:
            reading = bmc.look({})
        if "timed out" not in reading.detail or time.monotonic() > deadline:
            return reading


def test_the_certificate_must_have_the_fingerprint(tmp_path):
    with emulator(tmp_path) as (address, fingerprint):
        assert answered(address, PASSWORD, fingerprint).reachable
        assert "fingerprint" in answered(address, PASSWORD, "0" * 64).detail
        assert "not trusted" in answered(address, PASSWORD).detail
        assert "password" in answered(address, "wrong", fingerprint).detail


def test_a_fingerprint_is_read_in_the_forms_that_people_paste():
    digits = "ab" * 32
    pasted = "SHA256 Fingerprint=" + ":".join(["AB"] * 32)
    assert fingerprint_of(digits) == fingerprint_of(pasted) == fingerprint_of(f"sha256:{digits}") == digits
    with pytest.raises(ValueError, match="fingerprint"):
        fingerprint_of("ab:cd")


def test_records_without_numbers_are_told_by_their_place():
    entries = [Body(path=f"/log/{name}", body={"Id": name}) for name in ("first", "second", "third")]
    fresh, last = newer(entries, "first")
    assert [body.body["Id"] for body in fresh] == ["second", "third"] and last == "third"
    assert newer([], "7") == ([], "0") and newer([], None) == ([], None)


def test_a_link_to_another_host_does_not_carry_the_session_there(service, bmc):
    with contextlib.closing(Service()) as other:
        root = service.answers["/redfish/v1"]
        assert isinstance(root, dict)
        service.answers["/redfish/v1"] = root | {"ServiceConditions": {"@odata.id": f"{other.url}/redfish/v1/Secrets"}}
        bmc.look({})
        assert other.asked == []
        assert "/redfish/v1/Secrets" in service.asked


def test_an_answer_without_end_costs_only_itself(service, bmc):
    service.answers["/redfish/v1/Systems"] = b"[" + b" " * (connection.MAX_BODY_BYTES + 1)
    assert bmc.look({}).power == "unknown"


@pytest.mark.parametrize(
    ("address", "fingerprint", "said"),
    [("https://admin:secret@bmc1", "", "user and password_file"), ("http://bmc1", "ab" * 32, "write https")],
)
def test_an_address_that_would_give_a_secret_away_is_refused(address, fingerprint, said):
    with pytest.raises(ValueError, match=said) as refused:
        RedfishBmc(address, USER, PASSWORD, fingerprint)
    assert "secret" not in str(refused.value)
