"""The check of added lines finds misspellings and phrases in them, by file and line, and nothing in older lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / ".ci" / "check_words.py"


def test_misspellings_and_phrases_are_found_in_added_lines_alone(tmp_path):
    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, SCRIPT, "HEAD"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("It is told anew, with teh old mistake.\n")  # words: ok
    git("init")
    git("add", ".")
    git("commit", "-m", "begin")
    page.write_text(page.read_text() + "A color.\nThe teh is red.\n")  # words: ok
    module.write_text("anew = 1\n# written anew\nx = 'told apart'  # words: ok\n")  # words: ok
    git("add", ".")
    assert check().stdout.splitlines() == [
        "module.py:2: 'anew'; better: again",  # words: ok
        "page.md:3: `teh` should be `the`",  # words: ok
    ]
    assert check().returncode == 1
    git("commit", "-m", "go on")
    assert (check().returncode, check().stdout) == (0, "")
