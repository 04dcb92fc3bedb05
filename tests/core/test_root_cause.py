"""Many signals, one incident: parts, nodes, domains, and what explains what."""

import itertools

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Scope, Verdict, row
from keepstep.core.explains import EXPLAINS, explains, precedence
from keepstep.core.incident import Cause, Urgency
from keepstep.core.observation import Observation, Same, kind_of, pci_name
from keepstep.core.parts import joined
from keepstep.core.root_cause import RootCause, job_action, resource_action, root_causes
from keepstep.core.signal import Context, Signal

NOW, LATER = Urgency.NOW, Urgency.NEXT_CHECKPOINT
DEVICE, NETWORK, APP = Cause.DEVICE, Cause.NETWORK, Cause.APPLICATION


def signal(failure_class: str, part: str = "", **more: object) -> Signal:
    """One signal of a class; ``node``, ``at_s``, ``source`` go to the observation, the rest to its row."""
    seen = {key: more.pop(key) for key in ("node", "at_s", "source", "clock") if key in more}
    values = {"cause": DEVICE, "scope": Scope.CARD, "verdict": Verdict.FAULTY, "text": failure_class, **more}
    made = row(
        values.pop("cause"), failure_class, values.pop("scope"), values.pop("verdict"), values.pop("text"), **values
    )  # type: ignore[arg-type]
    return Signal(seen=Observation(signal=failure_class, part=part, **seen), row=made)  # type: ignore[arg-type]


def comm(**more: object) -> Signal:
    return signal("comm", "rank/3", cause=NETWORK, scope=Scope.JOB, verdict=Verdict.SUSPECT, urgency=NOW, **more)


def found(*signals: Signal, **more: object) -> list[RootCause]:
    return root_causes(signals, Context(**more))  # type: ignore[arg-type]


def test_nothing_wrong_is_no_incident() -> None:
    assert found() == []
    assert (
        found(signal("gpu.pcie", "gpu/0", verdict=Verdict.WATCH), signal("gpu.ok", "gpu/0", verdict=Verdict.BENIGN))
        == []
    )


def test_all_names_of_a_card_are_one_incident() -> None:
    parts = joined([Same(parts=("gpu/0000:9b:00", "gpu/3")), Same(parts=("gpu/3", "gpu/GPU-1"))])
    (cause,) = found(
        signal("gpu.lost", "gpu/3"),
        signal("gpu.memory.dbe", "gpu/GPU-1"),
        signal("gpu.lost", "gpu/0000:9b:00"),
        parts=parts,
    )
    assert cause.part == "gpu/0000:9b:00"
    assert len(cause.signals) == 3


def test_two_cards_are_two_incidents() -> None:
    assert len(found(signal("gpu.memory.dbe", "gpu/1"), signal("gpu.memory.dbe", "gpu/2"))) == 2


def test_three_cards_of_a_node_at_once_are_the_nodes_fault() -> None:
    (cause,) = found(*(signal("gpu.lost", f"gpu/{n}", node="n1", at_s=float(n), clock="k") for n in range(3)))
    assert (cause.node, cause.part, cause.row.scope, cause.row.cause) == ("n1", "", Scope.NODE, Cause.HOST_HARDWARE)
    assert len(cause.members) == 3


def test_three_cards_on_three_days_are_three_incidents() -> None:
    causes = found(*(signal("gpu.lost", f"gpu/{n}", node="n1", at_s=n * 86_400.0, clock="k") for n in range(3)))
    assert [cause.row.scope for cause in causes] == [Scope.CARD] * 3


@pytest.mark.parametrize(
    ("kind", "scope", "failure_class"),
    [
        ("rack", Scope.RACK, "nic.link"),
        ("switch", Scope.FABRIC, "nic.link"),
        ("driver", Scope.FLEET, "nic.driver"),
        ("power", Scope.RACK, "nic.power"),
    ],
)
def test_most_of_a_domain_is_the_domains_fault(kind: str, scope: Scope, failure_class: str) -> None:
    domains = {f"n{n}": {kind: "x"} for n in range(4)} | {f"m{n}": {kind: "y"} for n in range(4)}
    signals = [signal(failure_class, "nic/mlx5_0", node=f"n{n}", scope=Scope.NIC, cause=NETWORK) for n in range(3)]
    (cause,) = root_causes(signals, Context(), domains)
    assert (cause.part, cause.row.scope, cause.node) == (f"{kind}/x", scope, "")
    assert not cause.row.isolate


