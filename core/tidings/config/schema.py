"""The JSON Schema of a `tidings.yml`, by which editors complete keys and mark mistakes.

It is made from the models that read the file, so it cannot say something else than they do; what only shows beside a
cluster, or between two keys, is left to `tidings apply --dry-run`.
"""

from __future__ import annotations

from typing import Any

from tidings.config.spec import SECTIONS, Spec
from tidings.names import NAME_PATTERN

DIALECT = "https://json-schema.org/draft/2020-12/schema"

DESCRIPTIONS: dict[str, dict[str, str]] = {
    "Spec": {
        "name": "A label for people.",
        "zookeeper": "The cluster's address, host:port[,host:port…][/root].",
        "storage": "The folder where pipelines keep their checkpoints and tables, relative to this file.",
        "streams": "Streams by name.",
        "applications": "Applications by name.",
        "pipelines": "Pipelines by name.",
    },
    "StreamSpec": {
        "shards": "How many shards; it cannot be changed later.",
        "log": "Where its updates live, as in delta:data/contacts; a folder is relative to this file.",
        "logs": "Instead of log: several logs by name, for a family of streams.",
        "retention": "How long, or how much of it, a log of ours keeps.",
        "options": "What the log of a datastore is told.",
        "caravans": "How publishers read the log: the policy, and limits.",
        "replicas": "Other logs that have the same updates at the same positions, by name.",
        "collect": "The policies by which obsolete updates are collected, as in latest_per_key: true.",
    },
    "RetentionSpec": {
        "age": "How long updates are kept: an ISO 8601 duration, as in P7D.",
        "size": "How much is kept: bytes, or with a unit, as in 10GiB.",
    },
    "CaravansSpec": {
        "policy": "gaps, single, one-per-flow, or a plugin's.",
        "caravans": "How many there may be for each publisher.",
        "rate": "The limit of each, in updates a second.",
        "total_rate": "The limit of all together, in updates a second.",
    },
    "ApplicationSpec": {
        "streams": "The streams that it reads.",
        "filter": "Which updates it gets, as in region = eu and amount > 5.",
        "start": "earliest, latest, a time with its zone, or the first position in each shard, by stream.",
        "mode": "reliable: every update, at least once; realtime: only what is new.",
        "max_age": "For realtime: older updates are skipped. An ISO 8601 duration, as in PT1M.",
        "balance": "How flows are spread over subscribers: random, zookeeper, or a plugin's.",
        "on_failure": "After all retries: park the flow, skip the update, or keep it in stream:<name>.",
    },
    "PipelineSpec": {
        "input": "A stream, or a list of them.",
        "stage": "The stage's name; `tidings plugins` lists those that are installed.",
        "options": "The stage's options.",
        "output": "The stream that it writes; a stage that only keeps tables has none.",
        "max_rows": "How many updates of each input a batch has at most.",
    },
}


def schema() -> dict[str, Any]:
    """The schema, as plain JSON.

    >>> schema()["properties"]["zookeeper"]["description"]
    "The cluster's address, host:port[,host:port…][/root]."
    """
    found = Spec.model_json_schema(mode="validation")
    models = {"Spec": found, **found["$defs"]}
    for name, model in models.items():
        model.pop("description")
        for key, value in model["properties"].items():
            model["properties"][key] = {"description": DESCRIPTIONS[name][key], **_plain(value)}
    for section in SECTIONS:
        found["properties"][section]["propertyNames"] = {"pattern": f"^{NAME_PATTERN}$"}
    models["StreamSpec"]["oneOf"] = [{"required": ["log"]}, {"required": ["logs"]}]
    return {"$schema": DIALECT, **found, "title": "tidings.yml"}


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """What is said of a key, without what the models say by the way; a mapping may be left empty, as in `streams:`."""
    default = value.pop("default", None)
    value.pop("title", None)
    if isinstance(default, dict):
        reference = value.pop("$ref", None)
        return (
            {"anyOf": [{"$ref": reference}, {"type": "null"}]} if reference else {**value, "type": ["object", "null"]}
        )
    return value if default is None else {**value, "default": default}
