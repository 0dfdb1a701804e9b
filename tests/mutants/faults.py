"""The faults that `tests.mutants` tries: each takes away a thing that safety rests on, and names who should notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CORE = "core/tidings"
COLLECTION = "plugins/gc_tombstones/tidings_gc_tombstones"
DELTA = "connectors/tidings_connectors/delta"
MYSQL = "connectors/tidings_connectors/mysql"
POSTGRES = "connectors/tidings_connectors/postgres"
CDC = "connectors/tidings_connectors/cdc"
THIALFI = "plugins/thialfi/tidings_thialfi"


@dataclass(frozen=True)
class Fault:
    """A fault: `old`, which stands in the file once, is replaced by `new`.

    `tests` are files or tests, as few as will do. `explained` says why no test can find it.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    explained: str = ""

    def applied(self, root: Path) -> str:
        """The file with the fault in it; ValueError if the code has moved on."""
        text = (root / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: the code has moved on, {self.file} has {text.count(self.old)} of {self.old!r}"
            )
        return text.replace(self.old, self.new)


def _of(file: str, *names: str) -> tuple[str, ...]:
    """Tests of one file."""
    return tuple(f"{file}::{name}" for name in names)


TAKING = ("tests/core/publisher/test_ownership.py",)
BROKEN_TAKING = _of(
    "tests/system/test_flow_progress.py", "test_flows_that_are_taken_while_the_connection_breaks_are_all_sent"
)

OWNERSHIP = (
    Fault(
        "epoch-not-increased",
        "an owner that was replaced has the epoch of the one that came after",
        f"{CORE}/publisher/ownership.py",
        'transaction.set_data(place["epoch"], encode({}), epoch - 1)',
        "pass",
        TAKING,
    ),
    Fault(
        "epoch-read-and-taken-apart",
        "a flow is taken though another had it since it was looked at",
        f"{CORE}/publisher/ownership.py",
        'transaction.set_data(place["epoch"], encode({}), epoch - 1)',
        'transaction.set_data(place["epoch"], encode({}))',
        TAKING,
    ),
    Fault(
        "owner-outlives-session",
        "the flows of a publisher that died stay its own",
        f"{CORE}/publisher/ownership.py",
        'encode({"publisher": self._member, **record}), rights, ephemeral=True)',
        'encode({"publisher": self._member, **record}), rights)',
        TAKING,
    ),
    Fault(
        "owner-of-another-session-disowned",
        "a flow is taken from its owner",
        f"{CORE}/publisher/ownership.py",
        "if stat.owner_session_id != self._coordination.client.client_id[0]:",
        "if False:",
        TAKING,
    ),
    Fault(
        "definition-not-checked",
        "a flow is taken for an application that was changed meanwhile",
        f"{CORE}/publisher/ownership.py",
        'tree.path("applications", flow.application), wanted.defined)',
        'tree.path("applications", flow.application), -1)',
        TAKING,
    ),
    Fault(
        "write-not-fenced",
        "a stale owner writes datamarkers",
        f"{CORE}/publisher/ownership.py",
        'transaction.check(self._coordination.path(*flow.place, "epoch"), epoch)\n        transaction.set_data',
        "transaction.set_data",
        TAKING,
    ),
    Fault(
        "release-not-fenced",
        "a stale owner releases the flow of the one that came after",
        f"{CORE}/publisher/ownership.py",
        'transaction.check(self._coordination.path(*flow.place, "epoch"), epoch)\n        transaction.delete',
        "transaction.delete",
        TAKING,
    ),
    Fault(
        "taking-unanswered-not-retaken",
        "a flow is owned, and sent by nobody",
        f"{CORE}/publisher/publisher.py",
        'owner is None or owner.get("publisher") == self.name]',
        "owner is None]",
        BROKEN_TAKING,
    ),
    Fault(
        "unanswered-taking-believed",
        "a flow is sent whose taking ZooKeeper may not have carried out",
        f"{CORE}/publisher/ownership.py",
        'logger.info("a flow was perhaps taken: %s", error)\n            return False',
        'logger.info("a flow was perhaps taken: %s", error)\n            return True',
        BROKEN_TAKING,
        explained="an owner sends nothing before it has named the holder, and that is fenced by the epoch",
    ),
    Fault(
        "flows-kept-without-session",
        "a publisher that lost its session goes on with the flows of before",
        f"{CORE}/publisher/publisher.py",
        "self._outbox.end(session)\n        self._given_up.clear()",
        "pass\n        self._given_up.clear()",
        ("tests/core/publisher/test_publisher.py",),
    ),
    Fault(
        "others-record-released",
        "who leaves takes away the record of who came after under its name",
        f"{CORE}/coordination/zookeeper.py",
        "if there is None or there.owner_session_id != self._client.client_id[0]:",
        "if there is None:",
        _of("tests/system/test_names.py", "test_who_leaves_takes_away_its_own_record_and_not_that_of_who_came_after"),
    ),
    Fault(
        "name-taken-twice",
        "two processes have one name",
        f"{CORE}/coordination/zookeeper.py",
        "ours = there is not None and there.owner_session_id == self._client.client_id[0]",
        "ours = there is not None",
        _of(
            "tests/system/test_names.py",
            "test_a_publisher_that_lost_its_session_waits_while_another_has_taken_its_name",
        ),
    ),
)

EXCHANGES = "tests/core/wire/test_exchange_server.py"
OPENING = ("tests/core/subscriber/test_opening.py",)
LEASES = ("tests/core/coordination/test_lease.py",)

LEASE = (
    Fault(
        "lease-renewed-by-a-read",
        "a server that is cut off from its leader renews leases",
        f"{CORE}/coordination/zookeeper.py",
        "self._client.sync_async(self.root)",
        "self._client.exists_async(self.root)",
        ("tests/system/test_ensemble_faults.py",),
    ),
    Fault(
        "lease-longer-than-session",
        "a lease outlives its session",
        f"{CORE}/coordination/lease.py",
        "VALID_RATIO = 0.9",
        "VALID_RATIO = 2.0",
        LEASES,
    ),
    Fault(
        "lease-without-margin",
        "a lease outlives its session if the clock here is slower than ZooKeeper's",
        f"{CORE}/coordination/lease.py",
        "VALID_RATIO = 0.9",
        "VALID_RATIO = 1.0",
        explained="the clocks of one machine run alike",
    ),
    Fault(
        "lease-without-end",
        "a lease that was valid once is valid for good",
        f"{CORE}/coordination/lease.py",
        "return self._clock() < self._expires",
        "return self._expires > 0",
        LEASES,
    ),
    Fault(
        "lease-from-the-answer",
        "a lease counts from when the answer came, and not from when it was asked for",
        f"{CORE}/coordination/lease.py",
        "sent = self._clock()\n        self._coordination.ping()",
        "self._coordination.ping()\n        sent = self._clock()",
        LEASES,
    ),
    Fault(
        "lease-as-asked-for",
        "a lease counts on a longer session than ZooKeeper grants",
        f"{CORE}/coordination/session.py",
        "self.session_timeout = answer[0].time_out / 1000",
        "pass",
        ("tests/core/coordination/test_zookeeper.py",),
    ),
    Fault(
        "publisher-sends-without-lease",
        "a publisher that slept sends when it wakes",
        f"{CORE}/publisher/publisher.py",
        "return self._lease.valid() and not self._suspended",
        "return not self._suspended",
        ("tests/core/publisher/test_publisher.py",),
    ),
    Fault(
        "read-sent-without-lease",
        "what was read while the lease was valid is sent when it is not",
        f"{CORE}/publisher/pump.py",
        "allowed = self._may_send()",
        "allowed = True",
        ("tests/core/publisher/test_pump.py",),
    ),
    Fault(
        "handler-called-without-lease",
        "a subscriber whose flows others may have calls its handler",
        f"{CORE}/subscriber/workers.py",
        "if self._lease_valid():\n                return",
        "return",
        OPENING,
    ),
    Fault(
        "lost-lock-comes-back",
        "a driver that lost its lock believes to have it once its session is renewed",
        f"{CORE}/coordination/pipeline_lock.py",
        "return not self._lost and self._lease.valid()",
        "return self._lease.valid()",
        ("tests/core/coordination/test_pipeline_lock.py",),
    ),
)

