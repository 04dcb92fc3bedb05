"""``keepstep jobs`` and ``keepstep resources``: what there is. Owns two tables."""

from keepstep.cli.terminal import JsonOption, StateDirOption, moment, print_json, step


def jobs(state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """List jobs: state, size, step, checkpoint, faults."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show, table
    from keepstep.server.views import Jobs

    found = ask(state_dir, "jobs", Jobs)
    if json:
        print_json(found)
        return
    columns = ("job", "state", "ranks", "gen", "step", "saved", "faults", "submitted", "script")
    made = table(*columns, flexible=("job", "submitted", "script"))
    for job in found.jobs:
        state = f"{job.state} ({job.exit_code})" if job.exit_code is not None else job.state
        made.add_row(
            job.id,
            state,
            f"{job.ranks} on {job.nodes}" if job.ranks else "–",
            str(job.generation),
            step(job.step),
            step(job.checkpoint_step),
            str(job.incidents),
            moment(job.submitted_s),
            " ".join(job.argv),
        )
    show(made, "no job yet")


def resources(state_dir: StateDirOption = None, json: JsonOption = False) -> None:
    """List nodes and devices: state, holds and whose they are."""
    from keepstep.cli.reading import ask
    from keepstep.cli.tables import show, table
    from keepstep.server.views import Resources

    found = ask(state_dir, "resources", Resources)
    if json:
        print_json(found)
        return
    made = table("resource", "state", "takes work", "failures", "held by", "incident", flexible=("resource", "held by"))
    for item in found.resources:
        made.add_row(
            item.id,
            item.state,
            "yes" if item.allocatable else "no",
            str(item.failures),
            "\n".join(f"{hold.source}: {hold.reason}" for hold in item.holds) or "–",
            item.incident or "–",
        )
    show(made, "no node has joined yet")
