"""The console's colours: enough contrast to read, and owners that can be told apart without full colour vision."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import tidings.console

Colour = npt.NDArray[np.float64]

TOKENS = (Path(tidings.console.__file__).parent / "pages" / "style" / "tokens.css").read_text()
COLOURS = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", TOKENS)
THEMES = {
    "light": {name: light for name, light, _ in COLOURS},
    "dark": {name: dark for name, _, dark in COLOURS},
}
TEXT, GRAPHICS = 4.5, 3.0  # WCAG 2.2, levels AA, for 1.4.3 and 1.4.11
APART = 0.06  # in OKLab: a difference that is seen at once, side by side

# Machado, Oliveira and Fernandes 2009, full severity.
VISIONS = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> Colour:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def oklab(colour: Colour) -> Colour:
    cones = np.array([[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]])
    lab = np.array([[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]])
    seen: Colour = lab @ np.cbrt(cones @ np.clip(colour, 0, 1))
    return seen


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read_on_every_ground(theme: str) -> None:
    colours = THEMES[theme]
    weak = [
        f"{text} on {ground}: {contrast(colours[text], colours[ground]):.2f}"
        for text in ("ink", "muted", "accent", "good", "warn", "bad")
        for ground in ("ground", "surface", "raised", "hover", "chosen", "warn-ground", "bad-ground")
        if contrast(colours[text], colours[ground]) < TEXT
    ]
    assert weak == []
    assert contrast(colours["on-accent"], colours["accent"]) >= TEXT
    assert contrast(colours["on-accent"], colours["bad"]) >= TEXT


@pytest.mark.parametrize("theme", THEMES)
def test_borders_lines_and_owners_stand_out_from_the_surface(theme: str) -> None:
    colours = THEMES[theme]
    shown = [name for name in colours if re.match(r"owner-|line-|edge", name)]
    assert len(shown) == 8 + 2 + 1
    assert [name for name in shown if contrast(colours[name], colours["surface"]) < GRAPHICS] == []


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", THEMES)
def test_owners_differ_from_one_another_and_from_nobody(theme: str, vision: str) -> None:
    names = [name for name in THEMES[theme] if name.startswith("owner-")] + ["nobody"]
    seen = {name: oklab(VISIONS[vision] @ linear(THEMES[theme][name])) for name in names}
    alike = [
        (one, other)
        for one, other in itertools.combinations(names, 2)
        if np.linalg.norm(seen[one] - seen[other]) < APART
    ]
    assert alike == []
