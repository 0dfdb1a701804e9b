"""Each line of the page on guarantees names tests that attack it, and they are there."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

import pytest

from tests.support.places import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
LINE = re.compile(r"\| (\w+) \|")
NOT_PROMISED = re.compile(r"(\d+)\. ")
EVIDENCE = re.compile(r"- \*\*(\w+)\*\* `([\w/]+\.py)`: ([\w ]+)")


@dataclass
class Block:
    """Lines that promise something, and what is listed below them."""

    section: str
    promised: bool
    lines: list[str] = field(default_factory=list)
    evidence: list[tuple[str, str, str]] = field(default_factory=list)


def blocks() -> list[Block]:
    found: list[Block] = []
    for section in PAGE.split("\n## ")[1:]:
        title = section.partition("\n")[0]
        pattern = NOT_PROMISED if title == "What is not promised" else LINE
        above, *below = re.split(r"<details>(.*?)</details>", section, flags=re.DOTALL)
        for number in range(0, len(below), 2):
            block = Block(title, pattern is LINE)
            block.lines = [one[1] for text in above.splitlines() if (one := pattern.match(text))]
            for text in below[number].splitlines():
                if text.startswith("-"):
                    listed = EVIDENCE.fullmatch(text)
                    assert listed, text
                    block.evidence.append((listed[1], listed[2], listed[3]))
            found.append(block)
            above = below[number + 1]
        assert not any(map(pattern.match, above.splitlines())), f"nothing is listed below a table of {title}"
    return found


BLOCKS = blocks()


def test_the_page_has_the_tables_that_it_should_have() -> None:
    assert [block.section for block in BLOCKS] == [
        "Streams, on a log of our own",
        "Faults",
        *("Flows", "Flows", "Pipelines", "Pipelines"),
        *("Collection", "Collection", "Thialfi", "Thialfi", "Audit"),
        "What is not promised",
    ]
    assert all(len(block.lines) == len(set(block.lines)) >= 3 for block in BLOCKS)
    rows = sum(line.startswith("| ") and not line.startswith(("| | ", "| ---")) for line in PAGE.splitlines())
    assert rows == sum(len(block.lines) for block in BLOCKS if block.promised), "each row has a letter or a number"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.section)
def test_every_line_names_a_test(block: Block) -> None:
    attacked = {line for line, _, _ in block.evidence}
    assert attacked <= set(block.lines)
    if block.promised:
        assert attacked == set(block.lines)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.section)
def test_every_test_that_is_named_is_there(block: Block) -> None:
    for _, file, sentence in block.evidence:
        tree = ast.parse((ROOT / "tests" / file).read_text())
        tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert f"test_{sentence.replace(' ', '_')}" in tests, f"{file}: {sentence}"
