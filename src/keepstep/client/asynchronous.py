"""The client for programs that run in an event loop. Owns sending, retries and paging; what can be asked is in ``calls``."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from keepstep.client import calls
from keepstep.client.calls import Call, Listing
from keepstep.client.errors import Unavailable, Unreachable
from keepstep.client.talking import (
    PAGE,
    SILENCE_S,
    TIMEOUT_S,
    TRIES,
    Event,
    EventReader,
    error_of,
    pause_s,
    prepared,
    read,
    where,
)
from keepstep.core.drill import DrillKind
from keepstep.review.figures import Review
from keepstep.review.postmortem import Postmortem
from keepstep.server import access_views, drill_views, fault_views, health_views, http_views, journal_views, views
from keepstep.server.precision import PrecisionReport
from keepstep.server.whereabouts import Whereabouts
from keepstep.wire.requests import API_TOKEN_LIFE_S, Accepted

if TYPE_CHECKING:
    import httpx

Answer = TypeVar("Answer")
Page = TypeVar("Page")
Item = TypeVar("Item")


class AsyncClient:
    """Use as a context manager. ``url`` and ``token`` default to those of the state directory on this machine.

    Every method raises ApiError (a subclass of it) or Unreachable. It tries again, a few times, where nobody leads
    at the moment or the connection breaks; a write carries a key, so that it is done once. Lists are fetched ``page`` items
    at a time.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, state_dir: str | Path | None = None,
        timeout_s: float = TIMEOUT_S, page: int = PAGE,
    ) -> None:  # fmt: skip
        import httpx

        self._page = page
        base, headers, verify = where(url, token, state_dir)
        self._http = httpx.AsyncClient(base_url=base, headers=headers, verify=verify, timeout=timeout_s)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _send(self, call: Call[Answer]) -> Answer:
        return read(await self._response(call), call.kind)

    async def _response(self, call: Call[Any]) -> "httpx.Response":
        import httpx

        arguments = prepared(call)
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            try:
                response = await self._http.request(**arguments)
            except httpx.TransportError as error:
                if last:
                    raise Unreachable(f"no server answers at {self._http.base_url}: {error}") from error
                await asyncio.sleep(pause_s(attempt))
                continue
            if response.status_code != 503 or last:
                break
            await asyncio.sleep(pause_s(attempt, response.headers.get("retry-after", "")))
        return response

    async def _pages(self, listing: Listing[Page, Item]) -> AsyncIterator[Item]:
        call: Call[Page] | None = listing.first
        while call is not None:
            page = await self._send(call)
            for item in listing.items(page):
                yield item
            following = listing.following(page)
            call = replace(call, params=call.params | following) if following is not None else None

    async def events(self, *, tries: int = TRIES) -> AsyncIterator[Event]:
        """What changes, from now on and without end; goes on where a connection broke. Raises Unreachable after so many tries
        in a row."""
        import httpx

        reader, attempt = EventReader(), 0
        while True:
            try:
                reader.begin()
                async with self._http.stream(
                    "GET", "/api/v1/events", headers=reader.headers(), timeout=httpx.Timeout(TIMEOUT_S, read=SILENCE_S)
                ) as response:
                    if response.status_code != 200:
                        raise error_of(response.status_code, await response.aread())
                    async for text in response.aiter_lines():
                        for event in reader.line(text):
                            attempt = 0
                            yield event
            except (httpx.TransportError, Unavailable) as error:
                if attempt + 1 >= tries:
                    raise Unreachable(f"the stream of {self._http.base_url} is broken: {error}") from error
            attempt += 1
            await asyncio.sleep(pause_s(min(attempt, TRIES)))

    # ---- jobs

    def jobs(self, *, state: str = "", q: str = "", live: bool | None = None) -> AsyncIterator[views.JobView]:
        """Newest first. ``live``: only those that run, or only those that are over."""
        return self._pages(calls.jobs(state, q, live, self._page))

    async def job(self, job: str) -> views.JobView:
        return await self._send(calls.job(job))

    async def live(self, job: str) -> views.Live:
        """One look at a job as it runs."""
        return await self._send(calls.live(job))

    async def ranks(self, job: str) -> Whereabouts:
        return await self._send(calls.ranks(job))

    async def launchers(self, job: str) -> views.Launchers:
        return await self._send(calls.launchers(job))

    async def checkpoints(self, job: str) -> views.Checkpoints:
        return await self._send(calls.checkpoints(job))

    async def report(self, job: str = "") -> views.Report:
        """What faults cost: a job, or all that the server has at hand."""
        return await self._send(calls.report(job))

    async def stop(self, job: str, reason: str = "") -> Accepted:
        return await self._send(calls.stop(job, reason))

    # ---- incidents and faults

    def incidents(self, **filters: Unpack[calls.IncidentQuery]) -> AsyncIterator[views.IncidentLine]:
        """Newest first: open ones, then those that are over, by the time of their end."""
        return self._pages(calls.incidents(filters, self._page))

    async def incident(self, incident: str) -> views.IncidentReport:
        return await self._send(calls.incident(incident))

    async def postmortem(self, incident: str) -> Postmortem:
        """From the fault to the first step after it: evidence, decisions, cost, curves."""
        return await self._send(calls.postmortem(incident))

    async def review(
        self, *, since_s: float | None = None, until_s: float | None = None, tenant: str = "", job: str = ""
    ) -> Review:
        """Of the last seven days, of a span, or of a job."""
        return await self._send(calls.review(since_s, until_s, tenant, job))

    def incident_journal(self, incident: str) -> AsyncIterator[journal_views.EntryView]:
        """Newest first."""
        return self._pages(calls.journal(f"/incidents/{calls.name(incident)}", "", self._page))

    def approvals(self) -> AsyncIterator[views.IncidentLine]:
        """Incidents that wait for a person."""
        return self._pages(calls.approvals(self._page))

    async def approve(self, incident: str) -> Accepted:
        return await self._send(calls.decide(incident, True))

    async def deny(self, incident: str) -> Accepted:
        return await self._send(calls.decide(incident, False))

    def faults(self, *, closed: bool = False, q: str = "") -> AsyncIterator[fault_views.FaultView]:
        return self._pages(calls.faults(closed, q, self._page))

    async def fault(self, fault: str) -> fault_views.FaultReport:
        return await self._send(calls.fault(fault))

    async def precision(self) -> PrecisionReport:
        return await self._send(calls.precision())

    # ---- drills

    def drills(self, *, job: str = "", state: str = "") -> AsyncIterator[drill_views.DrillView]:
        """Newest first: what is under way, and the last ones that are over."""
        return self._pages(calls.drills(job, state, self._page))

    async def drill(self, drill: str) -> drill_views.DrillReport:
        return await self._send(calls.drill(drill))

    async def begin_drill(self, job: str, kind: DrillKind, *, rank: int | None = None) -> Accepted:
        """Inject a fault into a job that is steady, else WrongState is raised. Its ``subject`` is the id of the drill."""
        return await self._send(calls.begin_drill(job, kind, rank))

    # ---- the fleet

    def nodes(self, *, q: str = "") -> AsyncIterator[fault_views.NodeView]:
        return self._pages(calls.nodes(q, self._page))

    async def node(self, node: str) -> fault_views.NodeView:
        return await self._send(calls.node(node))

    def resources(self, *, node: str = "", state: str = "", q: str = "") -> AsyncIterator[views.ResourceView]:
        return self._pages(calls.resources(node, state, q, self._page))

    async def resource(self, resource: str) -> views.ResourceView:
        """``node/NODE`` or ``device/NODE/SLOT``."""
        return await self._send(calls.resource(resource))

    def resource_journal(self, resource: str) -> AsyncIterator[journal_views.EntryView]:
        """Newest first; of a device also what its serial number did in other slots."""
        return self._pages(calls.journal(calls.resource_path(resource), "", self._page))

    def holds(self, *, source: str = "") -> AsyncIterator[views.HoldLine]:
        return self._pages(calls.holds(source, self._page))

    async def health(self, node: str = "") -> health_views.Health:
        return await self._send(calls.health(node))

    async def hold(self, resource: str, reason: str = "") -> Accepted:
        return await self._send(calls.hold(resource, reason))

    async def unhold(self, resource: str) -> Accepted:
        """Lift one's own hold."""
        return await self._send(calls.unhold(resource))

    # ---- the installation

    def journal(self, subject: str = "") -> AsyncIterator[journal_views.EntryView]:
        """Newest first. ``subject``: an id, a serial number, ``node/NAME``, ``fact:TYPE``, ``order:NUMBER``."""
        return self._pages(calls.journal("", subject, self._page))

    async def server(self) -> http_views.ServerView:
        return await self._send(calls.server())

    async def policy(self) -> access_views.PolicyView:
        return await self._send(calls.policy())

    async def policy_with_tag(self) -> tuple[access_views.PolicyView, str]:
        """The policy, and what ``set_policy`` wants in order not to undo somebody else's change."""
        response = await self._response(calls.policy())
        return read(response, access_views.PolicyView), response.headers.get("etag", "")

    async def set_policy(self, overrides: str, tag: str) -> Accepted:
        """Replace what was set. Raises WrongState where it was changed since the tag was read."""
        return await self._send(calls.set_policy(overrides, tag))

    def tokens(self) -> AsyncIterator[access_views.TokenView]:
        return self._pages(calls.tokens(self._page))

    async def create_token(
        self, name: str, role: str, *, tenants: Sequence[str] = (), expires_in_s: float | None = API_TOKEN_LIFE_S
    ) -> http_views.TokenMade:
        """An API token; one that expires in None never does. Its secret is in the answer and nowhere else."""
        wanted = http_views.NewToken(name=name, role=role, tenants=tuple(tenants), expires_in_s=expires_in_s)
        return await self._send(calls.create_token(wanted))

    async def revoke_token(self, id: str) -> Accepted:
        return await self._send(calls.revoke_token(id))

    def certificates(self) -> AsyncIterator[access_views.CertificateView]:
        return self._pages(calls.certificates(self._page))

    async def revoke_certificate(self, serial: str, reason: str = "") -> Accepted:
        return await self._send(calls.revoke_certificate(serial, reason))
