"""``keepstep policy``: the limits, deadlines and permissions that hold. Owns no judgement: the server reads the same file."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.terminal import JsonOption, StateDirOption, fail, print_json, said

policy = typer.Typer(help="The policy: every limit, deadline and permission.", no_args_is_help=True)

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="TOML, see docs/reference/policy.md; - reads standard input.", show_default=False
    ),
]


@policy.command("show")
def show(state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """Print the policy that holds, as TOML. What differs from the built-in one says so in a comment."""
    from keepstep.cli.reading import ask
    from keepstep.server.access_views import PolicyView

    found = ask(state_dir, "policy", PolicyView)
    if json:
        print_json(found)
        return
    typer.echo(f"# set by {found.by}" if found.by else "# built in: nobody has set another one")
    typer.echo(found.effective, nl=False)


@policy.command("check")
def check(file: FileArgument) -> None:
    """Read a policy and say what it changes, without a server. Exit code 1 names what is wrong."""
    from keepstep.server.policy_file import read_policy
    from keepstep.server.policy_text import policy_text

    text = _read(file)
    try:
        effective = policy_text(read_policy(text))
    except ValueError as error:
        fail(f"{file}: {error}")
    section = ""
    changes = []
    for line in effective.splitlines():
        section = line if line.startswith("[") else section
        if "  # built in: " in line:
            changes.append(f"{section} {line}".strip())
    typer.echo("\n".join(changes) or "the built-in policy: nothing differs")


@policy.command("set")
def set_(file: FileArgument, state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """Let a policy hold from now on, in place of the one before. An empty file goes back to the built-in one."""
    from keepstep.cli.reading import act
    from keepstep.server.policy_file import read_policy
    from keepstep.wire.requests import SetPolicy

    text = _read(file)
    try:
        read_policy(text)
    except ValueError as error:
        fail(f"{file}: {error}")
    said("set", act(state_dir, SetPolicy(overrides=text)), json)


def _read(file: Path) -> str:
    import sys

    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {file}: {getattr(error, 'strerror', None) or error}")
