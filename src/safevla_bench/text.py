"""Formatting of numbers and names for output: exactly rounded, safe for terminals and web pages, without secrets.

Exact values are rounded, with halves away from zero. A missing number is a dash, never a zero. Names may come from
untrusted files, so their control characters are escaped. The package `safevla_recorder` registers and redacts secrets,
so that each process has only one set of secrets.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from difflib import get_close_matches
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache
from html import escape
from typing import Any

from safevla_recorder.errors import HIDDEN as HIDDEN
from safevla_recorder.errors import escape_controls as escape_controls
from safevla_recorder.errors import escape_surrogates as escape_surrogates
from safevla_recorder.errors import get_logger as get_logger
from safevla_recorder.errors import indent_further as indent_further
from safevla_recorder.errors import is_visible as is_visible
from safevla_recorder.errors import learn_secret as learn_secret
from safevla_recorder.errors import redact_secrets as redact_secrets

_log = get_logger(__name__)
NO_VALUE = "—"
_MAX_DECIMALS = 9
_EXACT = Context(prec=1100, rounding=ROUND_HALF_UP)  # exact for any float; ROUND_HALF_UP rounds halves away from zero


def format_fixed(value: Fraction | float, digits: int) -> str:
    """Return a number with `digits` decimals, rounded from its exact value; halves are rounded away from zero.

    Infinity becomes ∞, and NaN becomes a dash.

    >>> format_fixed(Fraction(381, 4), 1), format_fixed(-0.0001, 3)
    ('95.3', '0.000')
    """
    if isinstance(value, float):  # as exact as the code for Fraction below, but ten times faster
        if not math.isfinite(value):
            infinity = "∞" if value > 0 else "-∞"
            return NO_VALUE if math.isnan(value) else infinity
        text = f"{_EXACT.quantize(Decimal(value), Decimal(1).scaleb(-digits)):f}"
        is_zero = not text.strip("-0.")
        return text.removeprefix("-") if is_zero else text
    exact = Fraction(value)
    # The rounded absolute value, in units of the last decimal place.
    last_places = math.floor(abs(exact) * 10**digits + Fraction(1, 2))
    integer, decimals = divmod(last_places, 10**digits)
    sign = "-" if exact < 0 and last_places else ""
    return f"{sign}{integer}.{decimals:0{digits}d}" if digits else f"{sign}{integer}"


def join_lines(text: str) -> str:
    r"""Return a text of several lines, such as an error with its remedy, as sentences on one line.

    >>> join_lines("no such file\n  Name another.")
    'no such file. Name another.'
    """
    # A line that does not end in one of these characters gets a period.
    # A line break and the indent after it become a space.
    return re.sub(r"([.:;]?)\n\s*", lambda line_end: f"{line_end[1] or '.'} ", text)


def format_percent(count: int, n: int, digits: int = 1) -> str:
    """Return the proportion `count / n` in percent, without the percent sign; a dash if `n` is 0."""
    return format_fixed(Fraction(100 * count, n), digits) if n else NO_VALUE


def format_interval(low: float, high: float, digits: int, scale: int = 1) -> str:
    """Return an interval as `low–high`, or as `low to high` if an end is negative. `scale` multiplies both ends."""
    # Products of fractions have no rounding errors. Infinity and NaN cannot become fractions.
    ends = [format_fixed(Fraction(end) * scale if math.isfinite(end) else end, digits) for end in (low, high)]
    has_negative = any(end.startswith("-") for end in ends)
    return (" to " if has_negative else "–").join(ends)


def format_significant(value: float, figures: int = 3) -> str:
    """Return a value without exponent, with `figures` significant figures, all integer digits, at most 9 decimals."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else format_fixed(value, 0)
    # The logarithm, rounded down, is the place of the first significant figure: 0 for ones, -1 for tenths.
    decimals = figures - 1 - math.floor(math.log10(abs(value)))
    text = format_fixed(value, min(_MAX_DECIMALS, max(0, decimals)))
    is_zero = not text.strip("-0.")  # the value is too small for `_MAX_DECIMALS`
    return "0" if is_zero else text


def format_compact(value: float) -> str:
    """Return a round number, such as a limit or an axis tick, without trailing zeros or binary rounding errors."""
    text = format_fixed(round(value, 9), 6)
    return text.rstrip("0").removesuffix(".")


