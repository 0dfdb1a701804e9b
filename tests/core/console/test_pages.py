"""The console's pages, in a real Chromium, of a real cluster."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support import bad_nodes
from tests.support.avro_table import items
from tests.support.browser import Complaints, browsing, chromium
from tests.support.console_client import ConsoleThread
from tests.support.console_stage import (
    BIG,
    FLOWS,
    IMAGE,
    OPERATOR,
    PASSWORD,
    SCRIPT,
    SHARDS,
    VIEWER,
    ConsoleStage,
    sign_in,
    staged,
)
from tests.support.scene import stop
from tidings.audit import acting_as, recorded
from tidings.cluster import Cluster
from tidings.console.payloads import MAX_JSON_BYTES
from tidings.console.users import add_user
from tidings.coordination.zookeeper import Coordination
from tidings.identity.credentials import Credentials, role_credentials
from tidings.testing import eventually

DASH = "\N{EN DASH}"
PAGES = ["overview", "flows", "streams", "applications", "members", "caravans", "pipelines", "thialfi", "gc", "audit"]

# What a screen reader would stumble over.
UNNAMED = """() => {
  const named = (one) =>
    one.getAttribute("aria-label") || one.closest("label") || one.textContent.trim() || one.title || one.labels?.length;
  const controls = [...document.querySelectorAll("button, input, select, a, [role=img], dialog")];
  const tables = [...document.querySelectorAll("table")].filter((one) => !one.caption);
  const heads = [...document.querySelectorAll("th")].filter((one) => !one.scope);
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  return [...controls.filter((one) => !named(one)), ...tables, ...heads].map((one) => one.outerHTML.slice(0, 120))
    .concat(ids.filter((id, index) => ids.indexOf(id) !== index));
}"""


@pytest.fixture(scope="module")
def stage(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleStage]:
    with staged(zookeeper, tmp_path_factory.mktemp("console")) as own:
        yield own


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with browsing() as own:
        yield own


@pytest.fixture
def page(browser: Browser, stage: ConsoleStage) -> Iterator[Page]:
    """A page of a browser that has never been here. After each test: it had nothing to complain about."""
    expect.set_options(timeout=20_000)
    complaints = Complaints(stage.url)
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        context.set_default_timeout(20_000)
        yield complaints.watch(context.new_page())
    assert complaints.found == []


def test_a_wrong_password_is_refused_and_the_right_one_shows_the_overview(page: Page, stage: ConsoleStage) -> None:
    page.goto(stage.url)
    expect(page).to_have_title("Sign in · tidings")
    page.get_by_label("User").fill(OPERATOR)
    page.get_by_label("Password").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).not_to_be_empty()
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page).to_have_title("Overview · tidings")
    expect(page.locator(".liveness")).to_have_text("live")
    expect(page.locator(".tiles div", has_text="Flows").locator("dd")).to_have_text(str(FLOWS))
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    expect(page.get_by_role("status")).to_have_count(0)


def test_every_page_has_a_heading_and_names_for_all_controls_and_fits_a_telephone(
    page: Page, stage: ConsoleStage
) -> None:
    sign_in(page, stage)
    places = [*PAGES, "flows/cache/contacts/0", "streams/contacts"]
    for place in places:
        page.goto(f"{stage.url}/#/{place}")
        expect(page.locator("h1")).to_have_count(1)
        expect(page.locator("main")).to_have_count(1)
        expect(page.locator(".skeleton")).to_have_count(0)
        assert page.evaluate(UNNAMED) == [], place
        assert page.get_by_role("alert").all_inner_texts() == [], place
    page.set_viewport_size({"width": 360, "height": 740})
    for place in places:
        page.goto(f"{stage.url}/#/{place}")
        expect(page.locator("h1")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, place


@pytest.mark.parametrize("size", [(390, 844), (1440, 900)], ids=["telephone", "desk"])
def test_names_have_room_and_rows_are_low_however_much_is_in_them(
    page: Page, stage: ConsoleStage, size: tuple[int, int]
) -> None:
    log = f"delta:/{'long/' * 20}"
    before = {"log": log, "options": {"keys": list(range(50))}, "position": 7}
    with recorded(stage.scene.cluster.coordination, "flows reset", map(str, range(40)), before=before, after={}):
        pass
    page.set_viewport_size({"width": size[0], "height": size[1]})
    sign_in(page, stage, at="#/flows")
    name = page.get_by_title("search/contacts/15").bounding_box()
    assert name is not None
    assert name["width"] >= 100
    page.goto(f"{stage.url}/#/audit")
    row = page.locator("tbody tr", has_text="flows reset").filter(has_text="more").first
    place = row.bounding_box()
    assert place is not None
    assert place["height"] <= 60
    assert page.locator(".table-wrap").evaluate("(one) => one.scrollWidth <= one.clientWidth")
    row.get_by_role("link").click()
    told = page.get_by_role("dialog", name="flows reset")
    expect(told).to_contain_text(log)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_on_a_telephone_the_page_one_is_on_and_the_buttons_can_be_seen(page: Page, stage: ConsoleStage) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    sign_in(page, stage)
    for place in PAGES:
        page.goto(f"{stage.url}/#/{place}")
        current = page.locator(f'.side a[aria-current][href="#/{place}"]')
        expect(current).to_be_in_viewport(ratio=0.99)
    page.goto(f"{stage.url}/#/members")
    expect(page.get_by_role("button", name="Drain", exact=True).first).to_be_in_viewport(ratio=0.99)
    page.set_viewport_size({"width": 320, "height": 800})
    expect(page.locator(".side a[aria-current]")).to_be_in_viewport(ratio=0.99)


def test_a_wide_audit_cuts_neither_who_nor_where_nor_what(page: Page, stage: ConsoleStage) -> None:
    tree, flow = stage.scene.cluster.coordination, "cache/contacts/0"
    with (
        acting_as("valentina at 127.0.0.1", "tidings console"),
        recorded(tree, "applications update", [flow], before={}, after={"skip": [[53, 0], [7, 2]], "again": 1}),
    ):
        pass
    with recorded(tree, "flows reset", [flow, "cache/contacts/1"], before=-1, after={flow: 49, "b": [7, 2]}):
        pass
    page.set_viewport_size({"width": 1600, "height": 900})
    sign_in(page, stage, at="#/audit")
    row = page.locator("tbody tr", has_text="valentina").first
    expect(row).to_contain_text(f"skip {DASH} → 53, 7.2")
    for cell in row.locator("td").all():
        assert cell.evaluate("(one) => one.scrollWidth <= one.clientWidth")
        assert cell.evaluate("(one) => [...one.children].every((part) => part.scrollHeight <= part.clientHeight + 1)")
    expect(page.locator("tbody tr", has_text=f"b {DASH} → 7.2").first).to_contain_text(f"{flow} {DASH} → 49")
    row.get_by_text("done").last.click()
    expect(page.get_by_role("dialog", name="applications update")).to_contain_text(f"times reassigned {DASH} → 1")


def test_who_acts_is_told_why_a_console_can_only_be_looked_at(browser: Browser, stage: ConsoleStage) -> None:
    with (
        ConsoleThread(stage.scene.cluster, stage.users, read_only=True) as console,
        browser.new_context() as context,
    ):
        page = context.new_page()
        sign_in(page, replace(stage, url=console.url))
        expect(page.get_by_text("Operators can only look at this console: it runs with --read-only.")).to_be_visible()


def test_buttons_that_cannot_work_go_when_the_console_learns_that_it_may_only_look(
    browser: Browser, stage: ConsoleStage, zookeeper: str
) -> None:
    secret, address = "s" * 43, f"{zookeeper}/{uuid.uuid4()}"
    viewer = Credentials.of_text(role_credentials(secret, "viewer"))
    with (
        Cluster(Coordination(address, credentials=viewer)) as seen,
        ConsoleThread(seen, stage.users) as console,
        browser.new_context() as context,
    ):
        page = context.new_page()
        sign_in(page, replace(stage, url=console.url), at="#/members")
        expect(page.locator(".user")).to_have_text(f"{OPERATOR} operator")
        with contextlib.closing(Coordination(address, credentials=Credentials.of_secrets([secret]))) as own:
            own.create({"address": "127.0.0.1:1"}, "publishers", "east", ephemeral=True)
            expect(page.locator("main")).to_contain_text("it has a viewer's credentials")
            expect(page.locator(".user")).to_have_text(f"{OPERATOR} viewer")
            expect(page.get_by_role("row").filter(has_text="east")).to_be_visible()
            expect(page.get_by_role("button", name="Drain")).to_have_count(0)


def test_a_record_that_makes_no_sense_is_shown_beside_the_others(page: Page, stage: ConsoleStage) -> None:
    tree = stage.scene.cluster.coordination
    odd = {"version": 1, "load": {"a": 1}, "weight": {"b": 2}, "pid": {"toString": 1}, "unreachable": {IMAGE: IMAGE}}
    bad_nodes.put(stage.scene.cluster, {"applications/cache/subscribers/odd": json.dumps(odd).encode()})
    try:
        sign_in(page, stage, at="#/members")
        row = page.locator("tbody tr", has=page.get_by_role("link", name="odd"))
        expect(row).to_contain_text(IMAGE)
        expect(row.locator("td").nth(3)).to_have_text(DASH)
        expect(page.get_by_role("link", name="search-1")).to_be_visible()
    finally:
        tree.client.delete(tree.path("applications", "cache", "subscribers", "odd"))


def test_keys_lead_to_pages_rows_and_help(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage)
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page).to_have_title("Flows · tidings")
    expect(page.locator("tbody tr")).to_have_count(FLOWS)
    page.keyboard.press("/")
    page.keyboard.type("search/")
    expect(page.locator("tbody tr")).to_have_count(SHARDS)
    expect(page).to_have_url(re.compile("q=search"))
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page).to_have_title("search/contacts/0 · Flows · tidings")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_long_list_is_walked_by_the_page_and_narrowed_from_its_first_one(page: Page, stage: ConsoleStage) -> None:
    tree = stage.scene.cluster.coordination
    for number in range(101):
        with recorded(tree, "streams collect", [f"walked-{number}"]):
            pass
    sign_in(page, stage, at="#/audit?q=walked")
    numbers, rows = page.locator(".pager .numbers"), page.locator("tbody tr")
    expect(numbers).to_have_text(f"1{DASH}100 of 101")
    expect(page.get_by_label("previous page")).to_be_disabled()
    page.get_by_label("next page").click()
    expect(numbers).to_have_text(f"101{DASH}101 of 101")
    expect(page).to_have_url(re.compile("page=1"))
    expect(rows).to_have_count(1)
    expect(page.get_by_label("last page")).to_be_disabled()
    page.get_by_label("Search the record").fill("walked-7")
    expect(numbers).to_have_text(f"1{DASH}11 of 11")
    expect(rows).to_have_count(11)
    page.get_by_label("Search the record").fill("walked-no")
    expect(numbers).to_have_text(f"0{DASH}0 of 0")
    expect(page.get_by_text("Nothing has been done that is like that.")).to_be_visible()


@pytest.mark.parametrize("number", ["99", "-1", "1.5", "all"])
def test_a_page_that_is_not_there_leads_to_one_that_is(page: Page, stage: ConsoleStage, number: str) -> None:
    sign_in(page, stage, at=f"#/flows?page={number}")
    expect(page.locator(".pager .numbers")).to_have_text(f"1{DASH}{FLOWS} of {FLOWS}")
    expect(page.locator("tbody tr").filter(has_text="cache/contacts")).to_have_count(SHARDS)
    expect(page.get_by_text("No flow is like that.")).to_have_count(0)
    assert page.get_by_role("alert").all_inner_texts() == []


def test_values_are_written_so_that_they_can_be_read_and_what_is_unknown_is_a_dash(
    page: Page, stage: ConsoleStage
) -> None:
    page.goto(stage.url)
    written = page.evaluate(
        """async () => {
            const { ago, bytes, count, duration, inline, measure, plain, position, rate } = await import("./format.js");
            const { parseJson, writeJson } = await import("./json.js");
            return [
                [null, undefined, NaN].map(count), [0, 999, 1234567].map(count),
                [0.1234, 12.34, 20, 12345.6].map(measure),
                [0, 1.25, 59, 252, 7500, 270000].map(duration), [999, 1500, 2.5e9, 630.958, 999.9].map(bytes),
                [7, [7, 2], null, [7, 0]].map(position), plain(1234567), ago(0, 90000), ago(0, 500),
                writeJson(parseJson("[9223372036854775807, 7, 0.5]")),
                [count, measure, rate, bytes, duration, position, plain, inline].map((write) =>
                    [{ a: 1 }, [], "x", true, -1e308, Infinity, 2n ** 70n].map(write).every((one) => one.at)),
                [{ a: 1 }, "x", [1]].map(measure),
            ];
        }"""
    )
    assert written == [
        [DASH, DASH, DASH],
        ["0", "999", "1\u202f234\u202f567"],
        ["0.12", "12.3", "20", "12\u202f346"],
        ["0\u202fs", "1.3\u202fs", "59\u202fs", "4m 12s", "2h 05m", "3d 03h"],
        ["999\u202fB", "1.50\u202fKB", "2.50\u202fGB", "631\u202fB", "1.00\u202fKB"],
        ["7", "7.2", DASH, "7"],
        "1234567",
        "1\u202fmin ago",
        "now",
        "[9223372036854775807,7,0.5]",
        [True] * 8,
        [DASH] * 3,
    ]


def test_the_map_asks_anew_when_it_has_missed_something_and_finds_the_cell_at_a_place(
    page: Page, stage: ConsoleStage
) -> None:
    page.goto(stage.url)
    found = page.evaluate(
        """async () => {
            const { applyChanges, modelOf, tally } = await import("./map/model.js");
            const { cellAt, cellPlace, layout } = await import("./map/layout.js");
            const publishers = ["a", "b"].map((name, colour) => ({ name, state: "running", colour }));
            const rows = [{ application: "x", stream: "s", owners: [0, 1, -1], states: "rru" }];
            const model = modelOf({ publishers, rows, layout: 1, version: 5 });
            const event = (since, layout = 1) =>
                ({ publishers: publishers.toReversed(), changes: [[0, 2, 0, "r"]], since, layout, version: 6 });
            const missed = [applyChanges(model, event(6)), applyChanges(model, event(5, 2))];
            const changed = applyChanges(model, event(5));
            const places = [[3, 10000, 1], [0], [1000]].map((lengths) => {
                const made = layout(lengths, 100, 900, 500);
                const right = (row, shard) => {
                    const [x, y] = cellPlace(made, row, shard);
                    return String(cellAt(made, lengths, x + 1, y + 1)) === String([row, shard]);
                };
                return lengths.every((length, row) => !length || (right(row, 0) && right(row, length - 1)));
            });
            return { missed, changed, tally: tally(model), places, names: model.names };
        }"""
    )
    assert found["missed"] == [None, None]
    assert found["changed"] == [[0, 2, -1, "u"]]
    assert found["tally"] == {"owned": [1, 2], "nobody": 0, "letters": {"r": 3}}
    assert found["places"] == [True, True, True]
    assert found["names"] == ["a", "b"]


def test_the_theme_is_kept(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage)
    ground = "getComputedStyle(document.body.parentElement).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="theme: system").click()
    page.get_by_role("button", name="theme: light").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    expect(page.get_by_role("button", name="theme: dark")).to_be_visible()
    assert page.evaluate(ground) == dark


def test_names_and_payloads_are_shown_as_text(page: Page, stage: ConsoleStage) -> None:
    page.add_init_script("window.alert = () => { throw new Error('a page ran what it should show'); }")
    sign_in(page, stage, at="#/streams/contacts?after=earliest")
    shown = page.locator(".updates")
    shown.get_by_role("button", name=SCRIPT, exact=True).click()
    expect(shown.locator(".attributes")).to_contain_text(f"{IMAGE}{SCRIPT}", use_inner_text=False)
    expect(shown.locator(".payload")).to_contain_text(IMAGE.replace('"', "'"))
    expect(shown.get_by_role("row").filter(has_text=SCRIPT).first).to_contain_text(str(BIG))  # to the last digit
    shown.get_by_role("button", name=IMAGE, exact=True).click()
    expect(shown.locator(".payload")).to_contain_text("00 ff 3c 62 3e")
    assert page.locator("#main img, #main script").count() == 0


def test_a_row_in_avro_is_shown_as_json_and_one_that_is_too_large_as_bytes_with_the_reason(
    page: Page, stage: ConsoleStage, tmp_path: Path
) -> None:
    items(stage.scene.cluster, tmp_path, IMAGE, "x" * (MAX_JSON_BYTES + 1), stream="items")
    try:
        sign_in(page, stage, at="#/streams")
        page.get_by_role("link", name="items", exact=True).click()
        shown = page.locator(".updates")
        shown.get_by_role("button", name="shop.item/1", exact=True).click()
        expect(shown.locator(".payload")).to_have_text(
            f'{{\n  "id": 1,\n  "name": {json.dumps(IMAGE)},\n  "price": "10.50",\n  "day": "2026-03-01",\n'
            '  "raw": "\\\\x00ff"\n}'
        )
        expect(shown.locator(".payload-form")).to_contain_text("Avro, decoded; ")
        assert page.locator("#main img").count() == 0
        shown.get_by_role("button", name="shop.item/2", exact=True).click()
        expect(shown.locator(".payload")).to_contain_text("000000  c3 01 ")
        expect(shown.locator(".payload-form")).to_have_text(re.compile("^bytes; 65.6.KB, of which only the beginning"))
        expect(shown.locator(".opened .bad")).to_contain_text("It is no Avro that can be shown: it has ")
    finally:
        stage.scene.cluster.drop_stream("items")


def test_an_update_that_is_opened_leaves_the_columns_as_they_were(page: Page, stage: ConsoleStage) -> None:
    widths = "(table) => [...table.tHead.rows[0].cells].map((one) => Math.round(one.getBoundingClientRect().width))"
    for width in (1440, 1200, 900):
        page.set_viewport_size({"width": width, "height": 900})
        if width == 1440:
            sign_in(page, stage, at="#/streams/contacts?after=earliest")
        table = page.locator(".updates")
        expect(table.locator(".opened")).to_have_count(0)
        table.locator("tbody tr").nth(1).locator("td").last.click()
        expect(table.locator(".opened")).to_have_count(1)
        opened = table.evaluate(widths)
        box, whole = table.locator(".opened td").bounding_box(), table.bounding_box()
        assert box is not None
        assert whole is not None
        assert abs(box["width"] - whole["width"]) <= 1
        table.locator("tbody tr").nth(1).locator("td").last.click()
        expect(table.locator(".opened")).to_have_count(0)
        assert table.evaluate(widths) == opened


def test_a_publisher_has_the_same_colour_whichever_page_is_opened_first(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage, at="#/flows?q=cache")
    swatches, colour = {}, "(one) => getComputedStyle(one).backgroundColor"
    for name in ("west", "east"):
        swatch = page.locator("tbody .owner", has_text=name).first.locator(".swatch")
        expect(swatch).to_have_attribute("data-colour", re.compile(r"\d"))
        swatches[name] = swatch.evaluate(colour)
    for place in ("overview", "members"):
        page.goto(f"{stage.url}/#/{place}")
        page.reload()
        for name, known in swatches.items():
            shown = page.locator(".legend li, tbody .owner", has_text=name).locator(".swatch").first
            expect(shown).to_have_css("background-color", known)


def test_updates_are_narrowed_by_a_filter_and_one_that_makes_no_sense_is_shown_with_its_place(
    page: Page, stage: ConsoleStage
) -> None:
    sign_in(page, stage, at="#/streams/contacts?after=earliest")
    expect(page.locator(".updates tbody tr")).to_have_count(41)
    field = page.get_by_label(re.compile("^Filter"))
    field.fill("region = eu and version > 30")
    expect(page.locator(".updates tbody tr")).to_have_count(5)
    field.fill("region = = eu")
    expect(page.get_by_role("alert")).to_contain_text("^")
    assert page.get_by_role("alert").evaluate("(one) => getComputedStyle(one).whiteSpace") == "pre"
    field.fill("")
    page.get_by_role("textbox", name="Shard").fill("3")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("shard=3"))
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_flow_is_moved_once_its_preview_is_confirmed(page: Page, stage: ConsoleStage) -> None:
    owner = stage.scene.owners("cache", SHARDS)[5]
    other = "west" if owner == "east" else "east"
    sign_in(page, stage, at="#/flows/cache/contacts/5")
    page.get_by_role("button", name="Move…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("radio").first).to_be_focused()
    dialog.get_by_label(other).check()
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("tbody tr")).to_contain_text(f"{owner} → {other}")
    assert stage.scene.owners("cache", SHARDS)[5] == owner
    dialog.get_by_role("button", name="Do it", exact=True).click()
    expect(dialog).to_contain_text("1 change done")
    dialog.get_by_role("button", name="Close", exact=True).click()
    facts = page.locator(".facts div")
    expect(facts.filter(has_text="Owner")).to_contain_text(other)
    expect(facts.filter(has_text="Pinned to")).to_contain_text(other)
    eventually(lambda: stage.scene.owners("cache", SHARDS)[5] == other)

    page.get_by_role("button", name="Unpin").click()
    dialog.get_by_role("button", name="Do it").click()
    expect(dialog).to_contain_text("1 change done")
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(facts.filter(has_text="Pinned to")).not_to_contain_text(other)
    eventually(lambda: stage.scene.owners("cache", SHARDS)[5] == owner)


def test_a_flow_is_paused_and_goes_on(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage, at="#/flows/search/contacts/7")
    dialog, state = page.get_by_role("dialog"), page.locator(".page-head")
    for action, shown in (("Pause", "paused"), ("Resume", "running")):
        page.get_by_role("button", name=action).click()
        dialog.get_by_role("button", name="Do it").click()
        expect(dialog).to_contain_text("1 change done")
        expect(dialog.get_by_role("table")).to_have_count(1 if action == "Pause" else 0)  # nothing in an empty one
        dialog.get_by_role("button", name="Close", exact=True).click()
        expect(state).to_contain_text(shown)


def test_a_publisher_is_drained_and_gets_flows_again(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage, at="#/members")
    row, dialog = page.locator("tbody tr").filter(has_text="west"), page.get_by_role("dialog")
    row.get_by_role("button", name="Drain", exact=True).click()
    expect(dialog.locator("tbody tr")).to_contain_text("west")
    dialog.get_by_role("button", name="Do it").click()
    expect(dialog).to_contain_text("1 change done")
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(row).to_contain_text("draining")
    eventually(lambda: stage.owners() == {"east"})
    row.get_by_role("button", name="Undrain").click()
    dialog.get_by_role("button", name="Do it").click()
    dialog.get_by_role("button", name="Close", exact=True).click()
    eventually(lambda: stage.owners() == {"east", "west"})


def test_many_flows_are_stopped_and_go_on(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage, at="#/flows?application=search&stream=contacts")
    page.get_by_label("select search/contacts/2", exact=True).click()
    page.get_by_label("select search/contacts/6", exact=True).click(modifiers=["Shift"])
    bar = page.get_by_role("region", name="selected flows")
    expect(bar).to_contain_text("5 flows selected")
    bar.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("tbody tr")).to_have_count(5)
    dialog.get_by_role("button", name="Do it for 5").click()
    expect(dialog).to_contain_text("5 changes done")
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator("tbody").get_by_text("stopped")).to_have_count(5)
    expect(bar).to_have_count(0)

    page.get_by_role("group", name="states").get_by_role("button", name="stopped").click()
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_label("select all on this page").check()
    bar.get_by_role("button", name="Resume").click()
    dialog.get_by_role("button", name="Do it for 5").click()
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(0)


def test_a_plan_that_was_overtaken_is_refused_and_can_be_made_again(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage, at="#/flows/search/contacts/9")
    page.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("tbody tr")).to_have_count(1)
    page.evaluate(
        """async () => {
            const { post } = await import("./api.js");
            const body = { action: "move", flows: ["search/contacts/9"], parameters: { to: "east" } };
            await post("actions/execute", { plan: (await post("actions/preview", body)).plan });
        }"""
    )
    dialog.get_by_role("button", name="Do it").click()
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    dialog.get_by_role("button", name="Preview again").click()
    expect(dialog.get_by_role("button", name="Do it")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_flow_that_is_stopped_is_reset_once_its_preview_is_confirmed(page: Page, stage: ConsoleStage) -> None:
    def act(button: str) -> None:
        page.get_by_role("button", name=button).click()
        dialog.get_by_role("button", name="Do it").click()
        expect(dialog).to_contain_text("1 change done")
        dialog.get_by_role("button", name="Close", exact=True).click()

    sign_in(page, stage, at="#/flows/cache/contacts/3")
    dialog = page.get_by_role("dialog")
    act("Stop")
    expect(page.locator(".page-head .state")).to_have_text("stopped")
    eventually(lambda: stage.scene.owners("cache", SHARDS)[3] is None)
    before = stage.scene.markers("cache", SHARDS)[3]
    assert before > 0
    page.get_by_role("button", name="Reset…").click()
    dialog.get_by_label("Shift").check()
    dialog.get_by_role("textbox", name="Shift").fill("-1")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("tbody tr")).to_contain_text(f"{before} → {before - 1}")
    dialog.get_by_role("button", name="Do it").click()
    expect(dialog).to_contain_text("1 change done")
    dialog.get_by_role("button", name="Close", exact=True).click()
    assert stage.scene.markers("cache", SHARDS)[3] == before - 1
    expect(page.locator(".facts div").filter(has_text="Datamarker")).to_contain_text(str(before - 1))
    act("Resume")
    expect(page.locator(".page-head .state")).to_have_text("running")


def test_an_update_that_a_flow_fails_at_is_skipped_once_it_was_shown_as_text(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage, at="#/flows?state=failed")
    page.locator("tbody").get_by_role("link", name="strict/contacts").click()
    expect(page.locator("#main > .page > .notice")).to_contain_text(f"no such thing: {SCRIPT}")
    page.get_by_role("button", name="Skip…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text(re.compile(r"^Skip an update of strict/contacts/\d+$"))
    expect(dialog.get_by_role("textbox")).to_be_focused()
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("region", name="the update")).to_contain_text(SCRIPT)
    expect(dialog.locator(".payload")).to_contain_text(IMAGE.replace('"', "'"))
    assert dialog.locator("img, script").count() == 0
    dialog.get_by_role("button", name="Do it").click()
    expect(dialog).to_contain_text("1 change done")
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator(".page-head .state")).to_have_text("running")


def test_a_viewer_sees_no_actions_and_is_refused(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage, VIEWER, at="#/flows")
    expect(page.locator("tbody tr")).to_have_count(FLOWS)
    assert page.locator("#main input[type=checkbox], .actions").count() == 0
    page.goto(f"{stage.url}/#/members")
    expect(page.get_by_role("table", name="publishers").get_by_text("east")).to_be_visible()
    assert page.locator(".actions").count() == 0
    status = page.evaluate(
        """async () => {
            const { post } = await import("./api.js");
            const body = { action: "stop", flows: ["cache/contacts/0"], parameters: {} };
            return post("actions/preview", body).then(() => 200, (error) => error.status);
        }"""
    )
    assert status == 403


def test_who_is_signed_out_comes_back_to_where_they_were(page: Page, stage: ConsoleStage) -> None:
    add_user(stage.users, "late", "viewer", PASSWORD)
    sign_in(page, stage, "late", at="#/flows?application=cache&sort=lag")
    expect(page.locator("tbody tr")).to_have_count(SHARDS)
    add_user(stage.users, "late", "viewer", PASSWORD)  # which signs out who was signed in by that name
    expect(page.get_by_label("Password")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("Your sign-in has ended; sign in again to go on.")
    page.reload()
    expect(page.get_by_role("status")).to_have_text("Your sign-in has ended; sign in again to go on.")
    page.get_by_label("User").fill("late")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(SHARDS)
    expect(page).to_have_url(re.compile(r"#/flows\?application=cache&sort=lag$"))


def test_while_zookeeper_is_away_a_banner_tells_how_old_things_are(page: Page, stage: ConsoleStage) -> None:
    sign_in(page, stage)
    expect(page.locator(".liveness")).to_have_text("live")
    stage.proxy.cut()
    try:
        expect(page.locator(".banner")).to_contain_text(re.compile(r"ZooKeeper is away.*\d+.* old", re.DOTALL))
        expect(page.locator(".tiles div", has_text="Flows").locator("dd")).to_have_text(str(FLOWS))
    finally:
        stage.proxy.heal()
    expect(page.locator(".banner")).to_have_count(0, timeout=40_000)


def cells_coloured(page: Page) -> set[str]:
    """The colours of the map that are no grey and not at the edge of something."""
    found: list[str] = page.locator("canvas[role=img]").evaluate(
        """(canvas) => {
            const { width, height } = canvas;
            const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
            copy.drawImage(canvas, 0, 0);
            const { data } = copy.getImageData(0, 0, width, height);
            const seen = new Map();
            for (let at = 0; at < data.length; at += 4) {
                const [r, g, b, a] = data.subarray(at, at + 4);
                const colour = `rgb(${r}, ${g}, ${b})`;
                const coloured = a === 255 && Math.max(r, g, b) - Math.min(r, g, b) > 40;
                if (coloured) seen.set(colour, (seen.get(colour) ?? 0) + 1);
            }
            return [...seen].filter(([, pixels]) => pixels > 200).map(([colour]) => colour);
        }"""
    )
    return set(found)


def colour_of(page: Page, publisher: str) -> str:
    """The publisher's colour in the legend."""
    swatch = page.locator(f'.legend [data-publisher="{publisher}"] .swatch')
    colour: str = swatch.evaluate("(one) => getComputedStyle(one).backgroundColor")
    return colour


