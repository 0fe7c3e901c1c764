"""What commands print and write, byte for byte as it was; `make golden` writes it anew."""

from __future__ import annotations

import pytest

from golden_commands import COMMANDS, FOLDER, write_outputs


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")


def test_commands_print_and_write_what_is_in_the_golden_files(tmp_path):
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(COMMANDS)
    for name, text in write_outputs(tmp_path):
        assert (FOLDER / f"{name}.txt").read_text(encoding="utf-8") == text, name
