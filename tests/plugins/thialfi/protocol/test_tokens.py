"""Tokens: only ours are taken, old ones still say whose they were, and keys can be replaced without a gap."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import InvalidOption, TidingsError
from tidings_thialfi.protocol.tokens import ClientToken, TokenExpired, TokenForged, TokenKeys

OLD, NEW = b"o" * 32, b"n" * 32


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def keys_of(*ids: str, clock: Clock | None = None) -> TokenKeys:
    return TokenKeys({key: {"old": OLD, "new": NEW}[key] for key in ids}, ids[0], clock=clock or Clock())


@given(st.integers(0, 2**63 - 1), st.text(max_size=16), st.text(max_size=64), st.integers(1, 10**9))
def test_a_token_says_what_it_was_issued_for(client: int, identity: str, application: str, lifetime: int) -> None:
    keys = keys_of("new")
    token = keys.issue(client, identity, application, lifetime)
    assert keys.check(token) == ClientToken(client, identity, application, 1_000 + lifetime, 1_000_000)
    assert token.isascii()
    assert len(token) <= 1024


@given(st.data())
def test_a_token_with_any_one_character_changed_is_forged(data: st.DataObject) -> None:
    keys = keys_of("new")
    token = keys.issue(7, "eu", "web", 60)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(max_codepoint=300).filter(lambda character: character != token[at]))
    with pytest.raises(TokenForged):
        keys.check(token[:at] + other + token[at + 1 :])


@given(st.one_of(st.text(), st.binary(max_size=200).map(lambda raw: base64.urlsafe_b64encode(raw).decode())))
def test_no_text_does_more_than_be_forged(text: str) -> None:
    with pytest.raises(TokenForged):
        keys_of("new").check(text)


def test_a_token_cut_short_or_made_longer_is_forged() -> None:
    keys = keys_of("new")
    token = keys.issue(7, "eu", "web", 60)
    for other in (*(token[:length] for length in range(len(token))), token + "A", token + "=", token * 30):
        with pytest.raises(TokenForged):
            keys.check(other)


def test_an_expired_token_still_says_whose_it_was() -> None:
    clock = Clock()
    keys = keys_of("new", clock=clock)
    token = keys.issue(7, "eu", "web", 60)
    clock.now += 59
    keys.check(token)
    clock.now += 1
    with pytest.raises(TokenExpired) as raised:
        keys.check(token)
    assert raised.value.token.client == 7


def test_keys_are_replaced_without_a_gap() -> None:
    before, both, after = keys_of("old"), keys_of("new", "old"), keys_of("new")
    early, late = before.issue(7, "eu", "web", 60), both.issue(8, "eu", "web", 60)
    assert both.check(early).client == 7
    assert after.check(late).client == 8
    with pytest.raises(TokenForged):
        before.check(late)
    with pytest.raises(TokenForged):
        after.check(early)


def test_the_same_id_with_another_secret_is_forged() -> None:
    token = TokenKeys({"new": OLD}, "new").issue(7, "eu", "web", 60)
    with pytest.raises(TokenForged):
        keys_of("new").check(token)


def test_no_secret_and_no_token_is_shown() -> None:
    clock = Clock()
    keys = keys_of("new", "old", clock=clock)
    token = keys.issue(7, "eu", "web", 60)
    clock.now += 100
    with pytest.raises(TokenExpired) as expired:
        keys.check(token)
    with pytest.raises(TokenForged) as forged:
        keys_of("old").check(token)
    for shown in (repr(keys), str(expired.value), repr(expired.value), str(forged.value)):
        assert "nnnn" not in shown
        assert token not in shown


def test_a_file_of_keys_has_the_current_one_first(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# rolled out in February\nnew {base64.b64encode(NEW).decode()}\n\nold {_base64(OLD)}\n")
    keys = TokenKeys.load(file, clock=Clock())
    assert keys.current == "new"
    assert keys.check(keys_of("old").issue(7, "eu", "web", 60)).client == 7
    assert keys_of("new").check(keys.issue(7, "eu", "web", 60)).client == 7


@pytest.mark.parametrize(
    "text",
    [
        "",
        "new",
        "new !!!!",
        "new c2hvcnQ=",
        "new " + base64.b64encode(b"x" * 300).decode(),
        "a b c",
        f"no/slash {base64.b64encode(NEW).decode()}",
        f"new {base64.b64encode(NEW).decode()}\nnew {base64.b64encode(OLD).decode()}",
        "".join(f"k{n} {base64.b64encode(NEW).decode()}\n" for n in range(17)),
        "#" * 70_000,
    ],
)
def test_a_file_that_is_none_of_keys_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(InvalidOption) as raised:
        TokenKeys.load(tmp_path / "keys")
    assert _base64(NEW) not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot be read"):
        TokenKeys.load(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidOption, match="not text"):
        TokenKeys.load(tmp_path / "binary")


@pytest.mark.parametrize(
    "values", [(-1, "eu", "web"), (2**63, "eu", "web"), (7, "e" * 65, "web"), (7, "eu", "w" * 257)]
)
def test_what_no_token_can_say_is_refused(values: tuple[int, str, str]) -> None:
    with pytest.raises(TidingsError):
        keys_of("new").issue(*values, lifetime=60)


def test_the_current_key_is_one_of_the_keys() -> None:
    with pytest.raises(InvalidOption, match="none of the keys"):
        TokenKeys({"new": NEW}, "newer")


def _base64(secret: bytes) -> str:
    return base64.b64encode(secret).decode()
