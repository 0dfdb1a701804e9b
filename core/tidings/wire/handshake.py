"""How a publisher and a subscriber prove to each other who they are, without any secret on the wire.

| who | says | |
| --- | --- | --- |
| subscriber | `hello` | who it is, whom it means to speak with, at which address, by which protocol, and a nonce |
| publisher | `challenge` | a nonce, and a proof for each of its secrets |
| subscriber | `proof` | its own proof, once it has found the publisher's to be good |
| publisher | `welcome` | how patient it is; after that both speak of flows |

A proof is an HMAC by the application's key over all that both have said of themselves: names, the address that was
dialled, both nonces, and whose proof it is. So it is good for this exchange alone. One who stands between the two at
another address cannot use it, and neither side can be made to answer for the other.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from tidings.errors import InvalidName
from tidings.names import check_name
from tidings.protocol_versions import PROTOCOL, SpokenVersions, own_versions
from tidings.wire.protocol import Message, reason_of
from tidings.wire.security import MAX_SECRETS

NONCE_BYTES = 16
MAX_ADDRESS_CHARACTERS = 512

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"


class HandshakeRefused(Exception):
    """The peer is not who it should be; the text is for operators of both sides, and holds nothing secret."""


class Parties(NamedTuple):
    """Who speaks with whom, and where."""

    application: str
    subscriber: str
    publisher: str
    address: str
    protocol: int = PROTOCOL

    def hello(self, nonce: str) -> Message:
        """What a subscriber says first."""
        return {"t": "hello", **self._asdict(), "nonce": nonce}

    def proof(self, key: str, whose: str, nonces: tuple[str, str]) -> str:
        """What only who has the key can say."""
        said = json.dumps([self.protocol, whose, *self[:-1], *nonces]).encode()
        return hmac.digest(key.encode(), b"tidings handshake\0" + said, "sha256").hex()


def new_nonce() -> str:
    """What nobody has said before."""
    return secrets.token_hex(NONCE_BYTES)


def parties_of(hello: Message) -> tuple[Parties, str]:
    """Who introduces itself, and its nonce; ValueError if that is no hello of a protocol that we speak."""
    protocol = hello.get("protocol")
    if hello.get("t") != "hello" or type(protocol) is not int:
        raise ValueError("no hello where one was expected")
    spoken = SpokenVersions(protocol, protocol)
    if own_versions().common(spoken) is None:
        raise ValueError(own_versions().misfit("this publisher", spoken, "the subscriber"))
    texts = [hello.get(name) for name in ("application", "subscriber", "publisher", "address", "nonce")]
    application, subscriber, publisher, address, nonce = (text if isinstance(text, str) else "" for text in texts)
    try:
        check_name("an application", application)
        check_name("a subscriber", subscriber)
    except InvalidName:
        raise ValueError("a hello without names") from None
    if len(address) > MAX_ADDRESS_CHARACTERS or len(nonce) != 2 * NONCE_BYTES:
        raise ValueError("a hello without an address or a nonce")
    return Parties(application, subscriber, publisher, address, protocol), nonce


def challenge(parties: Parties, keys: Sequence[str], nonces: tuple[str, str]) -> Message:
    """A publisher's answer to a hello."""
    proofs = [parties.proof(key, PUBLISHER, nonces) for key in keys]
    return {"t": "challenge", "nonce": nonces[1], "proofs": proofs}


def answer(parties: Parties, keys: Sequence[str], asked: str, challenged: Message) -> Message:
    """A subscriber's answer to a challenge; `HandshakeRefused` if the publisher has not proved itself."""
    nonce, proofs = challenged.get("nonce"), challenged.get("proofs")
    if challenged["t"] != "challenge" or not isinstance(nonce, str) or len(nonce) != 2 * NONCE_BYTES:
        raise ValueError("a challenge without a nonce")
    if not isinstance(proofs, list) or len(proofs) > MAX_SECRETS or not all(isinstance(one, str) for one in proofs):
        raise ValueError("a challenge without proofs")
    if not keys:
        if proofs:
            raise HandshakeRefused("it wants a key of the application, and we have none: see `tidings keys show`")
        return {"t": "proof", "proof": ""}
    if not proofs:
        raise HandshakeRefused("it has no secret, and we have a key: give publishers the secret of the cluster")
    nonces = (asked, nonce)
    for key in keys:
        if _among(parties.proof(key, PUBLISHER, nonces), proofs):
            return {"t": "proof", "proof": parties.proof(key, SUBSCRIBER, nonces)}
    raise HandshakeRefused("it does not know our key: it has another secret, or the key is another application's")


def verify(parties: Parties, keys: Sequence[str], nonces: tuple[str, str], said: Message) -> None:
    """Whether a subscriber has proved itself; `HandshakeRefused` if not."""
    proof = said.get("proof")
    if said["t"] == "bye":
        raise HandshakeRefused(f"subscriber {parties.subscriber!r} says of this publisher: {reason_of(said)}")
    if said["t"] != "proof" or not isinstance(proof, str):
        raise ValueError("no proof where one was expected")
    if keys and not _among(proof, [parties.proof(key, SUBSCRIBER, nonces) for key in keys]):
        raise HandshakeRefused(f"a key of application {parties.application!r} is needed, and this peer has none")


def _among(proof: str, proofs: Sequence[str]) -> bool:
    """How long this takes does not tell which it is."""
    raw = proof.encode(errors="replace")
    found = [hmac.compare_digest(raw, one.encode(errors="replace")) for one in proofs]
    return any(found)