def format_against_limit(value: float, limit: float) -> str:
    """Return a value with three significant figures, or with more if the value would otherwise look like the limit."""
    if math.isclose(value, limit, rel_tol=1e-9):  # a difference this small is only a rounding error
        value = limit
    for figures in range(3, 16):
        text = format_significant(value, figures)
        # A value needs no further figures if it equals the limit or is infinitely far from the limit.
        # Fractions compare the text and the limit exactly.
        if value == limit or not math.isfinite(value - limit) or Fraction(text) != Fraction(limit):
            return text
    return repr(value)


_UNIT_SYMBOLS = {"deg": "°", "1": "", "m/s^2": "m/s²", "m/s^3": "m/s³"}


def display_unit(unit: str, limit: float) -> tuple[str, int]:
    """Return a unit's symbol and the factor for values. Meters become mm (factor 1000) if `limit` is below 0.1 m."""
    # `limit` is a number in `unit`, such as the limit of the values.
    if unit == "m" and 0 < abs(limit) < 0.1:
        return "mm", 1000
    return _UNIT_SYMBOLS.get(unit, unit), 1


def append_unit(text: str, unit: str) -> str:
    """Return a number and its unit, joined by a no-break space. The degree sign follows the number without a space."""
    # `rstrip` removes the space before an empty unit.
    return f"{text}{unit}" if unit == "°" else f"{text}\N{NO-BREAK SPACE}{unit}".rstrip()


def format_amount(
    value: float | None, unit: str, limit: float | None = None, write: Callable[[float], str] = format_significant
) -> str:
    """Return a value in a unit chosen by `limit` (None = by the value): 8.2 mm for 0.0082 m. Return a dash for None."""
    # `write` formats the number, which may be scaled to another unit.
    if value is None:
        return NO_VALUE
    symbol, scale = display_unit(unit, value if limit is None else limit)
    return append_unit(write(value * scale), symbol)


# Names


_SECRET_NAME = re.compile(
    r"(passw(or)?ds?|pass(code|key|phrase)|secrets?|token|credentials?"
    r"|(access|account|api|auth|client|deploy|encryption|hf|hmac|license|master|openai|private|secret|session|shared"
    r"|signing|ssh|storage|subscription|wandb)[_.-]*keys?"
    r"|(^|[_.-])(auth|authentication|authorization|bearer|connection_string|cookie|creds?|dsn|jwt|otp|pat|pwd?|sas))"
    r"[_.-]?(\d+|pem|value)?$",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Return whether an argument with this name is a secret, such as `api_key` or `hf_token`, but not `key_file`."""
    # The pattern recognizes names of secrets by their last words, such as `token` or `api_key`.
    return _SECRET_NAME.search(name) is not None


# Starts of commands in a CI log: `##[` and `##vso[` anywhere (Azure Pipelines), `::` at a line's start (GitHub).
_LOG_COMMANDS = re.compile(r"#(?=#(?:vso)?\[)|(?<![^\r\n])[^\S\r\n]*:(?=:)")


def break_log_commands(text: str) -> str:
    """Insert a space into each mark in a text that a CI log would interpret as the start of a command.

    >>> break_log_commands("::error::a::b ##[group]")
    ': :error::a::b # #[group]'
    """
    # Each match ends with the first character of a mark. Keep this character, and add a space after it.
    return _LOG_COMMANDS.sub(r"\g<0> ", text)


_NOT_PRINTABLE_ASCII = re.compile(r"[^\n -~]")


def escape_json(content: bytes) -> bytes:
    r"""Return equivalent JSON in which every invisible character is escaped as `\uXXXX`."""
    if content.isascii() and b"\x7f" not in content:  # DEL is ASCII's only invisible character allowed in JSON strings
        return content
    # Only characters outside of printable ASCII are examined; visible ones are kept.
    # The slice removes the quotation marks that `json.dumps` puts around the escaped character.
    return _NOT_PRINTABLE_ASCII.sub(
        lambda match: match[0] if is_visible(match[0]) else json.dumps(match[0])[1:-1], content.decode()
    ).encode()


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def load_json(content: bytes | str, **options: Any) -> Any:
    """Parse UTF-8 JSON. Raises `ValueError` for invalid JSON or a lone surrogate, `RecursionError` for deep nesting."""
    text = content if isinstance(content, str) else content.decode("utf-8")
    document = json.loads(text, **options)
    if _SURROGATE.search(text):  # the text contains the escape of a surrogate, which is valid only as part of a pair
        # A lone surrogate cannot be encoded as UTF-8. JSON text can contain it only as an escape.
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a string holds half a surrogate pair") from None
    return document


def require_unique_keys(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON as a table, as an `object_pairs_hook`. Raises `ValueError` for a repeated key."""
    # `json.loads` calls an `object_pairs_hook` with the (key, value) pairs of each object.
    table = dict(pairs)
    if len(table) < len(pairs):  # a repeated key exists; name the most frequent one
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated!r} is repeated")
    return table


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to each string and field name in builtin values (`msgspec.to_builtins`) and return the result."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_texts(name, change): map_texts(item, change) for name, item in value.items()}
    # Tuples become lists; numbers, booleans and None stay as they are.
    return [map_texts(item, change) for item in value] if isinstance(value, list | tuple) else value


