"""The client for applications without an event loop: it has one of its own, in a thread.

The listener is called in a second thread, one method at a time, and may take as long as it likes.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import queue
import ssl
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from tidings_thialfi.client.aio import AsyncClient, ClientStopped, Credentials, Objects
from tidings_thialfi.client.listener import Event, Handle, Listener, call
from tidings_thialfi.client.pace import Pace

T = TypeVar("T")
_STOP_TIMEOUT_S = 10.0


class Client:
    """A client of a Thialfi service. Every method returns at once: what comes of it, the listener is told.

    The arguments are those of `AsyncClient`. Stop it, or use it in a `with`, so that the service learns that it is
    gone; a program that just ends stops it too.

    ```python
    class Contacts(Listener):
        def notify(self, object, version, payload=None):
            fetch(object)

    with Client("wss://gateway.example", "contacts-web-1", Contacts()) as client:
        client.register("alice")
        ...
    ```
    """

    def __init__(
        self,
        address: str,
        application: str,
        listener: Listener,
        *,
        credentials: Callable[[], str | None] | None = None,
        tls: ssl.SSLContext | None = None,
        polling: bool = False,
        pace: Pace | None = None,
    ) -> None:
        self._worker = _Worker(listener, f"tidings-listener-{application}")
        self._client = _ThreadedClient(
            address, application, listener, credentials=credentials, tls=tls, polling=polling, pace=pace
        )
        self._client.worker = self._worker
        self._name = f"tidings-client-{application}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return repr(self._client).replace(type(self._client).__name__, type(self).__name__)

    def __enter__(self) -> Client:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, state: bytes | None = None) -> None:
        """Begin, with what `Listener.write_state` was last given. Does not wait for a connection."""
        with self._lock:
            if self._loop is not None:
                raise ClientStopped("the client is running already: stop it before you start it again")
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
            self._worker.start()
        atexit.register(self.stop)
        self._do(self._client.start(state))

    def stop(self) -> None:
        """Say what is still to be said, close the channel and end. The service keeps what it knows of the client."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        atexit.unregister(self.stop)
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._client.stop(), loop).result(_STOP_TIMEOUT_S)
        self._worker.stop(_STOP_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_STOP_TIMEOUT_S)

    def register(self, object: str, version: int | None = None) -> None:
        """Register for an object. `version` is the one that you have: what is not above it is not notified."""
        self._do(_soon(self._client.register, object, version))

    def register_many(self, objects: Objects) -> None:
        """Register for many objects: names, or pairs of name and version."""
        self._do(_soon(self._client.register_many, objects if isinstance(objects, str) else list(objects)))

    def unregister(self, object: str) -> None:
        """Do not hear of an object any more."""
        self._do(_soon(self._client.unregister, object))

    def acknowledge(self, handle: Handle) -> None:
        """You have dealt with a notification, and need not be told again."""
        self._do(_soon(self._client.acknowledge, handle))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this in the loop's thread, so that a mistake is raised where it was made."""
        loop = self._loop
        if loop is None:
            work.close()
            raise ClientStopped("the client is not running: start it first")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


class _ThreadedClient(AsyncClient):
    """Calls the listener, and asks for credentials, in other threads: either may take its time."""

    worker: _Worker

    async def _call(self, event: Event) -> bool:
        return await self.worker.do(event)

    async def _ask(self, credentials: Credentials) -> str | None:
        found = await asyncio.to_thread(credentials)
        return await found if inspect.isawaitable(found) else found


class _Worker:
    """The thread in which the listener is called."""

    def __init__(self, listener: Listener, name: str) -> None:
        self._listener, self._name = listener, name
        self._todo: queue.SimpleQueue[tuple[Event, asyncio.Future[bool]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._todo = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(self._todo,), name=self._name, daemon=True)
        self._thread.start()

    def stop(self, patience: float) -> None:
        self._todo.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(patience)

    async def do(self, event: Event) -> bool:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._todo.put((event, done))
        return await done

    def _run(self, todo: queue.SimpleQueue[tuple[Event, asyncio.Future[bool]] | None]) -> None:
        while work := todo.get():
            event, done = work
            try:
                found: bool | Exception = call(self._listener, event)[0]
            except Exception as error:  # noqa: BLE001 - it is the application's, and may raise anything
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
                done.get_loop().call_soon_threadsafe(_set, done, found)


def _set(done: asyncio.Future[bool], found: bool | Exception) -> None:
    if done.done():
        return
    if isinstance(found, Exception):
        done.set_exception(found)
    else:
        done.set_result(found)


async def _soon(method: Callable[..., None], *arguments: Any) -> None:
    method(*arguments)
