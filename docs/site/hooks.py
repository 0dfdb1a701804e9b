"""What the pages need to be a site: those at the top of the repository are among them, and links lead to them.

A page of docs/ links to `../README.md`, and that one to `docs/concepts.md`; in the site they are in one folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
TOP_PAGES = {
    "README.md": "what-it-is.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
"""Where they are in the site."""

_LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./|docs/)?([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top."""
    for name, place in TOP_PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, files: Files, **_: Any) -> str:
    """Have links lead to where pages are in the site; what is not in it is named, and not linked."""

    def moved(found: re.Match[str]) -> str:
        text, name, anchor = found[1], found[2], found[3] or ""
        place = TOP_PAGES.get(name, name)
        return f"[{text}]({place}{anchor})" if files.get_file_from_path(place) else text

    return _LINK.sub(moved, markdown).replace("<details>", '<details markdown="1">')
