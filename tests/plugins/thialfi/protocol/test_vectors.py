"""The examples for clients in other languages, in `vectors.json` and in the protocol's page, are what the code does."""

from __future__ import annotations

import json
import re

import pytest

from tests.support import make_vectors
from tests.support.places import ROOT
from tidings_thialfi.protocol.digests import Digest, item_of, key_of, salt_of
from tidings_thialfi.protocol.messages import BadMessage, encode, parse_client, parse_service

VECTORS = json.loads(make_vectors.FILE.read_text())
PAGE = (ROOT / "docs" / "thialfi-protocol.md").read_text()
EXAMPLES = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_the_file_is_what_its_script_writes() -> None:
    assert make_vectors.FILE.read_text() == make_vectors.text()


def test_every_message_is_read_and_written_alike() -> None:
    for what, value in VECTORS["from_client"].items():
        message = parse_client(json.dumps(value))
        assert message == make_vectors.FROM_CLIENT[what]
        assert json.loads(encode(message)) == value
    for what, value in VECTORS["from_service"].items():
        answer = parse_service(json.dumps(value))
        assert answer == make_vectors.FROM_SERVICE[what]
        assert json.loads(encode(answer)) == value


def test_every_part_of_a_message_is_in_some_example() -> None:
    for kind, parse in (("from_client", parse_client), ("from_service", parse_service)):
        fields = type(parse(json.dumps(next(iter(VECTORS[kind].values()))))).__dataclass_fields__
        assert {key for value in VECTORS[kind].values() for key in value} == {"v", *fields}


def test_what_is_refused_is_refused_with_its_code() -> None:
    for what, refused in VECTORS["refused"].items():
        with pytest.raises(BadMessage) as raised:
            parse_client(refused["text"])
        assert raised.value.code == refused["code"], what


def test_keys_items_and_digests_are_as_written() -> None:
    for one in VECTORS["keys"]:
        assert key_of(one["object"]) % 2**64 == int(one["key"])
    for one in VECTORS["items"]:
        assert salt_of(int(one["client"])) == int(one["salt"])
        assert item_of(int(one["client"]), one["object"]) == int(one["item"])
    for one in VECTORS["digests"]:
        assert Digest.of(int(one["client"]), one["objects"]).to_json() == one["digest"]


def test_every_example_of_the_page_is_a_message() -> None:
    assert len(EXAMPLES) >= 2
    for example in EXAMPLES:
        value = json.loads(example)
        messages = value if isinstance(value, list) else [value]
        for message in messages:
            parse = parse_client if {"acknowledge", "hello", "heartbeat"} & message.keys() else parse_service
            parse(json.dumps(message))


def test_the_page_names_every_part_of_a_message() -> None:
    for kind in ("from_client", "from_service"):
        for value in VECTORS[kind].values():
            for key in value:
                assert f"`{key}`" in PAGE, key
