"""``python -m bench.server [NAME …]``: all of it, or some of it by name. Writes bench/server/results.md, section by section."""

import argparse
import datetime
import importlib
import os
import platform
import re
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).with_name("results.md")
SECTIONS = ("agents", "heartbeats", "journal", "takeover", "herd", "reading", "transport")
"""Modules beside this one; each has ``section(quick) -> str``, which begins with its heading."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.server", description=__doc__)
    parser.add_argument(
        "what", nargs="*", metavar="NAME", help=f"of {', '.join(SECTIONS)}; default: all, about eight minutes"
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller and shorter, to see that it works; writes nothing"
    )
    parser.add_argument("--no-write", action="store_true", help="do not touch results.md")
    options = parser.parse_args()
    unknown = [name for name in options.what if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    failed = _run(options.what or SECTIONS, quick=options.quick, writes=not (options.quick or options.no_write))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(names: Sequence[str], *, quick: bool, writes: bool) -> list[str]:
    """Those that failed; the others are measured all the same."""
    failed, began_s = [], time.monotonic()
    for number, name in enumerate(names, start=1):
        print(f"[{number}/{len(names)}, {time.monotonic() - began_s:.0f} s] {name} …", file=sys.stderr, flush=True)
        try:
            told = importlib.import_module(f"bench.server.{name}").section(quick)
        except Exception:  # noqa: BLE001  what a section raises, whatever it is, must not cost the others' figures
            traceback.print_exc()
            failed.append(name)
            continue
        text = f"{told.rstrip()}\n\n{_by(name)}\n"
        print(text, flush=True)
        if writes:
            PAGE.write_text(_in_order(with_section(PAGE.read_text() if PAGE.exists() else HEAD, text)))
    print(f"{len(names)} section(s) in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    return failed


HEAD = """# What one server carries

Written by `python -m bench.server`. Figures of one machine; every ratio is of two figures of the same run.
"""


def with_section(page: str, section: str) -> str:
    """The page with that section, in place of the one of the same heading, else at its end."""
    heading = section.partition("\n")[0]
    old = re.search(rf"(?ms)^{re.escape(heading)}\n.*?(?=^## |\Z)", page)
    if old is None:
        return f"{page.rstrip()}\n\n{section}"
    return f"{page[: old.start()]}{section}\n{page[old.end() :]}".rstrip() + "\n"


def _in_order(page: str) -> str:
    """Sections in the order of SECTIONS, which their last lines name."""
    head, *sections = re.split(r"(?m)^(?=## )", page)

    def place(section: str) -> int:
        named = re.search(r"`python -m bench\.server (\w+)`", section)
        return SECTIONS.index(named[1]) if named is not None and named[1] in SECTIONS else len(SECTIONS)

    return "\n".join([head.rstrip() + "\n", *(each.rstrip() + "\n" for each in sorted(sections, key=place))])


def _by(name: str) -> str:
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg()[:2])
    return (
        f"`python -m bench.server {name}`, {datetime.date.today()}, {os.cpu_count()} cores ({platform.machine()}), Python "
        f"{platform.python_version()}, load of the machine at the end {load}."
    )


if __name__ == "__main__":
    sys.exit(main())
