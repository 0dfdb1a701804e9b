"""Who may do what in ZooKeeper: every node of a cluster that runs, tried by everybody who should not get at it."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoAuthError, NotEmptyError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from tidings.cluster import Cluster, connect
from tidings.coordination.access_check import check_access, repair_access
from tidings.coordination.pipeline_lock import PipelineLock
from tidings.coordination.roles import PLACES, AccessRules, rights_at
from tidings.coordination.values import encode
from tidings.coordination.zookeeper import Coordination
from tidings.errors import CoordinationDenied, ForeignValue, InvalidOption
from tidings.flow_status import status
from tidings.handlers import Handler
from tidings.identity.credentials import ANONYMOUS, Credentials, role_credentials
from tidings.identity.keys import application_key
from tidings.testing import eventually
from tidings.updates import Update
from tidings.wire.security import Security
from tidings_log_tailing.control import set_limits
from tidings_thialfi import service
from tidings_thialfi.gateway.hearing import Hearing
from tidings_thialfi.gateway.registry import Registry
from tidings_thialfi.places import gateways_of
from tidings_thialfi.revocations import Whose, say

SECRET, LATER = "the-secret-of-the-cluster", "a-later-secret-of-the-cluster"
NO_VERSION = 2**30  # of a node: who may change it hears that it has another version


class Notes(Handler):
    def __init__(self) -> None:
        self.objects: list[str] = []

    def on_update(self, update: Update) -> None:
        self.objects.append(update.object)


def key(application: str) -> Security:
    return Security(application_key=application_key(SECRET, application))


def viewer(secret: str = SECRET) -> Credentials:
    return Credentials.of_text(role_credentials(secret, "viewer"))


def producer() -> Credentials:
    return Credentials.of_text(role_credentials(SECRET, "producer"))


@pytest.fixture
def address(zookeeper: str) -> str:
    return f"{zookeeper}/{uuid.uuid4()}"


@pytest.fixture
def running(address: str, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster in which everything runs that keeps something in ZooKeeper, each under its own role."""
    with contextlib.ExitStack() as stack:
        secured = Security(secret=SECRET)
        operator = stack.enter_context(connect(address, security=secured))
        stream = operator.create_stream("contacts", shards=2, log=f"delta:{tmp_path}/contacts")
        operator.create_application("cache", ["contacts"], start="earliest")
        operator.create_application("other", ["contacts"])
        service.create(operator, "shop", ["contacts"], storage=tmp_path, shards=1, log=f"delta:{tmp_path}/shop")
        set_limits(operator, "contacts", {"caravans": 3})
        say(operator.coordination, "shop", "revoked", Whose.client(7))
        operator.coordination.create({}, "drains", "another")
        publisher = stack.enter_context(connect(address, credentials=secured.credentials("publisher")))
        stack.enter_context(publisher.publisher(security=secured, patience=0.5))
        notes = Notes()
        subscriber = stack.enter_context(connect(address, security=key("cache")))
        stack.enter_context(subscriber.subscribe("cache", notes))
        gateway = stack.enter_context(connect(address, security=key(gateways_of("shop"))))
        known = Registry(
            gateway.coordination,
            "shop",
            "g1",
            "http://127.0.0.1:1",
            1,
            lambda places: None,
            Hearing(gateway.coordination.client),
        )
        stack.callback(known.close)
        driver = stack.enter_context(connect(address, credentials=producer()))
        stack.callback(PipelineLock(driver.coordination, "totals").release)
        with driver.stream("contacts").producer() as sending:
            sending.publish("alice").result(10)
        assert stream.shards == 2
        eventually(lambda: notes.objects == ["alice"])
        eventually(lambda: operator.coordination.children("caravans", "contacts"))
        yield operator


@contextlib.contextmanager
def client_of(address: str, credentials: Credentials) -> Iterator[KazooClient]:
    client = KazooClient(address.partition("/")[0], auth_data=[("digest", one) for one in credentials.passwords])
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def nodes(client: KazooClient, path: str) -> list[str]:
    return [path, *(one for name in client.get_children(path) for one in nodes(client, f"{path}/{name}"))]