_LOOKALIKES = str.maketrans(  # maps Cyrillic and Greek letters and punctuation to ASCII that looks the same
    "АВЕЅІЈКМНОРСТУХаесһіјорѕухԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧον‐‑‒–−’",
    "ABESIJKMHOPCTYXaechijopsyxdqwABEZHIKMNOPTYXov-----'",
)


def describe_lookalikes(plural: str, names: Iterable[str]) -> list[str]:
    """Return a sentence for each group of names that differ but look the same, such as names of policies (`plural`).

    >>> describe_lookalikes("policies", ["a b", "a  b", "c"])
    ["The names of these policies look alike and are different: 'a b', 'a  b'."]
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        # Names that look the same become equal; NFKC replaces variants of characters, such as wide letters.
        folded = unicodedata.normalize("NFKC", escape_controls(name)).translate(_LOOKALIKES)
        groups.setdefault(" ".join(folded.split()), []).append(name)  # different spaces look alike, too
    name_lists = (", ".join(map(ascii, group)) for group in groups.values() if len(group) > 1)
    return [f"The names of these {plural} look alike and are different: {name_list}." for name_list in name_lists]


MAX_CHARACTERS = 160  # limit on the length of a name in output
_TAIL_CHARACTERS = 36  # number of characters kept at the end of a long name, because long names often differ there


def shorten_name(name: str, longest: int = MAX_CHARACTERS) -> str:
    """Return the name. If the name has more than `longest` characters, return only the beginning and the end.

    >>> shorten_name("a" * 200, 50)
    'aaaaaaaaaaa … aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
    """
    start = name[: longest - _TAIL_CHARACTERS - len(" … ")]
    return name if len(name) <= longest else f"{start} … {name[-_TAIL_CHARACTERS:]}"


def shorten_names(names: Iterable[str]) -> dict[str, str]:
    """Return a map from each name to its shortened name. If two shortened names would be equal, shorten no name."""
    short = {name: shorten_name(name) for name in names}
    return short if len({*short.values()}) == len(short) else {name: name for name in short}


def suggest_names(name: str, choices: Iterable[str], label: str) -> str:
    """Return a remedy that lists the choices after `label`. A choice that is similar to `name` is suggested first."""
    names = list(choices)
    close = get_close_matches(name, names, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}{label}: {', '.join(names) or 'none'}"


_TYPES = {  # msgspec's name of a type -> the type in plain words
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table of keys",
}


def explain_mismatch(error: Exception) -> tuple[str, str]:
    """Return an error of msgspec's conversion in plain words, and the path of the wrong value: `$.steps[3].t`."""
    text = str(error)
    # msgspec ends a message with the path. If the outermost value is wrong, the message has no path; return "".
    located = re.fullmatch("(.*) - at `(?:key` in `)?([$][^`]*)`", text, re.DOTALL)
    problem, path = located.groups() if located else (text, "")
    key_error = re.fullmatch("Object (contains unknown|missing required) field `(.*)`", problem, re.DOTALL)
    type_error = re.fullmatch("Expected `([^`]*)`(.*?)(?:, got `?([^`]*)`?)?", problem, re.DOTALL)
    if key_error:
        kind_of_error, key = key_error.groups()
        problem = f"unknown key {key!r}" if kind_of_error == "contains unknown" else f"the key {key!r} is missing"
    elif type_error:
        # `expected_types` are joined by " | "; `constraint` is a further rule, such as a length, or "".
        expected_types, constraint, actual_type = type_error.groups()
        kinds = [kind for kind in expected_types.split(" | ") if kind != "null"]  # TOML has no null
        expected = " or ".join(_TYPES.get(kind, kind) for kind in kinds) or "null"
        type_names = {**_TYPES, "float": "a number with decimals"} if "int" in kinds else _TYPES
        actual = type_names.get(actual_type, actual_type)
        contrast = f", not {actual}" if actual else ""
        problem = f"{expected}{constraint.replace('matching regex', 'of the form')} is expected{contrast}"
    elif problem.startswith("Invalid enum value "):
        problem = f"{problem.removeprefix('Invalid enum value ')} is not one of the allowed values"
    return problem, path