@pytest.mark.slow
def test_a_failover_is_seen_on_the_map_as_it_happens(page: Page, stage: ConsoleStage) -> None:
    def owned(publisher: str) -> Locator:
        return page.locator(f'.legend [data-publisher="{publisher}"] .number')

    sign_in(page, stage)
    canvas, told = page.locator("canvas[role=img]"), page.locator(".map [aria-live]")
    expect(owned("east")).not_to_have_text("0")
    expect(owned("west")).not_to_have_text("0")
    east, west = colour_of(page, "east"), colour_of(page, "west")
    eventually(lambda: cells_coloured(page) >= {east, west})
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(told).to_have_text(re.compile(r"cache/contacts/0, running, owner (east|west)"))

    stop(stage.publishers["west"], signal.SIGKILL)
    expect(owned("east")).to_have_text(str(FLOWS))
    expect(owned("west")).to_have_text("0")
    assert stage.owners() == {"east"}
    expect(page.locator('.legend [data-publisher="west"]')).to_have_attribute("data-state", "gone")
    eventually(lambda: east in cells_coloured(page) and west not in cells_coloured(page))
    page.keyboard.press("ArrowRight")
    expect(told).to_have_text("cache/contacts/1, running, owner east")

    stop(stage.publishers["east"], signal.SIGKILL)
    expect(owned("")).to_have_text(str(FLOWS))
    eventually(lambda: east not in cells_coloured(page))
    stage.scene.sender("north")
    expect(owned("north")).to_have_text(str(FLOWS))
    eventually(lambda: colour_of(page, "north") in cells_coloured(page))
    assert colour_of(page, "north") not in (east, west)
    page.keyboard.press("Enter")
    expect(page).to_have_title("cache/contacts/1 · Flows · tidings")
