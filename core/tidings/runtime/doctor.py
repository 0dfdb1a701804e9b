"""Whether this machine can run tidings: one check for each thing that it needs, with what to do if it is missing.

>>> [check.name for check in checks() if check.name in ("python", "java")]
['python', 'java']
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

from kazoo.hosts import collect_hosts
from packaging.requirements import Requirement

from tidings.audit import recorded
from tidings.coordination.access_check import Findings, check_access, repair_access
from tidings.coordination.session import ZooKeeperSession
from tidings.coordination.tls import tls_of_environment
from tidings.coordination.zookeeper import Coordination
from tidings.errors import TidingsError
from tidings.hosts import is_loopback
from tidings.identity.environment import credentials_of_environment
from tidings.runtime import jars, java

ZOOKEEPER_PORT = 2181
ANSWERS_S, REFUSED_S = 3.0, 1.0  # what ZooKeeper is given to answer, and to begin to listen
MIN_MEMORY_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `fix` is what to do about it: empty unless `ok` is false."""

    name: str
    ok: bool
    found: str
    fix: str = ""


def checks(zookeeper: str | None = None, *, repair: bool = False) -> list[Check]:
    """Look at everything. ZooKeeper has to answer only if an address is given, here or by TIDINGS_ZOOKEEPER.

    With `repair`, every node in ZooKeeper gets the rights that it should have.
    """
    address = zookeeper or os.environ.get("TIDINGS_ZOOKEEPER") or None
    return [
        check_python(),
        check_java(),
        check_packages(),
        check_jars(),
        check_memory(),
        check_ports(),
        check_zookeeper(address),
        *([check_roles(address, repair=repair)] if address else []),
    ]


def check_python() -> Check:
    """Python is 3.11 or later."""
    version = tuple(sys.version_info[:3])
    found = ".".join(map(str, version))
    if version >= (3, 11):
        return Check("python", True, found)
    return Check("python", False, found, "Install Python 3.11 or later.")


def check_java() -> Check:
    """Java is there and new enough for Spark."""
    return _tried("java", lambda: f"{(found := java.find()).version} at {found.path}")


def check_packages() -> Check:
    """What this distribution requires is installed, in a version that it allows."""
    try:
        required = importlib.metadata.requires("tidings") or []
    except importlib.metadata.PackageNotFoundError:
        return Check("packages", False, "tidings is not installed", "Run 'pip install -e .' in its folder.")
    wrong, count = [], 0
    for requirement in map(Requirement, required):
        # Those of an extra are not wanted here: whatever needs one names it.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
        else:
            if not requirement.specifier.contains(version, prereleases=True):
                wrong.append(f"{requirement.name} is {version}, not {requirement.specifier}")
    if wrong:
        return Check("packages", False, "; ".join(wrong), f"Run '{sys.executable} -m pip install --upgrade tidings'.")
    return Check("packages", True, f"{count} in their required versions")


def check_jars() -> Check:
    """The jars are there and are the pinned ones. Nothing is fetched."""
    wanted = jars.pins()
    if os.environ.get("TIDINGS_JARS"):
        return _tried("jars", lambda: f"{len(wanted)} in {jars.folder()} (TIDINGS_JARS)")
    try:
        place = jars.cache()
    except TidingsError as error:
        return Check("jars", False, "no place for them", _sentence(str(error)))
    if not place.is_dir():
        return Check("jars", False, f"not in {place}", "Run 'tidings jars'.")
    wrong = jars.problems(place, wanted)
    if wrong:
        return Check("jars", False, f"in {place} {'; '.join(wrong)}", "Run 'tidings jars', which fetches them again.")
    return Check("jars", True, f"{len(wanted)} in {place}")


def check_memory() -> Check:
    """There is memory for Spark's driver and a few Python workers."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = f"{total / 1024**3:.1f} GiB"
    if total >= MIN_MEMORY_BYTES:
        return Check("memory", True, found)
    return Check("memory", False, found, f"Use a machine with at least {MIN_MEMORY_BYTES // 1024**3} GiB.")


def check_ports(port: int = ZOOKEEPER_PORT) -> Check:
    """The port of a ZooKeeper for development is free, or has a ZooKeeper on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            pass
        else:
            return Check("ports", True, f"{port} is free")
    answer = probe_zookeeper("127.0.0.1", port)
    if answer is not None:
        return Check("ports", True, f"{port} is in use by a ZooKeeper ({answer})")
    fix = f"Stop what uses port {port}, or run 'tidings zookeeper' with another port."
    return Check("ports", False, f"{port} is in use, and not by a ZooKeeper", fix)


