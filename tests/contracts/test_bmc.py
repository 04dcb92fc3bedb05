"""The contract of the port ``Bmc``: every adapter passes it, against a real server of its protocol."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.bmcs import PASSWORD, USER, Service, emulator, reached, simulator, tree

from keepstep.adapters.ipmi import IpmiBmc
from keepstep.ports import Bmc

pytest.importorskip("sushy", reason="the extra redfish is not installed")

from keepstep.adapters.redfish import RedfishBmc

SWITCH_S = 120.0


@pytest.fixture(params=["redfish", "ipmi"], scope="module")
def bmc(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bmc]:
    folder: Path = tmp_path_factory.mktemp("bmc")
    if request.param == "redfish":
        with emulator(folder) as (address, fingerprint):
            controller = RedfishBmc(address, USER, PASSWORD, fingerprint)
            yield controller
            controller.close()
    else:
        with simulator(folder) as address:
            yield IpmiBmc(address, USER, PASSWORD)


def test_a_look_tells_the_power_state(bmc: Bmc) -> None:
    reading = reached(bmc, {})
    assert reading.reachable and reading.power == "on", reading.detail


def test_a_healthy_node_is_told_as_nothing(bmc: Bmc) -> None:
    assert [seen.signal for seen in reached(bmc, {}).observations] == []


def test_power_goes_off_and_on_again_and_both_are_seen(bmc: Bmc) -> None:
    for to in ("off", "on"):
        deadline = time.monotonic() + SWITCH_S
        while said := bmc.switch(to):
            assert time.monotonic() < deadline, said
        while bmc.power() != to:
            assert time.monotonic() < deadline, f"power is {bmc.power()} {SWITCH_S:.0f} s after it was switched {to}"
            time.sleep(0.3)
        reading = reached(bmc, {})
        assert reading.power == to
        assert ("bmc.power.off" in [seen.signal for seen in reading.observations]) == (to == "off")


def test_nobody_at_the_address_is_an_answer_and_no_exception() -> None:
    service = Service()
    service.close()
    for controller in (
        RedfishBmc(service.url, USER, PASSWORD),
        IpmiBmc(service.url.removeprefix("http://"), USER, PASSWORD),
    ):
        reading = controller.look({"log": "7"})
        assert not reading.reachable and reading.detail and reading.power == "unknown"
        assert reading.cursor == {"log": "7"}
        assert [seen.signal for seen in reading.observations] == ["bmc.unreachable"]
    assert RedfishBmc(service.url, USER, PASSWORD).power() == "unknown"
    assert RedfishBmc(service.url, USER, PASSWORD).switch("on") != ""


@pytest.mark.parametrize("address", ["", "-oProxy", "host:port:more:x", "host:name", "a b"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address"):
        IpmiBmc(address, USER, PASSWORD)


@pytest.mark.parametrize("address", ["", "ftp://host", "https://"])
def test_a_url_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address"):
        RedfishBmc(address, USER, PASSWORD)


def test_a_service_that_answers_anything_but_redfish_is_not_reachable() -> None:
    service = Service()
    try:
        for answer in (b"<html>", [], {"a": 1}, 500, 401, b"\xff\xfe", b"[" * 100_000):
            service.answers = {"/redfish/v1": answer}
            reading = RedfishBmc(service.url, USER, PASSWORD).look({})
            assert reading.power == "unknown" and not any(x.signal != "bmc.unreachable" for x in reading.observations)
        tree(service, [])
        assert RedfishBmc(service.url, USER, PASSWORD).look({}).reachable
    finally:
        service.close()
