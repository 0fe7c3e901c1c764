"""Commands that went into others: their names work for one release, with a note on stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Words = list[str]


@dataclass(frozen=True, slots=True)
class FormerCommand:
    """A former command: what does its work today, and its arguments as that command takes them."""

    today: str
    translate: Callable[[Sequence[str]], Words]

    def note(self, name: str) -> str:
        """Return the note that says what the former command `name` is called now."""
        return f"note: `safevla {name}` is `safevla {self.today}` now; the old name goes with the next release"


def _spell(arguments: Sequence[str], names: Mapping[str, str]) -> Words:
    """Return the arguments with options renamed by `names`, old -> new; `--old VALUE` and `--old=VALUE` alike."""
    parts = [argument.partition("=") for argument in arguments]
    return [f"{names.get(name, name)}{equals}{value}" for name, equals, value in parts]


def _translate_stl(arguments: Sequence[str]) -> Words:
    """Return the words of `show` with `--formula` before the formula.

    The formula is the first word that is neither an option nor the value of `--format`.
    """
    words, place = [argument for argument in arguments if argument != "--"], 0
    while place < len(words) and words[place].startswith("--"):
        place += 2 if words[place] == "--format" else 1
    return ["show", *words[:place], *(["--formula"] if words[place:] else []), *words[place:]]


def _translate_tags(arguments: Sequence[str]) -> Words:
    """Return the words of `tasks` for those of `tags propose`; `tasks --help` for any other word than `propose`.

    `--bddl` becomes `--propose`, and the form `toml` becomes `text`, which prints the same TOML.
    """
    if arguments[:1] != ["propose"]:
        return ["tasks", "--help"]
    words = _spell(arguments[1:], {"--bddl": "--propose"}) or ["--propose"]
    return ["tasks", *(word.replace("toml", "text") if _is_form(words, k) else word for k, word in enumerate(words))]


def _is_form(words: Sequence[str], place: int) -> bool:
    return words[place] == "--format=toml" or (words[place] == "toml" and words[place - 1] == "--format")


FORMER_COMMANDS: Mapping[str, FormerCommand] = {
    "report": FormerCommand("score --report FILE", lambda words: ["score", *_spell(words, {"--out": "--report"})]),
    "stl": FormerCommand("show --formula FORMULA", _translate_stl),
    "samplesize": FormerCommand(
        "compare --plan POINTS", lambda words: ["compare", *_spell(words, {"--detect": "--plan"})]
    ),
    "entries": FormerCommand("protocols --entries", lambda words: ["protocols", "--entries", *words]),
    "tags": FormerCommand("tasks --propose FILE", _translate_tags),
    "schema": FormerCommand("validate --schema", lambda words: ["validate", "--schema", *words]),
    "import": FormerCommand("score", lambda words: ["score", *words]),
}
"""Former name -> what does its work today."""
