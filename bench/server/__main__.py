"""``python -m bench.server [NAME …]``: all of it, or some of it by name. Writes bench/server/results.md, section by section."""

import argparse
import datetime
import importlib
import os
import platform
import re
import sys
import time
from pathlib import Path

PAGE = Path(__file__).with_name("results.md")
SECTIONS = ("agents", "heartbeats", "journal", "takeover", "reading", "transport")
"""Modules beside this one; each has ``section() -> str``, which begins with its heading."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.server", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="NAME", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--no-write", action="store_true", help="do not touch results.md")
    options = parser.parse_args()
    unknown = [name for name in options.what if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    for name in options.what or _present():
        began_s = time.monotonic()
        text = f"{importlib.import_module(f'bench.server.{name}').section().rstrip()}\n\n{_by(name)}\n"
        print(text)
        print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        if not options.no_write:
            PAGE.write_text(with_section(PAGE.read_text() if PAGE.exists() else HEAD, text))


def _present() -> list[str]:
    return [name for name in SECTIONS if PAGE.with_name(f"{name}.py").exists()]


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


def _by(name: str) -> str:
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg()[:2])
    return (
        f"`python -m bench.server {name}`, {datetime.date.today()}, {os.cpu_count()} cores ({platform.machine()}), Python "
        f"{platform.python_version()}, load of the machine at the end {load}."
    )


if __name__ == "__main__":
    main()
