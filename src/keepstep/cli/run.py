"""``keepstep run``. Owns the spelling of its options; the work is the front's and the launcher's."""

import os
import re
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import StateDirOption, fail
from keepstep.wire import environment

if TYPE_CHECKING:
    from keepstep.server.state_dir import StateDir

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Size:
    """``min_nodes`` equals ``max_nodes`` for a fixed job."""

    min_nodes: int
    max_nodes: int


def parse_size(text: str) -> Size:
    """``N`` or ``MIN:MAX``."""
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        fail(f"--nodes {text!r} is neither a number nor MIN:MAX", 2)
    size = Size(int(parts[0]), int(parts[-1]))
    if size.min_nodes < 1 or size.max_nodes < size.min_nodes:
        fail(f"--nodes {text!r}: at least 1 node, and MIN not above MAX", 2)
    return size


ScriptArgument = Annotated[list[str], typer.Argument(help="The training script and its arguments.", show_default=False)]
NprocOption = Annotated[int, typer.Option("--nproc-per-node", "--nproc_per_node", help="Ranks per node.", metavar="N")]
NodesOption = Annotated[
    str,
    typer.Option(
        "--nodes",
        "--nnodes",
        help="Nodes, or MIN:MAX for a job that may go on with fewer. On one machine they are virtual, one launcher each.",
        metavar="N|MIN:MAX",
    ),
]
SparesOption = Annotated[int, typer.Option(help="Virtual nodes kept ready beyond MAX.", metavar="M")]
JobOption = Annotated[str | None, typer.Option(help="Name of the job. Default: the script's name and a random suffix.")]
CheckpointDirOption = Annotated[
    str | None,
    typer.Option(
        help="Where checkpoints go: a directory, or the URL of an object store (s3://, gs://, az://). Default: "
        "checkpoints/JOB in the state directory.",
        metavar="PATH|URL",
    ),
]
CheckpointCopiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint-copies",
        help="A further tier for checkpoints: ADDRESS@SECONDS for copies in another store, or "
        "K+M@SECONDS:DOMAIN=ADDRESS,… for copies spread over failure domains. May be given several times.",
        metavar="TIER",
    ),
]
RestoreBytesOption = Annotated[
    int,
    typer.Option(
        "--restore-bytes-s",
        help="What all restores from the store together may take, bytes per second; the same for every job that shares the "
        "store. Default: no limit.",
        metavar="BYTES",
    ),
]
PriorityOption = Annotated[
    str, typer.Option(help="urgent, normal or background: who goes first where jobs share a store.", metavar="LANE")
]
CheckpointCompressOption = Annotated[
    bool,
    typer.Option(
        "--checkpoint-compress",
        help="Make checkpoints smaller: for a store behind less than 0.2 GB/s, never for a disk.",
    ),
]
CheckpointKeysOption = Annotated[
    Path | None,
    typer.Option(help="Seal checkpoints; a directory with the key files that wrap the session keys.", metavar="DIR"),
]
CheckpointKeysCommandOption = Annotated[
    str, typer.Option(help="Seal checkpoints; a command that wraps and unwraps the session keys.", metavar="COMMAND")
]
LogDirOption = Annotated[
    str | None, typer.Option(help="Where the ranks' output goes. Default: logs/JOB in the state directory.")
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        help="Where a running server is: tls:host:port, unix:/path, or tcp:host:port on loopback; replicas with commas "
        "between. Default with --node: $KEEPSTEP_SERVER; else a server of its own.",
        metavar="ADDRESS,…",
    ),
]
NodeOption = Annotated[
    str | None, typer.Option(help="This node's name; with --server: start the launcher of this node only.")
]
ColdStartOption = Annotated[
    bool, typer.Option("--cold-start", help="Start ranks from fresh interpreters instead of forking a warm one.")
]
PreloadOption = Annotated[
    str, typer.Option(help="More modules for the warm interpreter, separated by commas.", metavar="MODULES")
]
CapacityWaitOption = Annotated[
    float | None,
    typer.Option("--capacity-wait-s", help="How long to wait for a healthy node before the job ends.", metavar="S"),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        help="What the job is, as NAME=VALUE (model=llama-8b): reviews group by it. May be given several times."
    ),
]
ModuleOption = Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as with python -m.")]
StandaloneOption = Annotated[bool, typer.Option("--standalone", hidden=True)]
"""Accepted because torchrun has it; one machine is the default here."""


