"""What cannot be meant is one clear sentence, for `applications`, `subscribe`, `publisher` and `flows`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Run, told
from tidings.cluster import Cluster


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("applications create x --stream nope", 1, "error: there is no stream 'nope' in "),
        ("applications create x", 2, "Missing option '--stream'"),
        ("applications create x/y --stream contacts", 1, "error: 'x/y' is no name for an application"),
        ("applications create x --stream contacts --stream contacts", 1, "each named once"),
        ("applications create x --stream contacts --mode fast", 1, "error: mode 'fast' of application 'x' is none of"),
        (
            "applications create x --stream contacts --max-age PT30S",
            1,
            "max_age is for realtime mode, and application 'x' is reliable",
        ),
        ("applications create x --stream contacts --max-age 30", 2, "Invalid value for '--max-age'"),
        ("applications create x --stream contacts --balance nope", 1, "error: no balancer 'nope' is installed"),
        ("applications create x --stream contacts --start {}", 2, "Invalid value for '--start'"),
        ("applications create x --stream contacts --start tomorrow", 2, "Invalid value for '--start'"),
        ("applications create x --stream contacts --start {", 2, "Invalid value for '--start'"),
        ('applications create x --stream contacts --start {"a":{"0":1}}', 1, "stream 'a' is none of the application's"),
        ('applications create x --stream contacts --start {"contacts":{"9":1}}', 1, "has shards 0 to 1"),
        ("applications describe nope", 1, "error: there is no application 'nope' in "),
        ("applications drop nope --yes", 1, "error: there is no application 'nope' in "),
        ("subscribe nope", 1, "error: there is no application 'nope' in "),
        ("subscribe cache --id a/b", 1, "error: 'a/b' is no name for a subscriber"),
        ("subscribe cache --capacity 0", 2, "Invalid value for '--capacity'"),
        (
            "subscribe cache --application-key nope",
            2,
            "Invalid value for '--application-key': 'nope' cannot be read: No such file",
        ),
        (
            "subscribe cache --application-key empty",
            2,
            "Invalid value for '--application-key': 'empty' holds no secret: it is empty",
        ),
        ("subscribe cache --application-key .", 2, "Invalid value for '--application-key'"),
        ("subscribe cache --tls-authority junk", 1, "error: 'junk' is no certificate in PEM"),
        (
            "streams create a --log host=h,password=hunter2",
            1,
            "error: the address of a log must not hold a password, since it",
        ),
        ("keys show --application cache", 2, "error: name the file of the cluster's secret by --secret-file"),
        ("keys show --application a/b --secret-file short", 1, "error: 'a/b' is no name for an application"),
        ("subscribe cache --tls-certificate nope", 2, "Invalid value for '--tls-certificate': 'nope' cannot be read"),
        ("subscribe cache --tls-certificate junk", 2, "error: TLS needs both --tls-certificate and --tls-key"),
        ("subscribe cache --tls-certificate junk --tls-key junk", 1, "'junk' and 'junk' are no certificate in PEM"),
        ("publisher --tls-authority junk", 1, "'junk' is no certificate in PEM"),
        ("publisher --listen here", 1, "error: 'here' is no address to listen at"),
        ("publisher --listen 0.0.0.0:0", 1, "error: whoever can reach 0.0.0.0:0 would get every update"),
        (
            "publisher --listen 203.0.113.7:1 --insecure",
            1,
            "cannot listen on 203.0.113.7:1: Cannot assign requested address",
        ),
        ("publisher --tls-certificate junk", 2, "error: TLS needs both --tls-certificate and --tls-key"),
        ("publisher --secret-file short", 1, "error: a secret of fewer than 16 characters is guessed"),
        ("publisher --secret-file many", 1, "error: 9 secrets are too many: at most 8 can be good at a time"),
        ("publisher --secret-file large", 2, "'large' is no file of secrets or certificates: it is too large"),
        ("publisher --listen 0.0.0.0:0 --insecure", 1, "error: nobody can connect to 0.0.0.0: say by --advertise"),
        ("publisher --advertise foo", 1, "error: 'foo' is no address that others can connect to: write host:port"),
        ("publisher --advertise unix:/tmp/s:1", 1, "error: 'unix:/tmp/s:1' is no address that others can connect to"),
        ("publisher --advertise 127.0.0.1:0", 1, "error: '127.0.0.1:0' is no address that others can connect to"),
        ("keys show --application cache --secret-file short", 1, "error: a secret of fewer than 16 characters is"),
        ("subscribe cache --json --exec cat", 2, "error: --json is about printing"),
        ("publisher --streams nope", 1, "error: there is no stream 'nope' in "),
        ("publisher --streams contacts,", 2, "error: --streams is a list of names"),
        ("publisher --name a/b", 1, "error: 'a/b' is no name for a publisher"),
        ("publisher --secret-file nope", 2, "Invalid value for '--secret-file'"),
        ("publisher --tls-authority nope", 2, "Invalid value for '--tls-authority'"),
        ("flows list --application nope", 1, "error: there is no application 'nope' in "),
        ("flows list --stream nope", 1, "error: there is no stream 'nope' in "),
        (
            "flows list --application cache --stream clicks",
            1,
            "error: application 'cache' does not read stream 'clicks'",
        ),
        ("flows describe cache/contacts", 2, "'cache/contacts' is no flow; write APP/STREAM/SHARD"),
        ("flows describe cache/contacts/9", 1, "error: stream 'contacts' has shards 0 to 1, not 9"),
        ("flows describe nope/contacts/0", 1, "error: there is no application 'nope' in "),
    ],
)
def test_bad_input_is_one_clear_sentence(
    cache: Cluster, run: Run, tmp_path: Path, arguments: str, code: int, message: str
) -> None:
    cache.create_stream("clicks", 2, f"delta:{tmp_path / 'clicks'}")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "junk").write_text("no certificate\n")
    (tmp_path / "short").write_text("sesame\n")
    (tmp_path / "many").write_text("".join(f"a-secret-of-the-cluster-{number}\n" for number in range(9)))
    (tmp_path / "large").write_text("x" * (2**20 + 1))
    result = run(*arguments.split())
    assert (result.code, result.out) == (code, ""), result.err
    assert message in result.err.splitlines()[-1]
    assert "Traceback" not in result.err
    if code == 1:
        told(result.err)
    assert run("applications", "describe", "cache", "--json").json["subscribers"] == []
