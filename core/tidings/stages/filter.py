"""The stage `filter`: the updates that pass a filter, as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from tidings.errors import TidingsError
from tidings.filters import parse
from tidings.stages import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_filter(text: str) -> str:
    """The text, if it is a filter; ValueError, as pydantic wants it, if it is not."""
    try:
        parse(text)
    except TidingsError as error:
        raise ValueError(str(error)) from None
    return text


FilterText = Annotated[str, AfterValidator(check_filter)]


class FilterStage(Stage):
    """Lets through the updates that pass `filter`, a filter's text as an application has it."""

    filter: FilterText

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows that pass."""
        return rows.where(parse(self.filter).column())