SUBSCRIBER = (
    Fault(
        "opened-unasked",
        "a flow is opened though ZooKeeper names nobody, or another",
        f"{CORE}/subscriber/subscriber.py",
        'elif holder is None or holder.get("id") != self.id or holder.get("epoch") != era.epoch:',
        "elif False:",
        OPENING,
    ),
    Fault(
        "opened-for-another-subscriber",
        "a flow is with two subscribers",
        f"{CORE}/subscriber/subscriber.py",
        'holder is None or holder.get("id") != self.id or holder.get("epoch")',
        'holder is None or holder.get("epoch")',
        OPENING,
    ),
    Fault(
        "opened-for-another-epoch",
        "an owner that was replaced opens a flow",
        f"{CORE}/subscriber/subscriber.py",
        'holder.get("id") != self.id or holder.get("epoch") != era.epoch:',
        'holder.get("id") != self.id:',
        OPENING,
    ),
    Fault(
        "opened-in-an-old-era",
        "an opening that was overtaken is carried out",
        f"{CORE}/subscriber/subscriber.py",
        "elif era <= held.era:",
        "elif False:",
        OPENING,
    ),
    Fault(
        "opened-after-it-was-closed",
        "an opening that was withdrawn is carried out",
        f"{CORE}/subscriber/subscriber.py",
        "if withdrawn:",
        "if False:",
        OPENING,
    ),
    Fault(
        "stale-batch-taken",
        "what a stale owner sent is processed",
        f"{CORE}/subscriber/subscriber.py",
        "if held is not None and held.open and held.era == era and held.reply in (reply, reply.parent):",
        "if held is not None and held.open and held.reply in (reply, reply.parent):",
        OPENING,
    ),
    Fault(
        "flow-of-another-exchange-taken",
        "who has not opened a flow sends it rows, and closes it",
        f"{CORE}/subscriber/subscriber.py",
        "if held is not None and held.open and held.era == era and held.reply in (reply, reply.parent):",
        "if held is not None and held.open and held.era == era:",
        _of("tests/core/subscriber/test_hostile_peers.py", "test_nobody_speaks_of_a_flow_but_who_has_opened_it"),
    ),
    Fault(
        "stale-work-done",
        "what was queued in an era that is over is processed",
        f"{CORE}/subscriber/workers.py",
        "if held.era != era or not held.open or self._closed.is_set():",
        "if not held.open or self._closed.is_set():",
        OPENING,
    ),
    Fault(
        "flow-kept-that-is-anothers",
        "a subscriber goes on with a flow that ZooKeeper gives to another",
        f"{CORE}/subscriber/subscriber.py",
        'self._workers.drop(held, "ZooKeeper names another subscriber")',
        "pass",
        OPENING,
    ),
    Fault(
        "flow-kept-without-publisher",
        "a subscriber goes on with a flow whose publisher is gone",
        f"{CORE}/subscriber/subscriber.py",
        'self._workers.drop_soon(held, "the publisher is gone")',
        "pass",
        OPENING,
    ),
    Fault(
        "parked-flow-acknowledged",
        "a flow goes on after an update at which its handler failed",
        f"{CORE}/subscriber/workers.py",
        "if not held.todo or held.parked or self._closed.is_set():",
        "if not held.todo or self._closed.is_set():",
        OPENING,
    ),
    Fault(
        "failed-token-acknowledged",
        "what a handler could not make durable is acknowledged",
        f"{CORE}/subscriber/workers.py",
        "if reason is not None:\n            self._park(held, era, reason)\n        return reason is None",
        "if reason is not None:\n            self._park(held, era, reason)\n        return True",
        OPENING,
    ),
    Fault(
        "relay-not-noticed",
        "one who stands between two at another address is taken for the publisher",
        f"{CORE}/wire/exchange_server.py",
        "if parties.publisher != self.name or parties.address != self.address:",
        "if parties.publisher != self.name:",
        _of(
            EXCHANGES,
            "test_a_subscriber_that_means_another_is_refused_so_that_nobody_can_stand_between",
        ),
    ),
    Fault(
        "any-proof-admitted",
        "a subscriber is let in that has not the application's key",
        f"{CORE}/wire/handshake.py",
        "if keys and not _among(proof,",
        "if not proof and not _among(proof,",
        _of(EXCHANGES, "test_who_has_no_proof_is_not_let_in"),
    ),
    Fault(
        "proof-of-no-exchange",
        "a proof is good for another exchange, to which somebody says it again",
        f"{CORE}/wire/handshake.py",
        "said = json.dumps([PROTOCOL, whose, *self, *nonces]).encode()",
        "said = json.dumps([PROTOCOL, whose, *self, nonces[0]]).encode()",
        _of(EXCHANGES, "test_a_proof_is_good_for_its_own_exchange_and_side_alone"),
    ),
    Fault(
        "publisher-not-asked-for-proof",
        "a subscriber takes whoever answers for a publisher",
        f"{CORE}/wire/handshake.py",
        "if _among(parties.proof(key, PUBLISHER, nonces), proofs):",
        "if proofs:",
        _of(
            "tests/core/subscriber/test_subscriber.py",
            "test_a_publisher_that_cannot_prove_itself_gets_no_proof_and_gives_no_update",
        ),
    ),
    Fault(
        "compressed-rows-read",
        "a few bytes become gigabytes in a subscriber",
        f"{CORE}/wire/flight_data.py",
        "if kind != _BATCH_HEADER or compressed:",
        "if kind != _BATCH_HEADER:",
        _of(
            "tests/core/subscriber/test_hostile_peers.py",
            "test_rows_that_are_compressed_are_refused_before_they_are_read",
        ),
    ),
)

LIES = _of(
    "tests/core/publisher/test_flow_session.py",
    "test_what_a_subscriber_cannot_have_done_is_an_error_and_changes_nothing",
)
WALK = _of("tests/core/publisher/test_flow_session.py", "TestSends")
PUMP = ("tests/core/publisher/test_pump.py",)
BULK = (
    "tests/core/publisher/test_bulk.py::test_a_task_ends_when_all_that_it_sent_is_processed",
    "tests/core/publisher/test_bulk.py::test_a_task_sends_what_comes_after_the_place_where_the_flow_stands",
    "tests/core/publisher/test_bulk.py::test_a_task_fails_if_the_subscriber_refuses_what_it_sends",
)
OUTBOX = ("tests/core/publisher/test_outbox.py",)

