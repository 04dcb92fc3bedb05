"""Parts of the agent that need no process: joining, names, configuration, spool."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.adapters.local.holds import Holds, agent_dir
from keepstep.agent.config import ConfigError, parse_config, read_config
from keepstep.agent.inventory import Inventory
from keepstep.agent.joining import VARIANTS_MAX, WINDOW_S, Joining
from keepstep.agent.settings import DeclaredDevice
from keepstep.core.ids import NodeId, device_resource, node_resource
from keepstep.core.observation import Observation, Same
from keepstep.launcher.quarantine import Quarantined

CARD = ("gpu/0000:9b:00", "gpu/GPU-aa", "gpu/0")


def seen(signal: str = "xid.79", part: str = "gpu/0000:9b:00", count: int = 1, **attributes: str) -> Observation:
    return Observation(signal=signal, part=part, count=count, attributes=attributes)


# ---- joining


def test_the_first_of_a_window_is_told_at_once_and_the_others_as_one() -> None:
    joining = Joining()
    assert joining.add(seen(), "p", 0.0) is not None
    assert joining.add(seen(), "p", 1.0) is None
    assert joining.add(seen(count=3), "p", 2.0) is None
    assert joining.due(WINDOW_S - 1) == []
    assert [one.count for one in joining.due(WINDOW_S)] == [4]
    assert joining.due(2 * WINDOW_S) == []
    assert joining.add(seen(), "p", 2 * WINDOW_S) is not None


def test_what_rules_tell_apart_is_told_apart_up_to_a_number() -> None:
    joining = Joining()
    told = [joining.add(seen(unit=str(unit)), "p", 0.0) for unit in range(20)]
    assert sum(one is not None for one in told) == VARIANTS_MAX + 1
    assert sum(one.count for one in joining.due(WINDOW_S)) == 20 - VARIANTS_MAX - 1


def test_an_old_signal_does_not_hide_a_new_one() -> None:
    joining = Joining()
    assert joining.add(seen(old="yes"), "p", 0.0) is not None
    assert joining.add(seen(), "p", 0.0) is not None


def test_a_flood_of_parts_is_bounded_and_counted() -> None:
    joining = Joining(windows_max=10)
    told = [joining.add(seen(part=f"gpu/{n}"), f"gpu/{n}", 0.0) for n in range(50)]
    assert sum(one is not None for one in told) == 10
    assert joining.overrun == 40


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.floats(0, 40)), max_size=60))
def test_no_signal_is_lost_or_counted_twice(arrivals: list[tuple[int, int, float]]) -> None:
    joining, now_s, told = Joining(), 0.0, 0
    for part, count, pause_s in arrivals:
        now_s += pause_s
        told += sum(one.count for one in joining.due(now_s))
        first = joining.add(seen(part=str(part), count=count), str(part), now_s)
        told += first.count if first is not None else 0
    told += sum(one.count for one in joining.rest())
    assert told == sum(count for _, count, _ in arrivals)


# ---- names


def test_every_name_of_a_card_leads_to_its_slot() -> None:
    inventory = Inventory(NodeId("n0"))
    inventory.learn(Same(parts=CARD))
    assert {inventory.resource(name) for name in CARD} == {"device/n0/0"}
    assert inventory.resource("nic/mlx5_0") == "node/n0"
    assert inventory.resource("") == "node/n0"


def test_an_index_alone_blames_nobody() -> None:
    assert Inventory(NodeId("n0")).resource("gpu/3") == "node/n0"


def test_cards_that_are_counted_anew_after_a_loss_keep_their_slots() -> None:
    inventory = Inventory(NodeId("n0"))
    inventory.learn(Same(parts=CARD))
    inventory.learn(Same(parts=("gpu/0000:ba:00", "gpu/GPU-bb", "gpu/1")))
    inventory.learn(Same(parts=("gpu/0000:ba:00", "gpu/GPU-bb", "gpu/0")))
    assert inventory.resource("gpu/0000:ba:00") == "device/n0/1"
    assert inventory.resource("gpu/0000:9b:00") == "device/n0/0"
    assert inventory.canonical("gpu/GPU-aa") != inventory.canonical("gpu/GPU-bb")


def test_a_declared_slot_wins_over_the_drivers_index() -> None:
    inventory = Inventory(NodeId("n0"), [DeclaredDevice(slot=5, names=("gpu/0000:9b:00",), serial="77")])
    inventory.learn(Same(parts=CARD))
    assert inventory.resource("gpu/GPU-aa") == "device/n0/5"
    (part,) = inventory.parts()
    assert (part.slot, part.serial, set(part.names)) == (5, "77", set(CARD))


def test_names_are_bounded() -> None:
    inventory = Inventory(NodeId("n0"))
    for number in range(5000):
        inventory.learn(Same(parts=(f"disk/a{number}", f"disk/b{number}")))
    assert len(inventory.parts()) == 1024


# ---- configuration


def test_a_whole_configuration_is_read() -> None:
    config = parse_config(
        {
            "agent": {"node": "n0", "sources": ["kmsg"]},
            "domains": {"rack": "r1"},
            "dependency": {"s3": {"kind": "object", "url": "http://h/b", "every_s": 5, "deadline_s": 2.5}},
            "mount": {"data": {"path": "/data", "write": True}},
            "service": {"slurm": {"unit": "slurmd"}},
            "device": {"0": {"names": ["gpu/0000:9b:00"]}},
            "source": {"kmsg": {"path": "/x"}},
        },
        "a.toml",
    )
    assert (config.dependencies[0].name, config.dependencies[0].deadline_s) == ("s3", 2.5)
    assert config.services[0].unit == "slurmd.service"
    assert config.devices[0].slot == 0
    assert config.options == {"kmsg": {"path": "/x"}}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"mont": {}}, ("a.toml", "'mont'", "mount")),
        ({"agent": {"nodes": "x"}}, ("[agent]", "'nodes'", "node")),
        ({"agent": {"sources": "kmsg"}}, ("[agent] sources", "list of names")),
        ({"domains": {"rack": 7}}, ("[domains] rack", "7")),
        ({"dependency": {"s3": {"kind": "s3", "url": "x"}}}, ("[dependency.s3]", "kind", "http, tcp, dns, object")),
        ({"dependency": {"s3": {"kind": "http"}}}, ("[dependency.s3]", "url")),
        ({"dependency": {"s3": {"kind": "tcp", "url": "tcp://h"}}}, ("[dependency.s3]", "tcp://HOST:PORT")),
        (
            {"dependency": {"s3": {"kind": "dns", "url": "h", "every_s": 0}}},
            ("[dependency.s3]", "every_s", "1 to 86400"),
        ),
        ({"dependency": {"s3": {"kind": "dns", "url": "h", "every_s": "x"}}}, ("[dependency.s3]", "every_s", "float")),
        ({"dependency": {"s3": 4}}, ("[dependency.s3]", "table")),
        ({"mount": {"d": {"path": "data"}}}, ("[mount.d]", "absolute path")),
        ({"service": {"d": {}}}, ("[service.d]", "pidfile or unit")),
        ({"device": {"x": {"names": ["gpu/1"]}}}, ("[device.x]", "slot")),
        ({"device": {"1": {"names": ["1"]}}}, ("[device.1]", "kind/name")),
        ({"source": {"kmsg": 1}}, ("[source.kmsg]", "table")),
    ],
)
def test_a_wrong_configuration_names_the_place_and_what_may_stand_there(
    table: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(table, "a.toml")
    assert [word for word in ("a.toml", *words) if word not in str(caught.value)] == []


def test_a_file_that_is_no_toml_is_named(tmp_path: Any) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff= [")
    with pytest.raises(ConfigError, match="no TOML"):
        read_config(str(path))


# ---- holds


def test_what_the_agent_holds_is_refused_by_the_launchers_of_the_node(tmp_path: Path) -> None:
    node = NodeId("n0")
    holds, gate = Holds(agent_dir(str(tmp_path), node)), Quarantined(str(tmp_path), node)
    card = device_resource(node, 3)
    assert gate.refusal([3]) == ""
    holds.hold(card, "xid.79")
    assert "xid.79" in gate.refusal([1, 3])
    assert gate.refusal([1]) == ""
    holds.lift(card)
    holds.lift(card)
    assert gate.refusal([3]) == ""
    holds.hold(node_resource(node), "broken board")
    assert "broken board" in Quarantined(str(tmp_path), node).refusal([])


def test_a_hold_that_cannot_be_read_holds(tmp_path: Path) -> None:
    node = NodeId("n0")
    Holds(str(tmp_path)).hold(node_resource(node), "x")
    (tmp_path / "holds" / "node%2Fn0").write_text("{")
    assert "cannot be read" in Quarantined(str(tmp_path), node, str(tmp_path)).refusal([])
