"""What the pages are made of: scripts of others as they were published, and no way around the content policy."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import tidings.console

PAGES = Path(tidings.console.__file__).parent / "pages"
VENDOR = PAGES / "vendor"


def own_files(*suffixes: str) -> list[Path]:
    return [path for path in PAGES.rglob("*") if path.suffix in suffixes and VENDOR not in path.parents]


def test_every_vendored_file_is_listed_and_is_what_its_sum_says() -> None:
    listed = dict(
        re.findall(r"^\| `([\w./]+)` \| .* \| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.MULTILINE)
    )
    there = {
        str(path.relative_to(VENDOR)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.name != "README.md"
    }
    assert there == listed
    assert {Path(name).parent.name for name in there if name.endswith("LICENSE")} == {"preact", "htm", "uplot"}


def test_no_page_writes_markup_or_runs_text() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:")
    found = [
        (path.name, line)
        for path in own_files(".js")
        for line in path.read_text().splitlines()
        if forbidden.search(line)
    ]
    assert [one for one in found if not one[1].startswith("/**")] == []


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    index = (PAGES / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", index)
    for path in own_files(".html", ".js", ".css"):
        assert not re.search(r"""(src|href|import|from|url)\s*[=(]?\s*["']?(https?:)?//""", path.read_text()), path


def test_every_module_and_style_sheet_is_used_and_is_there() -> None:
    used, open_files = set(), [PAGES / "index.html"]
    while open_files:
        path = open_files.pop()
        if path in used:
            continue
        used.add(path)
        assert path.is_file(), path
        named = re.findall(r'(?:from|import) "(\.[^"]+)"|(?:href|src)="(?!#)([^"$]+)"', path.read_text())
        open_files += [(path.parent / (module or PAGES / file)).resolve() for module, file in named]
    assert used >= set(own_files(".html", ".js", ".css", ".svg"))
