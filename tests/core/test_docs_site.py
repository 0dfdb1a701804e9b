"""The documentation is a site, in which no link is dead, and which can be searched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.places import ROOT


def test_the_site_is_built_without_a_warning_and_finds_what_a_page_says(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stderr) == (0, "")
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "caught_up" in entry["text"]}
    assert "services/" in found
    pages = {place.parent.name for place in (tmp_path / "site").glob("*/index.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= pages
