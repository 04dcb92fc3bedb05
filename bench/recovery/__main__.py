"""``python -m bench.recovery``: our row beside torchrun and every peer that is installed, in one run.

Needs the peers' harness (``--harness``, default ``../shared/peers``). Peers other than torchrun run where a virtual
environment ``v_<peer>`` with the peer in it lies under ``--venvs``. Writes medians with min–max to ``bench/RESULTS.md``.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
PEERS = ("torchrun", "nvrx", "nvrx_inproc2", "torchft", "dlrover")
COLUMNS = ("detect_s", "newproc_s", "resume_s", "full_s", "new_step_s", "steps_redone")


def main() -> None:
    args = parse_args()
    work = Path(tempfile.mkdtemp(prefix="keepstep-bench-")) if args.work is None else args.work
    prepare(work, args.harness, args.venvs)
    systems = [s for s in args.systems.split(",") if s] or ["keepstep", *installed(work)]
    out = work / "results" / "recovery.jsonl"
    print(
        f"systems: {', '.join(systems)}; faults: {args.faults}; {args.reps} repetitions; work folder {work}", flush=True
    )
    python = sys.executable
    subprocess.run([python, "harness.py", "run", "torchrun", "F0"], cwd=work, check=True, stdout=subprocess.DEVNULL)
    out.unlink(missing_ok=True)
    matrix = [python, "harness.py", "matrix", "--systems", ",".join(systems), "--faults", args.faults]
    subprocess.run([*matrix, "--reps", str(args.reps), "--out", str(out)], cwd=work, check=True)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    section = render(records, args.reps)
    print(section)
    if not args.no_write:
        write_section(REPOSITORY / "bench" / "RESULTS.md", "recovery", section)
    if args.work is None:
        shutil.rmtree(work, ignore_errors=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--faults", default="F1,F2,F3,F4,F4r")
    parser.add_argument("--systems", default="", help="default: keepstep and every peer that is installed")
    parser.add_argument("--harness", type=Path, default=REPOSITORY.parent / "shared" / "peers")
    parser.add_argument("--venvs", type=Path, default=Path(os.environ.get("KEEPSTEP_PEER_VENVS", "/nonexistent")))
    parser.add_argument("--work", type=Path, help="keep runs and records here (default: a temporary folder)")
    parser.add_argument("--no-write", action="store_true", help="do not touch bench/RESULTS.md")
    args = parser.parse_args()
    if not (args.harness / "harness.py").is_file():
        parser.error(f"no harness.py in {args.harness}: give the folder of the peers' harness with --harness")
    return args


def prepare(work: Path, harness: Path, venvs: Path) -> None:
    """A copy of the harness with our plugin in it; our interpreter serves torchrun too, so both run the same torch."""
    shutil.copytree(harness, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("venvs", "runs", "results"))
    for folder in (work, work / "systems"):
        folder.chmod(0o755)
    (work / "results").mkdir(exist_ok=True)
    shutil.copyfile(HERE / "system.py", work / "systems" / "keepstep.py")
    shutil.copyfile(HERE / "train_keepstep.py", work / "train_keepstep.py")
    (work / "venvs").mkdir(exist_ok=True)
    ours = {f"v_{name}": Path(sys.prefix) for name in ("keepstep", "torchrun")}
    theirs = {path.name: path for path in venvs.glob("v_*") if path.name not in ours}
    for name, target in {**ours, **theirs}.items():
        link = work / "venvs" / name
        if not link.exists():
            link.symlink_to(target.resolve(), target_is_directory=True)


def installed(work: Path) -> list[str]:
    return [peer for peer in PEERS if (work / "venvs" / f"v_{peer.split('_')[0]}" / "bin" / "python").exists()]


# ---- the table


def spread(values: list[float | None]) -> str:
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    middle = f"{statistics.median(known):.2f}"
    return middle if len(known) == 1 else f"{middle} ({min(known):.2f}–{max(known):.2f})"


def median(records: list[dict], name: str) -> float | None:
    known = [r[name] for r in records if r.get(name) is not None]
    return statistics.median(known) if known else None


def render(records: list[dict], reps: int) -> str:
    load = [r["load"] for r in records if "load" in r]
    lines = [
        f"{datetime.datetime.now().date()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"1-min load {min(load):.1f}–{max(load):.1f} (the harness's own included), {reps} repetitions, median (min–max), "
        "seconds after the fault. Command: `python -m bench.recovery`.",
        "",
        "| fault | system | resumed | detect | new process | resume | full strength | new step | steps redone "
        "| bit-equal | logged by two generations | left over | resume ÷ torchrun |",
        "|" + "---|" * 13,
    ]
    for fault in dict.fromkeys(r["fault"] for r in records):
        of_fault = [r for r in records if r["fault"] == fault]
        base = median([r for r in of_fault if r["system"] == "torchrun"], "resume_s")
        for system in dict.fromkeys(r["system"] for r in of_fault):
            lines.append(row(fault, system, [r for r in of_fault if r["system"] == system], base))
    return "\n".join(lines)


def row(fault: str, system: str, records: list[dict], base: float | None) -> str:
    resumed = sum(1 for r in records if r.get("resume_s") is not None)
    cells = [spread([r.get(name) for r in records]) for name in COLUMNS]
    equal = [bool(r.get("bit_equal")) for r in records if r.get("finals") and not r.get("ended_early")]
    duplicates = sum(r.get("dup_steps") or 0 for r in records)
    left = sum(r.get("leftover") or 0 for r in records)
    ours = median(records, "resume_s")
    ratio = f"{ours / base:.3f}" if ours is not None and base else "–"
    head = f"| {fault} | {system} | {resumed}/{len(records)} | "
    return head + " | ".join(cells) + f" | {sum(equal)}/{len(equal)} | {duplicates} | {left} | {ratio} |"


def write_section(path: Path, name: str, text: str) -> None:
    """Replace one marked section of the results file, or append it."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = path.read_text() if path.exists() else "# Results\n\nEvery section is written by the command that it names.\n"
    block = f"{begin}\n## {name}\n\n{text}\n{end}"
    if begin in old:
        old = old[: old.index(begin)] + block + old[old.index(end) + len(end) :]
    else:
        old = old.rstrip() + "\n\n" + block + "\n"
    path.write_text(old)


if __name__ == "__main__":
    main()
