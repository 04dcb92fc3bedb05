"""Reads the launcher's configuration once, puts its parts together and runs them. Owns the command line."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from keepstep import logs
from keepstep.adapters.server_link.address import FORMS, parse_addresses
from keepstep.adapters.server_link.credentials import Credentials, new_session
from keepstep.adapters.server_link.errors import ServerRefused
from keepstep.core.ids import JobId, NodeId
from keepstep.launcher.agent import Agent
from keepstep.launcher.process import die_with_parent
from keepstep.launcher.settings import Settings
from keepstep.wire import environment

_EXIT_REFUSED = 78
"""EX_CONFIG: the server does not take this launcher."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.die_with_parent:
        die_with_parent(options.die_with_parent)
    try:
        logs.configure(
            text=f"[keepstep {options.node}] %(message)s", level=logging.WARNING if options.quiet else logging.INFO
        )
        settings = read_settings(options, os.environ)
    except ValueError as error:
        print(f"keepstep launcher: {error}", file=sys.stderr)
        return 2
    with logs.about(job=settings.job, node=settings.node, session=settings.session):
        return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    agent = Agent(settings, Credentials.of(settings.state_dir, os.environ))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.stop, number.name)
    try:
        return await agent.run()
    except ServerRefused as refusal:
        print(f"keepstep launcher: the server at {settings.server} refused this launcher: {refusal}", file=sys.stderr)
        return _EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m keepstep.launcher",
        description="Runs the ranks of one job on one node, as the server orders. Started by `keepstep run`.",
    )
    parser.add_argument("--server", required=True, help=f"{FORMS}; several for replicas")
    parser.add_argument("--job", required=True)
    parser.add_argument("--node", required=True, help="name of this node, the same after a restart")
    parser.add_argument("--nproc-per-node", type=int, required=True, help="ranks, and devices, of this node")
    parser.add_argument("--min-nodes", type=int, default=1, help="smallest size at which the job may run")
    parser.add_argument("--max-nodes", type=int, default=None, help="full size; the smallest by default")
    parser.add_argument("--capacity-wait-s", type=float, default=None, help="how long the job waits for a healthy node")
    parser.add_argument("--state-dir", default=".keepstep", help="token, quarantine and sockets")
    parser.add_argument(
        "--checkpoint-dir", default="", help="directory or URL for checkpoints; inside the state directory by default"
    )
    parser.add_argument("--checkpoint-compress", action="store_true", help="make checkpoints smaller, for a slow link")
    parser.add_argument("--restore-bytes-s", type=int, default=0, help="limit of all restores from the store together")
    parser.add_argument("--priority", choices=("urgent", "normal", "background"), default="normal", help="of this job")
    parser.add_argument(
        "--checkpoint-copies", action="append", default=[],
        help="further tier for checkpoints: ADDRESS@SECONDS, or K+M@SECONDS:DOMAIN=ADDRESS,…",
    )  # fmt: skip
    parser.add_argument("--checkpoint-keys", default="", help="directory with key files: checkpoints are sealed")
    parser.add_argument("--checkpoint-keys-command", default="", help="command that wraps keys: checkpoints are sealed")
    parser.add_argument(
        "--log-dir", default="", help="output, stacks and errors of ranks; inside the state directory by default"
    )
    parser.add_argument("--address", default="127.0.0.1", help="where other nodes reach this one")
    parser.add_argument(
        "--lease-s", type=float, default=10.0, help="after so long without server and progress, ranks are ended"
    )
    parser.add_argument(
        "--preload", default="", help="comma-separated modules that the warm interpreter imports as well"
    )
    parser.add_argument("--cold-start", action="store_true", help="start every rank in a fresh interpreter")
    parser.add_argument("--label", action="append", default=[], help="NAME=VALUE; what the job is")
    parser.add_argument("--run", default="", help="names one start of the job; a new one starts an ended job again")
    parser.add_argument("--spare", action="store_true", help="this node stands by until another is lost")
    parser.add_argument("--quiet", action="store_true", help="ranks print into their log files only")
    parser.add_argument("--die-with-parent", type=int, default=0, metavar="PID", help="end when this parent has ended")
    parser.add_argument("argv", nargs=argparse.REMAINDER, help="-- script.py args…, or -- -m module args…")
    return parser


def read_settings(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Raises ValueError that says what to change."""
    argv = tuple(options.argv[1:] if options.argv[:1] == ["--"] else options.argv)
    if not argv or argv == ("-m",):
        raise ValueError("no script is given; end the command with `-- script.py args…` or `-- -m module args…`")
    if argv[0] != "-m" and not os.path.isfile(argv[0]):
        raise ValueError(f"there is no script {argv[0]!r} here ({os.getcwd()})")
    if options.nproc_per_node < 1:
        raise ValueError(f"--nproc-per-node is {options.nproc_per_node}; at least one rank is needed")
    parse_addresses(options.server, "--server")
    max_nodes = options.max_nodes if options.max_nodes is not None else options.min_nodes
    if not 1 <= options.min_nodes <= max_nodes:
        raise ValueError(
            f"--min-nodes {options.min_nodes} and --max-nodes {max_nodes} do not fit; want 1 <= min <= max"
        )
    for name in ("job", "node"):
        if not getattr(options, name) or "/" in getattr(options, name):
            raise ValueError(f"--{name} is {getattr(options, name)!r}; it must be a name without '/'")
    state_dir = os.path.abspath(options.state_dir)
    return Settings(
        server=options.server,
        job=JobId(options.job),
        node=NodeId(options.node),
        session=new_session(),
        argv=argv,
        nproc_per_node=options.nproc_per_node,
        min_nodes=options.min_nodes,
        max_nodes=max_nodes,
        state_dir=state_dir,
        checkpoint_dir=_place(options.checkpoint_dir or os.path.join(state_dir, "checkpoints", options.job)),
        checkpoint_keys=os.path.abspath(options.checkpoint_keys) if options.checkpoint_keys else "",
        checkpoint_keys_command=options.checkpoint_keys_command,
        checkpoint_compress=options.checkpoint_compress,
        restore_bytes_s=options.restore_bytes_s,
        priority=options.priority,
        checkpoint_copies=tuple(options.checkpoint_copies),
        log_dir=os.path.abspath(options.log_dir or os.path.join(state_dir, "logs", options.job)),
        address=options.address,
        capacity_wait_s=options.capacity_wait_s,
        lease_s=options.lease_s,
        labels=dict(text.split("=", 1) for text in options.label if "=" in text),
        preload=tuple(name for name in options.preload.split(",") if name),
        cold_start=options.cold_start,
        run=options.run,
        spare=options.spare,
        quiet=options.quiet,
        agent_dir=environ.get(environment.AGENT_DIR, ""),
    )


def _place(text: str) -> str:
    """A directory as an absolute path; the URL of an object store as it is."""
    return text if "://" in text else os.path.abspath(text)
