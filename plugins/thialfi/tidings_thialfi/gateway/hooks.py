"""What an application decides itself: who its users are, and what they may hear of.

An application puts a class of its own behind an entry point of the group `tidings.gateway_hooks`, and the gateway is
told its name. Without hooks every client may register for everything; with hooks nothing is allowed that they do not
allow: a hook that raises, or takes too long, has not allowed it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tidings.errors import InvalidOption, PluginBroken, TidingsError
from tidings.plugins import load

GROUP = "tidings.gateway_hooks"

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """A client that asks to be let in."""

    application: str | None
    """The application id that it gave."""
    credentials: str | None
    """What its `hello` held."""
    authorization: str | None
    """The `Authorization` header of its connection."""
    address: str


class GatewayHooks:
    """Refuses everything: override what is to be allowed. Made with the options of `--hook-option`.

    The methods run in the gateway's event loop, so they must not block; each has `timeout` seconds.
    """

    timeout: float = 5.0
    checks_notifications: bool = False
    """Whether `may_hear` is asked before each notification."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if options:
            raise InvalidOption(f"these hooks take no options, and were given {', '.join(sorted(options))}")

    async def user(self, caller: Caller) -> str | None:
        """The user's name, the same each time; None if the client may not come in."""
        return None

    async def may_register(self, user: str, objects: Collection[str]) -> Collection[str]:
        """Those of the objects that the user may register for."""
        return ()

    async def may_hear(self, user: str, objects: Collection[str]) -> Collection[str]:
        """Those of the objects of which the user may be told now; asked if `checks_notifications`."""
        return ()


class Guard:
    """Asks the hooks, if there are any. What they do not answer in time, or fail at, is refused."""

    def __init__(self, hooks: GatewayHooks | None = None) -> None:
        self._hooks = hooks
        self.failures = 0

    @property
    def on(self) -> bool:
        """Whether there are hooks."""
        return self._hooks is not None

    @property
    def checks_notifications(self) -> bool:
        """Whether each notification is asked for."""
        return self._hooks is not None and self._hooks.checks_notifications

    async def user(self, caller: Caller) -> str | None:
        """Who that is; without hooks everyone is nobody in particular, and None means refused."""
        if self._hooks is None:
            return ""
        found = await self._ask(self._hooks.user(caller), None)
        return found if isinstance(found, str) and found else None

    async def refused(self, user: str, objects: Collection[str]) -> frozenset[str]:
        """Those of the objects that the user may not register for."""
        if self._hooks is None or not objects:
            return frozenset()
        return frozenset(objects) - frozenset(await self._ask(self._hooks.may_register(user, objects), ()))

    async def notifiable(self, user: str, objects: Collection[str]) -> frozenset[str]:
        """Those of the objects of which the user may be told now."""
        if self._hooks is None or not self._hooks.checks_notifications:
            return frozenset(objects)
        return frozenset(objects) & frozenset(await self._ask(self._hooks.may_hear(user, objects), ()))

    async def _ask(self, question: Awaitable[T], otherwise: T) -> T:
        assert self._hooks is not None
        try:
            return await asyncio.wait_for(question, self._hooks.timeout)
        except Exception as error:  # noqa: BLE001 - the application's, whatever it is
            self.failures += 1
            logger.warning("a hook failed, and what it was asked is refused: %s: %s", type(error).__name__, error)
            return otherwise


def load_hooks(name: str, options: Mapping[str, str]) -> GatewayHooks:
    """The hooks that the entry point of that name holds."""
    made: Any = load(GROUP, name)
    try:
        hooks = made(dict(options))
    except TidingsError:
        raise
    except Exception as error:
        raise PluginBroken(f"gateway hooks {name!r} cannot be made: {error!r}") from error
    if not isinstance(hooks, GatewayHooks):
        raise PluginBroken(f"gateway hooks {name!r} are no GatewayHooks")
    return hooks
