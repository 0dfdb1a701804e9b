"""A cluster for browser tests of the console, and the console of it; and coming to its pages."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.support.commands import started
from tests.support.proxy import Proxy
from tests.support.scene import STREAM, Scene
from tidings import Handler, Update
from tidings.console.users import add_user
from tidings.testing import eventually

OPERATOR, VIEWER, PASSWORD = "ada", "vera", "correct horse battery"
SHARDS = 16
APPLICATIONS = ("cache", "search", "strict")
FLOWS = len(APPLICATIONS) * SHARDS
SCRIPT = "<script>alert('object')</script>"
IMAGE = '<img src=x onerror="alert(1)">'
BIG = 2**63 - 1


class Strict(Handler):
    """Fails at an object that tries to be more than a name."""

    def on_update(self, update: Update) -> None:
        if update.object == SCRIPT:
            raise ValueError(f"no such thing: {update.object}")


@dataclass
class ConsoleStage:
    """A cluster with two publishers in processes of their own, and a console of it in a third. One flow fails."""

    scene: Scene
    url: str
    users: Path
    proxy: Proxy
    publishers: dict[str, subprocess.Popen[bytes]]

    def owners(self) -> set[str | None]:
        return set(self.scene.owners("cache", SHARDS))


@contextlib.contextmanager
def serving(address: str, users: Path) -> Iterator[str]:
    """A console in a process; where it is."""
    with started("console", "--listen", "127.0.0.1:0", "--users", str(users), "--zookeeper", address) as process:
        assert process.stderr
        said = []
        for line in process.stderr:
            said.append(line.decode())
            if "listens on " in said[-1]:
                yield said[-1].partition("listens on ")[2].split(";")[0]
                return
        raise AssertionError("".join(said))


@contextlib.contextmanager
def staged(zookeeper: str, folder: Path) -> Iterator[ConsoleStage]:
    """The cluster, in a root of its own in this ZooKeeper; the console reaches it over a proxy that can be cut."""
    root = str(uuid.uuid4())
    users = folder / "users.json"
    add_user(users, OPERATOR, "operator", PASSWORD)
    add_user(users, VIEWER, "viewer", PASSWORD)
    with contextlib.ExitStack() as stack:
        scene = Scene(f"{zookeeper}/{root}", folder)
        stack.callback(scene.close)
        scene.prepare(SHARDS)
        scene.cluster.create_application("search", [STREAM], filter="region = eu")
        publishers = {name: scene.sender(name) for name in ("east", "west")}
        scene.cluster.create_application("strict", [STREAM], start="earliest")
        for application in ("cache", "search"):
            stack.enter_context(scene.subscriber(application, f"{application}-1"))
        stack.enter_context(scene.cluster.subscribe("strict", Strict(), id="strict-1", retries=1, backoff=0.05))
        publish(scene)
        proxy = stack.enter_context(Proxy(zookeeper))
        own = ConsoleStage(scene, "", users, proxy, publishers)
        eventually(lambda: own.owners() == {"east", "west"}, timeout=30)
        own.url = stack.enter_context(serving(f"{proxy.address}/{root}", users))
        yield own


def publish(scene: Scene) -> None:
    """Updates that try to be more than text."""
    updates: list[dict[str, Any]] = [
        {"object": f"contacts/{n}", "version": n, "attributes": {"region": "eu" if n % 2 else "us"}, "payload": b"{}"}
        for n in range(1, 40)
    ]
    updates += [
        {
            "object": SCRIPT,
            "version": BIG,
            "attributes": {IMAGE: SCRIPT},
            "payload": b'{"note": "%s"}' % IMAGE.replace('"', "'").encode(),
        },
        {"object": IMAGE, "version": 1, "payload": b"\x00\xff<b>bytes</b>"},
    ]
    with scene.stream.producer() as producer:
        producer.publish_many(updates).result(timeout=30)


def sign_in(page: Page, stage: ConsoleStage, user: str = OPERATOR, at: str = "#/overview") -> None:
    """Come to a page as this user."""
    page.goto(f"{stage.url}/{at}")
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="pages of the console")).to_be_visible()
