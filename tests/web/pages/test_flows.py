"""What an engineer does at 3 a.m., in a real browser on a real server."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.core.build import JOB
from tests.web.pages.conftest import HISTORY, PATIENCE_S
from tests.web.site import OWNER_TOKEN, START_S

from keepstep.core import facts as f
from keepstep.core.access import Role
from keepstep.core.ids import NodeId, device_resource
from keepstep.core.incident import IncidentState

WAITING = "inc-0005"
Visit = Callable[..., Any]


def crash(served: Any) -> None:
    """A rank of the running job dies."""
    job = served.rig.books.world.jobs[JOB]
    node, places = next(iter(job.placement.nodes.items()))
    place = places[0]
    served.do(
        served.rig.tell(
            f.RankExited(
                job=JOB, node=node, session=job.launchers[node].session, generation=job.generation, rank=place.rank,
                slot=place.slot, signal=9, step=12,
            )
        )
    )  # fmt: skip


def tab_to(page: Any, selector: str, most: int = 60) -> None:
    """By keyboard alone."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("s => document.activeElement.matches(s)", selector):
            return
    raise AssertionError(
        f"{selector} is not reached by Tab: at {page.evaluate('document.activeElement.outerHTML')[:200]}"
    )


def test_the_link_of_keepstep_dashboard_logs_in_and_signing_out_ends_that(
    small: Any, windows: Callable[..., Any]
) -> None:
    context = windows()
    page = context.new_page()
    page.goto(f"{small.url}/login?next=/jobs#{OWNER_TOKEN}")
    page.wait_for_url(f"{small.url}/jobs")
    assert page.locator("h1").inner_text() == "Jobs"
    copies = context.cookies()
    page.click("details.me summary")
    page.click("#sign-out")
    page.wait_for_url(f"{small.url}/login")
    assert context.cookies() == []
    context.add_cookies(copies)
    page.goto(f"{small.url}/jobs")
    assert page.url.endswith("/login?next=/jobs")
    context.close()


def test_a_token_typed_into_the_form_logs_in_and_a_wrong_one_is_told(small: Any, windows: Callable[..., Any]) -> None:
    context = windows()
    page = context.new_page()
    page.goto(f"{small.url}/incidents")
    page.fill("input[name=token]", "kst_wrong")
    page.click("button")
    page.wait_for_selector("[role=alert]:has-text('unknown, expired or revoked')")
    page.fill("input[name=token]", OWNER_TOKEN)
    page.click("button")
    page.wait_for_url(f"{small.url}/incidents")
    context.close()


def test_a_new_incident_appears_and_its_evidence_can_be_read(served: Any, visit: Visit) -> None:
    page = visit(served)
    page.wait_for_selector("#live[data-live=live]")
    page.focus("#s-jobs ~ table a")
    crash(served)
    page.wait_for_selector("article[data-key=inc-0006]")
    assert page.evaluate("document.activeElement.matches('#s-jobs ~ table a')"), "the focus was lost by the update"
    page.click("article[data-key=inc-0006] h3 a >> nth=0")
    page.wait_for_selector("h1:has-text('inc-0006')")
    assert "signal 9" in page.inner_text("section[aria-labelledby=s-evidence]")
    page.click("ol.entries summary >> nth=0")
    assert page.locator("ol.entries .hash >> nth=0").is_visible()


def test_an_approval_is_given_by_keyboard_alone(served: Any, visit: Visit) -> None:
    page = visit(served, token=served.token("anna", Role.APPROVER))
    tab_to(page, "button[data-post$='/approve']")
    page.keyboard.press("Enter")
    assert page.locator("dialog[open] h2").inner_text() == f"Approve what {WAITING} asks for?"
    assert "Powered off through its BMC: b0." in page.inner_text("#confirm-follows")
    assert page.evaluate("document.activeElement.id") == "confirm-no", "the safe answer has the focus first"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.matches('button[data-post$=\"/approve\"]')")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "confirm-yes"
    page.keyboard.press("Enter")
    page.wait_for_selector(f"section[aria-labelledby=s-open] article[data-key={WAITING}]")
    page.wait_for_selector("#said:text-is('Approve: accepted.')", state="attached")
    assert served.rig.books.world.incidents[WAITING].state is IncidentState.ISOLATING
    (entry,) = served.rig.journal.mentioning(["fact:Approved"])
    assert entry.record.by == "anna" and entry.record.granted


def test_a_viewer_sees_why_a_button_is_not_for_them(small: Any, visit: Visit) -> None:
    page = visit(small, token=small.token("victor", Role.VIEWER))
    button = page.locator("button[data-post$='/approve']")
    assert button.get_attribute("aria-disabled") == "true"
    why = page.locator(f"#{button.get_attribute('aria-describedby')}").inner_text()
    assert "viewer may not approve" in why and "approver" in why
    page.wait_for_selector("#live[data-live=live]")
    button.dispatch_event("click")
    assert page.locator("dialog[open]").count() == 0


