"""Whatever the bytes are: no reader of device state raises, and none takes long."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstep.core.catalog import CATALOG, UNKNOWN
from keepstep.core.catalog.gpu import ROWS
from keepstep.evidence.document import Document
from keepstep.evidence.gpu import READERS, diag_codes, judge
from keepstep.evidence.gpu.card import NUMBERS, Card, Said
from keepstep.evidence.gpu.driver_words import _WORDS

SEEDS = [
    b'<nvidia_smi_log><gpu id="0000:01:00.0"><uuid>GPU-1</uuid><retired_pages>'
    b'<pending_blacklist>Yes</pending_blacklist></retired_pages></gpu>',
    b"=====NVSMI LOG=====\nAttached GPUs : 1\nGPU 00000000:01:00.0\n    Remapped Rows\n        Pending : Yes\n",
    b"GPU 0: NVIDIA A100 (UUID: GPU-00000000-0000)\n\t Link 0: <inactive>\n\t Link 1: 25 GB/s\n",
    b'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1"} 79\nDCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 1e400\n',
    b'{"DCGM GPU Diagnostic": {"test_categories": [{"tests": [{"results": [{"gpu_id": "1", "status": "Fail"}]}]}]}}',
    b'[{"gpu": 0, "ecc": {"total_uncorrectable_count": {"value": 2, "unit": "x"}}}]',
    b"| NVIDIA-SMI 550.54 | x | y |\n|   0  NVIDIA  On | 00000000:"
    b"1B:00.0 Off | 2 |\n| N/A 33C P0 1W / 2W | 1MiB / 2MiB | 0% Default |\n",
    b"01:00.0 3D controller: NVIDIA Corporation GH100 (rev ff)\n\tLnkSta:\tSpeed 2.5GT/s, Width x4\n",
    b'{"gpu_temperature:0": 1, "gpu_uncorrected_ecc:0": 1e308}\n',
]  # fmt: skip
calm = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def _read_all(data: bytes) -> None:
    document = Document("it", data)
    for reader in READERS:
        assert 0.0 <= reader.recognise(document) <= 1.0
        reading = reader.read(document)
        assert all(CATALOG.row(seen.signal) is not UNKNOWN for seen in reading.observations)
        assert all(len(seen.detail) <= 500 for seen in reading.observations)


@calm
@given(st.binary(max_size=2000))
def test_any_bytes_are_survived(data: bytes) -> None:
    _read_all(data)


@calm
@given(st.sampled_from(SEEDS), st.integers(0, 300), st.binary(max_size=30), st.integers(0, 40))
def test_changed_documents_are_survived(seed: bytes, at: int, put: bytes, cut: int) -> None:
    _read_all(seed[:at] + put + seed[at + cut :])


def test_very_long_lines_and_deep_trees_are_survived() -> None:
    for data in (
        b"x" * 3_000_000,
        b"GPU 0: " + b" " * 3_000_000,
        b'DCGM_FI_DEV_GPU_TEMP{a="' + b"\\" * 2_000_000,
        b"[" * 100_000,
        b'{"body":' * 50_000,
        b"<nvidia_smi_log>" + b"<gpu>" * 100_000,
        b"<nvidia_smi_log><gpu><uuid>" + b"a" * 3_000_000,
        json.dumps([{"gpu": n} for n in range(2000)]).encode(),
    ):
        _read_all(data)


def test_every_signal_that_can_be_said_has_a_row() -> None:
    signals = {signal for _, what in _WORDS for signal in (what.signal,)} | set(diag_codes.CODES.values())
    signals |= {signal for _, signal in diag_codes.WORDS if signal}
    signals |= {f"gpu.recovery_action.{wanted}" for wanted in judge.RECOVERY.values()}
    assert signals <= set(ROWS)
    assert set(ROWS) >= judge.ORDINARY


@calm
@given(st.dictionaries(st.sampled_from(NUMBERS), st.floats(allow_nan=True).map(str)))
def test_any_numbers_are_judged(values: dict[str, str]) -> None:
    card = Card(pci="0000:01:00", facts={name: Said(text) for name, text in values.items()})
    assert all(found.signal in ROWS for found in judge.judge(card))
