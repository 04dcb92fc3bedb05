"""Routes of drills: faults that are injected on purpose, and how well each was recovered from."""

from litestar import get, post
from litestar.params import JSONBody

from keepstep.core.access import Action
from keepstep.server import drill_views as views
from keepstep.server.http_views import NewDrill
from keepstep.web.api.asking import PAGE, Asked, CursorText, Key, Limit, Name, StateWord, Word, act, ask
from keepstep.wire.requests import Accepted, BeginDrill


@get("/drills", operation_id="listDrills", tags=["drills"])
async def list_drills(
    request: Asked, job: Word = "", in_state: StateWord = "", cursor: CursorText = "", limit: Limit = PAGE
) -> views.Drills:
    """Drills, newest first: what is under way, and the last ones that are over."""
    return await ask(request, "drills", views.Drills, job=job, state=in_state, cursor=cursor, limit=limit)


@get("/drills/{drill:str}", operation_id="getDrill", tags=["drills"])
async def get_drill(request: Asked, drill: Name) -> views.DrillReport:
    """One drill: what was done, how well it was recovered from, and by which limits that is judged."""
    return await ask(request, "drill", views.DrillReport, id=drill)


@post("/drills", operation_id="beginDrill", tags=["drills"], status_code=202, opt={"action": Action.DRILL})
async def begin_drill(request: Asked, data: JSONBody[NewDrill], key: Key = None) -> Accepted:
    """Inject a fault into a job that is steady. The `subject` of the answer is the id of the drill."""
    return await act(request, BeginDrill(job=data.job, kind=data.kind, rank=data.rank), key)


ROUTES = [list_drills, get_drill, begin_drill]
