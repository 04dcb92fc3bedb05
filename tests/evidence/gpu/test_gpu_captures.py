"""Every labelled capture of device state, against what is true of it."""

from pathlib import Path

import pytest
from tests.evidence.gpu.labels import DATA, LABELS

from keepstep.core.catalog import CATALOG, Verdict
from keepstep.core.observation import kind_of
from keepstep.evidence.document import Document
from keepstep.evidence.gpu import READERS
from keepstep.evidence.reading import Reading

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the collected captures are not here")


def read(path: Path) -> Reading:
    # The name says nothing: it is not the file's own.
    document = Document("capture", path.read_bytes())
    reader = max(READERS, key=lambda one: one.recognise(document))
    assert reader.recognise(document) >= 0.6
    return reader.read(document)


@pytest.mark.parametrize("name", sorted(LABELS))
def test_a_capture_is_judged_as_it_is_labelled(name: str) -> None:
    reading = read(DATA / name)
    rows = [(seen.part, CATALOG.row(seen.signal)) for seen in reading.observations]
    said = {
        (part, row.failure_class, row.verdict.value, row.urgency.value)
        for part, row in rows
        if row.verdict is not Verdict.BENIGN
    }
    assert said == LABELS[name]
    assert reading.records > 0


@pytest.mark.parametrize("name", sorted(name for name, truth in LABELS.items() if not truth))
def test_a_healthy_capture_says_what_is_well(name: str) -> None:
    reading = read(DATA / name)
    assert reading.fine or any(CATALOG.row(one.signal).verdict is Verdict.BENIGN for one in reading.observations)


def test_cards_beside_bad_ones_are_well() -> None:
    reading = read(DATA / "nvidia_smi/azure_bad_nvsmi8_output.txt")
    assert {fine.part for fine in reading.fine} == {"gpu/0003:00:00", "gpu/0005:00:00", "gpu/0007:00:00"}


def test_slices_of_a_card_are_devices_of_their_own() -> None:
    reading = read(DATA / "nvidia_smi/telegraf_a100-sxm4-v12.xml")
    assert sum("/mig" in fine.part for fine in reading.fine) == 4
    assert all(kind_of(fine.part) == "gpu" for fine in reading.fine)
