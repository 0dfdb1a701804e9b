"""What operators did, as the audit has it: a page at a time, as far as it has a text in it."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from tidings.audit import entries
from tidings.errors import InvalidOption

if TYPE_CHECKING:
    from tidings.cluster import Cluster

MAX_PAGE = 500


def audit_page(cluster: Cluster, page: int, size: int, text: str) -> dict[str, Any]:
    """The entries of a page, the newest first."""
    if not 1 <= size <= MAX_PAGE or page < 0:
        raise InvalidOption(f"a page has 1 to {MAX_PAGE} entries, and pages are numbered from 0")
    found = (one.to_json() for one in entries(cluster.coordination))
    if not text:
        total = len(cluster.coordination.children("audit"))
        items = list(itertools.islice(found, page * size, (page + 1) * size))
    else:
        chosen = [one for one in found if text in json.dumps(one, ensure_ascii=False).lower()]
        total, items = len(chosen), chosen[page * size : (page + 1) * size]
    return {"total": total, "page": page, "size": size, "items": items, "partial": False, "problems": []}
