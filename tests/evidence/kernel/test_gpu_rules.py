"""What the driver's codes mean in company: one fault stays one, and no card is blamed for a program."""

from collections.abc import Sequence

import pytest
from tests.work import lines_run

from keepstep.core.catalog.row import Remedy, Scope, Verdict
from keepstep.core.combine import judge
from keepstep.core.incident import Cause, Urgency
from keepstep.core.parts import joined
from keepstep.core.root_cause import root_causes
from keepstep.core.signal import Context, Signal
from keepstep.evidence.document import Document
from keepstep.evidence.kernel import reader

A, B, C, D = "0000:1b:00", "0000:43:00", "0000:9b:00", "0000:dd:00"


def xid(at_s: float, code: int, card: str = A, text: str = "") -> str:
    return f"[{at_s:12.6f}] NVRM: Xid (PCI:{card}): {code}{', ' if text else ''}{text}"


def context_of(lines: Sequence[str]) -> tuple[list[Signal], Context]:
    reading = reader.read(Document("log", "\n".join(lines).encode()))
    context = Context(parts=joined(reading.same))
    return judge(reading.observations, context), context


def judged(*lines: str) -> dict[tuple[str, str], Signal]:
    """(signal, card) -> the last one, as judged in company."""
    signals, _ = context_of(lines)
    return {(s.key, s.seen.part.removeprefix("gpu/")): s for s in signals}


def incidents(*lines: str) -> list[tuple[str, str]]:
    signals, context = context_of(lines)
    return [(cause.row.failure_class, cause.part) for cause in root_causes(signals, context)]


def test_memory_error_with_a_remap_wants_drain_and_reset() -> None:
    found = judged(xid(10, 48, text="DBE"), xid(11, 63, text="Row Remapper: New row marked for remapping"))
    assert found["xid.48", A].row.remedy is Remedy.RESET_DEVICE
    assert found["xid.48", A].because
    assert found["xid.63", A].row.urgency is Urgency.JOB_END


def test_memory_error_alone_isolates_the_card() -> None:
    row = judged(xid(10, 48))["xid.48", A].row
    assert (row.verdict, row.scope, row.isolate, row.urgency) == (Verdict.FAULTY, Scope.CARD, True, Urgency.NOW)


def test_remap_alone_never_preempts() -> None:
    row = judged(xid(10, 63))["xid.63", A].row
    assert (row.verdict, row.isolate, row.urgency) == (Verdict.WATCH, False, Urgency.JOB_END)


def test_failed_remap_isolates_the_card() -> None:
    assert judged(xid(10, 64))["xid.64", A].row.isolate


def test_contained_error_ends_the_program_only() -> None:
    row = judged(xid(10, 94, text="Contained: SM (0x1)."))["xid.94", A].row
    assert (row.verdict, row.isolate, row.urgency) == (Verdict.SUSPECT, False, Urgency.NONE)


def test_uncontained_error_isolates_and_the_contained_one_beside_it_is_its_echo() -> None:
    found = judged(xid(10, 95), xid(10.5, 94))
    assert found["xid.95", A].row.isolate
    assert found["xid.94", A].row.verdict is Verdict.BENIGN


def test_first_uncontained_error_of_several_cards_is_the_source() -> None:
    found = judged(xid(10, 95, B), xid(10.2, 95, A), xid(10.4, 95, C))
    assert found["xid.95", B].row.isolate
    assert not found["xid.95", A].row.isolate
    assert not found["xid.95", C].row.isolate


SM = "Graphics SM Warp Exception on (GPC {}, TPC {}, SM 0): Out Of Range Address"


def test_one_exception_is_the_program() -> None:
    row = judged(xid(10, 13, text=SM.format(1, 2)))["xid.13", A].row
    assert (row.cause, row.scope, row.isolate) == (Cause.APPLICATION, Scope.JOB, False)


