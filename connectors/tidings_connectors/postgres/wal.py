"""Places in the WAL, and slots that are to keep it, as the server writes them."""

from __future__ import annotations

# Whether a `slot` has lost what it was to keep. Columns that only later versions have are looked up in the row as JSON.
LOST = """
coalesce(to_jsonb(slot)->>'wal_status' = 'lost', false)
OR coalesce(to_jsonb(slot)->>'conflicting' = 'true', false)
OR coalesce(to_jsonb(slot)->>'invalidation_reason', '') <> ''
"""


def lsn_text(lsn: int) -> str:
    """A place in the WAL as PostgreSQL writes it.

    >>> lsn_text(2**32 + 255)
    '1/FF'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
