"""Writes the outputs that docs/howto/comparing.md shows, by running the commands it shows: python docs/tools/compare.py

With --check nothing is written: the exit code is 1 where the page is out of date.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from made_page import run_script

from safevla_bench import cli

PAGE = Path(__file__).parents[1] / "howto" / "comparing.md"
SHOWN = re.compile(r"(```sh\n(safevla [^\n]*)\n```\n```text\n)(.*?)(\n```)", re.DOTALL)
WIDTH = "100"
"""Columns of the terminal that the page shows."""


def build_page() -> str:
    """The page with what its commands print now, after `safevla demo` in an empty folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["COLUMNS"] = WIDTH
        _capture_output("safevla demo")
        return SHOWN.sub(
            lambda found: found[1] + _capture_output(found[2]) + found[4], PAGE.read_text(encoding="utf-8")
        )


def _capture_output(command: str) -> str:
    """What a command prints; `| tail -n N` leaves its last lines."""
    asked, _, tail = command.partition(" | tail -n ")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        cli.run_command_line(shlex.split(asked)[1:])
    lines = printed.getvalue().rstrip("\n").splitlines()
    return "\n".join(lines[-int(tail or len(lines)) :])


if __name__ == "__main__":
    sys.exit(run_script(sys.argv[1:], PAGE, build_page))
