"""Where a request comes from: the peer's address, or what a proxy says that its operator trusts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from tidings.errors import InvalidOption

PREFIX_IPV6 = 64  # what one subscriber of a network has at least, and may take any address of
MAX_HOPS = 32  # of a header: what is before them is nobody's

_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d{1,5})?|([\d.]+):\d{1,5}")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Addresses:
    """Finds the address behind the proxies that are trusted, which are given as networks.

    >>> addresses = Addresses(["10.0.0.0/8"])
    >>> addresses.behind("10.0.0.1", ["6.6.6.6, 192.0.2.7, 10.0.0.2"])  # what is left of it, anybody may have written
    '192.0.2.7'
    >>> addresses.behind("192.0.2.1", ["6.6.6.6"])
    '192.0.2.1'
    >>> [addresses.behind("10.0.0.1", [said]) for said in ("192.0.2.7:443", "[2001:db8::1]:443", "[2001:db8::1]")]
    ['192.0.2.7', '2001:db8::1', '2001:db8::1']
    """

    def __init__(self, proxies: Iterable[str]) -> None:
        try:
            self._proxies = [ipaddress.ip_network(one, strict=False) for one in proxies]
        except ValueError as error:
            raise InvalidOption(f"{error}: write a proxy's address or network, as in 10.0.0.0/8") from None

    def trusts(self, peer: str) -> bool:
        """Whether this is a proxy, whose word is taken and whose connections are many clients'."""
        found = _parsed(peer)
        return found is not None and any(found in network for network in self._proxies)

    def behind(self, peer: str, forwarded: Iterable[str]) -> str:
        """The nearest address that is no proxy's; `forwarded` are the headers `X-Forwarded-For`."""
        hops = [_without_port(hop.strip()) for header in forwarded for hop in header.split(",")[-MAX_HOPS:]][-MAX_HOPS:]
        while self.trusts(peer) and hops and _parsed(hops[-1]) is not None:
            peer = hops.pop()
        return peer


def counted(address: str) -> str:
    """What an address is counted as: IPv6 by the network of its subscriber.

    >>> counted("192.0.2.7"), counted("::ffff:192.0.2.7"), counted("2001:db8:1:2:3::4"), counted("")
    ('192.0.2.7', '192.0.2.7', '2001:db8:1:2::/64', '')
    """
    found = _parsed(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, PREFIX_IPV6), strict=False))
    return address if found is None else str(found)


def _without_port(hop: str) -> str:
    """Some proxies write one."""
    found = _WITH_PORT.fullmatch(hop)
    return found[1] or found[2] if found else hop


def _parsed(address: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found