def run(
    script: ScriptArgument,
    nproc_per_node: NprocOption = 1,
    nodes: NodesOption = "1",
    spares: SparesOption = 0,
    job: JobOption = None,
    state_dir: StateDirOption = None,
    checkpoint_dir: CheckpointDirOption = None,
    checkpoint_compress: CheckpointCompressOption = False,
    restore_bytes_s: RestoreBytesOption = 0,
    priority: PriorityOption = "normal",
    checkpoint_copies: CheckpointCopiesOption = None,
    checkpoint_keys: CheckpointKeysOption = None,
    checkpoint_keys_command: CheckpointKeysCommandOption = "",
    log_dir: LogDirOption = None,
    server: ServerOption = None,
    node: NodeOption = None,
    cold_start: ColdStartOption = False,
    preload: PreloadOption = "",
    capacity_wait_s: CapacityWaitOption = None,
    label: LabelOption = None,
    module: ModuleOption = False,
    standalone: StandaloneOption = False,
) -> None:
    """Run a training script under Keepstep: start it, watch it, bring it back after every fault.

    Takes the place of torchrun: the script sees the same environment. Without --server it starts a server of its own.
    """
    from keepstep.cli.reading import state_of

    size = parse_size(nodes)
    _check_numbers(nproc_per_node, spares)
    if restore_bytes_s < 0 or priority not in ("urgent", "normal", "background"):
        fail("--restore-bytes-s must not be negative, and --priority is urgent, normal or background", 2)
    script_argv = ("-m", *script) if module else tuple(script)
    _check_script(script_argv)
    name = job or _job_name(script[0])
    if node is not None and server is None:
        server = os.environ.get(environment.SERVER)
    _check_names(name, server, node)
    state = state_of(state_dir)
    options = [
        *("--nproc-per-node", str(nproc_per_node)),
        *("--min-nodes", str(size.min_nodes), "--max-nodes", str(size.max_nodes)),
        *("--checkpoint-dir", _place(checkpoint_dir or str(state.path / "checkpoints" / name))),
        *("--restore-bytes-s", str(restore_bytes_s), "--priority", priority),
        *(("--checkpoint-compress",) if checkpoint_compress else ()),
        *(word for tier in checkpoint_copies or () for word in ("--checkpoint-copies", _tier(tier))),
        *(("--checkpoint-keys", str(checkpoint_keys.absolute())) if checkpoint_keys is not None else ()),
        *(("--checkpoint-keys-command", checkpoint_keys_command) if checkpoint_keys_command else ()),
        *("--log-dir", str(Path(log_dir or state.path / "logs" / name).absolute())),
        *(word for text in label or () for word in ("--label", _label(text))),
        *(("--preload", preload) if preload else ()),
        *(("--cold-start",) if cold_start else ()),
        *(("--capacity-wait-s", str(capacity_wait_s)) if capacity_wait_s is not None else ()),
    ]
    if server is not None and node is not None:
        _become_launcher(state, server, name, node, options, script_argv)
    raise typer.Exit(_run_here(state, name, (size.max_nodes, spares), options, script_argv))


def _place(text: str) -> str:
    """A directory as an absolute path; a URL as it is, if it can be one."""
    if "://" not in text:
        return str(Path(text).absolute())
    from keepstep.checkpoint.stores.address import open_store

    try:
        open_store(text)
    except (ValueError, ImportError) as error:
        fail(f"--checkpoint-dir: {error}", 2)
    return text


def _tier(text: str) -> str:
    """A tier for copies, if it can be one."""
    from keepstep.checkpoint.errors import StoreUnfit
    from keepstep.checkpoint.opening import open_tier

    try:
        open_tier(text)
    except (ValueError, ImportError, StoreUnfit) as error:
        fail(f"--checkpoint-copies: {error}", 2)
    return text


def _label(text: str) -> str:
    name, sign, value = text.partition("=")
    if not (NAME.fullmatch(name) and sign and value):
        fail(f"--label {text!r}: write NAME=VALUE", 2)
    return text


def _check_numbers(nproc_per_node: int, spares: int) -> None:
    if nproc_per_node < 1:
        fail(f"--nproc-per-node {nproc_per_node}: at least one rank per node", 2)
    if spares < 0:
        fail(f"--spares {spares}: not below 0", 2)


def _check_script(script_argv: tuple[str, ...]) -> None:
    from keepstep.cli.front import script_problem

    if problem := script_problem(script_argv):
        fail(problem, 2)


def _check_names(job: str, server: str | None, node: str | None) -> None:
    if (server is None) != (node is None):
        fail("--server and --node go together: the server's address and this node's name", 2)
    for what, text in (("--job", job), ("--node", node or job)):
        if not NAME.fullmatch(text):
            fail(f"{what} {text!r}: letters, digits, dots, dashes and underscores only", 2)


def _job_name(script: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", Path(script).stem).strip("-._") or "job"
    return f"{stem[:60]}-{secrets.token_hex(3)}"


def _become_launcher(
    state: "StateDir", server: str, job: str, node: str, options: list[str], script_argv: tuple[str, ...]
) -> None:
    from keepstep.adapters.server_link.address import parse_addresses

    try:
        parse_addresses(server, "--server")
        state.create()
    except ValueError as error:
        fail(str(error), 2)
    argv = [sys.executable, "-m", "keepstep.launcher", "--server", server, "--job", job, "--node", node]
    os.execv(sys.executable, [*argv, "--state-dir", str(state.path), *options, "--", *script_argv])


def _run_here(
    state: "StateDir", job: str, count: tuple[int, int], options: list[str], script_argv: tuple[str, ...]
) -> int:
    """``count``: nodes and spares."""
    import asyncio

    from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
    from keepstep.cli.embedded import ServerWillNotStart
    from keepstep.cli.front import Front, RunPlan, default_node_names
    from keepstep.core.ids import JobId

    names = default_node_names(JobId(job), sum(count))
    plan = RunPlan(
        run=secrets.token_hex(6),
        job=JobId(job),
        state=state,
        nodes=names[: count[0]],
        spares=names[count[0] :],
        launcher_argv=tuple(options),
        script_argv=script_argv,
    )

    async def front() -> int:
        return await Front(plan, lambda line: typer.echo(f"keepstep: {line}", err=True)).run()

    try:
        state.create()
        return asyncio.run(front())
    except (ServerWillNotStart, ServerRefused, ServerGone, ValueError) as error:
        fail(str(error))
