"""Checks of the server, for ``keepstep doctor``: whether it answers, to whom, and whether the clocks agree. Starts nothing."""

import http.client
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from keepstep.adapters.server_link.address import parse_addresses
from keepstep.adapters.server_link.errors import NoLeader, ServerGone, ServerRefused
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.cli.client import named_server, open_tool
from keepstep.cli.findings import Finding, bad, good, note
from keepstep.server.state_dir import StateDir
from keepstep.server.status_queries import Status

ASK_TIMEOUT_S = 20.0
CLOCK_BAD_S = 2.0
"""Certificates of minutes, and reading two logs side by side, need better than this."""
CLOCK_ASKS = 3


def server(state: StateDir) -> Iterator[Finding]:
    """Reached as any command reaches it."""
    where = named_server() or state.address() or ""
    try:
        tool = open_tool(state, timeout_s=ASK_TIMEOUT_S)
    except ServerGone as error:
        yield _silent(state, str(error))
        return
    except NoLeader as error:
        yield bad("server", str(error), "see that the database answers; then one of its servers takes over by itself")
        return
    except (ServerRefused, ValueError) as error:
        yield bad("server", f"{where}: {error}", "see the message; the same version and token on both sides")
        return
    if tool is None:
        yield note(
            "server", f"none has run in {state.path} yet", "`keepstep run` starts one by itself; or `keepstep server`"
        )
        return
    with tool:
        yield good("server", f"answers at {where}")
        yield from _of_itself(tool)
    yield from _listening(where)


def _of_itself(tool: ToolClient) -> Iterator[Finding]:
    try:
        seen, offset_s, doubt_s = _clocks(tool)
    except ServerRefused as error:
        yield note("clock", f"the server does not tell its time: {error}")
        return
    from keepstep import __version__

    if seen.version != __version__:
        yield note(
            "version", f"the server is {seen.version}, this is {__version__}", "use the same version on both sides"
        )
    yield _leader(seen)
    text = f"{offset_s:+.2f} s (± {doubt_s:.2f} s) against the server's"
    if abs(offset_s) > CLOCK_BAD_S + doubt_s:
        yield bad("clock", text, "keep the clocks of both machines right (NTP); restart a server whose clock was set")
    else:
        yield good("clock", text)


def _leader(seen: Status) -> Finding:
    under = f"under term {seen.term}, journal entry {seen.entry}"
    if not seen.server:
        return good("leader", f"somebody leads {under}; a server of that version does not say who")
    if seen.leads:
        return good("leader", f"server {seen.server} leads {under}: the one that answers")
    if seen.leader:
        at = f" at {seen.leader_address}" if seen.leader_address else ""
        return good("leader", f"server {seen.leader}{at} leads {under}; server {seen.server}, which answers, follows")
    return bad(
        "leader",
        f"nobody leads: server {seen.server} follows, and shows how things were at journal entry {seen.entry}",
        "see that the database answers and that a server without --follow runs; it then takes over by itself",
    )


def _clocks(tool: ToolClient) -> tuple[Status, float, float]:
    """(answer, how far the server's clock is ahead, how exactly that is known): of the quickest of some answers."""
    best: tuple[Status, float, float] | None = None
    for _ in range(CLOCK_ASKS):
        asked_s = time.time()
        seen = tool.query("status", Status)
        took_s = time.time() - asked_s
        if best is None or took_s / 2 < best[2]:
            best = (seen, seen.now_s - asked_s - took_s / 2, took_s / 2)
    assert best is not None
    return best


def _silent(state: StateDir, why: str) -> Finding:
    """Nobody answers: fine where nobody runs."""
    holder = _holder(state)
    if holder:
        mend = f"look into {state.log}; if it hangs, end pid {holder}: jobs train on, and the next one takes over"
        return bad("server", f"pid {holder} holds {state.path}, and does not answer: {why}", mend)
    if named_server():
        return bad("server", why, "see that it runs and that KEEPSTEP_SERVER names it; jobs train on meanwhile")
    return note(
        "server",
        "none runs now: commands read the journal",
        "`keepstep run` starts one by itself; or `keepstep server`",
    )


def _holder(state: StateDir) -> str:
    """Pid of the server that holds the lock; empty where it is free. Only looks: a lock of our own could get in its way."""
    try:
        inode = state.lock_file.stat().st_ino
        locks = Path("/proc/locks").read_text().splitlines()
        if any(" FLOCK " in line and f":{inode} " in line for line in locks):
            return state.lock_file.read_text().strip() or "unknown"
    except OSError:
        pass  # no server has been here
    return ""


def _listening(where: str) -> Iterator[Finding]:
    """Each address of several: commands are content with the first that answers."""
    addresses = parse_addresses(where)
    for address in addresses if len(addresses) > 1 else ():
        try:
            address.connect(ASK_TIMEOUT_S).close()
        except OSError as error:
            yield note(
                "addresses",
                f"nobody listens at {address}: {error.strerror or error}",
                "start that server, or leave it out",
            )
        else:
            yield good("addresses", f"{address} can be reached")


def http_api(state: StateDir) -> Iterator[Finding]:
    url = state.http()
    if url is None:
        return
    parts = urlsplit(url)
    assert parts.hostname is not None
    link: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is told to it
        link = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=ASK_TIMEOUT_S, context=context)
    else:
        link = http.client.HTTPConnection(parts.hostname, parts.port, timeout=ASK_TIMEOUT_S)
    try:
        link.request("GET", "/healthz")
        status = link.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        if _holder(state):
            yield bad(
                "dashboard", f"{url} does not answer: {error}", "start the server with --http, or remove http.address"
            )
        else:
            yield note("dashboard", f"{url} does not answer: no server runs now", "`keepstep dashboard` serves it")
        return
    finally:
        link.close()
    if status == 200:
        yield good("dashboard", f"answers at {url}")
    else:
        yield bad("dashboard", f"{url}/healthz answers {status}", f"look into {state.log}")
