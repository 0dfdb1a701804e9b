"""The errors' messages have one form, as far as a program can tell: see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tidings import errors
from tidings.errors import TidingsError

OURS = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, TidingsError)}
NAMES = re.compile(r"[A-Z]+\b|[A-Z]+_[A-Z_]+\b|(Java|Kafka|MariaDB|MySQL|PostgreSQL|PySpark|Python|Spark|ZooKeeper)\b")


def messages(root: Path) -> Iterator[tuple[str, str]]:
    """Where each error is made, and what it says; `…` stands for a value."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args or getattr(node.func, "id", None) not in OURS:
                continue
            match node.args[0]:
                case ast.Constant(str(text)):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text
                case ast.JoinedStr(parts):
                    texts = (str(one.value) if isinstance(one, ast.Constant) else "…" for one in parts)
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(texts)


def problem(text: str) -> str | None:
    if text[0].isupper() and not NAMES.match(text):
        return "begins with a capital"
    if text.endswith((".", "!")):
        return "ends with a full stop"
    if re.search(r"[a-z)…]\. [A-Z]", text):
        return "is more than one sentence"
    return None


@pytest.mark.parametrize("root", ["core", "connectors", "plugins"])
def test_a_message_is_one_sentence_that_can_stand_after_a_colon(root: str) -> None:
    assert [f"{place}: {wrong}: {text}" for place, text in messages(ROOT / root) if (wrong := problem(text))] == []


@pytest.mark.parametrize(
    "text", ["There is no Java: install it", "no Java is there.", "no Java is there. Install it", "Stream …"]
)
def test_the_check_finds_what_it_is_there_for(text: str) -> None:
    assert problem(text)


@pytest.mark.parametrize(
    "text", ["no Java…", "TIDINGS_JARS is set", "ZooKeeper refuses", "…: 7.5 is no size", "TLS needs"]
)
def test_the_check_leaves_names_and_values_alone(text: str) -> None:
    assert problem(text) is None


def test_there_are_messages_to_check() -> None:
    assert len(list(messages(ROOT / "core"))) > 100


def test_a_log_that_is_unavailable_is_told_on_one_line_whatever_form_its_library_gives_that() -> None:
    text = "the log of stream 's' is unreadable: \x1b[1;31mKernel error\x1b[0m:\n  no such version\n   0: <unknown>\n"
    stack = "  12: start_thread\n             at ./nptl/pthread_create.c:442:8"
    error = errors.LogUnavailable(text + stack)
    assert str(error) == "the log of stream 's' is unreadable: Kernel error: no such version"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