PUBLISHER = (
    Fault(
        "window-without-bound",
        "all of a backlog is on its way to a slow subscriber",
        f"{CORE}/publisher/flow_session.py",
        "((more and self.bytes_in_flight >= self.options.window_bytes) or not allowed)",
        "not allowed",
        WALK,
    ),
    Fault(
        "old-answers-heeded",
        "an answer to an opening that is over counts",
        f"{CORE}/publisher/flow_session.py",
        "self.connection is not connection or era_of(message) != self.era:",
        "self.connection is not connection:",
        WALK,
    ),
    Fault(
        "not-back-at-the-datamarker",
        "what was on its way when a connection broke is not sent again",
        f"{CORE}/publisher/flow_session.py",
        "self.connection = None\n        self.sent = self.marker",
        "self.connection = None",
        WALK,
    ),
    Fault(
        "sent-on-another-ride",
        "a read serves a flow that went back, or has another filter since",
        f"{CORE}/publisher/flow_session.py",
        "return self.ride is ride",
        "return self.ride is not None",
        PUMP,
    ),
    Fault(
        "holder-not-kept",
        "a flow goes to another subscriber while one may be processing it",
        f"{CORE}/publisher/flow_session.py",
        "return self._bound and holder_lives and not given_up",
        "return False",
        WALK,
    ),
    Fault(
        "moved-before-its-token",
        "a flow moves while an acknowledgement is due",
        f"{CORE}/publisher/flow_session.py",
        "if self.state is CLOSING and not self._tokens else NOTHING",
        "if self.state is CLOSING else NOTHING",
        WALK,
    ),
    Fault(
        "marker-of-a-log-that-was-restored",
        "a datamarker that was acknowledged before the log was restored is kept",
        f"{CORE}/publisher/flow_session.py",
        "return write.position > self.marker and write.era.turn > self._restored_in",
        "return write.position > self.marker",
        WALK,
    ),
    Fault(
        "marker-of-a-log-that-was-restored-committed",
        "a datamarker that was committed as the log was restored counts",
        f"{CORE}/publisher/flow_session.py",
        "if era.turn <= self._restored_in:\n            return NOTHING\n        self.marker",
        "self.marker",
        WALK,
    ),
    Fault(
        "acknowledgement-not-compared",
        "a subscriber acknowledges what it was not asked",
        f"{CORE}/publisher/flow_session.py",
        "if not self._tokens or position != self._tokens[0]:",
        "if not self._tokens:",
        LIES,
    ),
    Fault(
        "done-not-compared",
        "a subscriber has done what it was not sent",
        f"{CORE}/publisher/flow_session.py",
        "if position > self.sent:",
        "if False:",
        LIES,
    ),
    Fault(
        "advanced-before-it-is-built",
        "rows of which no message could be made are passed over",
        f"{CORE}/publisher/pump.py",
        "(to, list(messages(batch, parts)))",
        "(to, messages(batch, parts))",
        _of(
            "tests/system/test_flow_progress.py",
            "test_rows_of_which_no_message_could_be_made_are_sent_later_and_none_is_passed_over",
        ),
    ),
    Fault(
        "late-snapshot-in-the-way",
        "those who follow the log wait for a snapshot that is taken for others",
        f"{CORE}/publisher/pump.py",
        "lines[self._log.aside(one.sent)][one] = ride",
        "lines[0][one] = ride",
        _of(
            "tests/connectors/delta_cdf/test_snapshot.py",
            "test_who_follows_the_log_does_not_wait_for_a_late_snapshot",
        ),
    ),
    Fault(
        "row-sent-twice",
        "the row at which a flow stands is sent again",
        f"{CORE}/publisher/read_batch.py",
        "while start < end and self.position(start) <= position:",
        "while start < end and self.position(start) < position:",
        PUMP,
    ),
    Fault(
        "bulk-not-waited-for",
        "a flow is advanced past what Spark's tasks have sent, and nobody has processed",
        f"{CORE}/publisher/bulk.py",
        "self._wait(lambda: self._in_flight == 0)",
        "pass",
        BULK,
    ),
    Fault(
        "bulk-failure-passed-over",
        "a large step that failed counts as sent",
        f"{CORE}/publisher/bulk.py",
        'raise RuntimeError(f"the subscriber does not go on: {self._problem}")',
        "return",
        BULK,
    ),
    Fault(
        "bulk-from-another-place",
        "a large step repeats what a flow has had",
        f"{CORE}/publisher/bulk.py",
        'wanted = fresh & batch[f"_{target.filter}"]',
        'wanted = batch[f"_{target.filter}"]',
        BULK,
    ),
    Fault(
        "void-marker-written",
        "the outbox writes a datamarker that is void",
        f"{CORE}/publisher/outbox.py",
        "if not session.to_be_written(effect):\n                    return lambda: True",
        "",
        OUTBOX,
    ),
    Fault(
        "old-holder-written",
        "a late report names the holder of before, and the new one lets go",
        f"{CORE}/publisher/outbox.py",
        'if effect.record["id"] != session.holder:',
        "if False:",
        OUTBOX,
    ),
    Fault(
        "replaced-owner-goes-on",
        "an owner that finds itself replaced goes on sending",
        f"{CORE}/publisher/outbox.py",
        "if not owned:\n            self.replaced(session)\n        elif",
        "if",
        OUTBOX,
    ),
    Fault(
        "passed-by-the-first",
        "a datastore forgets what a flow has not passed yet",
        f"{CORE}/publisher/reports.py",
        "found[flow.shard] = min(found",
        "found[flow.shard] = max(found",
        (f"{CORE}/publisher/reports.py",),
    ),
    Fault(
        "flow-without-marker-left-out",
        "a datastore forgets what a flow that has not begun is to get",
        f"{CORE}/publisher/reports.py",
        "if marker is None:\n            return None",
        "if marker is None:\n            continue",
        (f"{CORE}/publisher/reports.py",),
    ),
    Fault(
        "slot-moved-by-the-first-shard",
        "PostgreSQL forgets what some shards have not passed yet",
        f"{CDC}/base.py",
        "slowest = min(self._whole(upto).values())",
        "slowest = max(self._whole(upto).values())",
        _of("tests/connectors/postgres/test_log.py", "test_what_all_shards_have_passed_is_confirmed_and_no_more"),
    ),
    Fault(
        "floor-of-the-slot-not-checked",
        "a reader skips what PostgreSQL has let go in silence",
        f"{POSTGRES}/slots.py",
        "if gone:",
        "if False:",
        _of(
            "tests/connectors/postgres/test_log.py", "test_a_position_that_was_let_go_is_reported_with_exact_positions"
        ),
    ),
    Fault(
        "reader-goes-on-behind-itself",
        "a shard that went back is not read from there",
        f"{POSTGRES}/reader.py",
        "if self._replication is None or any(",
        "if self._replication is None or not any(",
        _of(
            "tests/connectors/postgres/test_log.py",
            "test_a_reader_gives_the_shards_that_it_is_asked_for_and_goes_back_for_another",
        ),
    ),
    Fault(
        "updates-moved-by-an-option",
        "updates go to a shard whose flow is past their place",
        f"{CORE}/cli/apply_plan.py",
        "        if not same:",
        "        if False:",
        _of("tests/core/cli/test_apply.py", "test_what_decides_where_updates_are_cannot_be_changed"),
    ),
    Fault(
        "half-applied",
        "what was made of a tidings.yml stays, though the rest of it could not be",
        f"{CORE}/undo.py",
        'stays = "; ".join(self._take_back())',
        'stays = ""',
        _of("tests/core/cli/test_apply.py", "test_what_was_made_is_taken_back_when_a_later_step_fails"),
    ),
    Fault(
        "streams-share-a-log",
        "two streams move one replication slot, or write into one folder",
        f"{CORE}/log_checks.py",
        "if other.name != stream.name and (shared :=",
        "if other.name == stream.name and (shared :=",
        _of("tests/core/test_cluster.py", "test_what_is_one_streams_alone_is_no_others"),
    ),
    Fault(
        "replica-of-another",
        "a flow goes on in a datastore that never was a replica of its own",
        f"{CORE}/catalogue.py",
        "                    prove_replica(definition, replica, found)",
        "                    pass",
        _of("tests/system/test_replicas.py", "test_a_replica_is_one_of_the_same_datastore"),
    ),
    Fault(
        "standby-without-what-was-read",
        "a stream goes on in a server that never had what its flows have passed",
        f"{POSTGRES}/origin.py",
        "if parted is not None and beyond > parted:",
        "if False:",
        _of(
            "tests/connectors/postgres/test_moves.py",
            "test_a_standby_that_was_promoted_without_what_was_read_is_refused",
        ),
    ),
    Fault(
        "server-known-by-its-numbers",
        "a stream goes on in a server that only counts like its own",
        f"{MYSQL}/origin.py",
        "if rows and found.rows != rows:",
        "if False:",
        _of("tests/connectors/mysql/test_moves.py", "test_a_stream_goes_on_at_a_replica_and_at_no_other_server"),
    ),
    Fault(
        "older-copy-taken",
        "flows that have passed the end of a copy miss what it gets next",
        f"{CORE}/storage/delta_commits.py",
        'if self.mark(version) != {"version": version, "commit": commit}:',
        "if False:",
        _of("tests/core/cli/test_moves.py", "test_an_older_copy_that_was_written_to_is_refused"),
    ),
    Fault(
        "silent-log-waited-for",
        "a publisher does nothing more for any stream, since it waits for a server that is gone",
        f"{CORE}/publisher/pump_set.py",
        "closing.join(CLOSE_PATIENCE_S)",
        "closing.join()",
        _of("tests/connectors/postgres/test_moves.py", "test_a_publisher_leaves_a_server_that_has_fallen_silent"),
    ),
    Fault(
        "family-without-its-streams",
        "an application that names a family gets nothing",
        f"{CORE}/stream_definition.py",
        "found.setdefault(family, []).append(name)",
        "pass",
        _of(
            "tests/core/test_families.py",
            "test_an_application_that_names_a_family_reads_its_streams_and_those_that_come_later",
        ),
    ),
    Fault(
        "truncate-told-to-one-shard",
        "those who hold rows of other shards never hear that they are gone",
        "connectors/tidings_connectors/cdc/mapping.py",
        "if pc.any(everywhere).as_py() else rows",
        "if False else rows",
        ("tests/connectors/cdc/test_mapping.py",),
    ),
    Fault(
        "second-slot-stays-without-the-first",
        "a slot that nobody knows of keeps the WAL of a database until its disk is full",
        "connectors/tidings_connectors/postgres/slots.py",
        "self._moving.rows(DROP, (name,))",
        "pass",
        _of("tests/connectors/postgres/test_lead.py", "test_it_goes_with_the_stream"),
    ),
    Fault(
        "second-slot-passed-by-the-first",
        "it keeps WAL that nobody needs any more",
        "connectors/tidings_connectors/postgres/lead.py",
        "if place - slowest < GAP_BYTES // 2:",
        "if False:",
        _of(
            "tests/connectors/postgres/test_lead.py",
            "test_it_follows_the_flows_and_goes_before_the_slot_would_pass_it",
        ),
    ),
    Fault(
        "old-row-of-a-partition-taken-for-granted",
        "a filter does not hear of rows that leave it, since their partition does not log what they were",
        "connectors/tidings_connectors/postgres/decoding.py",
        "and relation.full and not self._has_images(relation.oid):",
        "and False:",
        _of(
            "tests/connectors/postgres/test_before_images.py",
            "test_a_new_partition_without_it_has_the_table_left_out_until_it_has",
        ),
    ),
    Fault(
        "statement-passed-over",
        "what MariaDB logs as a statement is gone in silence",
        f"{MYSQL}/sequencer.py",
        "elif self._changes_rows(statement):",
        "elif False:",
        _of(
            "tests/connectors/mysql/test_losses.py",
            "test_what_is_logged_as_a_statement_is_lost_at_its_gtid_and_the_rest_is_read",
        ),
    ),
    Fault(
        "loss-passed-by-a-fellow",
        "a flow is not told of a loss, since the reader has passed it with another",
        f"{MYSQL}/reader.py",
        "self._pass(losses[0], after)",
        "pass",
        _of(
            "tests/connectors/mysql/test_losses.py",
            "test_a_shard_that_stands_before_a_loss_hears_of_it_though_the_reader_has_passed_it",
        ),
    ),
    Fault(
        "other-domain-forgotten",
        "who starts after a change in another GTID domain, and before it is told of, never hears of it",
        f"{MYSQL}/log.py",
        "seq -= 1",
        "pass",
        _of(
            "tests/connectors/mysql/test_losses.py",
            "test_rows_in_another_domain_are_lost_at_the_next_transaction_of_ours",
        ),
    ),
    Fault(
        "rolled-back-rows-delivered",
        "rows of an XA transaction come though it was rolled back",
        f"{MYSQL}/sequencer.py",
        "if not item.committed or begun is None",
        "if begun is None",
        _of(
            "tests/connectors/mysql/test_xa.py",
            "test_rows_come_when_they_are_committed_and_never_if_they_are_rolled_back",
        ),
    ),
    Fault(
        "older-rows-under-the-same-name",
        "of two XA transactions of one name the wrong one is delivered",
        f"{MYSQL}/prepared.py",
        "for file in reversed(files):",
        "for file in files:",
        _of("tests/connectors/mysql/test_xa.py", "test_who_starts_between_finds_the_rows_again_in_an_older_log"),
    ),
    Fault(
        "key-of-a-catalog-that-moved-on",
        "rows are named by a key that their table got after they were written",
        f"{POSTGRES}/keys.py",
        "if old and then is not None:",
        "if then is not None:",
        _of("tests/connectors/postgres/test_keys.py", "test_rows_of_which_nobody_knows_the_key_any_more_are_a_loss"),
    ),
    Fault(
        "missed-rows-told-before-the-transaction",
        "a reader that stands at the transaction with which a table is back does not hear what it missed",
        f"{POSTGRES}/left_out.py",
        "Position(self.back + 2, -1)",
        "Position(self.back, -1)",
        _of("tests/connectors/postgres/test_left_out.py", "test_the_loss_is_told_however_small_the_bites_are"),
    ),
    Fault(
        "row-refused-once-is-lost",
        "a change that the server could not send once counts as lost",
        f"{POSTGRES}/reader.py",
        "return refused != known",
        "return False",
        _of("tests/connectors/postgres/test_unsendable.py", "test_what_fails_once_and_then_goes_well_is_no_loss"),
    ),
)