def test_what_the_server_refuses_is_said_in_the_dialog(served: Any, visit: Visit) -> None:
    page = visit(served, strict=False)
    page.click("button[data-post$='/deny']")
    served.do(served.rig.tell(f.Approved(subject=WAITING, by="quick", granted=True)))
    page.click("#confirm-yes")
    page.wait_for_selector("#confirm-error:visible")
    assert "waits for nobody" in page.inner_text("#confirm-error")
    assert page.locator("dialog[open]").count() == 1


def test_an_answer_that_comes_late_leaves_the_dialog_of_another_question_alone(served: Any, visit: Visit) -> None:
    page = visit(served)
    come = threading.Event()

    async def late(route: Any) -> None:
        await asyncio.to_thread(come.wait, PATIENCE_S)
        await route.continue_()

    page.route("**/deny", late)
    page.click("button[data-post$='/deny']")
    page.click("#confirm-yes")
    page.keyboard.press("Escape")
    page.click("button[data-post$='/approve']")
    come.set()
    page.wait_for_selector("#said:text-is('Deny: accepted.')", state="attached")
    assert page.inner_text("dialog[open] h2") == f"Approve what {WAITING} asks for?"
    page.click("#confirm-no")
    page.wait_for_selector("#confirm", state="hidden")


def test_a_device_is_found_by_serial_held_and_let_go(served: Any, visit: Visit) -> None:
    page = visit(served)
    page.keyboard.press("/")
    page.keyboard.type("n0-gpu0")
    page.keyboard.press("Enter")
    page.click(".finds a")
    page.wait_for_selector("h1:has-text('n0/0')")
    page.wait_for_selector("#live[data-live=live]")
    page.click("button[data-post$='/hold']")
    page.fill("#confirm-reason", "fan <b>rattles</b>")
    page.keyboard.press("Enter")
    page.wait_for_selector("#s-holds ~ ul >> text=fan <b>rattles</b>")
    resource = served.rig.books.world.resources[device_resource(NodeId("n0"), 0)]
    assert list(resource.holds) == ["person:owner"]
    page.click("button[data-post$='/unhold']")
    assert "Nobody else holds it." in page.inner_text("#confirm-follows")
    page.click("#confirm-yes")
    page.wait_for_selector("button[data-post$='/hold']")
    assert not resource.holds


def test_an_open_dialog_and_typed_text_outlive_updates(served: Any, visit: Visit) -> None:
    page = visit(served, "/fleet/devices/n0/0")
    page.wait_for_selector("#live[data-live=live]")
    page.click("button[data-post$='/hold']")
    page.fill("#confirm-reason", "half a sen")
    served.do(served.rig.tell(f.HoldRequested(resource="device/n0/0", source="person:bob", by="bob", reason="mine")))
    page.wait_for_selector("#s-holds ~ ul >> text=mine", state="attached")
    assert page.input_value("#confirm-reason") == "half a sen" and page.locator("dialog[open]").count() == 1


def test_a_lost_connection_is_shown_and_so_is_its_end(served: Any, visit: Visit) -> None:
    page = visit(served, strict=False)
    page.wait_for_selector("#live[data-live=live]")
    page.wait_for_selector("#stale", state="hidden")
    served.do(served.listener.stop())
    page.wait_for_selector("#live[data-live=stale]")
    assert "stale since" in page.inner_text("#live") and "What you see is old" in page.inner_text("#stale")
    page.click("button[data-post$='/deny']")
    assert "What you see is old" in page.inner_text("#confirm-error")
    page.keyboard.press("Escape")
    served.do(served.listener.start())
    page.wait_for_selector("#live[data-live=live]")
    page.wait_for_selector("#stale", state="hidden")


def test_a_page_whose_session_is_over_says_so(served: Any, visit: Visit) -> None:
    page = visit(served, token=served.token("tom", Role.VIEWER), strict=False)
    page.wait_for_selector("#live[data-live=live]")
    number = served.rig.books.registry.next_token - 1
    served.do(served.rig.tell(f.TokenRevoked(id=f"t{number}", by="owner")))
    page.wait_for_selector("#stale:has-text('signed out')")
    assert page.get_attribute("#live", "data-live") == "stale"


def test_a_long_history_can_be_filtered_and_paged(big: Any, visit: Visit) -> None:
    page = visit(big, "/incidents")
    assert page.inner_text("#s-closed") == f"Closed {HISTORY:,}"
    page.select_option("select[name=cause]", "device")
    page.wait_for_url("**cause=device*")
    assert page.locator("tbody tr").count() == 50
    first = page.inner_text("tbody th >> nth=0")
    page.click("a[rel=next]")
    page.wait_for_url("**cursor=*")
    assert page.inner_text("tbody th >> nth=0") != first
    assert set(page.locator("td[data-label=Cause]").all_inner_texts()) == {"device 90 %"}
    page.goto(f"{big.url}/incidents?q=node-02023")
    assert 0 < page.locator("tbody tr").count() < 50
    page.fill("input[name=since]", "2023-10-01")
    page.wait_for_url("**since=2023-10-01*")
    assert "node-02023" in page.inner_text("tbody td.text >> nth=0")