def test_exception_again_at_the_same_place_is_the_card() -> None:
    row = judged(xid(10, 13, text=SM.format(1, 2)), xid(9000, 13, text=SM.format(1, 2)))["xid.13", A].row
    assert (row.cause, row.scope, row.verdict) == (Cause.DEVICE, Scope.CARD, Verdict.SUSPECT)


def test_exceptions_at_different_places_are_the_program() -> None:
    row = judged(xid(10, 13, text=SM.format(1, 2)), xid(9000, 13, text=SM.format(3, 2)))["xid.13", A].row
    assert row.cause is Cause.APPLICATION


def test_exceptions_on_several_cards_are_the_program() -> None:
    lines = [xid(at, 13, card, SM.format(1, 2)) for at, card in ((10, A), (11, B), (9000, A), (9001, B))]
    assert judged(*lines)["xid.13", A].row.cause is Cause.APPLICATION


def test_page_fault_twice_a_day_on_one_card_is_the_card() -> None:
    assert judged(xid(10, 31), xid(9000, 31))["xid.31", A].row.cause is Cause.DEVICE


def test_page_faults_on_different_cards_are_the_program() -> None:
    found = judged(xid(10, 31), xid(9000, 31, B))
    assert found["xid.31", A].row.cause is found["xid.31", B].row.cause is Cause.APPLICATION


def test_page_faults_two_days_apart_are_the_program() -> None:
    assert judged(xid(10, 31), xid(200_000, 31))["xid.31", A].row.cause is Cause.APPLICATION


def test_removed_channels_beside_another_error_are_its_echo() -> None:
    assert judged(xid(10, 31), xid(20, 45))["xid.45", A].row.verdict is Verdict.BENIGN
    assert judged(xid(10, 74, B), xid(20, 45))["xid.45", A].row.verdict is Verdict.BENIGN


def test_removed_channels_on_all_cards_are_a_program_that_was_ended() -> None:
    found = judged(*(xid(10, 45, card, "Ch 00000010") for card in (A, B, C, D)))
    assert {signal.row.verdict for signal in found.values()} == {Verdict.BENIGN}


def test_removed_channels_alone_are_watched_however_often() -> None:
    """Programs that end print them on every card: escalating repeats drained healthy nodes elsewhere."""
    assert judged(xid(10, 45))["xid.45", A].row.verdict is Verdict.WATCH
    lines = [xid(1000 * n, 45) for n in range(1, 9)]
    assert judged(*lines)["xid.45", A].row.verdict is Verdict.WATCH
    assert incidents(*lines) == []


def test_removed_channels_that_name_their_cause_are_its_echo() -> None:
    told = "pid=1, name=x, Ch 00000001 caused by previous Xid 149"
    found = judged(xid(9, 149), xid(10, 45, text=told))
    assert found["xid.45", A].row.verdict is Verdict.BENIGN
    assert [cause for cause, _ in incidents(xid(10, 45, text=told))] == ["nvlink.link"], "all that is left of it"


def test_stopped_channel_never_isolates() -> None:
    assert not judged(xid(10, 43))["xid.43", A].row.isolate
    assert judged(xid(9, 13, text=SM.format(1, 2)), xid(10, 43))["xid.43", A].row.verdict is Verdict.WATCH


LOST = [
    "[1084456.074554] NVRM: GPU at PCI:0000:1b:00: GPU-26fba6b2-9e52-006e-68db-4ce18382a5ea",
    xid(1084456.074562, 79, text="pid=0, GPU has fallen off the bus."),
    "[1084456.074566] NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
    xid(1084460, 45),
    xid(
        1084500,
        119,
        text="Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL)",
    ),
    "[1084501.0] NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)",
]


def test_lost_card_is_one_fault_with_all_that_it_says_later() -> None:
    signals, _ = context_of(LOST)
    assert [(s.key, s.row.verdict) for s in signals if s.row.verdict is not Verdict.BENIGN] == [
        ("xid.79", Verdict.FAULTY)
    ]
    assert incidents(*LOST) == [("gpu.fallen_off_bus", f"gpu/{A}")]


