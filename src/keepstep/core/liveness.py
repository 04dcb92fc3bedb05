"""What silence means: one table over everybody who could have seen a node. Pure.

Silence is unknown, never dead. Each row says what a combination of witnesses means, what is done with the node, and what
with the job; the first row that fits counts. ``tests/core/test_liveness.py`` has a test for each.
"""

from typing import Literal

from msgspec import Struct

Heard = Literal["heard", "silent", "none"]
Power = Literal["on", "off", "dark", "none"]
"""``dark``: the BMC does not answer. ``none``: there is none, or nobody looks."""
Peers = Literal["step", "stand", "none"]
"""Whether the steps of the node's job advance; ``none`` without a job of several nodes."""
Scheduler = Literal["up", "down", "none"]
Around = Literal["well", "silent"]
"""The other nodes of its rack or switch, as we hear them."""


class View(Struct, frozen=True, kw_only=True):
    """One node, as each witness has it now."""

    launcher: Heard = "none"
    agent: Heard = "none"
    bmc: Power = "none"
    peers: Peers = "none"
    scheduler: Scheduler = "none"
    around: Around = "well"


class Meaning(Struct, frozen=True, kw_only=True):
    name: str
    text: str
    lost: bool
    """Its ranks are to be replaced; the restart still needs proof that they are dead."""
    node: Literal["nothing", "restart_agent", "validate", "fence_by_bmc", "inspect", "facility"]
    """What is done about the node, apart from the job."""


class Row(Struct, frozen=True, kw_only=True):
    when: dict[str, tuple[str, ...]]
    """Witness -> what it says; a witness that is not named may say anything."""
    meaning: Meaning


def _row(name: str, lost: bool, node: str, text: str, **when: tuple[str, ...]) -> Row:
    meaning = Meaning(name=name, text=text, lost=lost, node=node)  # type: ignore[arg-type]
    return Row(when=when, meaning=meaning)


_SILENT = ("silent",)
_GONE = ("silent", "none")

TABLE: tuple[Row, ...] = (
    _row("well", False, "nothing", "everybody who watches it hears it", launcher=("heard", "none"), agent=("heard",)),
    _row("only_agent_gone", False, "restart_agent", "only its agent is gone: nobody watches its hardware; the job goes on",
         launcher=("heard",), agent=_SILENT),
    _row("no_agent", False, "nothing", "its launcher is heard; no agent watches it", launcher=("heard",), agent=("none",)),
    _row("powered_off", True, "validate", "its BMC says that the power is off", bmc=("off",)),
    _row("unwatched", False, "nothing", "no job runs there and no agent watches it",
         launcher=("none",), agent=("none",), bmc=("on", "none"), peers=("none",)),
    _row("launcher_gone", True, "nothing", "its launcher is silent, its agent is heard: the node lives, the launcher does not",
         launcher=_SILENT, agent=("heard",), peers=("stand",)),
    _row("launcher_cut_off", False, "nothing", "its launcher is silent, its agent is heard and the steps advance: left alone",
         launcher=_SILENT, agent=("heard",)),
    _row("our_network_gone", False, "nothing", "it is silent to us and its job's steps advance: our network, not the node",
         launcher=_GONE, agent=_GONE, peers=("step",)),
    _row("domain_gone", False, "facility", "its neighbours are silent as well: what they share is gone, not this node",
         launcher=_GONE, agent=_GONE, bmc=("dark", "none"), around=_SILENT, peers=("none",)),
    _row("domain_down", True, "facility", "it and its neighbours are silent and its job stands still: what they share is down",
         launcher=_GONE, agent=_GONE, bmc=("dark", "none"), around=_SILENT, peers=("stand",)),
    _row("os_gone", True, "fence_by_bmc", "the power is on and the operating system does not answer: hung or crashed",
         launcher=_GONE, agent=_GONE, bmc=("on",), peers=("stand",)),
    _row("os_gone_alone", False, "fence_by_bmc", "the power is on and nothing answers: hung, crashed, or cut off from us",
         launcher=_GONE, agent=_GONE, bmc=("on",), peers=("none",)),
    _row("scheduler_says_down", True, "validate", "it is silent and the scheduler says that it is down",
         launcher=_GONE, agent=_GONE, scheduler=("down",)),
    _row("both_paths_gone", True, "inspect", "neither the node nor its BMC answers and its job stands still",
         launcher=_GONE, agent=_GONE, bmc=("dark",), peers=("stand",)),
    _row("both_paths_gone_alone", False, "inspect", "neither the node nor its BMC answers: dead, or its networks are",
         launcher=_GONE, agent=_GONE, bmc=("dark",)),
    _row("silent_and_missed", True, "validate", "it is silent and its peers stand still",
         launcher=_GONE, agent=_GONE, peers=("stand",)),
    _row("unknown", False, "nothing", "it is silent, and nobody else can say why"),
)  # fmt: skip


def meaning(view: View) -> Meaning:
    """What a view means: the first row that fits. The last one fits everything."""
    for row in TABLE:
        if all(getattr(view, witness) in said for witness, said in row.when.items()):
            return row.meaning
    raise AssertionError("the last row fits everything")