@pytest.mark.parametrize(
    ("kind", "failure_class"), [("driver", "nic.link"), ("switch", "gpu.firmware"), ("power", "nic.link")]
)
def test_a_domain_is_not_blamed_for_what_it_cannot_cause(kind: str, failure_class: str) -> None:
    domains = {f"n{n}": {kind: "x"} for n in range(4)}
    signals = [signal(failure_class, "nic/mlx5_0", node=f"n{n}", scope=Scope.NIC, cause=NETWORK) for n in range(4)]
    assert len(root_causes(signals, Context(), domains)) == 4


def test_a_few_of_a_large_domain_are_not() -> None:
    domains = {f"n{n}": {"rack": "x"} for n in range(20)}
    signals = [signal("nic.link", "nic/mlx5_0", node=f"n{n}", scope=Scope.NIC, cause=NETWORK) for n in range(3)]
    assert len(root_causes(signals, Context(), domains)) == 3


def test_a_card_that_is_lost_explains_what_its_job_says() -> None:
    (cause,) = found(signal("gpu.lost", "gpu/1", node="n1"), comm(source="job"))
    assert cause.row.failure_class == "gpu.lost"
    assert [s.key for s in cause.explained] == ["comm"]


def test_a_dependency_explains_hung_tasks_of_many_nodes_and_no_node_is_blamed() -> None:
    down = signal("dependency.service", "dependency/nfs", scope=Scope.DEPENDENCY, cause=Cause.DEPENDENCY)
    hung = [
        signal("os.kernel", node=f"n{n}", scope=Scope.NODE, verdict=Verdict.SUSPECT, cause=Cause.HOST_SOFTWARE)
        for n in range(4)
    ]
    (cause,) = found(down, *hung)
    assert cause.job_action == "wait" and cause.resource_action == "notify_owner"


def test_a_fault_of_one_node_explains_nothing_of_another() -> None:
    causes = found(signal("gpu.lost", "gpu/1", node="n1"), signal("gpu.compute_engine", "gpu/1", node="n2"))
    assert len(causes) == 2


def test_a_lost_card_does_not_explain_the_memory_of_another() -> None:
    causes = found(signal("gpu.lost", "gpu/1", node="n1"), signal("gpu.memory.dbe", "gpu/2", node="n1"))
    assert {cause.part for cause in causes} == {"gpu/1", "gpu/2"}


def test_a_lost_card_explains_the_links_of_another() -> None:
    (cause,) = found(signal("gpu.lost", "gpu/1", node="n1"), signal("nvlink.link", "gpu/2", node="n1"))
    assert cause.part == "gpu/1"


def test_what_a_job_says_hours_later_is_another_story() -> None:
    oom = signal("os.memory", "process/1", scope=Scope.JOB, cause=APP, at_s=20_000.0, clock="k")
    fault = signal("software.app", "process/2", scope=Scope.JOB, cause=APP, at_s=0.0, clock="k")
    assert len(found(fault, oom)) == 2


def test_a_suspicion_does_not_explain_a_fault_away() -> None:
    suspect = signal("power.psu", "psu/1", scope=Scope.NODE, verdict=Verdict.SUSPECT, cause=Cause.POWER, node="n1")
    causes = found(suspect, signal("gpu.memory.dbe", "gpu/1", node="n1"))
    assert causes[0].row.failure_class == "gpu.memory.dbe"