def test_card_lost_in_words_only_is_lost() -> None:
    """Trap 1: drivers since 570 print no Xid."""
    lines = [
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:1b:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
        "[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).",
    ]
    assert incidents(*lines) == [("gpu.fallen_off_bus", f"gpu/{A}")]


def test_codes_that_are_no_card_faults_by_themselves_isolate_nothing() -> None:
    """Trap 15: 13, 31, 43, 45, 63 and 94."""
    for code in (13, 31, 43, 45, 63, 94):
        assert not judged(xid(10, code))[f"xid.{code}", A].row.isolate


def test_three_cards_lost_at_once_are_one_fault_of_their_node() -> None:
    signals, context = context_of([xid(10 + n, 79, card) for n, card in enumerate((A, B, C))])
    (cause,) = root_causes(signals, context)
    assert (cause.row.scope, cause.part) == (Scope.NODE, "")


def test_context_switches_that_time_out_on_all_cards_are_the_program() -> None:
    found = judged(*(xid(10, 109, card) for card in (A, B, C, D)))
    assert not any(signal.row.isolate for signal in found.values())
    assert judged(xid(10, 109))["xid.109", A].row.isolate


def test_drivers_own_action_is_the_remedy() -> None:
    found = judged(
        xid(10, 48), xid(11, 154, text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    )
    assert found["xid.48", A].row.remedy is Remedy.REBOOT
    assert incidents(
        xid(10, 48), xid(11, 154, text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)")
    ) == [("gpu.memory.dbe", f"gpu/{A}")]


def test_newest_action_counts() -> None:
    lines = [
        xid(10, 119),
        xid(11, 154, text="GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"),
        xid(12, 154, text="GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)"),
    ]
    assert judged(*lines)["xid.119", A].row.remedy is Remedy.RESET_DEVICE
    lines.append(xid(60, 154, text="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
    assert judged(*lines)["xid.119", A].row.remedy is Remedy.VALIDATE


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", "reset"),
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", "reboot"),
        ("from 0x0 (None) to 0x3 (Drain P2P)", "drain_p2p"),
        ("from 0x0 (None) to 0x4 (Drain and Reset)", "drain_and_reset"),
        ("from 0x0 (None) to 0x5 (Recover IMEX Domain)", "imex"),
        ("from 0x1 (GPU Reset Required) to 0x0 (None)", "none"),
    ],
)
def test_each_action_has_its_row(text: str, key: str) -> None:
    assert (f"xid.154.{key}", A) in judged(xid(10, 154, text=f"GPU recovery action changed {text}"))


def test_action_names_the_card_of_what_names_none() -> None:
    lines = [
        "[ 10.0] NVRM: nvAssertFailedNoLog: Assertion failed: Back to back GSP RPC timeout detected! GPU marked for reset",
        xid(10.3, 154, text="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
    ]
    assert incidents(*lines) == [("gpu.firmware.gsp", f"gpu/{A}")]


def test_power_smoothing_that_works_again_clears_its_loss() -> None:
    assert judged(xid(10, 163), xid(20, 162))["xid.163", A].row.verdict is Verdict.BENIGN
    assert judged(xid(10, 162), xid(20, 163))["xid.163", A].row.verdict is Verdict.WATCH


def test_same_fatal_code_after_a_reboot_is_not_cured_by_one() -> None:
    lines = [xid(9000, 48), "[    0.000000] Linux version 6.8.0", xid(200, 48)]
    assert judged(*lines)["xid.48", A].row.remedy is Remedy.REPLACE
    lines = [xid(9000, 79), "[    0.000000] Linux version 6.8.0", xid(200, 79)]
    assert judged(*lines)["xid.79", A].row.remedy is Remedy.INSPECT


def test_five_fatal_errors_of_one_card_within_a_day_replace_it() -> None:
    assert judged(*(xid(1000 * n, 62) for n in range(1, 6)))["xid.62", A].row.remedy is Remedy.REPLACE
    assert judged(*(xid(1000 * n, 62) for n in range(1, 5)))["xid.62", A].row.remedy is Remedy.RESET_DEVICE


def test_memory_errors_again_and_again_replace_the_card() -> None:
    """A degrading card: uncorrectable errors, remaps and contained errors of one card over half a day."""
    lines = [line for n in range(1, 6) for line in (xid(9000 * n, 48), xid(9000 * n + 1, 63), xid(9000 * n + 2, 94))]
    row = judged(*lines)["xid.48", A].row
    assert (row.remedy, row.isolate) == (Remedy.REPLACE, True)
    assert incidents(*lines) == [("gpu.memory.dbe", f"gpu/{A}")]


def test_kill_inside_a_collective_over_nvlink_is_no_fault() -> None:
    lines = []
    for n, card in enumerate((A, B, C, D)):
        lines.append(
            f"[ 100.{n}] nvidia-nvswitch{n}: SXid (PCI:0000:0{n + 3}:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV"
        )
        lines += [xid(100.2 + n / 10, 137, card), xid(100.3 + n / 10, 94, card)]
    signals, context = context_of(lines)
    assert {s.row.verdict for s in signals} == {Verdict.BENIGN}
    assert root_causes(signals, context) == []


def test_links_of_one_switch_are_one_fault() -> None:
    fatal = "NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
    lines = [xid(10 + n / 10, 74, card, fatal) for n, card in enumerate((A, B, C))]
    signals, context = context_of(lines)
    (cause,) = root_causes(signals, context)
    assert (cause.row.scope, cause.part) == (Scope.NODE, "")
    lines.append("[   10.5] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 28 LTSSM Fault Up")
    signals, context = context_of(lines)
    (cause,) = root_causes(signals, context)
    assert cause.row.failure_class == "nvlink.switch"


@pytest.mark.parametrize(
    ("registers", "key"),
    [
        ("0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "xid.74.hardware"),
        ("0x20000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "xid.74.mechanical"),
        ("0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "xid.74.mechanical"),
        ("0x100000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "xid.74.sympathetic"),
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "xid.74.ignorable"),
        ("0x100001, 0x0, 0x0, 0x20000, 0x40000, 0x0, 0x0", "xid.74.hardware"),
        ("0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", "xid.74.threshold"),
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", "xid.74"),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "xid.74"),
    ],
)
def test_registers_of_a_link_error_are_decoded(registers: str, key: str) -> None:
    assert (key, A) in judged(xid(10, 74, text=f"NVLink: fatal error detected on link 14({registers})"))


DOWN = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x{:08x} 0x00000000)"


def test_transfer_that_was_lost_with_a_link_is_its_echo() -> None:
    lost = "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008)"
    found = judged(xid(10, 149, A, DOWN.format(0x004505C6)), xid(11, 145, B, lost))
    assert found["nvlink5.149.link", A].row.isolate
    assert found["nvlink5.145.contained", B].row.verdict is Verdict.BENIGN
    assert judged(xid(11, 145, B, lost))["nvlink5.145.contained", B].row.verdict is Verdict.WATCH


def test_card_whose_peer_failed_is_not_isolated_for_it() -> None:
    found = judged(xid(10, 149, A, DOWN.format(0x004505C6)), xid(11, 149, B, DOWN.format(0x021425C6)))
    assert found["nvlink5.149.link", A].row.isolate
    assert not found["nvlink5.149.peer", B].row.isolate


def test_nothing_is_joined_across_a_boot() -> None:
    found = judged(xid(5000, 31), "[    0.000000] Linux version 6.8.0", xid(20, 45))
    assert found["xid.45", A].row.verdict is Verdict.WATCH


def test_a_hostile_log_of_twice_the_length_costs_no_four_times_the_work() -> None:
    def judge_many(count: int) -> None:
        assert context_of(
            [xid(200 * n, (13, 31, 45, 79, 48, 154)[n % 6], f"0000:{n % 250:02x}:00") for n in range(count)]
        )[0]

    assert lines_run(lambda: judge_many(1000)) < 3 * lines_run(lambda: judge_many(500))
