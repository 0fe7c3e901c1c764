"""The outputs that docs/comparing.md shows are what the commands print."""

from __future__ import annotations

import re
import shlex

from safevla_bench import cli

SHOWN = re.compile(r"```sh\n(safevla [^\n]*)\n```\n```text\n(.*?)\n```", re.DOTALL)


def test_the_outputs_on_the_page_are_those_of_the_commands(tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    cli.run(["demo"])
    page = (request.config.rootpath / "docs" / "comparing.md").read_text(encoding="utf-8")
    shown = SHOWN.findall(page)
    assert len(shown) >= 4
    for command, expected in shown:
        asked, _, tail = command.partition(" | tail -n ")
        capsys.readouterr()
        cli.run(shlex.split(asked)[1:])
        printed = capsys.readouterr().out.rstrip("\n").splitlines()
        assert printed[-int(tail or len(printed)) :] == expected.splitlines(), command
