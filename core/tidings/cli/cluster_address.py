"""Which cluster a command works with: `--zookeeper`, else TIDINGS_ZOOKEEPER, else the nearest `tidings.yml`.

Of the file only that key is read: whatever else is wrong with it is no concern of a command that wants the address.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tidings.config.files import nearest, read_bytes
from tidings.errors import InvalidConfig, InvalidOption, TidingsError
from tidings.hosts import DEFAULT_ADDRESS

VARIABLE = "TIDINGS_ZOOKEEPER"
_KEY = "zookeeper"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """An address, and the file that names it, if nobody named that file and it is in a folder above.

    Such a file may be anybody's: who we are is not told to whoever listens there.
    """

    text: str
    found_above: Path | None = None

    def check_trusted(self) -> None:
        """Raise if our credentials must not go there."""
        if self.found_above is not None:
            raise InvalidOption(
                f"our credentials are not sent to {self.text}, since {self.found_above} was found in a folder above: "
                "name the file, or the address by --zookeeper"
            )


def cluster_address(option: str | None, file: Path | None = None) -> ClusterAddress:
    """The cluster that the option names, else the environment, else this file or the nearest one, else the default."""
    return stated_address(option, file) or ClusterAddress(DEFAULT_ADDRESS)


def stated_address(option: str | None, file: Path | None = None) -> ClusterAddress | None:
    """The same; None if nobody names any."""
    if named := option or os.environ.get(VARIABLE):
        return ClusterAddress(named)
    path, here = file, None
    try:
        here = Path.cwd()
        path = file or nearest(here)
        address = None if path is None else _named(Path(path.name) if path.parent == here else path)
    except FileNotFoundError:  # the working directory was removed
        return None
    except InvalidConfig as error:
        raise InvalidConfig(f"{error}; mend it, or name the cluster by --zookeeper") from None
    if address is None:
        return None
    return ClusterAddress(address, path if file is None and path is not None and path.parent != here else None)


def _named(path: Path) -> str | None:
    """The address that a file gives as its `zookeeper`, if it does."""
    if _KEY.encode() not in read_bytes(path):  # spares most commands the YAML, and a file that is broken elsewhere
        return None
    from tidings.config.yaml_lines import Mistakes, read
    from tidings.coordination.session import split_address

    mistakes = Mistakes(path, {})
    value = read(mistakes)
    address = value.get(_KEY) if isinstance(value, dict) else None
    if address is None:
        return None
    try:
        if not isinstance(address, str):
            raise InvalidConfig(f"must be text, not {address!r:.40}")
        split_address(address)
    except TidingsError as error:
        raise InvalidConfig(f"{path}:{mistakes.lines[(_KEY,)]}: {_KEY}: {error}") from None
    return address
