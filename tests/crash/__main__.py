"""The crash matrix from a shell: ``python -m tests.crash --full``, or a part of it, or one case.

Owns the command line.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tests.crash.layer import NoCompiler
from tests.crash.matrix import EVERYTHING, FAMILIES, Order, Report, examine
from tests.crash.programs import SCENARIOS
from tests.crash.workers import finish, start, told


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--worker"]:
        report = examine(msgspec.json.decode(arguments[1], type=Order), Path(arguments[2]))
        sys.stdout.buffer.write(msgspec.json.encode(report))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every case (minutes); otherwise as many as --budget says")
    parser.add_argument("--budget", type=int, default=20, help="about so many cases of each family (20)")
    parser.add_argument("--workers", type=int, default=2, help="processes that share the cases (2)")
    parser.add_argument("--scenario", action="append", help=f"only this program; of {', '.join(SCENARIOS)}, or a toy")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only these faults; may be repeated")
    parser.add_argument(
        "--only", default="", help="only cases whose name contains this, with all that is known of them"
    )
    given = parser.parse_args(arguments)
    found = 0
    for scenario in given.scenario or SCENARIOS:
        order = Order(
            scenario=scenario,
            families=tuple(given.family or SCENARIOS.get(scenario, FAMILIES)),
            budget=EVERYTHING if given.full or given.only else given.budget,
            shards=given.workers,
            only=given.only,
        )
        if given.only and not given.only.startswith(f"{scenario}, "):
            continue
        began = time.monotonic()
        report = _all_shards(order)
        cases = ", ".join(f"{family} {number}" for family, number in report.cases.items())
        print(f"{scenario}: {report.changes} changes, {report.looks} looks, {time.monotonic() - began:.0f} s; {cases}")
        print(told(report, whole=bool(given.only)), flush=True)
        found += len(report.findings)
    return 1 if found else 0


def _all_shards(order: Order) -> Report:
    report = Report(order.scenario)
    with tempfile.TemporaryDirectory(prefix="keepstep-crash-") as scratch:
        shards = [msgspec.structs.replace(order, shard=shard) for shard in range(order.shards)]
        workers = [start(shard, Path(scratch, str(shard.shard))) for shard in shards]
        for worker in workers:
            report.add(finish(worker))
    return report


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except NoCompiler as error:
        sys.exit(str(error))
