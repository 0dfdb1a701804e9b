"""The outbox: carries out what flow sessions ask for. Messages go to subscribers, the rest into ZooKeeper.

A thread of its own writes into ZooKeeper, since those who hear subscribers must not wait for it. What has gathered
meanwhile is written together: thousands of flows then cost a round trip or two.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from tidings.datamarkers import Datamarker
from tidings.errors import ENDING, CoordinationUnavailable, TidingsError
from tidings.publisher.flow_session import Effects, FlowSession, PutAside, Send, TellStanding, WriteHolder, WriteMarker
from tidings.publisher.ownership import Finish, Ownership, WriteBatch

logger = logging.getLogger(__name__)


class _Write(NamedTuple):
    session: FlowSession
    effect: WriteMarker | WriteHolder


class Outbox:
    """The outbox of one publisher.

    `put_aside` keeps updates at which handlers fail, and `tell_standing` answers subscribers that ask where they stand.
    """

    def __init__(
        self,
        ownership: Ownership,
        put_aside: Callable[[FlowSession, PutAside], None],
        tell_standing: Callable[[FlowSession, TellStanding], None],
    ) -> None:
        self._ownership = ownership
        self._put_aside = put_aside
        self._tell_standing = tell_standing
        self._todo: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tidings-outbox", daemon=True)
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        """The thread that writes."""
        return self._thread

    def carry_out(self, session: FlowSession, effects: Effects) -> None:
        """Do what a session asks for; nothing waits for what is written. With the session's lock held."""
        for effect in effects:
            if isinstance(effect, Send):
                effect.connection.send(effect.message)
            elif isinstance(effect, PutAside):
                self._put_aside(session, effect)
            elif isinstance(effect, TellStanding):
                self._tell_standing(session, effect)
            else:
                self._todo.put(_Write(session, effect))

    def batch(self) -> WriteBatch:
        """For writes of many flows that are begun together."""
        return self._ownership.batch()

    def begin(self, session: FlowSession, effect: WriteHolder, batch: WriteBatch | None = None) -> Finish:
        """Begin to write who holds a flow, for one who waits for it; with others, if those are written together. With
        the session's lock held."""
        write = self._ownership.begin_write if batch is None else batch.write
        return write(session.flow, session.epoch, "subscriber", effect.record)

    def end(self, session: FlowSession) -> None:
        """Stop sending a flow, from one moment to the next."""
        with session.lock:
            self.carry_out(session, session.end())

    def replaced(self, session: FlowSession) -> None:
        """Another publisher has taken the flow."""
        logger.warning("flow %s is no longer owned here, in epoch %d", session.flow, session.epoch)
        session.counters.fenced += 1
        self.end(session)

    def close(self) -> None:
        """Write what is left, and end."""
        self._todo.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            todo = [self._todo.get()]
            while not self._todo.empty():
                todo.append(self._todo.get())
            batch = self.batch()
            begun = [(one, self._begin(one, batch)) for one in todo if one is not None]
            batch.commit()
            for one, finish in begun:
                self._finish(one, finish)
            if None in todo:
                return

    def _begin(self, write: _Write, batch: WriteBatch) -> Finish:
        try:
            return self._begun(*write, batch)
        except ENDING:
            raise
        except BaseException:  # the other flows go on
            logger.exception("flow %s", write.session.flow)
            return self._failed

    @staticmethod
    def _failed() -> bool:
        raise CoordinationUnavailable("what was to be written cannot be")

    def _begun(self, session: FlowSession, effect: WriteMarker | WriteHolder, batch: WriteBatch) -> Finish:
        with session.lock:
            if isinstance(effect, WriteMarker):
                if not session.to_be_written(effect):
                    return lambda: True
                marker = Datamarker.now(effect.position, session.epoch, session.log_identity)
                return batch.write(session.flow, session.epoch, "datamarker", marker.to_json())
            if session.holder is not None and effect.record["id"] != session.holder:
                return lambda: True  # the flow was assigned anew meanwhile, which this must not undo
            # Not together with the others, which are begun later: it could be assigned anew until then.
            return self.begin(session, effect)

    def _finish(self, write: _Write, finish: Finish) -> None:
        session, effect = write
        try:
            self._finished(session, effect, finish)
        except ENDING:
            raise
        except BaseException as error:
            if isinstance(error, CoordinationUnavailable):  # of which its session tells, once for all flows
                logger.debug("flow %s: %s", session.flow, error)
            elif isinstance(error, TidingsError):
                logger.info("flow %s: %s", session.flow, error)
            else:
                logger.exception("flow %s", session.flow)
            with session.lock:
                session.write_failed()

    def _finished(self, session: FlowSession, effect: WriteMarker | WriteHolder, finish: Finish) -> None:
        owned = finish()
        if not owned:
            self.replaced(session)
        elif isinstance(effect, WriteMarker):
            with session.lock:
                self.carry_out(session, session.marker_written(*effect))
