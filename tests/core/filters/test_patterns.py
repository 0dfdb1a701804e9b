"""Regular expressions match the same in RE2, in Java and in Python, and none of them is slow."""

from __future__ import annotations

import re
import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.support.filter_cases import in_arrow, in_spark, table, update, with_spark
from tidings.errors import InvalidFilter
from tidings.filters import Matches, as_filter
from tidings.filters.patterns import pattern

letters = st.sampled_from(
    ["a", "b", "/", "é", "😀", r"\.", "\n", r"\n", ".", "[ab]", "[^a]", "[^/]", r"\w", r"\D", "[a-z😀]"]
)
QUANTIFIERS = ["?", "*", "+", "{2}", "{1,3}", "{2,}", "{0,2}"]
expressions = st.recursive(
    letters,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(QUANTIFIERS)).map(lambda p: f"(?:{p[0]}){p[1]}"),
        st.tuples(inner, inner).map(lambda parts: f"{parts[0]}.*{parts[1]}"),
        inner.map(lambda one: f"{one}.*"),
        inner.map(lambda one: f".*{one}"),
    ),
    max_leaves=7,
)  # fmt: skip


def accepted(expression: str) -> bool:
    try:
        pattern(expression)
    except InvalidFilter:
        return False
    return True


safe = expressions.filter(accepted)
subjects = st.text(st.sampled_from("ab/é😀.\n0_"), max_size=9)


@settings(max_examples=300, deadline=None)
@given(safe, st.lists(subjects, min_size=10, max_size=40))
def test_re2_reads_an_expression_as_python_does(expression: str, texts: list[str]) -> None:
    found = pc.match_substring_regex(pa.array(texts), pattern(expression).re2).to_pylist()
    assert found == [re.fullmatch(expression, text, re.DOTALL | re.ASCII) is not None for text in texts]


@pytest.mark.slow
@with_spark
@given(st.lists(safe, min_size=30, max_size=60), st.lists(subjects, min_size=40, max_size=120))
def test_java_reads_an_expression_as_python_does(spark: SparkSession, wanted: list[str], texts: list[str]) -> None:
    frame = spark.createDataFrame(pa.table({"text": pa.array(texts)})).coalesce(1)
    found = frame.select(*(F.col("text").rlike(pattern(e).java).alias(str(n)) for n, e in enumerate(wanted))).toArrow()
    for expression, column in zip(wanted, found.columns, strict=True):
        expected = [re.fullmatch(expression, text, re.DOTALL | re.ASCII) is not None for text in texts]
        assert column.to_pylist() == expected, expression


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+", "(a+)+b", "(a*)*", "(a|a)*b", "(a|ab)*c", "(a|b|ab)*c", "(a?){30}a{30}", "a*a*b", r"\w*\w*\w*x",
        r"\d+\d+", "(.*)*", "[a-z]+.*x", "(.*,)*x", "(x+x+)+y", r"(\w+\s?)*x", ".*a.{60}", "(a{1,50}){1,50}",
        "a{100}{100}", "((a{9}){9}){9}",
        "(a|a)" * 30, "a?" * 30 + "a" * 30, "(a?|b?)" * 30 + "c",
    ],
)  # fmt: skip
def test_an_expression_that_could_blow_up_is_refused_at_once(expression: str) -> None:
    start = time.monotonic()
    assert not accepted(expression)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    "expression",
    [
        "^a", "a$", "a*?", "a*+", "a++", "a**", "(?=a)", "(?!a)", "(?<n>a)", "(?i)a", r"(a)\1", r"\bx", r"\p{L}",
        r"\x41", r"\u0041", r"\Aa", r"\z", r"\Qa\E", "[[:alpha:]]", "[a&&b]", "[]", "[]a]", "[^]", "[z-a]",
        r"[\d-z]", r"[a-\d]", "[a", "(a", "a)", "{2}", "a{", "a{,2}", "a{2,1}", "a{0}", "a{9999}", "*a", "a|", "()",
        "}", "]", r"[^\d\D]", "", "a\\",
    ],
)  # fmt: skip
def test_what_the_engines_do_not_share_is_refused(expression: str) -> None:
    with pytest.raises(InvalidFilter, match="regular expression"):
        pattern(expression)


@pytest.mark.parametrize(
    ("expression", "matching", "other"),
    [
        ("contacts/.*", "contacts/x\ny", "contacts"),
        (r".+@.+\.(com|org)", "a@b.org", "a@.org"),
        (".*(error|warn).*disk.*", "a warning: disk full", "disk error"),
        (".*(abcd|c).*d", "abcd", "abc"),
        (".*errors?.*s", "errors", "error"),
        ("users/[^/]+/phones/[0-9]+", "users/é/phones/12", "users/a/b/phones/1"),
        ("(/[a-z]+)*", "/a/bc", "/a/"),
        ("([a-z]+,)*[0-9]", "a,b,3", "a,b"),
        ("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "01234567-89ab-cdef-0123-456789abcdef", "01234567"),
        (r"[\]\-^]+", "]-^", "a"),
        ("[-a]", "-", "b"),
        ("..", "😀é", "😀"),
        (r"\s+", " \t\n\x0b\f\r", "\xa0"),
        (r"\d", "7", "٣"),
    ],
)
def test_an_expression_matches_the_whole_value(spark: SparkSession, expression: str, matching: str, other: str) -> None:
    rows = table([update(object=matching), update(object=other)])
    wanted = as_filter(Matches("object", expression))
    assert in_arrow(wanted, rows) == [True, False] == in_spark(spark, [wanted], rows)[0]


def test_no_accepted_expression_is_slow_or_overflows_the_stack_on_long_values(spark: SparkSession) -> None:
    size = 300_000
    wanted = {
        ".*foo.*bar.*baz": "foo" * size,
        "(.*o){20}": "o" * 19 + "f" * size,
        ".*foo.*bar": "foobar" * size + "x",
        ".*a{30}b": "a" * size,
        "(/[a-z]+)*": "/abc" * size + "/",
        "(a|bc|d[ef]?)*": "abcdedf" * size + "b",
        "([a-z]+,)*;": "abc," * size,
        "[^/]*/[^/]*/[^/]*x": "a/" * size,
        ".*(error|err|errata) .*x": "errata error" * size,
        "[a😀]{200,}b": "a😀" * size,
        r".*\w{20}-": "w" * size,
    }
    rows = table([update(object="o", source=text) for text in wanted.values()])
    filters = [as_filter(Matches("source", expression)) for expression in wanted]
    start = time.monotonic()
    found = in_spark(spark, filters, rows)
    assert time.monotonic() - start < 60
    assert found == [in_arrow(one, rows) for one in filters]


def test_the_largest_expressions_run_in_both_engines(spark: SparkSession) -> None:
    rows = table([update(object="é" * 256), update(object="/" * 256), update(object="x")])
    wanted = [as_filter(Matches("object", e)) for e in ("[^/]{256}", "[^/]{0,256}", ".{256}.{0,255}", "(é|x){1,256}")]
    assert in_spark(spark, wanted, rows) == [in_arrow(one, rows) for one in wanted]
    assert in_arrow(wanted[1], rows) == [True, False, True]
