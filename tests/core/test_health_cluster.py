"""Where network errors come from: one port, a node, cooling, a rack, the fleet."""

from keepstep.core.health.cluster import Fleet, Origin, clusters
from keepstep.core.health.window import BUCKET_S, KEPT, History, Sample, history

NOW_S = 5_000_000.0
RACKS = {f"r{rack}n{place}": f"r{rack}" for rack in range(4) for place in range(8)}


def port(per_quarter: float) -> History:
    first = NOW_S - (KEPT - 1) * BUCKET_S
    return history(Sample("nic_symbol_errors", first + k * BUCKET_S, k * per_quarter) for k in range(KEPT))


def host(inlet_c: float, before_c: float = 24.0) -> History:
    """The inlet was at one temperature and is at another for 3 hours."""
    first = NOW_S - (KEPT - 1) * BUCKET_S
    return history(Sample("inlet_c", first + k * BUCKET_S, inlet_c if k > KEPT - 12 else before_c) for k in range(KEPT))


def fleet(sick: dict[str, tuple[str, ...]], warm: dict[str, tuple[float, float]] | None = None) -> Fleet:
    """Every node with 8 ports; ``sick``: node → ports with errors; ``warm``: rack → (inlet now, before)."""
    made = {}
    for node, rack in RACKS.items():
        parts = {f"nic/mlx5_{k}": port(50.0 if f"nic/mlx5_{k}" in sick.get(node, ()) else 0.1) for k in range(8)}
        made[node] = {"": host(*(warm or {}).get(rack, (24.0, 24.0))), **parts}
    return made


def rack_sick(rack: str, nodes: int = 6) -> dict[str, tuple[str, ...]]:
    return {f"{rack}n{k}": ("nic/mlx5_1", "nic/mlx5_4") for k in range(nodes)}


def test_quiet_ports_have_no_origin() -> None:
    assert clusters(fleet({}), RACKS, NOW_S) == []


def test_errors_on_one_port_are_its_silicon_or_cable() -> None:
    (found,) = clusters(fleet({"r1n3": ("nic/mlx5_2",)}), RACKS, NOW_S)
    assert (found.origin, found.where) == (Origin.PORT, "r1n3/nic/mlx5_2")
    assert found.explained("r1n3") == frozenset()


def test_errors_over_a_rack_with_a_warmer_inlet_are_cooling() -> None:
    (found,) = clusters(fleet(rack_sick("r2"), {"r2": (33.0, 24.0)}), RACKS, NOW_S)
    assert (found.origin, found.where) == (Origin.COOLING, "r2")
    assert ("nic/mlx5_1", "nic_symbol_errors") in found.explained("r2n0")
    assert found.explained("r1n0") == frozenset()
    assert "9.0 °C" in found.because


def test_a_rack_that_was_always_warmer_than_the_others_is_cooling_too() -> None:
    (found,) = clusters(fleet(rack_sick("r2"), {"r2": (33.0, 33.0)}), RACKS, NOW_S)
    assert found.origin is Origin.COOLING


def test_errors_over_a_rack_at_ordinary_temperature_are_its_switch_or_power() -> None:
    (found,) = clusters(fleet(rack_sick("r2")), RACKS, NOW_S)
    assert found.origin is Origin.RACK


def test_a_warm_rack_does_not_excuse_a_single_port() -> None:
    (found,) = clusters(fleet({"r2n1": ("nic/mlx5_0",)}, {"r2": (35.0, 24.0)}), RACKS, NOW_S)
    assert found.origin is Origin.PORT


def test_a_rack_and_one_port_elsewhere_are_two_origins() -> None:
    found = clusters(fleet({**rack_sick("r2"), "r0n0": ("nic/mlx5_7",)}, {"r2": (33.0, 24.0)}), RACKS, NOW_S)
    assert [one.origin for one in found] == [Origin.COOLING, Origin.PORT]


def test_most_ports_of_one_node_point_at_the_node() -> None:
    (found,) = clusters(fleet({"r0n0": tuple(f"nic/mlx5_{k}" for k in range(6))}), RACKS, NOW_S)
    assert (found.origin, found.where) == (Origin.NODE, "r0n0")


def test_errors_over_many_racks_blame_no_port() -> None:
    (found,) = clusters(fleet({**rack_sick("r0"), **rack_sick("r1"), **rack_sick("r2")}), RACKS, NOW_S)
    assert found.origin is Origin.FLEET


def test_without_an_inlet_sensor_cooling_is_neither_said_nor_excluded() -> None:
    bare = {node: {p: h for p, h in parts.items() if p} for node, parts in fleet(rack_sick("r2")).items()}
    (found,) = clusters(bare, RACKS, NOW_S)
    assert found.origin is Origin.RACK
    assert "not excluded" in found.because


def test_nodes_without_a_rack_are_judged_alone() -> None:
    found = clusters(fleet({"r1n3": ("nic/mlx5_2",)}), {}, NOW_S)
    assert [one.origin for one in found] == [Origin.PORT]