DURABILITY = ("tests/connectors/delta/test_durability.py",)
FIRST_APPEND = _of("tests/system/test_power_loss.py", "test_a_log_outlives_a_power_loss_right_after_its_first_append")
CHECKPOINT = _of(
    "tests/system/test_power_loss.py",
    "test_a_checkpoint_that_is_seen_is_on_the_disk",
    "test_a_log_outlives_a_power_loss_after_its_maintenance",
)
STAGE_BATCH = _of("tests/system/test_power_loss.py", "test_a_batch_of_a_stage_table_outlives_a_power_loss")
NOTES = _of(
    "tests/core/pipelines/test_pipeline.py", "test_which_inputs_a_checkpoint_is_for_is_durable_before_there_is_one"
)
DAMAGE = _of(
    "tests/connectors/delta/test_damage.py",
    "test_a_flipped_bit_of_a_segment_is_an_error_that_names_it_or_changes_nothing",
)
MISSING_ROW = _of("tests/connectors/delta/test_damage.py", "test_a_row_that_is_missing_in_a_segment_is_an_error")
UNKNOWN_OUTCOME = _of(
    "tests/connectors/delta/test_faults.py",
    "test_an_append_of_which_it_is_not_known_whether_it_lasts_is_an_error_and_destroys_nothing",
)
DEAD_FILES = _of(
    "tests/connectors/delta/test_maintenance.py",
    "test_the_files_of_a_writer_that_died_are_vacuumed_and_those_in_use_are_not",
)

