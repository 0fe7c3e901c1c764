"""Check the words of added lines, their spelling by typos and the phrases below: .ci/check_words.py [BASE].

BASE is the commit to compare with: by default the common ancestor with main, or on main the commit before. A line with
`words: ok` is not checked.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PHRASES = {
    r"told|tells?|telling": "say, report or distinguish",
    r"beside": "next to, or in addition to",
    r"anew": "again",
    r"whoever|whatever|nobody|somebody": "who, what, no one, or name the person",
    r"thereby|therein|thereof|hence|herein|likewise": "so, in it, of it, also",
    r"mend(?:s|ed|ing)?": "fix",
    r"of (?:ours|theirs|its own|one's own)": "our, its",
    r"(?:is|are) to be|to be had": "must be, or is available",
    r"taken for|parts from": "mistaken for, differs from",
    r"but for|but that": "except",
}
FILES = ("*.py", "*.md", "*.toml", "*.html", ":!tests/golden", ":!docs/tools/dependencies.toml", ":!.ci/check_words.py")
Added = tuple[str, int, str]  # file, line from 1, text


def run_git(*arguments: str) -> str:
    """Return what git prints; "" if it fails."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def find_base() -> str:
    """Return the common ancestor with main, or on main the commit before; HEAD in a clone without history."""
    head = run_git("rev-parse", "HEAD").strip()
    ancestors = (run_git("merge-base", "HEAD", name).strip() for name in ("origin/main", "main"))
    before = run_git("rev-parse", "--verify", "-q", "HEAD~1").strip()
    return next((base for base in ancestors if base not in ("", head)), before or head)


def added_lines(base: str) -> Iterator[Added]:
    """Yield the lines of the working tree that `base` lacks."""
    file, number = "", 0
    for line in run_git("diff", "-U0", "--no-color", "--no-ext-diff", base, "--", *FILES).splitlines():
        if line.startswith("+++ "):
            file = line[6:]
        elif found := re.match(r"@@ -\S+ \+(\d+)", line):
            number = int(found[1])
        elif line.startswith("+"):
            if "words: ok" not in line:
                yield file, number, line[1:]
            number += 1


def prose_lines(file: str) -> set[int]:
    """Return the lines of a Python file that hold a string or a comment."""
    tokens = tokenize.tokenize(io.BytesIO(Path(file).read_bytes()).readline)
    kinds = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    return {line for token in tokens if token.type in kinds for line in range(token.start[0], token.end[0] + 1)}


def find_phrases(added: list[Added]) -> Iterator[str]:
    """Yield a message for each phrase."""
    prose = {file: prose_lines(file) for file in {file for file, *_ in added} if file.endswith(".py")}
    for file, number, line in added:
        if number not in prose.get(file, {number}):
            continue
        for phrase, better in PHRASES.items():
            if found := re.search(rf"\b(?:{phrase})\b", line):
                yield f"{file}:{number}: {found[0]!r}; better: {better}"


def find_misspellings(added: list[Added]) -> Iterator[str]:
    """Yield a message for each word that typos corrects."""
    options = ("--config", ROOT / "pyproject.toml", "--format", "brief", "-")
    text = "\n".join(line for *_, line in added)
    typos = Path(sys.executable).parent / "typos"
    done = subprocess.run([typos, *options], input=text, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 2):
        yield f"typos failed: {done.stderr.strip()}"
    for found in re.finditer(r"^-:(\d+):\d+: error: (.*)$", done.stdout, re.MULTILINE):
        file, number, _ = added[int(found[1]) - 1]
        yield f"{file}:{number}: {found[2]}"


def main() -> int:
    """Print the messages; return 1 if there are any."""
    added = list(added_lines(sys.argv[1] if len(sys.argv) > 1 else find_base()))
    messages = [*find_phrases(added), *find_misspellings(added)]
    if messages:
        print("\n".join(messages))
    return bool(messages)


if __name__ == "__main__":
    sys.exit(main())
