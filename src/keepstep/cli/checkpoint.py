"""The commands of ``keepstep checkpoint``. Owns which there are; each imports what it needs only when it runs."""

import typer

from keepstep.cli.checkpoint_adopt import adopt
from keepstep.cli.checkpoint_diff import diff
from keepstep.cli.checkpoint_files import export, restore
from keepstep.cli.checkpoint_keep import gc, pin, unpin
from keepstep.cli.checkpoint_list import ls, show
from keepstep.cli.checkpoint_plan import plan
from keepstep.cli.checkpoint_repair import repair
from keepstep.cli.checkpoint_verify import verify

checkpoint = typer.Typer(
    help="Checkpoints: what there is, whether it is sound, and what to do with it.", no_args_is_help=True
)
for command in (ls, show, verify, diff, restore, export, adopt, gc, pin, unpin, plan, repair):
    checkpoint.command(command.__name__)(command)