LOG = (
    Fault(
        "segment-not-synced",
        "rows that were acknowledged are lost with the power",
        f"{DELTA}/segments.py",
        "os.fsync(file.fileno())",
        "pass",
        FIRST_APPEND,
    ),
    Fault(
        "commit-not-synced",
        "a commit is there by name, and without a byte",
        f"{CORE}/storage/delta_commits.py",
        "os.fsync(file.fileno())",
        "pass",
        FIRST_APPEND,
    ),
    Fault(
        "names-of-segments-not-synced",
        "a commit names a file that is not there",
        f"{CORE}/storage/delta_commits.py",
        "sync_folder(self._table)",
        "pass",
        DURABILITY,
    ),
    Fault(
        "name-of-commit-not-synced",
        "a commit that was acknowledged has no name after a power loss",
        f"{CORE}/storage/delta_commits.py",
        "return False\n            self.sync()",
        "return False",
        FIRST_APPEND,
    ),
    Fault(
        "commit-replaces-another",
        "one of two writers that commit at once is lost",
        f"{CORE}/storage/delta_commits.py",
        "os.link(draft, path)",
        "os.replace(draft, path)",
        _of("tests/connectors/delta/test_log.py", "test_threads_that_append_at_once_do_not_lose_a_row"),
    ),
    Fault(
        "version-made-again",
        "a writer that slept puts its commit where one was cleaned up",
        f"{CORE}/storage/delta_commits.py",
        "if self.checkpointed() < version:\n            return False",
        "return False",
        _of(
            "tests/connectors/delta/test_faults.py",
            "test_a_writer_that_was_stopped_until_its_version_was_cleaned_up_appends_at_the_end",
        ),
    ),
    Fault(
        "checkpoint-not-synced",
        "commits are deleted, and the checkpoint is lost with the power",
        f"{CORE}/storage/delta_staging.py",
        "durable.sync_file(made)",
        "pass",
        CHECKPOINT,
    ),
    Fault(
        "name-of-checkpoint-not-synced",
        "a checkpoint is told of that has no name yet",
        f"{CORE}/storage/delta_staging.py",
        "    durable.sync_folder(target.parent)",
        "    pass",
        DURABILITY,
    ),
    Fault(
        "note-not-synced",
        "a note is there by name, and without a byte",
        f"{CORE}/storage/durable.py",
        "sync_file(draft)",
        "pass",
        NOTES,
    ),
    Fault(
        "name-of-note-not-synced",
        "a note that was replaced is the old one after a power loss",
        f"{CORE}/storage/durable.py",
        "sync_folder(path.parent)",
        "pass",
        NOTES,
    ),
    Fault(
        "name-of-folder-not-synced",
        "a folder is gone with all that was synced in it",
        f"{CORE}/storage/durable.py",
        "sync_folder(folder.parent)",
        "pass",
        DURABILITY,
    ),
    Fault(
        "repeat-not-synced",
        "a repeat is taken for durable that nobody has synced",
        f"{DELTA}/log.py",
        "self._table.sync()\n                    return None",
        "return None",
        UNKNOWN_OUTCOME,
    ),
    Fault(
        "named-rows-deleted",
        "rows are deleted that a commit names, of which it is not known whether it lasts",
        f"{DELTA}/log.py",
        "named = True  #",
        "named = False  #",
        UNKNOWN_OUTCOME,
    ),
    Fault(
        "commit-checksum-not-verified",
        "a commit with a flipped bit is taken for whole",
        f"{CORE}/storage/delta_commits.py",
        "if checksum is not None and checksum != ",
        "if False and checksum != ",
        _of(
            "tests/connectors/delta/test_damage.py",
            "test_a_flipped_bit_of_a_commit_is_an_error_that_names_it_or_changes_nothing",
        ),
    ),
    Fault(
        "page-checksum-not-verified",
        "rows with a flipped bit are read",
        f"{DELTA}/segments.py",
        "page_checksum_verification=True",
        "page_checksum_verification=False",
        DAMAGE,
    ),
    Fault(
        "footer-checksum-not-verified",
        "a segment with a flipped bit in its footer is read",
        f"{DELTA}/segments.py",
        "if _footer_checksum(raw) != int(named[1], 16):",
        "if False:",
        DAMAGE,
    ),
    Fault(
        "density-not-checked",
        "a row that is missing in the midst of a segment is skipped",
        f"{DELTA}/segments.py",
        "if np.any(before != expected) or np.any(np.diff(shards) < 0):",
        "if False:",
        MISSING_ROW,
    ),
    Fault(
        "end-of-segment-not-checked",
        "a row that is missing at the end of a segment is skipped",
        f"{DELTA}/segments.py",
        "if dense and np.any(reached < end):",
        "if False:",
        MISSING_ROW,
    ),
    Fault(
        "missing-segment-not-noticed",
        "a segment that is missing is skipped",
        f"{DELTA}/table.py",
        "if past is None and not np.array_equal(before.span.heads, after.span.floors):",
        "if False:",
        _of("tests/connectors/delta/test_damage.py", "test_a_segment_that_is_missing_is_an_error"),
    ),
    Fault(
        "spark-checks-no-pages",
        "Spark reads rows with a flipped bit",
        f"{DELTA}/spark_scan.py",
        "spark.read.option(CHECKS_PAGES, True)",
        "spark.read.option(CHECKS_PAGES, False)",
        _of("tests/connectors/delta/test_damage.py", "test_spark_does_not_read_a_flipped_bit_either"),
    ),
    Fault(
        "repeat-not-recognised",
        "a batch that is repeated is there twice",
        f"{DELTA}/log.py",
        "if transaction and self._is_repeat(transaction):",
        "if False:",
        _of("tests/connectors/delta/test_log.py", "test_a_transaction_is_appended_once"),
    ),
    Fault(
        "ends-not-compared",
        "a new batch with an old number is taken for a repeat",
        f"{DELTA}/log.py",
        "if known == ends or UNKNOWN_ENDS in (known, ends):",
        "if True:",
        _of(
            "tests/connectors/pyspark_tidings/test_sink.py", "test_a_batch_is_known_by_its_number_and_by_what_it_covers"
        ),
    ),
    Fault(
        "lost-positions-not-told",
        "a reader skips what was truncated in silence",
        f"{DELTA}/log.py",
        "if np.any(offsets < snapshot.floors) or np.any(offsets > snapshot.heads):",
        "if np.any(offsets > snapshot.heads):",
        _of(
            "tests/connectors/delta/test_log.py", "test_a_position_before_the_floor_is_reported_as_lost_with_exact_seqs"
        ),
    ),
    Fault(
        "no-grace-for-files",
        "files are deleted that readers are about to read, and writers to commit",
        f"{DELTA}/maintenance.py",
        "GRACE_HOURS = 1",
        "GRACE_HOURS = 0",
        DEAD_FILES,
    ),
    Fault(
        "no-grace-for-drafts",
        "a commit is deleted that its writer is about to link",
        f"{DELTA}/maintenance.py",
        "if draft.stat().st_mtime < oldest:",
        "if True:",
        DEAD_FILES,
    ),
    Fault(
        "merged-twice",
        "rows that two writers compact at once are there twice",
        f"{DELTA}/maintenance.py",
        "if not still(snapshot) or any(segment.path.name not in snapshot.live for segment in old):",
        "if False:",
        _of(
            "tests/connectors/delta/test_maintenance.py",
            "test_segments_that_two_writers_compact_at_once_are_compacted_once",
        ),
    ),
    Fault(
        "heads-forgotten",
        "a log that was truncated whole gives its offsets again",
        f"{DELTA}/maintenance.py",
        "if len(old) == len(snapshot.segments):",
        "if False:",
        _of(
            "tests/connectors/delta/test_maintenance.py",
            "test_a_log_that_is_truncated_whole_still_knows_where_its_shards_end",
        ),
    ),
)

STALE_DRIVER = _of(
    "tests/core/stages/test_stages.py",
    "test_what_a_stale_driver_writes_changes_nothing",
    "test_of_two_drivers_that_write_a_batch_at_once_one_changes_the_table",
)
DYING_DRIVER = _of(
    "tests/system/test_pipeline_faults.py",
    "test_a_driver_that_dies_at_any_step_of_a_batch_leaves_nothing_lost_or_repeated[False-append]",
)

