"""Combination rules of network signals: one cause is one signal, at the part that is common to those who complain."""

from keepstep.core.catalog.row import Verdict
from keepstep.core.combine import judge
from keepstep.core.observation import Observation
from keepstep.core.signal import Context, Signal


def seen(signal: str, node: str = "n1", part: str = "", at_s: float | None = None, **attributes: str) -> Observation:
    return Observation(signal=signal, node=node, part=part, at_s=at_s, clock="kernel", attributes=attributes)


def by_key(*observations: Observation) -> dict[str, list[Signal]]:
    found: dict[str, list[Signal]] = {}
    for signal in judge(observations, Context()):
        found.setdefault(signal.key, []).append(signal)
    return found


def test_trap_8_many_ports_that_go_down_in_one_minute_are_one_fabric_incident() -> None:
    flaps = [seen("port.down", part=f"nic/mlx5_{i}/1", at_s=100.0 + i) for i in range(8)]
    found = by_key(*flaps)
    assert len(found["fabric.flaps"]) == 1
    assert found["fabric.flaps"][0].seen.count == 8
    assert not any(signal.row.isolate for signal in found["port.down"])


def test_one_port_that_goes_down_often_is_not_a_switch() -> None:
    found = by_key(*(seen("port.down", part="nic/mlx5_3/1", at_s=100.0 + i) for i in range(8)))
    assert "fabric.flaps" not in found


def test_ports_that_go_down_hours_apart_are_not_a_switch() -> None:
    found = by_key(*(seen("port.down", part=f"nic/mlx5_{i}/1", at_s=4000.0 * i) for i in range(8)))
    assert "fabric.flaps" not in found
    assert all(signal.row.verdict is Verdict.FAULTY for signal in found["port.down"])


def test_ports_of_many_nodes_on_one_named_switch_are_that_switch() -> None:
    found = by_key(*(seen("port.down", node=f"n{i}", part="nic/mlx5_0/1", switch="leaf7") for i in range(5)))
    assert found["fabric.flaps"][0].seen.part == "switch/leaf7"


def test_many_nodes_that_lose_one_peer_blame_the_peer() -> None:
    found = by_key(*(seen("port.transport", node=f"n{i}", part="nic/mlx5_0/1", peer="n9") for i in range(4)))
    assert [signal.seen.node for signal in found["link.peer"]] == ["n9"]
    assert all(signal.row.verdict is Verdict.BENIGN for signal in found["port.transport"])


def test_a_node_that_loses_everybody_does_not_blame_them() -> None:
    found = by_key(*(seen("port.transport", node="n1", part="nic/mlx5_0/1", peer=f"n{i}") for i in range(2, 8)))
    assert "link.peer" not in found


def test_both_ends_of_a_link_are_one_signal() -> None:
    found = by_key(
        seen("port.rate", part="nic/mlx5_0/1", cable="c17"),
        seen("link.rate", node="", part="link/leaf1/35", cable="c17"),
    )
    assert found["link.rate"][0].row.verdict is Verdict.BENIGN
    assert found["port.rate"][0].row.confidence >= 0.85


def test_down_now_and_often_before_is_a_faulty_port() -> None:
    found = by_key(seen("netdev.down.peers", part="nic/mlx5_6/1"), seen("port.flaps", part="nic/mlx5_6/1", value="49"))
    assert found["netdev.down.peers"][0].row.verdict is Verdict.FAULTY
    assert found["netdev.down.peers"][0].row.isolate
