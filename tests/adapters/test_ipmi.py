"""The IPMI adapter against ``ipmi_sim``: the event log's cursor, and a controller that does not answer."""

import pytest
from tests.adapters.bmcs import PASSWORD, USER, add_record, reached, simulator

from keepstep.adapters.ipmi import IpmiBmc


def test_records_are_told_once_and_a_cleared_log_begins_again(tmp_path):
    with simulator(tmp_path) as address:
        bmc = IpmiBmc(address, USER, PASSWORD)
        add_record(address, (0x13, 0x90, 0x0A))
        first = reached(bmc, {})
        assert first.observations == () and first.cursor == {"sel": "1"}, (
            "what was there before the first look is history"
        )
        add_record(address, (0x07, 0xC9, 0x00))
        second = reached(bmc, first.cursor)
        assert [seen.signal for seen in second.observations] == ["bmc.cpu.ierr"]
        assert reached(bmc, second.cursor).observations == ()
        bmc._call("sel", "clear")
        add_record(address, (0x13, 0x90, 0x0A))
        assert reached(bmc, {"sel": "7f"}).cursor["sel"] != "7f"


def test_a_wrong_password_is_no_answer(tmp_path):
    with simulator(tmp_path) as address:
        reading = IpmiBmc(address, USER, "wrong").look({})
        assert not reading.reachable and "wrong" not in reading.detail


@pytest.mark.parametrize("address", ["", "-H", "host:notaport"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="address"):
        IpmiBmc(address, USER, PASSWORD)