PIPELINES = (
    Fault(
        "table-written-twice",
        "a stage's table holds the effect of a batch twice",
        f"{CORE}/stages/state.py",
        "            if batch_id >= self._batch_id:\n                return\n            if version and",
        "            if version and",
        STALE_DRIVER,
    ),
    Fault(
        "rows-added-twice",
        "a stage's table holds the rows of a batch twice",
        f"{CORE}/stages/state.py",
        "if not len(found) or batch_id >= self._batch_id:",
        "if not len(found):",
        STALE_DRIVER,
    ),
    Fault(
        "rows-added-after-another",
        "a stale driver adds its rows after another driver has added them",
        f"{CORE}/stages/state.py",
        "            version, batch_id = self._head.newest(self._opened)\n"
        "            if batch_id >= self._batch_id:\n                return\n\n",
        "            version, batch_id = self._head.newest(self._opened)\n\n",
        STALE_DRIVER,
    ),
    Fault(
        "table-read-after-the-batch",
        "a batch that is repeated finds its own effect in a table",
        f"{CORE}/stages/state.py",
        "while self._done(table):",
        "while False:",
        _of("tests/core/stages/test_stages.py", "test_a_stage_s_state_is_as_it_was_before_when_a_batch_is_repeated"),
    ),
    Fault(
        "rows-of-a-table-not-synced",
        "a commit of a stage's table names a file without a byte",
        f"{CORE}/stages/state.py",
        "os.fsync(file.fileno())",
        "pass",
        STAGE_BATCH,
    ),
    Fault(
        "tables-before-output",
        "a batch of which the output failed has changed the tables",
        f"{CORE}/pipelines/query.py",
        "            self._check_lock()\n            appended = ",
        "            self._check_lock()\n            state.commit()\n            appended = ",
        DYING_DRIVER,
        explained="the tables know of the batch by its number, and a repeat reads them as they were before it",
    ),
    Fault(
        "lock-not-checked",
        "a driver that was stopped writes beside the one that came after",
        f"{CORE}/pipelines/query.py",
        "if not self._lock.valid():\n            raise",
        "if False:\n            raise",
        _of(
            "tests/system/test_pipeline_faults.py",
            "test_a_driver_that_loses_its_session_during_a_batch_writes_nothing_of_it",
        ),
    ),
    Fault(
        "plan-of-a-batch-not-synced",
        "after a power loss the checkpoint is behind what was written",
        f"{CORE}/pipelines/checkpoint.py",
        "durable.sync_file(path)",
        "pass",
        _of(
            "tests/system/test_pipeline_faults.py",
            "test_the_plan_of_a_batch_is_durable_before_anything_of_it_is_written",
        ),
    ),
    Fault(
        "batch-with-an-old-number-begun",
        "the tables of a pipeline take a new batch for an old one",
        f"{CORE}/pipelines/definition.py",
        "if known is not None and known.app == batch.app and batch.number <= known.number:",
        "if False:",
        _of(
            "tests/system/test_pipeline_faults.py",
            "test_a_checkpoint_that_went_back_fails_the_pipeline_and_its_newest_copy_goes_on",
        ),
    ),
    Fault(
        "second-driver-let-in",
        "two drivers run one pipeline",
        f"{CORE}/coordination/pipeline_lock.py",
        "while not self._coordination.claim(mine, *self._place, patience=patience):",
        "while False:",
        _of("tests/system/test_pipeline_faults.py", "test_a_second_driver_is_refused_and_told_who_holds_the_pipeline"),
    ),
    Fault(
        "run-checksum-not-verified",
        "sorted runs with a flipped bit are read",
        f"{CORE}/storage/sorted_run_file.py",
        "if zlib.crc32(self._mapped[start:end]) != checksum:",
        "if False:",
        ("tests/core/storage/test_sorted_runs.py",),
    ),
)

DEFINITION = (
    "tests/core/filters/test_filters.py::test_arrow_agrees_with_the_definition",
    "tests/core/filters/test_filters.py::test_a_mask_of_a_batch_of_no_rows_of_chunks_and_of_slices",
)
STAGE = ("tests/plugins/thialfi/server/test_stage.py",)
NOTICES = ("tests/plugins/thialfi/client/test_notices.py",)
TOKENS = ("tests/plugins/thialfi/protocol/test_tokens.py",)

MATCHING = (
    Fault(
        "absent-value-passes-no-negation",
        "a filter drops updates that lack what it excludes",
        f"{CORE}/filters/arrow.py",
        "held = pc.fill_null(holds(basic, found[basic.key]), False)",
        "held = holds(basic, found[basic.key])",
        DEFINITION,
    ),
    Fault(
        "attributes-of-other-rows",
        "a filter looks at the attributes of other updates than it is asked about",
        f"{CORE}/filters/arrow.py",
        ".to_numpy(zero_copy_only=False)) + offsets[0]",
        ".to_numpy(zero_copy_only=False))",
        DEFINITION,
    ),
    Fault(
        "range-without-its-end",
        "a filter leaves out the upper end of a range",
        f"{CORE}/filters/arrow.py",
        "ends += [pc.less_equal(values, _scalar(high))]",
        "ends += [pc.less(values, _scalar(high))]",
        DEFINITION,
    ),
    Fault(
        "last-update-wins",
        "clients are told an older version after a newer one",
        f"{THIALFI}/server/matching.py",
        "best = stated[last_of_each(names[stated], numbers[stated], -seqs[stated])]",
        "best = stated[last_of_each(names[stated], seqs[stated])]",
        STAGE,
    ),
    Fault(
        "older-version-taken",
        "an older version replaces the one that is known",
        f"{THIALFI}/server/matching.py",
        "best = best[numbers[best] > np.where(at >= 0,",
        "best = best[numbers[best] != np.where(at >= 0,",
        STAGE,
    ),
    Fault(
        "names-of-one-key-are-one",
        "who registers for a name is told of another's object that has the same key",
        f"{THIALFI}/server/names.py",
        'numbers = pc.fill_null(pc.index_in(rows["object"], self._known), -1)',
        'numbers = rows["key"]',
        ("tests/plugins/thialfi/server/test_collisions.py",),
    ),
    Fault(
        "row-tells-the-time",
        "one update dated ahead makes the service forget its clients",
        f"{THIALFI}/server/stage.py",
        'read = min(now, pc.max(rows["written"]).as_py() or 0)',
        'read = pc.max(rows["written"]).as_py() or 0',
        ("tests/plugins/thialfi/server/test_clock.py",),
    ),
    Fault(
        "queue-starts-over",
        "clients of an object that changes often wait for ever",
        f"{THIALFI}/server/fanout.py",
        "following[at] = (following[at] + 1) % parts[at]",
        "following[at] = 0",
        ("tests/plugins/thialfi/server/test_fanout.py",),
    ),
    Fault(
        "late-offline-counts",
        "a client that has moved to another gateway is told nothing",
        f"{THIALFI}/server/clients.py",
        "gone = np.isin(np.arange(count), at[same & (seqs[left] > since[at])])",
        "gone = np.isin(np.arange(count), at[seqs[left] > since[at]])",
        ("tests/plugins/thialfi/server/test_presence.py",),
    ),
    Fault(
        "acknowledged-version-told-again",
        "who comes back is told what it has acknowledged",
        f"{THIALFI}/server/matching.py",
        "wanted |= pending & (numbers > acknowledged_numbers(pairs, acknowledged, 0))",
        "wanted |= pending",
        STAGE,
    ),
    Fault(
        "pending-version-not-told",
        "who comes back is not told what it has missed",
        f"{THIALFI}/server/matching.py",
        "wanted |= pending & (numbers > acknowledged_numbers(pairs, acknowledged, 0))",
        "pass",
        STAGE,
    ),
    Fault(
        "older-operation-taken",
        "a registration is undone by an operation that came before it",
        f"{THIALFI}/server/matching.py",
        "takes = (new >= 0) & (_taken(ranks, new) > old_rank)",
        "takes = new >= 0",
        STAGE,
    ),
    Fault(
        "registrations-without-end",
        "a client that comes again and again registers for as much as it likes",
        f"{THIALFI}/server/matching.py",
        "takes &= ~beyond",
        "pass",
        ("tests/plugins/thialfi/server/test_registration_limit.py",),
    ),
    Fault(
        "below-the-sync-taken",
        "an operation counts that a sync has made void",
        f"{THIALFI}/server/matching.py",
        "valid = np.flatnonzero(numbers >= clients.floors[clients.at(op_clients)])",
        "valid = np.arange(len(numbers))",
        STAGE,
        explained="the largest number wins anyway, and below the sync it is void; only a row that says so is left",
    ),
    Fault(
        "left-out-of-the-sync-kept",
        "a client goes on being told of what it left out of its sync",
        f"{THIALFI}/server/matching.py",
        "void = (registered & (number < floor)) | (number < 0)",
        "void = number < 0",
        STAGE,
    ),
    Fault(
        "digest-without-salt",
        "digests of two clients are alike that should not be",
        f"{THIALFI}/protocol/digests.py",
        "_hash_long(clients.view(np.uint64), np.uint64(SEED))",
        "np.uint64(SEED)",
        ("tests/plugins/thialfi/protocol/test_digests.py",),
    ),
    Fault(
        "acknowledged-before-it-is-told",
        "a version is acknowledged that the application is just being told of",
        f"{THIALFI}/client/dedup.py",
        "if notice.version <= known.acknowledged:\n            return Ack",
        "if notice.version <= known.delivering:\n            return Ack",
        NOTICES,
    ),
    Fault(
        "told-twice",
        "an application is told a version a second time",
        f"{THIALFI}/client/dedup.py",
        "if notice.version <= known.delivering:\n            return None",
        "",
        NOTICES,
    ),
    Fault(
        "unwanted-acknowledged",
        "a notice for what is not registered yet is lost",
        f"{THIALFI}/client/dedup.py",
        "it must get it.\n            return None",
        "it must get it.\n            return Ack(notice.name, notice.version, notice.unknown)",
        NOTICES,
    ),
    Fault(
        "token-not-verified",
        "a client speaks for another with a token of its own making",
        f"{THIALFI}/protocol/tokens.py",
        "if key not in self._keys or not hmac.compare_digest(mac, self._mac(key, body)):",
        "if key not in self._keys:",
        TOKENS,
    ),
    Fault(
        "token-without-end",
        "a token is good for ever",
        f"{THIALFI}/protocol/tokens.py",
        "if found.expires <= self._clock():",
        "if False:",
        TOKENS,
    ),
)

