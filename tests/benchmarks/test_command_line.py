"""The face of `python -m benchmarks`: every command explains itself, and refuses a wrong flag by its name."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: python -m benchmarks {command}" in text


# Those that need arguments miss them first; their own tests give them.
@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in {"compare", "paired"}])
def test_each_command_names_a_flag_that_it_does_not_have(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--no-such-flag"])
    assert ended.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err
