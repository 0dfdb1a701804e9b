"""The protocol's own names and limits, as `docs/thialfi-protocol.md` has them. A gateway may set smaller limits."""

from __future__ import annotations

VERSION = "1.0"
SUBPROTOCOL = "tidings.thialfi.v1"
"""What a WebSocket of one client speaks."""
TRUNK_SUBPROTOCOL = "tidings.thialfi.trunk.v1"
"""What a WebSocket of many clients speaks."""

MAX_MESSAGE_BYTES = 64 * 2**10
MAX_OBJECT_BYTES = 1024
MAX_PAYLOAD_BYTES = 32 * 2**10  # in base64, and with the longest object, it still fits into a message
MAX_ENTRIES = 4096
MAX_PARTS = 16_384
MAX_TOKEN_BYTES = 1024
MAX_NONCE_BYTES = 64
MAX_APPLICATION_BYTES = 256
MAX_CREDENTIALS_BYTES = 8192
MAX_REASON_BYTES = 1024
MAX_CODE_BYTES = 64
MAX_DEPTH = 8
MAX_SPAN_S = 86_400.0
MAX_TOKEN_LIFETIME_S = 86_400.0
MAX_RENEWAL_S = 30 * 86_400.0  # after a token's end; a service has forgotten by then who was away
MAX_NUMBER = 2**63 - 1
MAX_SEQUENCE = 2**62 - 1  # of a client's own numbers: the service adds two of them
MAX_SUM = 2**64 - 1