def check_zookeeper(address: str | None) -> Check:
    """The ZooKeeper of that address answers; any one of its servers will do."""
    if address is None:
        return Check("zookeeper", True, "none was asked for; name one with --zookeeper or TIDINGS_ZOOKEEPER")
    servers = address.partition("/")[0].split(",")
    if os.environ.get("TIDINGS_ZOOKEEPER_AUTHORITY"):  # it would not answer in clear
        return _check_by_tls(address)
    for server in servers:
        host, _, port = server.strip().rpartition(":") if ":" in server else (server.strip(), "", str(ZOOKEEPER_PORT))
        host = host.strip("[]")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            fix = "Write the address as host:port/root, or host:port,host:port/root."
            return Check("zookeeper", False, f"'{address}' is no address", fix)
        answer = probe_zookeeper(host, int(port))
        if answer is not None:
            return Check("zookeeper", True, f"{host}:{port} answers ({answer})")
    fix = "Start it ('tidings zookeeper' runs one for development), or correct the address."
    return Check("zookeeper", False, f"{','.join(servers)} does not answer", fix)


def _check_by_tls(address: str) -> Check:
    try:
        with contextlib.closing(
            ZooKeeperSession(
                address, timeout=ANSWERS_S, refused_timeout=REFUSED_S, tls=tls_of_environment(), insecure=True
            )
        ) as session:
            return Check("zookeeper", True, f"{session.hosts} answers by TLS")
    except TidingsError as error:
        return Check("zookeeper", False, str(error), "Correct the address, or the files of TLS to ZooKeeper.")


def check_roles(address: str, *, repair: bool = False) -> Check:
    """Only those whom the cluster knows are let in, and every node has the rights that it should have."""
    try:
        with contextlib.closing(
            Coordination(
                address,
                timeout=ANSWERS_S,
                refused_timeout=REFUSED_S,
                credentials=credentials_of_environment(),
                tls=tls_of_environment(),
                insecure=True,  # nothing there is believed
            )
        ) as tree:
            return _check_rights(tree, repair=repair)
    except TidingsError as error:
        return Check("roles", False, str(error), "Correct the address, or say who you are: see 'tidings keys --help'.")


def _check_rights(tree: Coordination, *, repair: bool) -> Check:
    mending = f"tidings doctor --zookeeper {tree.address} --repair"
    if not tree.credentials.secrets:
        if tree.closed:
            return Check("roles", True, f"known as {tree.credentials.role}; whoever has the secret can check more")
        local = all(is_loopback(host) for host, _ in collect_hosts(tree.hosts)[0])
        found = "open: everybody who reaches it may change everything"
        found += "; it is on this machine, and TIDINGS_SECRET would close it" if local else ""
        return Check("roles", local, found, "" if local else f"Set TIDINGS_SECRET, and run '{mending}'.")
    findings = _repaired(tree) if repair else check_access(tree)
    if findings.foreign:
        found = f"{_some(findings.foreign)} may be mended by others only"
        return Check("roles", False, found, "Delete them, or mend them as the superuser of ZooKeeper.")
    if findings.wrong and not repair:
        found = f"{_some(findings.wrong)} of {findings.nodes:,} have other rights than they should"
        return Check("roles", False, found, f"Run '{mending}'.")
    mended = f", {_some(findings.wrong)} mended" if findings.wrong else ""
    return Check("roles", True, f"{findings.nodes:,} nodes have the rights that they should{mended}")


def _repaired(tree: Coordination) -> Findings:
    before = {"closed": tree.closed}
    # What is wrong may be the rights of the audit.
    with recorded(tree, "doctor repair", [tree.root], before=before, required=False) as entry:
        findings = repair_access(tree)
        entry.after = {"closed": True, "mended": len(findings.wrong), "foreign": len(findings.foreign)}
    return findings


def _some(places: list[str]) -> str:
    more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
    return f"{places[0]}{more}"


def probe_zookeeper(host: str, port: int, timeout: float = 2.0) -> str | None:
    """The version and mode of the ZooKeeper there, or None if nothing there answers as one within `timeout` seconds."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.settimeout(timeout)
            # The one four-letter word that a ZooKeeper answers unless it was told not to.
            connection.sendall(b"srvr")
            answer = b""
            while len(answer) < 65536 and (part := connection.recv(4096)):
                answer += part
    except (OSError, UnicodeError):
        return None
    version = re.search(rb"^Zookeeper version: ([\w.]+)", answer, re.MULTILINE)
    mode = re.search(rb"^Mode: (\w+)", answer, re.MULTILINE)
    if version is None:
        return None
    return f"{version[1].decode()}, {mode[1].decode() if mode else 'not serving'}"


def _tried(name: str, look: Callable[[], str]) -> Check:
    # The sentence of the error says both what is wrong and what to do: found and fix are its two halves.
    try:
        return Check(name, True, look())
    except TidingsError as error:
        what, _, todo = str(error).rpartition(": ")
        return Check(name, False, what, _sentence(todo))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
