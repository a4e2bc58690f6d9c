"""Results that cannot be read are refused by the name of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import results


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "deeper" / "r.json"
    results.write(file, results.record("codec", {"rounds": 1}, {"350 B": [{"ns_per_op": 1.5}]}))
    back = results.read(file)
    assert back["command"] == "codec"
    assert back["options"] == {"rounds": 1}
    assert back["cases"] == {"350 B": [{"ns_per_op": 1.5}]}
    assert "trio" in back["versions"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99, "cases": {}}', '{"format": 1, "cases": []}'])
def test_files_of_another_form_are_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text(text)
    with pytest.raises(results.BadResultsError, match=r"r\.json: no"):
        results.read(file)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(results.BadResultsError, match=r"nothing\.json: No such file"):
        results.read(tmp_path / "nothing.json")
