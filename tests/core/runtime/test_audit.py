"""The list of known holes, and whether one would be found."""

from __future__ import annotations

import tomllib

from tests.audit import ROOT, Part, holes, jar_parts, parts_of, python_parts

KNOWN = tomllib.loads((ROOT / "audit.toml").read_text())


def test_nothing_that_is_used_has_a_known_hole() -> None:
    parts = list(parts_of(ROOT))
    assert {part.kind for part in parts} == {"python", "jars"}
    assert list(holes(parts, KNOWN)) == []


def test_a_known_hole_is_found_and_a_later_version_has_none() -> None:
    jars = ["broker/lz4-java-1.8.0.jar", "lz4-java-1.10.1.jar", "netty-codec-http2-4.2.3.Final.jar", "tink-1.jar"]
    assert list(holes(jar_parts(jars, "here"), KNOWN)) == [
        "lz4-java 1.8.0 (here): CVE-2025-12183, closed in 1.8.1",
        "lz4-java 1.8.0 (here): CVE-2025-66566, closed in 1.10.1",
        "netty-codec-http2 4.2.3 (here): CVE-2025-55163, closed in 4.2.4",
    ]
    assert len(list(holes(python_parts(["# a comment", "aiohttp==3.12.0", "PyYAML==6.0.3"]), KNOWN))) == 2


def test_names_with_versions_in_them_are_told_apart() -> None:
    assert list(jar_parts(["spark-sql-kafka-0-10_2.13-4.2.0.jar"], "here")) == [
        Part("jars", "spark-sql-kafka-0-10_2.13", "4.2.0", "here")
    ]
