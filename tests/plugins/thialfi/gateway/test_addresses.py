"""Where a client is, whoever stands between."""

from __future__ import annotations

import pytest

from tidings.errors import InvalidOption
from tidings_thialfi.gateway.addresses import Addresses, counted
from tidings_thialfi.gateway.options import GatewayOptions


@pytest.mark.parametrize(
    ("peer", "headers", "found"),
    [
        ("192.0.2.1", ["198.51.100.1"], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1, 10.9.9.9"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1"], "198.51.100.1"),
        ("::ffff:10.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", ["198.51.100.1, nonsense"], "10.0.0.1"),
        ("10.0.0.1", [", ".join(["10.0.0.2"] * 5000)], "10.0.0.2"),
    ],
)
def test_only_trusted_proxies_say_whom_they_forward(peer: str, headers: list[str], found: str) -> None:
    assert Addresses(["10.0.0.0/8"]).behind(peer, headers) == found


def test_an_address_of_ipv6_counts_as_its_network() -> None:
    assert counted("2001:db8:0:1::1") == counted("2001:db8:0:1:ffff::2") != counted("2001:db8:0:2::1")
    assert counted("fe80::1%eth0") == counted("fe80::2")


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(InvalidOption, match="write a proxy's address or network"):
        GatewayOptions(trusted_proxies=("10.0.0.0/99",))
