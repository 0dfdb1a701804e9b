"""The pages: files beside this module, and nothing else that is there or elsewhere."""

from __future__ import annotations

from pathlib import Path

PAGES = Path(__file__).parent / "pages"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}


def page_file(path: str) -> Path | None:
    """The file of a page; None if there is none, or it is no page.

    >>> page_file("../server.py"), page_file("/etc/passwd"), page_file(".hidden.js")
    (None, None, None)
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") or part.startswith(".") or "\0" in part or "\\" in part for part in parts):
        return None
    file = PAGES.joinpath(*parts)
    return file if file.suffix in TYPES and file.is_file() else None


def content_type(file: Path) -> str:
    """What a browser is told that it is."""
    return TYPES[file.suffix]
