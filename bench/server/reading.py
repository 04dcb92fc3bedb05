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

from bench.server.process import quantile

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
    ("one incident", "/api/v1/incidents/inc-050000"),
    ("nodes, first page", "/api/v1/nodes?limit=100"),
    ("resources in quarantine", "/api/v1/resources?limit=100&state=quarantined"),
    ("jobs", "/api/v1/jobs?limit=100"),
    ("one job", "/api/v1/jobs/job-003"),
    ("metrics", "/metrics"),
)
PAGES = (
    ("now", "/"),
    ("incidents", "/incidents"),
    ("one incident", "/incidents/inc-050000"),
    ("fleet", "/fleet"),
    ("one job", "/jobs/job-003"),
    ("review", "/review"),
)


def section() -> str:
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder:
        argv = ["taskset", "-c", "0", sys.executable, "-m", "bench.server.reading", "--serve", folder]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            if not select.select([process.stdout], [], [], UP_WAIT_S)[0]:
                raise RuntimeError(f"the server does not answer within {UP_WAIT_S:.0f} s")
            url, token = process.stdout.readline().split()
            lines = [*_api(url, token), *_pages(url, token)]
        finally:
            process.kill()
            process.wait()
    return "\n".join(lines)


def _api(url: str, token: str) -> list[str]:
    import httpx

    lines = [
        f"## API and pages at {NODES:,} nodes and {INCIDENTS:,} incidents",
        "",
        "Server on core 0, the client on the others; the archive is a SQLite file. The floor is `/api/v1/server`, which looks",
        "at nothing: what HTTP and authentication cost by themselves.",
        "",
        "| question | status | p50 | p99 | times the floor | size |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60.0) as client:

        def ask(path: str) -> tuple[int, int, list[float]]:
            took = []
            for _ in range(CALLS):
                began_s = time.perf_counter()
                answer = client.get(path)
                took.append(time.perf_counter() - began_s)
            return answer.status_code, len(answer.content), took

        floor = statistics.median(ask("/api/v1/server")[2])
        for name, path in ROUTES:
            status, size, took = ask(path)
            half = statistics.median(took)
            lines.append(
                f"| {name} | {status} | {half * 1e3:.1f} ms | {quantile(took, 0.99) * 1e3:.1f} ms | {half / floor:.1f} | "
                f"{size / 1024:.1f} KiB |"
            )
    return [*lines, f"| the floor | 200 | {floor * 1e3:.1f} ms | | | |", ""]


def _pages(url: str, token: str) -> list[str]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return ["Pages: playwright is not installed here.", ""]
    if not os.path.exists(CHROMIUM):
        return ["Pages: there is no chromium here.", ""]
    lines = ["| page in Chromium | loaded, median | longest | elements |", "|---|---:|---:|---:|"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGS))
        context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {token}"})
        page = context.new_page()
        for name, path in PAGES:
            took = []
            for _ in range(LOADS):
                began_s = time.perf_counter()
                page.goto(url + path, wait_until="load", timeout=60_000)
                took.append(time.perf_counter() - began_s)
            elements = page.evaluate("document.getElementsByTagName('*').length")
            lines.append(f"| {name} | {statistics.median(took) * 1e3:.0f} ms | {max(took) * 1e3:.0f} ms | {elements} |")
        browser.close()
    return [*lines, ""]


async def serve(folder: Path) -> None:
    """Until it is killed. Prints where it listens, and a token, once it answers."""
    from tests.web.site import OWNER_TOKEN, big_books, running_site

    from keepstep.adapters.database.opening import open_database
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
            print(f"http://127.0.0.1:{listening.getsockname()[1]} {OWNER_TOKEN}", flush=True)
            await serve_http(app, [listening])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.server.reading")
    parser.add_argument("--serve", type=Path, required=True, metavar="FOLDER")
    asyncio.run(serve(parser.parse_args().serve))


if __name__ == "__main__":
    main()
