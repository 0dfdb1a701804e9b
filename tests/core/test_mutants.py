"""The list of faults that `make mutants` tries is of this code, and of these tests."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutants.faults import FAULTS, Fault
from tests.support.places import ROOT


def defined(file: str) -> set[str]:
    """The names that a file of tests has at its top."""
    found = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_each_fault_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_into_the_code_and_its_tests_are_there(fault: Fault) -> None:
    before = (ROOT / fault.file).read_text()
    after = fault.applied(ROOT)
    assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before)), "it changes what the code does"
    assert fault.tests or fault.explained, "somebody should notice, or it is said why nobody can"
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file()
        assert not name or name.partition("[")[0] in defined(file)
