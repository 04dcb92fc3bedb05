"""Each row of the table of silence, by name; and what must hold for every combination."""

import itertools
from typing import get_args

import pytest

from keepstep.core.liveness import TABLE, Around, Heard, Peers, Power, Scheduler, View, meaning

CASES: dict[str, View] = {
    "well": View(launcher="heard", agent="heard", bmc="on", peers="step"),
    "only_agent_gone": View(launcher="heard", agent="silent", bmc="on", peers="step"),
    "no_agent": View(launcher="heard"),
    "powered_off": View(launcher="silent", agent="silent", bmc="off", peers="stand"),
    "unwatched": View(bmc="on"),
    "launcher_gone": View(launcher="silent", agent="heard", peers="stand"),
    "launcher_cut_off": View(launcher="silent", agent="heard", peers="step"),
    "our_network_gone": View(launcher="silent", agent="silent", bmc="on", peers="step"),
    "domain_gone": View(launcher="silent", agent="silent", bmc="dark", around="silent"),
    "domain_down": View(launcher="silent", agent="silent", bmc="dark", around="silent", peers="stand"),
    "os_gone": View(launcher="silent", agent="silent", bmc="on", peers="stand"),
    "os_gone_alone": View(launcher="silent", agent="silent", bmc="on"),
    "scheduler_says_down": View(launcher="silent", scheduler="down"),
    "both_paths_gone": View(launcher="silent", agent="silent", bmc="dark", peers="stand"),
    "both_paths_gone_alone": View(launcher="silent", agent="silent", bmc="dark"),
    "silent_and_missed": View(launcher="silent", peers="stand"),
    "unknown": View(launcher="silent"),
}


def test_every_row_has_a_case_and_every_case_a_row() -> None:
    assert [row.meaning.name for row in TABLE] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_view_means_its_row(name: str) -> None:
    assert meaning(CASES[name]).name == name


def _views() -> list[View]:
    sides = [get_args(x) for x in (Heard, Heard, Power, Peers, Scheduler, Around)]
    names = ("launcher", "agent", "bmc", "peers", "scheduler", "around")
    return [View(**dict(zip(names, said, strict=True))) for said in itertools.product(*sides)]


def test_silence_alone_never_loses_a_node() -> None:
    for view in _views():
        second = view.bmc == "off" or view.peers == "stand" or view.scheduler == "down"
        assert not meaning(view).lost or second, view


def test_a_job_whose_steps_advance_is_left_alone_unless_the_power_is_off() -> None:
    for view in _views():
        if view.peers == "step" and view.bmc != "off" and view.scheduler != "down":
            assert not meaning(view).lost, view


def test_a_node_that_its_launcher_and_agent_speak_for_is_not_lost() -> None:
    for view in _views():
        if view.launcher == "heard" and view.agent == "heard":
            assert not meaning(view).lost, view
