"""``python -m bench.diagnosis``: all of it; ``accuracy``, ``throughput``, ``agent``, ``reaction`` alone. Pages lie beside."""

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
DATA = Path(__file__).parents[2].parent / "shared" / "data"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.diagnosis", description=__doc__)
    parser.add_argument("what", nargs="*", choices=["accuracy", "throughput", "agent", "reaction", []])
    options = parser.parse_args()
    for what in options.what or ["accuracy", "throughput", "agent", "reaction"]:
        started = time.monotonic()
        text = _page(what)
        (HERE / f"{what}.md").write_text(text)
        print(text)
        print(f"{what}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def _page(what: str) -> str:
    if what == "accuracy":
        from bench.diagnosis import accuracy

        return accuracy.page(DATA)
    if what == "throughput":
        from bench.diagnosis import throughput

        return throughput.page()
    if what == "agent":
        from bench.diagnosis import agent

        return agent.page()
    from bench.diagnosis import reaction

    return reaction.page()


if __name__ == "__main__":
    main()