def permitted(deed: Callable[[], object]) -> bool:
    try:
        deed()
    except NoAuthError:
        return False
    except (BadVersionError, NotEmptyError):
        return True
    return True


def deeds_at(client: KazooClient, path: str, operator: KazooClient) -> set[str]:
    """What ZooKeeper permits at a node; nothing that is there is changed by asking."""
    probe = f"{path}/probe-{uuid.uuid4()}"
    deeds: dict[str, Callable[[], object]] = {
        "read": lambda: client.get(path),
        "list": lambda: client.get_children(path),
        "write": lambda: client.set(path, b"forged", NO_VERSION),
        "delete": lambda: client.delete(path, NO_VERSION),
        "rights": lambda: client.set_acls(path, OPEN_ACL_UNSAFE, NO_VERSION),
        "create": lambda: client.create(probe, b"", OPEN_ACL_UNSAFE),
    }
    if path.count("/") == 1:
        del deeds["delete"]  # what is above the root is not ours; while something is below it, nobody can delete it
    found = {name for name, deed in deeds.items() if permitted(deed)}
    if "create" in found:
        operator.delete(probe)
    return found


def test_nobody_gets_at_what_is_not_theirs(running: Cluster, address: str) -> None:
    root = running.coordination.root
    with contextlib.ExitStack() as stack:
        operator = stack.enter_context(client_of(address, Credentials.of_secrets([SECRET])))
        everything = nodes(operator, root)
        places = {path: path.removeprefix(root).strip("/").split("/") for path in everything}
        kinds = {pattern for pattern in PLACES if any(rights_at(one) == PLACES[pattern] for one in places.values())}
        assert len(everything) > 45
        assert kinds == set(PLACES)  # so nothing of the table is left untried

        anonymous = stack.enter_context(client_of(address, ANONYMOUS))
        stranger = stack.enter_context(client_of(address, Credentials.of_text("operator:guessed")))
        with pytest.raises(NotEmptyError):
            anonymous.delete(root)
        for path in everything:
            assert deeds_at(anonymous, path, operator) == set(), path
            assert deeds_at(stranger, path, operator) == set(), path

        watching = stack.enter_context(client_of(address, viewer()))
        for path in everything:
            assert deeds_at(watching, path, operator) == {"read", "list"}, path

        cache = stack.enter_context(client_of(address, key("cache").credentials()))
        for path, parts in places.items():
            found = deeds_at(cache, path, operator)
            match parts:
                case ["applications", "cache", "subscribers"]:
                    assert found == {"read", "list", "create"}, path
                case ["applications", "cache", "subscribers", _]:
                    assert found == {"read", "list", "write", "delete"}, path
                case ["applications", "cache"] | ["flows", "cache", *_]:
                    assert found == {"read", "list"}, path
                case ["" | "access" | "streams" | "applications" | "thialfi"] | ["streams", _] | ["publishers", *_]:
                    assert found == {"read", "list"}, path
                case _:
                    assert found == set(), path

        writing = stack.enter_context(client_of(address, producer()))
        for path, parts in places.items():
            found = deeds_at(writing, path, operator)
            match parts:
                case ["pipelines"]:
                    assert found == {"read", "list", "create"}, path
                case ["pipelines", _]:
                    assert found == {"read", "list", "write", "delete"}, path
                case ["" | "access" | "streams" | "thialfi"] | ["streams" | "thialfi", _]:
                    assert found == {"read", "list"}, path
                case _:
                    assert found == set(), path

        owning = stack.enter_context(client_of(address, Security(secret=SECRET).credentials("publisher")))
        for path, parts in places.items():
            found = deeds_at(owning, path, operator)
            assert "rights" not in found, path
            if parts[0] in ("", "access", "applications", "pipelines", "thialfi") or len(parts) == 1:
                assert not found & {"write", "delete"}, path
        assert check_access(running.coordination).wrong == []  # asking has changed nothing


