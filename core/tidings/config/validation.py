"""What pydantic finds wrong with what a person wrote, be it a file or the options of a stage, in our words."""

from __future__ import annotations

import difflib
import reprlib
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel

from tidings.config.yaml_lines import Key


def explain(error: dict[str, Any], model: type[BaseModel]) -> str:
    """One error that validating `model` gave, as what is to be said of its key."""
    value, context = reprlib.repr(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "value_error":
            return str(context["error"])
        case "missing":
            return "is missing"
        case "extra_forbidden":
            keys = _keys_beside(error["loc"], model)
            meant = difflib.get_close_matches(str(error["loc"][-1]), keys, 1)
            if meant:
                return f"unknown key; did you mean {meant[0]}?"
            return f"unknown key; the keys are {', '.join(keys)}" if keys else "unknown key"
        case "greater_than_equal":
            return f"must be at least {context['ge']:,}, not {value}"
        case "less_than_equal":
            return f"must be at most {context['le']:,}, not {value}"
        case "too_short":
            return "must name one at least"
        case "literal_error":
            return f"must be {context['expected']}, not {value}"
        case "int_type":
            return f"must be a whole number, not {value}"
        case "string_type":
            return f"must be text, not {value}"
        case "list_type":
            return f"must be a list, not {value}"
        case "dict_type" | "model_type":
            return f"must be a mapping of keys, not {value}"
    return f"{error['msg']}, not {value}"


def _keys_beside(key: Key, model: type[BaseModel]) -> list[str]:
    """The keys that may stand where this one does; none if the model's types do not tell, as a union of models."""
    kind: Any = model
    for part in key[:-1]:
        fields = getattr(kind, "model_fields", {})
        # Where there are no fields, the part is a name in a mapping or a place in a list.
        kind = fields[part].annotation if part in fields else next(reversed(get_args(kind)), None)
        choices = get_args(kind)
        if len(choices) == 2 and choices[1] is NoneType:
            kind = choices[0]
    return list(getattr(kind, "model_fields", {}))
