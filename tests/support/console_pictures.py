"""The pictures of the console in docs/pictures: `python -m tests.support.console_pictures` (`make pictures`).

A cluster with four publishers runs for a while, so that there is something to see.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.support.browser import browsing
from tests.support.console_stage import OPERATOR, PASSWORD, serving
from tests.support.scene import Scene, stop
from tidings import Handler, Update
from tidings.console.users import add_user
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZE = (1280, 800)
WATCHED_S = 30.0  # until there is something to see in the charts
MAX_BYTES = 150_000
PUBLISHERS = ("atlas", "boreas", "ceres", "dione")
STREAMS = {"contacts": 64, "orders": 96, "places": 32}
APPLICATIONS = {
    "cache": ["contacts"],
    "feed": ["contacts", "places"],
    "mail": ["orders"],
    "search": ["contacts", "orders", "places"],
}


class Unhurried(Handler):
    """Takes a little while for each update."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_update(self, update: Update) -> None:
        time.sleep(self._seconds)


@contextlib.contextmanager
def running(scene: Scene) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Streams, applications, publishers, subscribers, and updates."""
    with contextlib.ExitStack() as stack:
        scene.prepare(STREAMS["contacts"])
        for name in ("orders", "places"):
            scene.cluster.create_stream(name, STREAMS[name])
        for name, streams in APPLICATIONS.items():
            if name != "cache":
                scene.cluster.create_application(name, streams, filter="region = eu" if name == "search" else None)
        publishers = {name: scene.sender(name, "--token-interval", "1") for name in PUBLISHERS}
        for name in APPLICATIONS:
            for number in range(2):
                handler = Unhurried(0.02 if name == "mail" else 0.0)
                stack.enter_context(scene.cluster.subscribe(name, handler, id=f"{name}-{number}"))
        closed = threading.Event()
        thread = threading.Thread(target=publish, args=(scene, closed), daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(closed.set)
        yield publishers


def publish(scene: Scene, closed: threading.Event) -> None:
    chance = random.Random(7)
    with contextlib.ExitStack() as stack:
        producers = {name: stack.enter_context(scene.cluster.stream(name).producer()) for name in STREAMS}
        for version in itertools.count(1):
            for name, producer in producers.items():
                for _ in range(chance.randrange(10, 40)):
                    who = f"{name}/{chance.randrange(10_000)}"
                    value = {"name": who, "city": chance.choice(["Rome", "Oslo", "Lagos"]), "changes": version}
                    region = chance.choice(["eu", "us"])
                    producer.publish(
                        who, version=version, attributes={"region": region}, payload=json.dumps(value).encode()
                    )
            if closed.wait(0.5):
                return


def opened(browser: Browser, url: str, theme: str) -> Page:
    page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme=theme)  # type: ignore[arg-type]  # a word of two
    page.goto(url)
    page.get_by_label("User").fill(OPERATOR)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator(".tiles")).to_be_visible()
    return page


def take(page: Page, name: str) -> None:
    file = PICTURES / f"console-{name}.png"
    page.screenshot(path=file)
    assert file.stat().st_size <= MAX_BYTES, f"{file.name} has {file.stat().st_size:,} bytes"
    print(f"{file.name}  {file.stat().st_size:,} bytes", flush=True)


def photograph(page: Page, dark: Page, url: str) -> None:
    time.sleep(WATCHED_S)
    take(page, "overview")
    take(dark, "overview-dark")

    page.goto(f"{url}/#/streams/contacts")
    page.locator(".updates tbody tr button").nth(2).click()
    expect(page.locator(".payload")).to_be_visible()
    take(page, "stream")

    page.set_viewport_size({"width": 1100, "height": 640})
    page.goto(f"{url}/#/flows?application=mail")
    page.locator("tbody input").nth(1).click()
    page.locator("tbody input").nth(5).click(modifiers=["Shift"])
    page.get_by_role("button", name="Move…").click()
    page.get_by_role("dialog").get_by_label("dione").check()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("dialog").locator("tbody tr")).to_have_count(5)
    take(page, "preview")


def photograph_failover(page: Page, victim: str, process: subprocess.Popen[bytes], url: str) -> None:
    """The map a moment after a publisher has died: those that live have some of its flows, and nobody the others."""
    page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
    page.goto(url)
    gone = page.locator(f'.legend [data-publisher="{victim}"]')
    expect(gone.locator(".number")).not_to_have_text("0")
    stop(process)
    expect(gone).to_have_attribute("data-state", "gone")
    take(page, "failover")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    expect.set_options(timeout=30_000)
    with tempfile.TemporaryDirectory() as scratch, EmbeddedZooKeeper(Path(scratch) / "zookeeper") as server:
        folder = Path(scratch)
        users = folder / "users.json"
        add_user(users, OPERATOR, "operator", PASSWORD)
        scene = Scene(f"{server.address}/production", folder)
        try:
            with running(scene) as publishers, serving(scene.address, users) as url, browsing() as browser:
                page, dark = opened(browser, url, "light"), opened(browser, url, "dark")
                photograph(page, dark, url)
                photograph_failover(page, PUBLISHERS[0], publishers[PUBLISHERS[0]], url)
        finally:
            scene.close()


if __name__ == "__main__":
    main()