COLLECTOR = ("tests/plugins/gc_tombstones/test_collector.py",)
TOMBSTONES = ("tests/connectors/delta/test_tombstones.py",)

COLLECTING = (
    Fault(
        "newest-collected",
        "the newest update of a shard is collected, and nothing after it says what it said",
        f"{COLLECTION}/collector.py",
        "gone.within(floors, upto - 1)",
        "gone.within(floors, upto)",
        COLLECTOR,
        "a policy never says so: an update is collected by a later one, and a prefix leaves out the newest",
    ),
    Fault(
        "collected-with-the-one-that-collects",
        "an update collects itself",
        f"{COLLECTION}/collector.py",
        "obsolete = every.seq < last[groups]",
        "obsolete = every.seq <= last[groups]",
        COLLECTOR,
    ),
    Fault(
        "index-of-another-log-believed",
        "updates are collected by an index that has seen another log",
        f"{COLLECTION}/collector.py",
        'return note if self._log.last_transaction(APPLICATION) in (note["step"], note.get("next")) else {}',
        "return note",
        COLLECTOR,
    ),
    Fault(
        "index-of-other-policies-believed",
        "updates are collected by an index of other policies",
        f"{COLLECTION}/collector.py",
        'if note.get("policies") != self._named_policies:',
        "if not note:",
        COLLECTOR,
    ),
    Fault(
        "flows-not-protected",
        "what a flow has not passed is collected though it is protected",
        f"{COLLECTION}/collector.py",
        "if self.policies.protect_flows and self._passed is not None:",
        "if False:",
        COLLECTOR,
    ),
    Fault(
        "gc-event-not-covered",
        "a gc event collects another one that matches what it does not",
        f"{COLLECTION}/matching.py",
        "check_covering(event, rows)",
        "pass",
        COLLECTOR,
    ),
    Fault(
        "collected-places-found-again",
        "what a gc event has collected is counted again by the next update of its key",
        f"{COLLECTION}/index.py",
        'is_place = rows["place"].to_numpy() == rows["seq"].to_numpy()',
        'is_place = rows["place"].to_numpy() != MARK',
        COLLECTOR,
    ),
    Fault(
        "passed-places-found-again",
        "what is too old is counted again by the next update of its key",
        f"{COLLECTION}/index.py",
        "        if len(passed):",
        "        if False:",
        ("tests/plugins/gc_tombstones/test_index.py", *COLLECTOR),
    ),
    Fault(
        "key-changed-under-what-it-collected",
        "after a change of the key nothing matches what was collected by the former one",
        f"{COLLECTION}/collector.py",
        "not {*map(column_of, key)} <= {*map(column_of, former)}",
        "False",
        COLLECTOR,
    ),
    Fault(
        "damaged-index-believed-by-a-plan",
        "a plan fails because of one bit of a cache",
        f"{COLLECTION}/collector.py",
        "self._index.check()",
        "pass",
        COLLECTOR,
    ),
    Fault(
        "gc-event-goes-into-another-stream",
        "a copied gc event collects what it was never meant for",
        "connectors/pyspark_tidings/sink.py",
        "table.filter(pc.invert(EXPLICIT.mask(table)))",
        "table",
        ("tests/connectors/pyspark_tidings/test_sink.py",),
    ),
    Fault(
        "end-fixed-beside-a-collection",
        "a copy lacks what was collected while it was made and is said again after its end",
        f"{CORE}/cli/tail.py",
        "if not follow and any(update.kind == TOMBSTONE for update in found):",
        "if False:",
        _of(
            "tests/plugins/gc_tombstones/test_cli.py", "test_a_copy_lacks_nothing_that_was_said_again_while_it_was_made"
        ),
    ),
    Fault(
        "tombstones-lost-by-a-split",
        "what was collected comes back when overlays are split by segments",
        f"{DELTA}/overlays.py",
        "for segment in segments)\n    return [part",
        "for segment in segments[1:])\n    return [part",
        ("tests/connectors/delta/test_overlays.py",),
    ),
    Fault(
        "keys-with-one-hash-are-one",
        "an update is collected by one of another key",
        f"{COLLECTION}/index.py",
        "self.key.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)",
        "np.zeros(len(self), np.int64)",
        COLLECTOR,
    ),
    Fault(
        "tombstones-forgotten-by-a-merge",
        "what was collected comes back when files are merged",
        f"{DELTA}/maintenance.py",
        "Selection.of(run, touched).read(span.floors, span.heads)",
        "Selection.of(run).read(span.floors, span.heads)",
        TOMBSTONES,
    ),
    Fault(
        "overlay-not-put-over",
        "what was collected is read all the same",
        f"{DELTA}/segments.py",
        "if len(over) else (batch,)",
        "if False else (batch,)",
        TOMBSTONES,
    ),
    Fault(
        "tombstone-cut-off-by-statistics",
        "a reader within a collected run does not get its tombstone",
        f"{DELTA}/segments.py",
        "seq.min - length.max",
        "seq.min - 1",
        TOMBSTONES,
    ),
    Fault(
        "gap-not-noticed",
        "a subscriber takes updates for all though some are missing",
        f"{CORE}/subscriber/workers.py",
        "if len(broken):",
        "if False:",
        ("tests/core/subscriber/test_tombstones.py",),
    ),
    Fault(
        "tombstones-filtered-out",
        "a flow with a filter does not hear of what was collected",
        f"{CORE}/publisher/read_batch.py",
        ".to_numpy(zero_copy_only=False) | self.tombstones)",
        ".to_numpy(zero_copy_only=False))",
        ("tests/core/subscriber/test_tombstones.py",),
    ),
)

GATE = "tests/plugins/thialfi/gateway"

