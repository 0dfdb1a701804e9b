"""What a process says at `/metrics`, `/health/live` and `/health/ready`, asked over HTTP."""

from __future__ import annotations

import http.client
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from tidings.testing import eventually

Series = dict[tuple[str, ...], float]


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    """The status and the body of an answer."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def series(text: str) -> Series:
    """The samples, by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(address: str) -> Series:
    """All samples of a process."""
    code, text = get(address, "/metrics")
    assert code == 200
    return series(text)


def ready(address: str) -> tuple[bool, str]:
    """Whether it is ready, and what it says of that."""
    code, text = get(address, "/health/ready")
    assert code in (200, 503)
    return code == 200, text


def scraped(address: str, key: tuple[str, ...], wanted: Callable[[float], bool], timeout: float = 30.0) -> Series:
    """All samples, once this one is as it should be."""

    def look() -> Series:
        found = scrape(address)
        return found if key in found and wanted(found[key]) else {}

    return eventually(look, timeout)


def complaint(address: str, timeout: float = 30.0) -> str:
    """What it says once it is not ready."""
    return eventually(lambda: "" if (told := ready(address))[0] else told[1], timeout)
