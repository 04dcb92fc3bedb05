"""Whatever the bytes are: no reader of this family raises, and none takes longer than the size of its input deserves."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evidence.bmc.judged import document, log_entry

from keepstep.core.combine import judge
from keepstep.core.signal import Context
from keepstep.evidence.bmc import READERS
from keepstep.evidence.document import Document

WORDS = st.sampled_from(
    [
        "Status",
        "Health",
        "State",
        "Critical",
        "Members",
        "@odata.id",
        "@odata.type",
        "#Drive.v1.D",
        "#LogEntry.v1.L",
        "Oem",
        "Reading",
        "Conditions",
        "/redfish/v1/Systems/1",
        "Message",
        "MessageArgs",
        "PowerSupplies",
        "Links",
        "Created",
        "Severity",
        "resources",
        "LifeTime",
        "UncorrectableECCErrorCount",
        "Events",
        "Id",
        "[Tue Dec 5 23:25:41 UTC 2023][1][00] XID 62 x",
        "PowerState",
    ]
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS, st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=6)),
    max_leaves=25,
)


def _all(evidence: Document) -> None:
    for reader in READERS:
        assert 0.0 <= reader.recognise(evidence) <= 1.0
        judge(reader.read(evidence).observations, Context())


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_no_json_makes_a_reader_raise(value):
    _all(document(json.dumps(value)))


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_make_a_reader_raise(data):
    _all(Document("evidence", data))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "1",
                "|",
                " | ",
                "Pre-Init",
                "01/18/2023",
                "14:49:30",
                "Fan #0x41",
                "Asserted",
                ",",
                "cr",
                "Bus",
                "OEM record c0",
                "99999999999999",
                ":",
                "\n",
                "ok",
                "degrees C",
                "\x00",
                "SEL Record ID : ",
            ]
        ),
        max_size=40,
    )
)
def test_no_line_makes_a_reader_raise(pieces):
    _all(document("".join(pieces)))


def test_deep_nesting_is_survived():
    _all(document('{"@odata.id": "/redfish/v1/x", "a":' * 3000 + "1" + "}" * 3000))
    _all(document('{"@odata.type": "#Drive.v1.D", ' + '"a": [' * 5000))


LONG = {
    "one long line": b"1 | 01/18/2023 | 14:49:30 | " + b"fan " * 2_500_000,
    "bars": b"|" * 3_000_000,
    "blanks": b" " * 3_000_000 + b"|",
    "a long message": json.dumps(log_entry(1, "power supply " * 200_000)).encode(),
    "broken json": b'{"@odata.id": "/redfish/v1/a", ' * 60_000,
    "many brackets": b"[" * 2_000_000,
}


@pytest.mark.parametrize("name", LONG)
def test_long_input_is_read(name):
    """Where something in it cost more than in proportion to its length, this would take hours."""
    _all(Document("evidence", LONG[name]))


def test_a_log_of_many_records_is_judged_in_proportion():
    line = " | 01/18/2023 | 14:49:30 | Temperature #0x30 | Upper Critical going high | {}\n"
    text = "".join(f"{n:x}" + line.format("Asserted" if n % 2 else "Deasserted") for n in range(1, 6000))
    for reader in READERS:
        evidence = document(text)
        if reader.recognise(evidence) > 0.5:
            assert len(judge(reader.read(evidence).observations, Context())) == 5999
