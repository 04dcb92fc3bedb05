"""Links and the bus: which devices and links are there. Samples written here, in the tools' formats."""

from keepstep.core.catalog import CATALOG, Verdict
from keepstep.evidence.document import Document
from keepstep.evidence.gpu import lspci, nvlink_status
from keepstep.evidence.reading import Reading


def links(text: str) -> Reading:
    document = Document("it", text.encode())
    assert nvlink_status.READER.recognise(document) >= 0.6
    return nvlink_status.READER.read(document)


def bus(text: str) -> Reading:
    document = Document("it", text.encode())
    assert lspci.READER.recognise(document) >= 0.6
    return lspci.READER.read(document)


def said(reading: Reading) -> list[tuple[str, str, int]]:
    return [
        (one.signal, one.part, one.line)
        for one in reading.observations
        if CATALOG.row(one.signal).verdict is not Verdict.BENIGN
    ]


def _gpu(number: int, name: str, speeds: list[str]) -> str:
    head = f"GPU {number}: {name} (UUID: GPU-0000000{number}-0000-0000-0000-000000000000)\n"
    return head + "".join(f"\t Link {link}: {speed}\n" for link, speed in enumerate(speeds))


SXM, PCIE = "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB"
UP, DOWN = "25 GB/s", "<inactive>"


def test_an_inactive_link_of_a_board_with_switches_is_a_fault() -> None:
    reading = links(_gpu(7, SXM, [UP, UP, DOWN, UP]))
    assert said(reading) == [("gpu.nvlink.down", "gpu/GPU-00000007-0000-0000-0000-000000000000", 4)]
    assert reading.observations[0].attributes["link"] == "2"


def test_links_that_no_bridge_joins_are_inactive_on_purpose() -> None:
    assert said(links(_gpu(0, PCIE, [UP, UP, DOWN, DOWN]) + _gpu(1, PCIE, [UP, UP, DOWN, DOWN]))) == []
    assert said(links(_gpu(0, PCIE, [DOWN, DOWN]))) == []


def test_a_card_with_fewer_links_than_its_sibling_has_lost_some() -> None:
    reading = links(_gpu(0, PCIE, [UP, UP, UP, UP]) + _gpu(1, PCIE, [UP, DOWN, DOWN, DOWN]))
    assert [one[0] for one in said(reading)] == ["gpu.nvlink.down"]


def test_one_card_of_a_board_alone_may_have_no_links() -> None:
    assert said(links(_gpu(0, "NVIDIA H100 80GB HBM3", [DOWN, DOWN]))) == []
    both = said(links(_gpu(0, "NVIDIA H100 80GB HBM3", [DOWN, DOWN]) + _gpu(1, "NVIDIA H100 80GB HBM3", [UP, UP])))
    assert [one[0] for one in both] == ["gpu.nvlink.down"]


def test_letters_of_links_are_read() -> None:
    text = """+----------------------+
|  NvLink Link Status  |
+----------------------+
GPUs:
    gpuId 0:
        U U U U U U
    gpuId 1:
        U U D U _ X
"""
    assert said(links(text)) == [("gpu.nvlink.down", "gpu/1", 8)]
    assert links(text).observations[0].attributes["link"] == "2"


def test_a_link_slower_than_the_others_is_said() -> None:
    assert [one[0] for one in said(links(_gpu(0, SXM, [UP, "12.5 GB/s", UP])))] == ["gpu.nvlink.slow"]


def test_error_counters_of_links_are_read() -> None:
    text = _gpu(0, SXM, ["Replay Errors: 0", "Recovery Errors: 0", "CRC Errors: 70000"])
    reading = links(text)
    assert said(reading) == [("gpu.nvlink.errors", "gpu/GPU-00000000-0000-0000-0000-000000000000", 4)]


LSPCI = """\
0000:00:00.0 Host bridge: Intel Corporation Device 09a2
0000:1b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width {width}
0000:43:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] {rev}
"""


def test_a_device_that_reads_as_all_ones_is_lost() -> None:
    assert said(bus(LSPCI.format(width="x16", rev="(rev ff) (prog-if ff)"))) == [("gpu.lost", "gpu/0000:43:00", 5)]


def test_a_link_slow_at_idle_is_ordinary_and_a_narrow_one_is_not() -> None:
    assert said(bus(LSPCI.format(width="x16", rev="(rev a1)"))) == []
    assert said(bus(LSPCI.format(width="x4 (downgraded)", rev="(rev a1)"))) == [("gpu.pcie.width", "gpu/0000:1b:00", 4)]


def test_an_odd_number_of_cards_on_a_board_with_switches_is_one_too_few() -> None:
    cards = [
        f"{n:02x}:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)"
        for n in range(8)
    ]
    switches = [f"c{n}:00.0 Bridge [0680]: NVIDIA Corporation Device [10de:1af1] (rev a1)" for n in range(6)]
    assert said(bus("\n".join(cards + switches))) == []
    assert [one[0] for one in said(bus("\n".join(cards[1:] + switches)))] == ["gpu.count"]
    assert [one[0] for one in said(bus("\n".join(cards[1:])))] == ["gpu.count"], "seven of eight that are soldered on"
    assert said(bus("\n".join(cards[1:4]))) == []
