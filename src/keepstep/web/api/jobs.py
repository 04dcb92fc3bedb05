"""Routes of jobs: what runs, how each rank is, what it could restore from; and stopping one."""

from litestar import get, post
from litestar.params import FromQuery, JSONBody

from keepstep.core.access import Action
from keepstep.server import views
from keepstep.server.http_views import Reason
from keepstep.server.whereabouts import Whereabouts
from keepstep.web.api.asking import PAGE, Asked, CursorText, Key, Limit, Name, StateWord, Word, act, ask
from keepstep.wire.requests import Accepted, StopJob

OptionalReason = JSONBody[Reason | None]


@get("/jobs", operation_id="listJobs", tags=["jobs"])
async def list_jobs(
    request: Asked,
    in_state: StateWord = "",
    q: Word = "",
    live: FromQuery[bool | None] = None,
    cursor: CursorText = "",
    limit: Limit = PAGE,
) -> views.Jobs:
    """Jobs, newest first: those that run, then those that are over."""
    return await ask(request, "jobs", views.Jobs, state=in_state, q=q, live=live, cursor=cursor, limit=limit)


@get("/jobs/{job:str}", operation_id="getJob", tags=["jobs"])
async def get_job(request: Asked, job: Name) -> views.JobView:
    """One job."""
    return await ask(request, "job", views.JobView, id=job)


@get("/jobs/{job:str}/live", operation_id="getJobLive", tags=["jobs"])
async def get_live(request: Asked, job: Name) -> views.Live:
    """One look at a job as it runs: ranks, nodes, checkpoint age, the incident that leads it."""
    return await ask(request, "live", views.Live, job=job)


@get("/jobs/{job:str}/ranks", operation_id="getJobRanks", tags=["jobs"])
async def get_ranks(request: Asked, job: Name) -> Whereabouts:
    """Where each rank lives: process, node, card by every name, rack and switch, open faults there."""
    return await ask(request, "ranks", Whereabouts, job=job)


@get("/jobs/{job:str}/launchers", operation_id="getJobLaunchers", tags=["jobs"])
async def get_launchers(request: Asked, job: Name) -> views.Launchers:
    """The launchers of a job, node by node."""
    await ask(request, "job", views.JobView, id=job)
    return await ask(request, "launchers", views.Launchers, job=job)


@get("/jobs/{job:str}/checkpoints", operation_id="getJobCheckpoints", tags=["jobs"])
async def get_checkpoints(request: Asked, job: Name) -> views.Checkpoints:
    """What a job could restore from, as its nodes last told."""
    return await ask(request, "checkpoints", views.Checkpoints, job=job)


@get("/jobs/{job:str}/report", operation_id="getJobReport", tags=["jobs"])
async def get_report(request: Asked, job: Name) -> views.Report:
    """What faults cost a job: goodput, lost steps, time per stage."""
    return await ask(request, "report", views.Report, job=job)


@post("/jobs/{job:str}/stop", operation_id="stopJob", tags=["jobs"], status_code=202, opt={"action": Action.STOP_JOB})
async def stop_job(request: Asked, job: Name, data: OptionalReason = None, key: Key = None) -> Accepted:
    """End a job: its ranks get SIGTERM, then SIGKILL."""
    return await act(request, StopJob(job=job, reason=data.reason if data else ""), key)


ROUTES = [list_jobs, get_job, get_live, get_ranks, get_launchers, get_checkpoints, get_report, stop_job]
