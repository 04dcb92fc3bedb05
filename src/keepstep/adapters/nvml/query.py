"""The child without the library's binding: ``python -m keepstep.adapters.nvml.query INTERVAL_S`` asks ``nvidia-smi -q -x``.

Lines as ``probe`` says them. The tool is slow and not light: whoever starts this asks seldom. Must not judge what it says.
"""

import subprocess
import sys
from typing import Any

from keepstep.adapters.devices.telling import rest, say
from keepstep.evidence.gpu.card import Card
from keepstep.evidence.gpu.nvidia_smi_xml import query_of
from keepstep.evidence.gpu.smi import Query
from keepstep.evidence.reading import Reading


def sweep() -> bool:
    """False where the tool did not describe anything; it has said why."""
    say(begin=0)
    # Nobody waits here for a tool that hangs: whoever started this process kills its whole group.
    done = subprocess.run(["nvidia-smi", "-q", "-x"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    query = query_of(done.stdout, Reading(reader="nvidia_smi_xml", file=""))
    if not query.cards:
        words = done.stdout.decode("utf-8", "replace").strip()
        say(failed=words[:500] or f"nvidia-smi ended with {done.returncode}")
        return False
    _tell(query)
    say(end=len(query.cards))
    return True


def _tell(query: Query) -> None:
    whole = query.attached == len(query.cards)
    for index, card in enumerate(query.cards):
        say(card=_line(card) | ({"index": str(index)} if whole else {}))
    parents = {card.part: card.uuid for card in query.cards}
    for piece in query.slices:
        say(card=_line(piece) | {"parent": parents.get(piece.parent, "")})


def _line(card: Card) -> dict[str, Any]:
    facts = {name: said.text for name, said in card.facts.items()}
    line = {"uuid": card.uuid, "pci": card.pci, "name": facts.pop("name", ""), "serial": facts.pop("serial", "")}
    return {**line, "facts": facts, "trouble": card.trouble}


def main(interval_s: float) -> int:
    while True:
        if not sweep():
            return 1
        if not rest(interval_s):
            return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
