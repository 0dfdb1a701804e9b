"""Whether every node of a cluster's tree has the rights that `tidings.coordination.roles` says; and mending those."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.security import ACL

from tidings.coordination.membership import make_room
from tidings.coordination.roles import ACCESS, AccessRules, rights_at, top_places
from tidings.coordination.values import encode
from tidings.coordination.zookeeper import Coordination
from tidings.errors import InvalidOption

Parts = tuple[str, ...]

ASKED_AT_ONCE = 1_000
MENDING_ROUNDS = 5
HEARING_S = 1.0  # those who run beside it may make nodes with other rights until they have heard of the new ones


class Findings(NamedTuple):
    """How many nodes there are, the places of those that have other rights, and of those that only others may mend."""

    nodes: int
    wrong: list[str]
    foreign: list[str]


def check_access(tree: Coordination) -> Findings:
    """Look at all nodes. Needs the secret of the cluster, by which the rights of each are known."""
    return _look(tree, _rules(tree), mend=False)


def repair_access(tree: Coordination) -> Findings:
    """Give every node its rights, from the root on; what is returned was mended, but for what is foreign.

    It also closes a tree that was open, and deletes what subscribers or pipelines have made for themselves alone. While
    the secret is replaced, those under the new and the old one are let in.
    """
    rules = _rules(tree)
    with tree.translating_errors():
        _make_places(tree, rules)
        mended: set[str] = set()
        for _ in range(MENDING_ROUNDS):
            nodes, wrong, foreign = _look(tree, rules, mend=True)
            mended |= {*wrong, *(path for path in foreign if _deleted(tree, path))}
            if not wrong and not mended.intersection(foreign):
                break
            time.sleep(HEARING_S)
    return Findings(nodes, sorted(mended), foreign)


def _deleted(tree: Coordination, path: str) -> bool:
    """Delete what others keep us from, in a place where they may make something: they can make it again."""
    parts = path.removeprefix(tree.root).strip("/").split("/")
    above = rights_at(parts[:-1])
    if "c" not in above.application + above.producer:
        return False
    try:
        tree.wait(tree.client.delete_async(path))
    except (NotEmptyError, NoAuthError, NoNodeError):
        return False
    return True


def _rules(tree: Coordination) -> AccessRules:
    if not tree.credentials.secrets:
        raise InvalidOption("the rights of roles are known by the secret of the cluster: set TIDINGS_SECRET")
    return AccessRules.of_secrets(tree.credentials)


def _make_places(tree: Coordination, rules: AccessRules) -> None:
    """The root first, so that nobody else makes anything there; and the record of roles, before anything is closed."""
    tree.wait(tree.client.ensure_path_async(tree.root))
    _set_rights(tree, (), rules)
    record = encode(rules.record())
    for name in top_places():
        value, acl = record if name == ACCESS else b"", rules.acl((name,))
        try:
            tree.wait(tree.client.create_async(tree.path(name), value, acl))
        except NodeExistsError:
            if name == ACCESS:
                _set_rights(tree, (name,), rules)
                tree.wait(tree.client.set_async(tree.path(name), record))
    for application in tree.children("applications"):
        make_room(tree, application)


def _set_rights(tree: Coordination, parts: Parts, rules: AccessRules) -> None:
    tree.wait(tree.client.set_acls_async(tree.path(*parts), rules.acl(parts)))


def _look(tree: Coordination, rules: AccessRules, *, mend: bool) -> Findings:
    nodes, wrong, foreign = 0, [], []
    with tree.translating_errors():
        for found in _walk(tree):
            nodes += len(found)
            off = [parts for parts, rights in found.items() if not _same(rights, rules.acl(parts))]
            denied = _mend(tree, rules, off) if mend else {parts for parts in off if not found[parts]}
            wrong += [tree.path(*parts) for parts in off if parts not in denied]
            foreign += [tree.path(*parts) for parts in off if parts in denied]
    return Findings(nodes, wrong, foreign)


def _walk(tree: Coordination) -> Iterator[dict[Parts, list[ACL]]]:
    """The rights of all nodes, many at a time, from the root on; none where we may not look."""
    level: list[Parts] = [()]
    while level:
        some, level = level[:ASKED_AT_ONCE], level[ASKED_AT_ONCE:]
        asked = {
            parts: (tree.client.get_acls_async(tree.path(*parts)), tree.client.get_children_async(tree.path(*parts)))
            for parts in some
        }
        found: dict[Parts, list[ACL]] = {}
        for parts, (rights, children) in asked.items():
            try:
                found[parts] = tree.wait(rights)[0]
                level += [(*parts, name) for name in tree.wait(children)]
            except NoAuthError:
                found[parts] = []
            except NoNodeError:
                found.pop(parts, None)  # it went meanwhile
        yield found


def _mend(tree: Coordination, rules: AccessRules, off: list[Parts]) -> set[Parts]:
    """Give nodes their rights; those for which we have no right to do so are returned."""
    asked = {parts: tree.client.set_acls_async(tree.path(*parts), rules.acl(parts)) for parts in off}
    denied = set()
    for parts, pending in asked.items():
        try:
            tree.wait(pending)
        except NoAuthError:
            denied.add(parts)
        except NoNodeError:
            continue
    return denied


def _same(found: list[ACL], wanted: list[ACL]) -> bool:
    return {(one.perms, one.id) for one in found} == {(one.perms, one.id) for one in wanted}
