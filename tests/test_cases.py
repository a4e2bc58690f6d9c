"""docs/cases.md: no case is forgotten, and each names tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import attrs
import pytest

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"

#: All that were ever written down. The gaps are cases that turned out to be no cases of their own.
NUMBERS = {
    *(1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 14, 15),
    *(16, 17, 19, 20, 21),
    *(23, 24, 26, 27, 28, 30),
    *(32, 33, 34, 36, 37, 39, 40),
    *(41, 43, 44, 45, 46, 47, 48, 50, 51, 52, 60),
    *(53, 54),
    *(55, 57, 58, 59),
}


@attrs.frozen
class Case:
    """One row of the page."""

    number: int
    symptom: str
    threads: str
    right: str
    here: str
    tests: str


def parse_rows(text: str) -> list[Case]:
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", text, re.MULTILINE)
    return [Case(int(number), *(cell.strip() for cell in cells.split("|"))) for number, cells in rows]


CASES = parse_rows((DOCS / "cases.md").read_text(encoding="utf-8"))
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.number))


def named_tests(cell: str) -> list[tuple[str, str]]:
    """Return file and name of each test of a cell; a name alone is of the file before it."""
    tests: list[tuple[str, str]] = []
    file = ""
    for item in filter(None, cell.split(", ")):
        match = re.fullmatch(r"`([\w/]+\.py)?::([\w:]+)`", item)
        assert match is not None, f"not a test: {item}"
        file = match[1] or file
        assert file, f"no file before {item}"
        tests.append((file, match[2]))
    return tests


@cache
def collected_names(file: str) -> frozenset[str]:
    """Return the names that pytest collects from a file: functions, and ``Class::method``."""
    body = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    names = functions_of(body)
    for statement in body:
        if isinstance(statement, ast.ClassDef) and statement.name.startswith("Test"):
            names |= {f"{statement.name}::{name}" for name in functions_of(statement.body)}
    return frozenset(names)


def functions_of(body: list[ast.stmt]) -> set[str]:
    functions = (node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {node.name for node in functions if node.name.startswith("test_")}


def test_every_case_has_one_row() -> None:
    assert sorted(case.number for case in CASES) == sorted(NUMBERS)


@each_case
def test_a_case_names_tests_that_there_are(case: Case) -> None:
    tests = named_tests(case.tests)
    missing = [f"{file}::{name}" for file, name in tests if name not in collected_names(file)]
    assert not missing
    assert len(set(tests)) == len(tests)
    assert tests


@each_case
def test_a_case_says_what_it_is(case: Case) -> None:
    assert case.symptom
    assert case.right
    assert re.fullmatch(r"held|fixed: .+", case.here)
    for group in case.threads.split("; ") if case.threads != "none; read in sources" else ():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+, )*#\d+", group)


def test_the_page_is_in_the_index() -> None:
    assert re.search(r"^cases$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_a_name_that_is_no_test_is_found() -> None:
    """The checks above can fail."""
    assert "test_every_case_has_one_row" in collected_names("test_cases.py")
    assert "TestMultiMap::test_add_appends" in collected_names("test_metadata.py")
    for missing in ("named_tests", "TestMultiMap", "test_add_appends", "test_that_nobody_wrote"):
        assert missing not in collected_names("test_metadata.py") | collected_names("test_cases.py")
    with pytest.raises(AssertionError, match="no file before"):
        named_tests("`::test_x`")
    with pytest.raises(AssertionError, match="not a test"):
        named_tests("test_x.py::test_x")