def test_who_is_not_known_is_told_so_and_what_to_do(running: Cluster, address: str) -> None:
    for wrong in (ANONYMOUS, Credentials.of_secrets([LATER]), Credentials.of_text("viewer:guessed")):
        cure = "the secret, key or credentials" if wrong.passwords else "give the secret"
        with pytest.raises(CoordinationDenied, match=rf"does not know us \({wrong.role}\): {cure}"):
            connect(address, credentials=wrong)
    with connect(address, credentials=viewer()) as watching:
        assert [one.name for one in watching.applications()] == ["cache", "other", "shop.gateways"]
        with pytest.raises(CoordinationDenied, match=r"does not permit that below .* to us \(viewer\)") as caught:
            watching.drop_stream("contacts")
        assert role_credentials(SECRET, "viewer").partition(":")[2] not in str(caught.value)
    with connect(address, security=key("other")) as other, pytest.raises(CoordinationDenied):
        other.subscribe("cache", Notes())


def test_a_subscriber_that_is_left_without_its_application_ends_in_peace(address: str, tmp_path: Path) -> None:
    with connect(address, security=Security(secret=SECRET)) as operator:
        operator.create_stream("contacts", log=f"delta:{tmp_path}/contacts")
        operator.create_application("cache", ["contacts"])
        with connect(address, security=key("cache")) as cluster, cluster.subscribe("cache", Notes()):
            operator.drop_application("cache")
        operator.create_application("cache", ["contacts"])
        assert check_access(operator.coordination).wrong == []


def test_credentials_that_come_later_protect_what_was_made_before(zookeeper: str, address: str, tmp_path: Path) -> None:
    with connect(address) as cluster:
        stream = cluster.create_stream("contacts", shards=1, log=f"delta:{tmp_path}/contacts")
        cluster.create_application("cache", ["contacts"], start="earliest")
        with stream.producer() as sending:
            sending.publish("alice").result(10)
        with cluster.publisher(), cluster.subscribe("cache", notes := Notes()):
            eventually(lambda: notes.objects == ["alice"])
    secured = Credentials.of_secrets([SECRET])
    with contextlib.closing(Coordination(address, credentials=secured)) as tree:
        assert not tree.closed
        before = check_access(tree)
        assert len(before.wrong) == before.nodes > 10
        mended = repair_access(tree)
        assert set(mended.wrong) <= set(before.wrong)
        assert check_access(tree).wrong == mended.foreign == []
    with client_of(address, ANONYMOUS) as anonymous, client_of(address, secured) as operator:
        for path in nodes(operator, tree.root):
            assert deeds_at(anonymous, path, operator) == set(), path
    security = Security(secret=SECRET)
    with connect(address, security=security) as cluster, connect(address, security=key("cache")) as service_of_cache:
        with cluster.stream("contacts").producer() as sending:
            sending.publish("bob").result(10)
        with cluster.publisher(), service_of_cache.subscribe("cache", notes := Notes()):
            eventually(lambda: "bob" in notes.objects)


def test_an_open_tree_is_told_of(address: str, caplog: pytest.LogCaptureFixture) -> None:
    connect(address).close()
    with connect(address) as cluster:
        cluster.coordination.create_path("streams")
    with caplog.at_level(logging.WARNING):
        connect(address, security=Security(secret=SECRET)).close()
    assert "may change everything below" in caplog.text
    assert "tidings doctor --repair" in caplog.text


def test_one_node_that_was_changed_is_found_and_one_that_is_anothers_is_named(running: Cluster) -> None:
    tree = running.coordination
    opened, taken = tree.path("streams", "contacts"), tree.path("flows", "taken")
    tree.client.set_acls(opened, OPEN_ACL_UNSAFE)
    tree.client.create(taken, b"", [make_digest_acl("somebody", "else", all=True)])
    found = check_access(tree)
    assert (found.wrong, found.foreign) == ([opened], [taken])
    mended = repair_access(tree)
    assert (mended.wrong, mended.foreign) == ([opened], [taken])
    assert check_access(tree).wrong == []