def test_the_map_of_ten_thousand_nodes_moves_by_keyboard_and_pointer(big: Any, visit: Visit) -> None:
    page = visit(big, "/fleet")
    page.wait_for_selector("#map-at:has-text('10,000 nodes, 80,000 devices')")
    page.focus("#map")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#map-at") == "rack rack-0000, node node-00000: in service"
    for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert "node node-00001, device 1: " in page.inner_text("#map-at")
    for key in ("+", "+", "+", "-"):
        page.keyboard.press(key)
    page.mouse.move(600, 500)
    page.mouse.wheel(0, -400)
    page.mouse.down()
    page.mouse.move(500, 450, steps=4)
    page.mouse.up()
    page.keyboard.press("n")
    assert "in service" not in page.inner_text("#map-at")
    shown = page.evaluate(
        """async () => {
          const map = document.getElementById("map").map;
          map.fit();
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          await map.load();  // what is drawn stays until it is drawn anew
          const { data } = map.painter.pen.getImageData(0, 0, map.canvas.width, map.canvas.height);
          const colours = new Set();
          for (let i = 0; i < data.length; i += 4) {
            if (data[i + 3] === 255) colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
          }
          return { colours: colours.size, frames: map.frames };
        }"""
    )
    assert shown["colours"] >= 6, "the whole fleet with its states is in sight"
    print("frames in ms:", [round(ms, 1) for ms in sorted(shown["frames"])[-5:]])
    page.focus("#map")
    page.keyboard.press("Enter")
    page.wait_for_url("**/fleet/devices/**")


def test_the_map_follows_what_changes(served: Any, visit: Visit) -> None:
    page = visit(served, "/fleet")
    page.wait_for_selector("#map-at:has-text('5 nodes')")
    page.wait_for_selector("#live[data-live=live]")
    page.focus("#map")
    for key in ("ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.inner_text("#map-at").endswith("node n0, device 0: in service")
    served.do(served.rig.tell(f.HoldRequested(resource="device/n0/0", source="person:bob", by="bob", reason="x")))
    page.wait_for_selector("#map-at:has-text('held')")


def test_an_answer_that_a_change_has_overtaken_does_not_put_back_what_was(served: Any, visit: Visit) -> None:
    page = visit(served, "/jobs")
    fetched, changed = threading.Event(), threading.Event()
    asked: list[Any] = []

    async def late(route: Any) -> None:
        """The map is asked for twice, the second time because the stream of changes begins: that answer takes long."""
        asked.append(route)
        if len(asked) != 2:
            return await route.continue_()
        answer = await route.fetch()
        fetched.set()
        await asyncio.to_thread(changed.wait, PATIENCE_S)
        await route.fulfill(response=answer)

    page.route("**/fleet/map?after=0", late)
    page.goto(f"{served.url}/fleet")
    page.wait_for_selector("#map-at:has-text('5 nodes')")
    page.focus("#map")
    for key in ("ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.inner_text("#map-at").endswith("node n0, device 0: in service")
    page.evaluate(
        """() => {
          window.first = document.getElementById("map").map.layout;
          document.addEventListener("keepstep:change", (event) => {
            if (event.detail.includes("device/n0/0")) document.body.classList.add("has-heard");
          });
        }"""
    )
    assert fetched.wait(PATIENCE_S)
    served.do(served.rig.tell(f.HoldRequested(resource="device/n0/0", source="person:bob", by="bob", reason="x")))
    page.wait_for_selector("body.has-heard")
    changed.set()
    page.evaluate(
        """async () => {
          while (document.getElementById("map").map.layout === window.first) await new Promise(requestAnimationFrame);
        }"""
    )
    page.wait_for_selector("#map-at:has-text('held')")


def test_the_theme_that_was_chosen_stays(small: Any, visit: Visit) -> None:
    page = visit(small, color_scheme="light")
    before = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.click("details.me summary")
    page.check("input[name=theme][value=dark]")
    after = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == after != before


def test_the_end_of_a_period_has_its_date_though_it_is_today(small: Any, visit: Visit) -> None:
    page = visit(small)
    page.clock.set_fixed_time(datetime.fromtimestamp(START_S, UTC))
    page.goto(f"{small.url}/review")
    page.wait_for_selector("time:has-text('Nov 07, 2023')")
    assert page.locator("main p:has-text('to') time").all_inner_texts() == [
        "Nov 07, 2023, 10:15:53 PM UTC", "Nov 14, 2023, 10:15:53 PM UTC",
    ]  # fmt: skip


def test_one_is_no_plural(small: Any, visit: Visit) -> None:
    page = visit(small, "/jobs/blue-1")
    assert "on 1 node; declared 1 node" in page.inner_text("main") and "1 rank on 1 node" in page.inner_text("main")
    said = page.evaluate(
        """async () => {
          const { Layout } = await import("/static/layout.js");
          const map = new Layout();
          map.add({ names: ["n0"], racks: ["r"], rack: [0], node: ["a"], devices: ["a"], score: [-1], states: ["in_service"] });
          return map.summary();
        }"""
    )
    assert said.startswith("1 node, 1 device, 1 rack.")
