"""API latency and page load with a big fleet: 10,000 nodes, 100,000 incidents, the archive in SQLite.

``python -m bench.server.reading --serve FOLDER`` is the server, in a process of its own.
"""

import argparse
import asyncio
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.server.process import cpu_s, quantile

NODES, INCIDENTS = 10_000, 100_000
CALLS = 40
LOADS = 5
UP_WAIT_S = 240.0
AT_ONCE = 5_000
CHROMIUM = "/usr/bin/chromium"
CHROMIUM_ARGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")

ROUTES = (
    ("incidents, first page", "/api/v1/incidents?limit=100"),
    ("incidents of a cause and a job", "/api/v1/incidents?limit=100&cause=device&job=job-003"),
    ("incidents of a node", "/api/v1/incidents?limit=100&node=node-00500"),
    ("incidents by words: one in 6,700", "/api/v1/incidents?limit=100&q=node-00500"),
    ("incidents by words: nearly all", "/api/v1/incidents?limit=100&q=signal+11"),
    ("incidents by words: none", "/api/v1/incidents?limit=100&q=nothing-of-it"),
    ("one incident", "/api/v1/incidents/inc-050000"),
    ("nodes, first page", "/api/v1/nodes?limit=100"),
    ("resources in quarantine", "/api/v1/resources?limit=100&state=quarantined"),
    ("jobs", "/api/v1/jobs?limit=100"),
    ("one job", "/api/v1/jobs/job-003"),
    ("metrics", "/metrics"),
)
OF_A_TENANT = (
    ("incidents of a tenant", "/api/v1/incidents?limit=100"),
    ("incidents by words, of a tenant", "/api/v1/incidents?limit=100&q=node-005"),
)
"""Asked by somebody who sees that tenant only."""
PAGES = (
    ("now", "/"),
    ("incidents", "/incidents"),
    ("incidents by words", "/incidents?q=node-00500"),
    ("one incident", "/incidents/inc-050000"),
    ("jobs", "/jobs"),
    ("one job of 500 nodes", "/jobs/job-003"),
    ("fleet, map of 80,000 devices", "/fleet"),
    ("fleet, list", "/fleet/list"),
    ("one node", "/fleet/nodes/node-00500"),
    ("one device", "/fleet/devices/node-00500/3"),
    ("find", "/find?q=node-005"),
    ("review", "/review"),
)
API_GOAL_MS, PAGE_GOAL_S = 20, 1.0
RENDERED = """async () => {
    const at = document.getElementById("map-at");
    while (at && at.textContent.startsWith("The map is being loaded")) await new Promise(requestAnimationFrame);
    for (let frames = 0; frames < 2; frames++) await new Promise(requestAnimationFrame);
    const [page] = performance.getEntriesByType("navigation");
    return {rendered: performance.now(), answer: page.responseEnd - page.requestStart,
            elements: document.getElementsByTagName("*").length};
}"""
"""What is to be seen is there: the page, and on the fleet's its map, which comes in parts. In ms since the navigation began."""


def section(quick: bool = False) -> str:
    calls, loads = (5, 1) if quick else (CALLS, LOADS)
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder:
        argv = ["taskset", "-c", "0", sys.executable, "-m", "bench.server.reading", "--serve", folder]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            if not select.select([process.stdout], [], [], UP_WAIT_S)[0]:
                raise RuntimeError(f"the server does not answer within {UP_WAIT_S:.0f} s")
            url, token, of_tenant = process.stdout.readline().split()
            lines = [*_api(url, token, of_tenant, calls), *_pages(url, token, loads, process.pid)]
        finally:
            process.kill()
            process.wait()
    return "\n".join(lines)


