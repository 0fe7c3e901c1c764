"""Pages that scripts make are what the scripts make now."""

from __future__ import annotations

import pytest

SCRIPTS = ("compare", "dependencies", "firmness", "generate", "hosts", "reconstruct", "which_command")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_is_up_to_date(load_tool, name, monkeypatch):
    script = load_tool(name)
    monkeypatch.setenv("COLUMNS", "100")
    assert script.PAGE.read_text(encoding="utf-8") == script.build_page(), f"run python docs/tools/{name}.py"


def test_the_readme_has_the_five_most_common_rows_of_the_page_of_commands(load_tool):
    script = load_tool("which_command")
    assert sum(row.is_common for rows in script.SECTIONS.values() for row in rows) == 5
    assert script.README.read_text(encoding="utf-8") == script.build_readme(), "run python docs/tools/which_command.py"


def test_commands_with_outputs_are_found_on_the_page_of_comparisons(load_tool):
    script = load_tool("compare")
    assert len(script.SHOWN.findall(script.PAGE.read_text(encoding="utf-8"))) >= 2


def test_a_check_writes_nothing_and_tells_an_outdated_page(load_tool, tmp_path, capsys):
    run, page, updates = load_tool("made_page").run_script, tmp_path / "page.md", []

    def run_with(*arguments: str) -> int:
        return run(arguments, page, lambda: f"updated {len(updates)} times", lambda: updates.append(1))

    assert (run_with("--check"), page.exists()) == (1, False)
    assert "out of date" in capsys.readouterr().err
    assert (run_with(), run_with("--check")) == (0, 0)
    assert (run_with("--update"), page.read_text()) == (0, "updated 1 times")
    with pytest.raises(SystemExit) as raised:
        run_with("nonsense")
    assert raised.value.code == 2