def test_another_source_makes_surer_and_never_certain() -> None:
    alone = found(signal("gpu.lost", "gpu/1", source="kernel_log"))[0].confidence
    both = found(signal("gpu.lost", "gpu/1", source="kernel_log"), signal("gpu.lost", "gpu/1", source="nvml"))[
        0
    ].confidence
    again = found(*(signal("gpu.lost", "gpu/1", source="kernel_log") for _ in range(9)))[0].confidence
    assert alone == again < both < 1.0


def test_the_order_of_the_evidence_does_not_matter() -> None:
    signals = [
        signal("gpu.lost", "gpu/1", node="n1"),
        signal("gpu.pcie", "gpu/1", node="n1", verdict=Verdict.SUSPECT),
        comm(),
        signal("nic.link", "nic/mlx5_0", node="n2", scope=Scope.NIC, cause=NETWORK),
    ]
    told = {
        tuple((c.resource, c.row.failure_class, len(c.explained)) for c in found(*some))
        for some in itertools.permutations(signals)
    }
    assert len(told) == 1


@pytest.mark.parametrize(
    ("of", "resource", "job"),
    [
        (signal("gpu.memory.dbe", "gpu/1", urgency=NOW), "quarantine", "restart_elsewhere"),
        (signal("gpu.thermal", "gpu/1", urgency=LATER), "quarantine", "move_at_next_checkpoint"),
        (signal("gpu.remap", "gpu/1", urgency=Urgency.JOB_END, verdict=Verdict.SUSPECT), "watch", "move_at_job_end"),
        (signal("software.app", "rank/1", scope=Scope.JOB, cause=APP, urgency=NOW), "none", "restart"),
        (signal("software.app", "rank/1", scope=Scope.JOB, cause=APP), "none", "restart"),
        (signal("gpu.pcie", "gpu/1", verdict=Verdict.WATCH), "watch", "continue"),
        (signal("dependency", "dependency/s3", scope=Scope.DEPENDENCY), "notify_owner", "wait"),
    ],
)
def test_the_two_verdicts(of: Signal, resource: str, job: str) -> None:
    assert (resource_action(of.row), job_action(of.row)) == (resource, job)


# ---- the table of what explains what


def test_nothing_explains_itself_or_what_stands_above_it() -> None:
    classes = [name for name, _ in EXPLAINS]
    for one, other in itertools.product(classes, classes):
        assert not (explains(one, other) and explains(other, one)), (one, other)
        assert not explains(one, one)


def test_precedence_goes_by_the_longest_prefix() -> None:
    assert precedence("gpu.fallen_off_bus") < precedence("gpu.memory.dbe") < precedence("gpu.anything")
    assert precedence("never.heard.of") == len(EXPLAINS)


# ---- names


@pytest.mark.parametrize(
    "written", ["0000:9b:00", "00000000:9B:00.0", "PCI:0000:9b:00", "9b:00.0", "0000:9B:00.3", " 0000:9b:00.0 "]
)
def test_a_pci_address_has_one_spelling(written: str) -> None:
    assert pci_name(written) == "0000:9b:00"


@pytest.mark.parametrize("written", ["", "gpu0", "0000:zz:00", "1:2:3:4"])
def test_what_is_no_pci_address_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="not a PCI address"):
        pci_name(written)


def test_parts_that_nobody_joined_stay_apart() -> None:
    parts = joined([Same(parts=("gpu/0000:9b:00", "gpu/3"), node="n1")])
    assert parts.canonical("n1", "gpu/3") == "gpu/0000:9b:00"
    assert parts.canonical("n2", "gpu/3") == "gpu/3"
    assert parts.names("n1", "gpu/3") == ("gpu/0000:9b:00", "gpu/3")
    assert kind_of("") == "node"


def test_every_row_says_something_that_makes_sense() -> None:
    for key, made in CATALOG.rows.items():
        assert made.text and 0.0 <= made.confidence <= 1.0, key
        assert not (made.isolate and made.verdict in (Verdict.BENIGN, Verdict.WATCH)), key
        assert not (made.isolate and made.scope in (Scope.JOB, Scope.DEPENDENCY, Scope.FLEET)), key
        assert made.source, f"{key} says not who says so"