def _api(url: str, token: str, of_tenant: str, calls: int) -> list[str]:
    import httpx

    lines = [
        f"## API and pages at {NODES:,} nodes and {INCIDENTS:,} incidents",
        "",
        "Server on core 0, the client on the others; the archive is a SQLite file. The floor is `/api/v1/server`, which looks",
        f"at nothing: what HTTP and authentication cost by themselves. Goal for searches of the archive: {API_GOAL_MS} ms.",
        "",
        "| question | status | p50 | p99 | times the floor | size |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with httpx.Client(base_url=url, timeout=60.0) as client:

        def ask(path: str, by: str = token) -> tuple[int, int, list[float]]:
            took, headers = [], {"Authorization": f"Bearer {by}"}
            for _ in range(calls):
                began_s = time.perf_counter()
                answer = client.get(path, headers=headers)
                took.append(time.perf_counter() - began_s)
            return answer.status_code, len(answer.content), took

        floor = statistics.median(ask("/api/v1/server")[2])
        asked = [(name, path, token) for name, path in ROUTES] + [(*one, of_tenant) for one in OF_A_TENANT]
        for name, path, by in asked:
            status, size, took = ask(path, by)
            half = statistics.median(took)
            lines.append(
                f"| {name} | {status} | {half * 1e3:.1f} ms | {quantile(took, 0.99) * 1e3:.1f} ms | {half / floor:.1f} | "
                f"{size / 1024:.1f} KiB |"
            )
    return [*lines, f"| the floor | 200 | {floor * 1e3:.1f} ms | | | |", ""]


def _pages(url: str, token: str, loads: int, pid: int) -> list[str]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return ["Pages: playwright is not installed here.", ""]
    if not os.path.exists(CHROMIUM):
        return ["Pages: there is no chromium here.", ""]
    lines = [
        f"Pages in headless Chromium, {loads} times each: from the beginning of the navigation until what is to be seen is",
        "rendered, and what the server did for it: until it had answered the page itself, and the CPU time of its process for",
        f"everything that the page asked for. Goal: {PAGE_GOAL_S:g} s, rendered.",
        "",
        "| page | rendered, median | longest | the page answered | server CPU | elements |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGS))
        context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {token}"})
        page = context.new_page()
        for name, path in PAGES:
            before_s, told = cpu_s(pid), []
            for _ in range(loads):
                page.goto(url + path, wait_until="load", timeout=60_000)
                told.append(page.evaluate(RENDERED))
            rendered, answer = ([one[what] for one in told] for what in ("rendered", "answer"))
            used_ms = (cpu_s(pid) - before_s) / loads * 1e3
            lines.append(
                f"| {name} | {statistics.median(rendered):.0f} ms | {max(rendered):.0f} ms | "
                f"{statistics.median(answer):.0f} ms | {used_ms:.0f} ms | {told[-1]['elements']} |"
            )
            print(lines[-1], flush=True)
        browser.close()
    return [*lines, ""]


async def serve(folder: Path) -> None:
    """Until it is killed. Prints where it listens, the owner's token and that of a tenant, once it answers."""
    from tests.web.site import OWNER_TOKEN, big_books, running_site

    from keepstep.adapters.database.opening import open_database
    from keepstep.core.access import Role
    from keepstep.server.collecting import Collecting
    from keepstep.web import pages
    from keepstep.web.app import make_app
    from keepstep.web.options import WebOptions
    from keepstep.web.serving import serve as serve_http

    database, books = open_database(folder / "journal.db"), big_books(NODES, INCIDENTS)
    kept = [(record, books.archive.get("incident", record.id) or b"") for record in books.archive.records("incident")]
    for first in range(0, INCIDENTS, AT_ONCE):
        database.archive.put(0, kept[first : first + AT_ONCE])
    books.archive = database.archive
    async with running_site(books=books) as rig:
        Collecting().begin()
        app = make_app(rig.site, WebOptions(owner_token=OWNER_TOKEN), pages.routes())
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
            of_tenant = await rig.token("vera", Role.VIEWER, ("blue",))
            print(f"http://127.0.0.1:{listening.getsockname()[1]} {OWNER_TOKEN} {of_tenant}", flush=True)
            await serve_http(app, [listening])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.server.reading")
    parser.add_argument("--serve", type=Path, required=True, metavar="FOLDER")
    asyncio.run(serve(parser.parse_args().serve))


if __name__ == "__main__":
    main()
