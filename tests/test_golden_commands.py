"""What commands print and write is as in the golden files; `make golden` rewrites them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from golden_commands import FOLDER

SCRIPT = "import golden_commands, pathlib, sys; golden_commands.main(*map(pathlib.Path, sys.argv[1:]))"


def test_commands_print_and_write_what_is_in_the_golden_files(tmp_path):
    build, written = tmp_path / "build", tmp_path / "golden"
    build.mkdir()
    # In a separate process, since versions and digests are masked there.
    subprocess.run([sys.executable, "-c", SCRIPT, written, build], cwd=Path(__file__).parent, check=True)
    golden, made = (
        {
            str(path.relative_to(folder)): path.read_text(encoding="utf-8")
            for path in folder.rglob("*")
            if path.is_file() and path.parent.name != "messages"  # their wording is free
        }
        for folder in (FOLDER, written)
    )
    assert sorted(golden) == sorted(made)
    for name, text in made.items():
        assert golden[name] == text, name
