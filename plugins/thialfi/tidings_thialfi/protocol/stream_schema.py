"""What gateways and the server stage tell each other: rows of two streams, both sharded by client.

Each row is an update whose `object` is the client's number in decimal. What it says is in `attributes`, so that Spark
reads it without a Python function a row.

`<service>.operations`, written by gateways; `source` is the client's application id:

| `op` | `version` | other attributes | |
| --- | --- | --- | --- |
| `created` | | | the client was given its number |
| `register`, `unregister` | number | `object` | |
| `sync` | number | | all registrations with a smaller number are void |
| `acknowledge` | version | `object` | the client has heard of this version |
| `acknowledge-unknown` | number | `object` | it has heard that the version is unknown |
| `online` | | `gateway` | a channel is there: tell it all that is pending, and the digest |
| `offline` | | `gateway` | the channel is gone; it counts if the client has not come to another gateway since |
| `continue` | | | written by the stage: there is more to tell this client, or, if it is -1, others; in another batch |

`<service>.notifications`, written by the stage:

| `say` | `version` | other attributes | |
| --- | --- | --- | --- |
| `notify` | version | `object` | with the update's payload, if it had one |
| `unknown` | number | `object` | |
| `registered`, `unregistered` | number | `object` | the operation of that number has taken effect |
| `refused` | number | `object` | the registration of that number would have been one too many |
| `digest` | largest number seen | `count`, `sum` | of the client's registrations |
| `invalid` | | `reason` | the client is not known any more, and must start afresh |
"""

from __future__ import annotations

from typing import Any

CREATED = "created"
REGISTER = "register"
UNREGISTER = "unregister"
SYNC = "sync"
ACKNOWLEDGE = "acknowledge"
ACKNOWLEDGE_UNKNOWN = "acknowledge-unknown"
ONLINE = "online"
OFFLINE = "offline"
CONTINUE = "continue"

NOTIFY = "notify"
UNKNOWN = "unknown"
REGISTERED = "registered"
UNREGISTERED = "unregistered"
REFUSED = "refused"
DIGEST = "digest"
INVALID = "invalid"


def operations_of(service: str) -> str:
    """The stream of what a service's clients want."""
    return f"{service}.operations"


def notifications_of(service: str) -> str:
    """The stream of what a service's clients are told."""
    return f"{service}.notifications"


def operation(
    client: int, op: str, number: int | None = None, *, source: str | None = None, **more: str
) -> dict[str, Any]:
    """A row of the operations, as a producer takes it.

    >>> operation(7, REGISTER, 1, source="web-1", object="alice")["attributes"]
    {'op': 'register', 'object': 'alice'}
    """
    return {"object": str(client), "version": number, "source": source, "attributes": {"op": op, **more}}