CROWD = (
    Fault(
        "polls-not-counted",
        "one address has as many clients that poll, and rows for them, as it likes",
        f"{THIALFI}/gateway/polls.py",
        'if self._quota.accept(made.counted or ""):',
        "if False:",
        _of(f"{GATE}/test_crowd.py", "test_clients_that_poll_count_for_their_address_as_long_as_they_are_online"),
    ),
    Fault(
        "all-pollers-looked-at-for-each",
        "the event loop stands still while thousands of clients that poll are forgotten",
        f"{THIALFI}/gateway/polls.py",
        "for client in channel.clients:",
        "for client in list(self._by_client):",
        _of(f"{GATE}/test_polls.py", "test_those_who_have_stopped_polling_are_found_in_one_look"),
    ),
    Fault(
        "large-body-read",
        "a body is read although its head says that it is too large",
        f"{THIALFI}/gateway/bodies.py",
        "if (request.content_length or 0) > most:",
        "if False:",
        _of(f"{GATE}/test_crowd.py", "test_a_body_that_is_too_large_for_a_poll_is_refused_unread"),
    ),
    Fault(
        "body-without-end-read",
        "a body that does not say its size fills the memory, and stops the event loop when it is parsed",
        f"{THIALFI}/gateway/bodies.py",
        "if len(body) > most:",
        "if False:",
        _of(f"{GATE}/test_crowd.py", "test_a_body_that_does_not_say_its_size_is_read_no_further_than_a_poll_may_be"),
    ),
    Fault(
        "silent-sockets-not-counted",
        "one address takes all files of a gateway",
        f"{THIALFI}/gateway/acceptor.py",
        "if self._quota.accept(address, shared=shared):",
        "if False:",
        _of(f"{GATE}/test_crowd.py", "test_silent_sockets_of_one_address_take_no_room_from_others"),
    ),
    Fault(
        "silent-sockets-waited-for",
        "who connects and says nothing stays",
        f"{THIALFI}/gateway/counted_connection.py",
        "call_later(self._patience, self.force_close)",
        "call_later(3600.0, self.force_close)",
        _of(f"{GATE}/test_crowd.py", "test_a_request_that_does_not_come_is_not_waited_for"),
    ),
    Fault(
        "frames-not-counted",
        "pongs without end, of which no message comes, take all the time of a gateway",
        f"{THIALFI}/gateway/counted_connection.py",
        "Amount(1 + frames.count, size)",
        "Amount(1, size)",
        _of(f"{GATE}/test_frames.py", "test_frames_without_end_close_the_connection_and_are_counted"),
    ),
    Fault(
        "half-messages-waited-for",
        "messages that never end fill the memory",
        f"{THIALFI}/gateway/counted_connection.py",
        "elif frames.begun is not None and self._late is None:",
        "elif False:",
        _of(f"{GATE}/test_frames.py", "test_a_message_that_has_begun_ends_in_time_or_the_connection_does"),
    ),
    Fault(
        "poll-by-token-alone",
        "who has stolen a token polls with it, and hooks are not asked",
        f"{THIALFI}/gateway/polls.py",
        "if found is None and not self._keyed:",
        "if found is None:",
        _of(f"{GATE}/test_hooks.py", "test_a_poll_goes_on_with_a_channel_by_its_key_and_not_by_a_token"),
    ),
    Fault(
        "renewed-for-ever",
        "a token that has expired is as good as one that has not",
        f"{THIALFI}/gateway/inbound.py",
        "if self._keys.expired_for(old) > self._options.renew_within:",
        "if False:",
        _of(f"{GATE}/test_revocations.py", "test_a_token_that_expired_too_long_ago_is_not_renewed"),
    ),
    Fault(
        "renewed-without-asking",
        "a user keeps what hooks would refuse it now",
        f"{THIALFI}/gateway/inbound.py",
        "sync = forgotten or (renewed and self._guard.on)",
        "sync = forgotten",
        _of(f"{GATE}/test_hooks.py", "test_hooks_are_asked_again_for_everything_when_a_token_is_renewed"),
    ),
    Fault(
        "revoked-token-taken",
        "a token that was revoked opens what it did",
        f"{THIALFI}/gateway/inbound.py",
        "if self.revoked.cover(token, message.token):",
        "if False:",
        _of(f"{GATE}/test_revocations.py", "test_one_token_is_revoked_and_the_next_of_its_client_is_not"),
    ),
    Fault(
        "revoked-token-renewed",
        "a token that was revoked is exchanged for a good one",
        f"{THIALFI}/gateway/inbound.py",
        "if old is not None and message.token is not None and self.revoked.cover(old, message.token):",
        "if False:",
        _of(
            f"{GATE}/test_revocations.py",
            "test_a_client_that_is_revoked_is_sent_away_and_its_token_opens_nothing_more",
        ),
    ),
    Fault(
        "let-in-while-revoked",
        "who is being let in when an operator locks it out stays",
        f"{THIALFI}/gateway/inbound.py",
        "if not self.revoked.cover(about, token) and about.issued > self._disconnected.last(about):",
        "if True:",
        _of(f"{GATE}/test_lockout.py", "test_who_was_being_let_in_when_an_operator_spoke_is_asked_again"),
    ),
    Fault(
        "issued-when-granted",
        "a token outlives the revocation that came while hooks were asked",
        f"{THIALFI}/gateway/inbound.py",
        "lifetime, issued=asked)",
        "lifetime)",
        _of(f"{GATE}/test_lockout.py", "test_a_token_counts_as_issued_when_hooks_were_asked"),
    ),
    Fault(
        "ready-before-it-knows",
        "a gateway that was cut off takes clients before it knows what was revoked",
        f"{THIALFI}/gateway/hearing.py",
        "return self.connected and self._known != self.losses",
        "return False",
        _of(
            f"{GATE}/test_lockout.py",
            "test_a_gateway_that_was_cut_off_hears_what_was_said_to_those_who_were_there_before",
        ),
    ),
    Fault(
        "bodies-without-end",
        "a server with a token has a gateway hold as many bodies as it likes",
        f"{THIALFI}/gateway/http.py",
        "if self._publishing + size > MAX_PUBLISHING_BYTES:",
        "if False:",
        _of(f"{GATE}/test_limits.py", "test_bodies_that_are_published_at_once_are_bounded"),
    ),
    Fault(
        "messages-of-a-channel",
        "a client that polls says hello as often as it likes, on a new channel each time",
        f"{THIALFI}/gateway/inbound.py",
        "if self._too_fast(channel, old.client):",
        "if False:",
        _of(f"{GATE}/test_rates.py", "test_a_clients_messages_are_counted_over_its_channels"),
    ),
    Fault(
        "entries-counted-as-messages",
        "forty messages become more than a hundred thousand rows",
        f"{THIALFI}/gateway/inbound.py",
        "amount = Amount(entries_of(message), len(text))",
        "amount = Amount(1, len(text))",
        _of(
            f"{GATE}/test_rates.py",
            "test_a_clients_entries_are_counted_over_its_connections",
        ),
    ),
    Fault(
        "entries-of-a-connection",
        "who connects again may say as much again",
        f"{THIALFI}/gateway/inbound.py",
        'own: dict[str, Hashable] = {"client": session.client}',
        'own: dict[str, Hashable] = {"client": id(session)}',
        _of(f"{GATE}/test_rates.py", "test_a_clients_entries_are_counted_over_its_connections"),
    ),
    Fault(
        "gateways-share-nothing",
        "the more gateways there are, the more the stage and its log have to bear",
        f"{THIALFI}/gateway/gateway.py",
        "self._rates.share(time.monotonic(), max(1, len(places.urls)))",
        "pass",
        _of(
            f"{GATE}/test_rates.py",
            "test_gateways_share_what_all_clients_may_say_and_one_that_is_cut_off_keeps_its_share",
        ),
    ),
    Fault(
        "newcomer-takes-the-whole",
        "a gateway that starts believes that it is alone",
        f"{THIALFI}/gateway/gateway.py",
        "1 + len(cluster.coordination.children(PLACE, service, GATEWAYS))",
        "1",
        _of(f"{GATE}/test_rates.py", "test_a_gateway_that_starts_knows_its_share_before_it_is_one_of_them"),
    ),
)

FAULTS = (*OWNERSHIP, *LEASE, *SUBSCRIBER, *PUBLISHER, *LOG, *PIPELINES, *MATCHING, *COLLECTING, *CROWD)
