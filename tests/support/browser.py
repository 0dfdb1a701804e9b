"""A real browser, and what it had to complain about."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
# No sandbox: tests may run as root, and the pages are our own.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]


def chromium() -> str | None:
    """Where the browser is, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Complaints:
    """What a page wrote into the browser's console, failed at, or asked of others than `own`."""

    own: str
    found: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> Page:
        """From now on."""
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.found.append(f"{error.message}\n{error.stack}"))
        page.on("request", self._asked)
        return page

    def _said(self, message: ConsoleMessage) -> None:
        # That an answer was a refusal is no fault of the page: a test asks for some.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.found.append(message.text)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(self.own):
            self.found.append(f"asked {request.url}")
