"""`make audit`: known holes in the packages and jars that tidings uses.

`audit.toml` has those that are known without asking anybody; where pip-audit is installed, and reaches a database of
holes, it is asked as well.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parent.parent
JAR = re.compile(r"(?P<name>.+?)-(?P<version>\d[\w.]*?)(\.Final)?(-[a-z].*)?\.jar")


class Part(NamedTuple):
    """Something that tidings uses."""

    kind: str
    name: str
    version: str
    where: str


def python_parts(constraints: Iterable[str]) -> Iterator[Part]:
    for line in constraints:
        name, pinned, version = line.partition("==")
        if pinned:
            yield Part("python", name.strip().lower(), version.strip(), "constraints.txt")


def jar_parts(files: Iterable[str], where: str) -> Iterator[Part]:
    for file in files:
        if found := JAR.fullmatch(file.rpartition("/")[2]):
            yield Part("jars", found["name"], found["version"], where)


def holes(parts: Iterable[Part], known: dict[str, Any]) -> Iterator[str]:
    """What is known of these parts, a sentence each."""
    for part in parts:
        for hole in known[part.kind].get(part.name, ()):
            try:
                open_still = Version(part.version) < Version(hole["fixed"])
            except InvalidVersion:
                yield f"{part.name} {part.version} ({part.where}): no version that can be compared"
                continue
            if open_still:
                yield f"{part.name} {part.version} ({part.where}): {hole['id']}, closed in {hole['fixed']}"


def parts_of(root: Path) -> Iterator[Part]:
    """All that tidings uses."""
    import pyspark

    yield from python_parts((root / "constraints.txt").read_text().splitlines())
    yield from jar_parts((line.split()[1] for line in (root / "ivy.sha256").read_text().splitlines()), "ivy.sha256")
    yield from jar_parts((jar.name for jar in (Path(pyspark.__file__).parent / "jars").iterdir()), "pyspark")


def main() -> int:
    parts = list(parts_of(ROOT))
    found = list(holes(parts, tomllib.loads((ROOT / "audit.toml").read_text())))
    for sentence in found:
        print(sentence)
    print(f"audit.toml: {len(parts)} packages and jars, {len(found)} known holes")
    if importlib.util.find_spec("pip_audit") is None:
        print("pip-audit is not installed, and was not asked")
        return bool(found)
    asked = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "-r", str(ROOT / "constraints.txt")]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    print(answer.stdout or answer.stderr.splitlines()[-1])
    return bool(found) or "Found" in answer.stderr


if __name__ == "__main__":
    sys.exit(main())
