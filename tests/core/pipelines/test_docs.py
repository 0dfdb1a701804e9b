"""The page on pipelines names what there is."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

import pytest

from tests.support.places import ROOT
from tidings.config.spec import load
from tidings.stages import GROUP, make
from tidings.testing import run_stage

PAGE = (ROOT / "docs" / "pipelines.md").read_text()


@pytest.mark.parametrize("stage", ["filter", "latest", "map", "reshard"])
def test_every_option_of_a_built_in_stage_is_in_its_table(stage: str) -> None:
    (entry,) = (one for one in entry_points(group=GROUP) if one.name == stage)
    section = PAGE.split(f"### {stage}\n")[1].split("\n#")[0]
    table = section.split("| option |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(entry.load().model_fields)


def test_the_pipelines_of_the_example_have_options_that_their_stages_take() -> None:
    spec = load(ROOT / "examples" / "tidings.yml")
    assert set(spec.pipelines) == {"europe", "newest"}
    for pipeline in spec.pipelines.values():
        make(pipeline.stage, pipeline.options)


@pytest.mark.slow
def test_the_stage_in_the_plugin_page_works_as_its_test_says() -> None:
    page = (ROOT / "docs" / "writing-a-plugin.md").read_text()
    stage = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Greeting" in block)
    check = "\n".join(line for line in page.splitlines() if line.startswith(("out = run_stage", "assert out")))
    assert check.count("\n") == 1
    exec(f"{stage}\n{check}", {"run_stage": run_stage})