def test_a_secret_is_replaced_and_the_old_one_opens_nothing(address: str, tmp_path: Path) -> None:
    with connect(address, security=Security(secret=SECRET)) as before:
        before.create_stream("contacts", log=f"delta:{tmp_path}/contacts")
        before.create_application("cache", ["contacts"])
    both = Credentials.of_secrets([LATER, SECRET])
    with contextlib.closing(Coordination(address, credentials=both)) as tree:
        assert repair_access(tree).foreign == []
        connect(address, credentials=viewer(SECRET)).close()
        connect(address, credentials=viewer(LATER)).close()
        # What is made from now on by those who have both is for both.
        tree.create({}, "applications", "third")
        assert check_access(tree).wrong == []
    with contextlib.closing(Coordination(address, credentials=Credentials.of_secrets([LATER]))) as tree:
        assert repair_access(tree).foreign == []
    with pytest.raises(CoordinationDenied):
        connect(address, credentials=viewer(SECRET))
    with (
        client_of(address, Credentials.of_secrets([SECRET])) as old,
        client_of(address, Credentials.of_secrets([LATER])) as new,
    ):
        for path in nodes(new, tree.root):
            assert deeds_at(old, path, new) == set(), path


def test_the_password_is_in_no_log(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(1):
        connect(address, security=Security(secret=SECRET)).close()
    assert "Sending request" in caplog.text
    for credentials in Credentials.of_secrets([SECRET]).passwords:
        assert credentials.partition(":")[2] not in caplog.text


def test_a_zookeeper_on_another_machine_wants_credentials_or_the_word_insecure() -> None:
    with pytest.raises(InvalidOption, match=r"is on another machine, and we have no credentials .* --insecure"):
        connect("192.0.2.1:2181", timeout=0.1)


def test_whoever_makes_something_first_with_the_secret_closes_a_new_tree_and_who_looks_makes_nothing(
    address: str,
) -> None:
    deep = f"{address}/of/three"
    first = Security(secret=SECRET).credentials("publisher")
    with contextlib.closing(Coordination(deep, credentials=first)) as tree:
        assert tree.children("streams") == []
        assert not tree.is_there
        tree.create({}, "publishers", "p1", ephemeral=True)
        assert (tree.is_there, tree.closed) == (True, True)
    with contextlib.closing(Coordination(deep, credentials=Credentials.of_secrets([SECRET]))) as tree:
        assert check_access(tree).wrong == []


def test_a_tree_that_somebody_else_has_made_is_not_taken_for_ours(address: str) -> None:
    root, ours = f"/{address.partition('/')[2]}", Credentials.of_secrets([SECRET])
    theirs = {"operator": ["operator:theirs"]}
    with client_of(address, ANONYMOUS) as squatter:
        squatter.create(root)
        squatter.create(f"{root}/access", encode(theirs))
        for known in (ours, key("cache").credentials(), viewer()):
            with pytest.raises(CoordinationDenied, match="does not know us"):
                Coordination(address, credentials=known)
        # Who has the key of an application knows how ZooKeeper names the roles, and what seals that.
        record = AccessRules.of_secrets(ours).record()
        squatter.set(f"{root}/access", encode({**record, "operator": [*record["operator"], *theirs["operator"]]}))
        with pytest.raises(CoordinationDenied, match="does not know us"):
            Coordination(address, credentials=ours)
        squatter.set(f"{root}/access", encode(record))
        Coordination(address, credentials=ours).close()


def test_who_runs_while_the_tree_is_closed_goes_by_the_new_rights(address: str, tmp_path: Path) -> None:
    security = Security(secret=SECRET)
    with connect(address) as anonymous:
        anonymous.create_stream("contacts", shards=1, log=f"delta:{tmp_path}/contacts")
    with connect(address, security=security) as running, connect(address, security=security) as operator:
        repair_access(operator.coordination)
        running.create_application("cache", ["contacts"])
        with running.publisher(), running.subscribe("cache", Notes()):
            eventually(lambda: {one.state for one in status(operator)} == {"running"})
            assert check_access(operator.coordination).wrong == []
    with pytest.raises(CoordinationDenied):
        connect(address)


def test_who_runs_while_the_secret_is_replaced_leaves_nothing_for_the_old_one(address: str, tmp_path: Path) -> None:
    with connect(address, security=Security(secret=SECRET)) as before:
        before.create_stream("contacts", log=f"delta:{tmp_path}/contacts")
        before.create_application("cache", ["contacts"])
    both = Security(secret=LATER, accepted=(SECRET,))
    with contextlib.closing(Coordination(address, credentials=both.credentials())) as tree:
        repair_access(tree)
    keys = Security(application_key=application_key(LATER, "cache"), accepted=(application_key(SECRET, "cache"),))
    later = Security(secret=LATER)
    with connect(address, security=keys) as cluster, connect(address, security=later) as publisher:
        repair_access(publisher.coordination)
        with publisher.publisher(), cluster.subscribe("cache", Notes()):
            eventually(lambda: {one.state for one in status(publisher)} == {"running"})
            assert check_access(publisher.coordination).wrong == []


def test_a_subscriber_that_keeps_all_others_from_its_registration_harms_nobody(
    running: Cluster, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = key("cache").credentials()
    with client_of(address, own) as hostile:
        name = own.passwords[0].partition(":")[2]
        hidden = running.coordination.path("applications", "cache", "subscribers", "hidden")
        hostile.create(hidden, b"{}", [make_digest_acl("application", name, all=True)])
    notes = Notes()
    with (
        connect(address, security=key("other")) as cluster,
        cluster.subscribe("other", notes),
        connect(address, credentials=producer()) as driver,
        driver.stream("contacts").producer() as sending,
    ):
        eventually(lambda: sending.publish("bob").result(10) is not None and notes.objects, timeout=20)
        eventually(lambda: {(one.state, one.lag) for one in status(running, application="cache")} == {("running", 0)})
    assert f"{hidden} is left alone: we may not read it" in caplog.text
    assert "cannot be placed" not in caplog.text
    assert check_access(running.coordination).foreign == [hidden]
    mended = repair_access(running.coordination)
    assert (mended.wrong, mended.foreign) == ([hidden], [])
    assert running.coordination.client.exists(hidden) is None


def test_who_has_no_key_is_cut_off_when_the_tree_is_closed_while_it_runs(address: str, tmp_path: Path) -> None:
    with connect(address, session_timeout=4.0) as anonymous:
        anonymous.create_stream("contacts", shards=1, log=f"delta:{tmp_path}/contacts")
        anonymous.create_application("cache", ["contacts"])
        with anonymous.publisher(name="anonymous") as publisher, anonymous.subscribe("cache", Notes()):
            eventually(lambda: {one.state for one in status(anonymous)} == {"running"})
            with connect(address, security=Security(secret=SECRET)) as operator:
                repair_access(operator.coordination)
                with pytest.raises(CoordinationDenied, match=r"does not know us \(anonymous\)"):
                    publisher.run()
                with operator.publisher(name="known"), operator.subscribe("cache", Notes()):
                    eventually(lambda: {(one.state, one.owner) for one in status(operator)} == {("running", "known")})
                assert check_access(operator.coordination).wrong == []


def test_a_record_of_roles_that_makes_no_sense_stops_nobody_who_runs(
    running: Cluster, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    tree = running.coordination
    tree.client.set(tree.path("access"), b"nonsense")
    tree.ping()
    assert tree.closed
    assert "the rights of roles stay as they are" in caplog.text
    running.create_application("third", ["contacts"])
    with pytest.raises(ForeignValue, match="was not put there by tidings"):
        connect(address, security=Security(secret=SECRET))
    repair_access(tree)
    connect(address, security=Security(secret=SECRET)).close()
    assert check_access(tree).wrong == []