def quote_toml(text: str) -> str:
    """Return a text as a TOML string; characters that are not visible are escaped."""
    quoted = json.dumps(text, ensure_ascii=False)  # TOML's quotation marks and short escapes are those of JSON
    return "".join(character if is_visible(character) else f"\\U{ord(character):08x}" for character in quoted)


@cache
def warn_once(*parts: str) -> None:
    """Log a warning once per process. Its text joins the parts, such as a file and a problem."""
    _log.warning("warning: %s", ": ".join(parts))


def spell_suite(name: str) -> str:
    """Return a suite's name in lower case with hyphens, so that different spellings of a suite become equal."""
    return name.lower().replace("_", "-")


def matches_pattern(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern in which `*` stands for any letters; all other signs are themselves."""
    return fnmatchcase(name, re.sub(r"[?[]", r"[\g<0>]", pattern))  # a shell pattern has further wildcards


def count_noun(count: int, noun: str, plural: str = "s") -> str:
    """Return a count with its noun.

    >>> count_noun(1, "pair"), count_noun(2, "success", "es")
    ('1 pair', '2 successes')
    """
    return f"{count} {noun}{'' if count == 1 else plural}"


def list_counts(counts: Mapping[str, int], longest: int = 3) -> str:
    """Return a text with items and their counts: the first `longest` items, and the number of further items.

    >>> list_counts({"hasty on fake/task_0": 2, "noop on fake/task_0": 1})
    '2 of hasty on fake/task_0, 1 of noop on fake/task_0'
    """
    texts = [f"{count} of {name}" for name, count in counts.items()]
    rest = [f"and {len(texts) - longest} more"] if len(texts) > longest else []
    return ", ".join([*texts[:longest], *rest])


# Lines of a terminal


def terminal_width() -> int:
    """Return the line width in characters: COLUMNS if set, or the width of the terminal; a million without both."""
    # The argument is the size (columns, lines) for an output that is not a terminal.
    return shutil.get_terminal_size((10**6, 24)).columns


_WORDS = re.compile(r"(?:`[^`]*`|(?<![^\s(])(?:safevla [a-z]|pip install ).*|[\S\xa0])+[^\S\xa0]*|\s+")


def split_words(line: str) -> list[str]:
    """Return the words of a line, each with the spaces after it. These also count as one word: a number with its unit,
    a text between backticks, a command from `safevla` or `pip install` to the end of the line, or consecutive spaces.
    """
    return _WORDS.findall(line)


def wrap_line(line: str, width: int, split: Callable[[str], Iterable[str]] = split_words) -> list[str]:
    """Break a line between words into pieces of at most `width` terminal cells; longer words stay whole."""
    from rich.cells import cell_len

    if cell_len(line) <= width:
        return [line]
    # A terminal cell is the width of a letter; some characters take two cells.
    # `split` returns the words of the line, each with the spaces after it.
    pieces = [""]
    for word in split(line):
        if cell_len((pieces[-1] + word).rstrip()) <= width:  # spaces at the end of a piece are dropped below
            pieces[-1] += word
        else:
            pieces.append(word)
    return [piece.rstrip() for piece in pieces if piece.strip()]


def wrap_text(text: str) -> str:
    """Wrap the text if stdout is a terminal. Continuation lines have the same indent as the broken line."""
    if not sys.stdout.isatty():
        return text
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip(" "))]
        lines += [indent + piece for piece in wrap_line(line[len(indent) :], terminal_width() - len(indent))]
    return "\n".join(lines)


# Tables for notebooks


def html_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", notes: Sequence[str] = ()
) -> str:
    """Return an HTML table with escaped texts, and the notes as paragraphs below it.

    >>> html_table(["policy"], [["<b>"]])
    '<table><thead><tr><th>policy</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    caption_html = _html_element("caption", caption) if caption else ""
    head_html = "".join(_html_element("th", name) for name in heads)
    rows_html = "".join(f"<tr>{''.join(_html_element('td', text) for text in row)}</tr>" for row in rows)
    notes_html = "".join(_html_element("p", note) for note in notes if note)
    return f"<table>{caption_html}<thead><tr>{head_html}</tr></thead><tbody>{rows_html}</tbody></table>{notes_html}"


def _html_element(tag: str, text: str) -> str:
    # Returns an HTML element with the text, in which markup and control characters are escaped.
    return f"<{tag}>{escape(escape_controls(text))}</{tag}>"
