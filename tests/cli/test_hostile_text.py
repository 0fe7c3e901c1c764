"""Whatever a name, an instruction, a message or a description says, every output only shows it.

One world of hostile texts goes through every command that shows a stranger's text, and what comes out is
parsed by somebody else's parser. Its twin, with plain texts, says what tags, commands and files there are.
"""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory

from cli.hostile_texts import BENIGN, LIE, MARK, TEXTS, World, world
from report.browser import Browser
from safevla_bench.cli import run_command_line

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    folder = tmp_path_factory.mktemp("worlds")
    return {"bad": world(folder / "bad", [*TEXTS.values()]), "good": world(folder / "good", BENIGN)}


# What each form must hold. Each is given the hostile output and the plain one.


IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode 15, DerivedCoreProperties.txt: Default_Ignorable_Code_Point; and U+2800, a blank."""


def console(bad: str, good: str) -> None:
    """Nothing that a terminal acts on, no line that a CI log takes for a command, and none that a name begins."""
    shown_only(bad)
    assert not [line for line in bad.splitlines() if line.startswith(LIE)]
    assert not [line for line in bad.splitlines() if re.match(r"\s*::|.*##(vso)?\[", line)]


def shown_only(bad: str, good: str = "") -> None:
    """No control but the end of a line, no direction, nothing invisible."""
    acting = {c for c in bad if c != "\n" and not (c.isprintable() or unicodedata.category(c) == "Zs")}
    acting |= {c for c in bad if IGNORABLE.match(c)}
    assert not acting, sorted(map(ascii, acting))


def strict_json(bad: str, good: str) -> None:
    """JSON by its standard, in which every character is seen."""
    shown_only(bad)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads(bad, parse_constant=refuse)


def console_json(bad: str, good: str) -> None:
    console(bad, good)
    strict_json(bad, good)


def sarif(bad: str, good: str) -> None:
    """No link in a message: a bracket has a backslash in front of it (SARIF 2.1.0, 3.11.6)."""
    strict_json(bad, good)
    for result in json.loads(bad)["runs"][0]["results"]:
        assert not re.search(r"(?<!\\)(\\\\)*[\[\]]", result["message"]["text"])


def recording(bad: str, good: str) -> None:
    """The texts of an MCAP file, each on a line."""
    shown_only(bad)


def comma_separated(bad: str, good: str) -> None:
    """A table with commas; and where a spreadsheet splits at other separators, or reads a line as text, no formula."""
    for line in bad.splitlines():
        assert not re.search(r"""[;|\t][\s"]*[=+@\uff0b\uff1d\uff20]""", line), line
    rows = list(csv.reader(io.StringIO(bad, newline="")))
    assert len({len(row) for row in rows}) == 1
    formulas = [field for row in rows for field in row if field[:1] in ("=", "+", "-", "@", "\t", "\r")]
    assert all(re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?|-inf|-", field) for field in formulas)
    shown_only(bad.replace("\r\n", "\n"))


def markdown(bad: str, good: str) -> None:
    """As many cells in each row, and no mark, link, image or tag that the plain one has not."""
    shown_only(bad)
    assert len(set(_rows(bad))) == 1
    parser = MarkdownIt("commonmark").enable("table").disable("text_join")
    tokens = parser.parse(bad)
    assert {token.type for token in tokens} == {token.type for token in parser.parse(good)}
    parts = [child for token in tokens for child in token.children or ()]
    assert {part.type for part in parts} <= {*SHOWN_PARTS, "strong_open", "strong_close", "softbreak", "code_inline"}
    # https://github.github.com/gfm/#autolinks-extension-: an e-mail address is found in text that was unescaped.
    assert not [part for part in parts if part.type == "text" and re.search(r"(?i)\bwww\.|://|mailto:", part.content)]
    text = "".join(part.content if part.type in SHOWN_PARTS else " " for part in parts)
    assert not re.findall(r"[\w.+-]+@[\w-]+\.[\w.-]+", text)


SHOWN_PARTS = ("text", "text_special")


def _rows(text: str) -> list[int]:
    return [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]


TEX = re.compile(r"\\[A-Za-z]+|\\.|[%{}&$#^_~]|[^\\%{}&$#^_~]+", re.DOTALL)
SHOWN = {
    *("\\textbackslash", "\\textasciitilde", "\\textasciicircum", "\\textless", "\\textgreater", "\\textbar", "\\char"),
    *("\\&", "\\%", "\\$", "\\#", "\\_", "\\{", "\\}", "\\shortstack", "\\dag"),
    *(
        "\\normalsize",
        "\\small",
        "\\footnotesize",
        "\\scriptsize",
        "\\tiny",
        "\\allowbreak",
        "\\addtocounter",
    ),  # a long text
}


def tex(bad: str, good: str) -> None:
    """The commands are those of the plain one and those that show a character; braces and cells come out even."""
    shown_only(bad)
    tokens, plain = TEX.findall(bad), TEX.findall(good)
    commands, plain_commands = ({token for token in side if token.startswith("\\")} for side in (tokens, plain))
    assert commands <= plain_commands | SHOWN
    assert "%" not in tokens, "a comment swallows the rest of a line"
    assert tokens.count("{") == tokens.count("}")
    for part in bad.split("\\toprule")[1:]:  # a table with long texts is split
        rows = [line for line in part[part.index("\\midrule") :].splitlines() if line.endswith("\\\\")]
        assert len({TEX.findall(line).count("&") for line in rows}) == 1
    assert tokens.count("$") % 2 == 0
    assert not set(tokens) & {"#", "_"}
    parts = 1 + tokens.count("\\addtocounter")
    assert tokens.count("\\begin") == tokens.count("\\end") == 2 * parts


class Skeleton(HTMLParser):
    """Tags, attributes of tags, addresses, comments, and what scripts and styles hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.addresses: set[str] = set()
        self.comments: set[str] = set()
        self.raw: set[str] = set()
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.tags.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        self.addresses |= {value or "" for name, value in attrs if name in ("href", "src", "action", "xlink:href")}

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.raw.add(data)

    def handle_comment(self, data: str) -> None:
        self.comments.add(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def page(bad: str, good: str) -> None:
    """The same kinds of tags and attributes, the same scripts, styles and comments; addresses stay in the page."""
    shown_only(bad)
    hostile, plain = Skeleton(bad), Skeleton(good)
    for kind in ("tags", "attributes", "comments", "raw"):
        assert getattr(hostile, kind) <= getattr(plain, kind), kind
    for address in hostile.addresses:
        assert re.match(r"#|data:image/|(\.\./)?[a-z0-9._/-]+(#.*)?$|https://", address), address
    assert {address for address in hostile.addresses if address.startswith("http")} <= plain.addresses


def _elements(text: str) -> set[str]:
    """Of documents one after the other."""
    parts = re.split(r"(?=<\?xml )", text)
    return {element.tag for part in parts if part.strip() for element in ElementTree.fromstring(part).iter()}


def xml(bad: str, good: str) -> None:
    """Well-formed, with the tags of the plain one."""
    shown_only(bad)
    assert _elements(bad) <= _elements(good)
    names = [name for element in ElementTree.fromstring(bad).iter() for name in element.attrib]
    assert not any(name.split("}")[-1].startswith("on") for name in names)


# The outputs. RUN, OUT and JUDGE stand for the world's; after `>` the file that is looked at, else what is printed.

FORMS: dict[str, Callable[[str, str], None]] = {
    ".html": page,
    ".json": strict_json,
    ".csv": comma_separated,
    ".md": markdown,
    ".tex": tex,
    ".xml": xml,
    ".svg": xml,
    ".txt": shown_only,
    ".sarif": sarif,
    ".mcap": recording,
}
COMMANDS = {
    "score": "score RUN --out OUT JUDGE",
    **{f"tables {form}": f"tables RUN --format {form} --out OUT/ JUDGE" for form in ("md", "csv", "tex", "html")},
    "tables on the console": "tables RUN JUDGE",
    "tables as json on the console": "tables RUN --format json JUDGE",
    "export": "export RUN --format safevla-csv --out OUT/e.csv JUDGE",
    "a recording for Foxglove": "export RUN --format mcap --episode :1 --out OUT/e.mcap JUDGE",
    "submission": "export RUN --format submission --out OUT/s.json JUDGE",
    "episodes": "episodes RUN JUDGE",
    "episodes as csv": "episodes RUN --format csv JUDGE",
    "episodes as json": "episodes RUN --format json JUDGE",
    "show": "show RUN :1 --all JUDGE",
    "show as a page": "show RUN :1 --html OUT/p.html JUDGE",
    "show as json": "show RUN :3 --format json JUDGE",
    "formula": "show RUN --formula G[0,T](eef_speed<1)",
    "compare": "compare RUN RUN --unpaired --policy ONE --policy OTHER JUDGE",
    "sensitivity": "sensitivity RUN JUDGE",
    "gate": "gate RUN --min-safety 0.9 --per cell --junit OUT/g.xml JUDGE",
    "gate as SARIF": "gate RUN --min-safety 0.9 --per cell --junit OUT/g.sarif JUDGE",
    "gate against a baseline": "gate RUN --baseline RUN --min-safety -0.9 --allow-crashed JUDGE",
    "select, which refuses other tasks": "select RUN --subject-to safety>=0.9 JUDGE",
    "figures": "figures RUN --out OUT --format svg JUDGE",
    "board": "board RUN --out OUT --no-reports JUDGE",
    "specs": "specs --library SPECS",
    "specs explained": "specs --library SPECS --explain mine_3",
    "specs as json": "specs --library SPECS --format json",
    "tasks": "tasks --rules REGISTRY",
    "tasks as json": "tasks --rules REGISTRY --format json",
    "validate": "validate RUN",
    "verify": "verify RUN",
    "results": "score RESULTS",
    "results as json": "score RESULTS --format json",
    "convert": "convert RUN OUT/many.jsonl",
}


@dataclass(frozen=True)
class Outcome:
    """What a command printed, its files that are text, and all its files."""

    printed: str
    texts: dict[str, str]
    files: dict[str, Path]


@pytest.fixture(scope="module")
def run_once(worlds: dict[str, World], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Outcome]:
    """What a command makes of a world, each made once."""
    folder = tmp_path_factory.mktemp("done")
    return cache(lambda name, kind: run_on(name, worlds[kind], folder / f"{name.replace(' ', '-')}-{kind}" / "out"))


def read_mcap(path: Path) -> str:
    """The texts of an MCAP file: its metadata, topics and JSON messages, and names of frames."""
    with path.open("rb") as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        texts = [text for own in reader.iter_metadata() for text in own.metadata.values()]
        for _, channel, _, proto in reader.iter_decoded_messages(topics=["/tf", "/violations"]):
            texts += [channel.topic, *(own.child_frame_id for own in getattr(proto, "transforms", ()))]
            texts.append(getattr(proto, "message", ""))
        for _, channel, message in reader.iter_messages(topics=["/contacts"]):
            pairs = json.loads(message.data)["contacts"]
            texts += [channel.topic, *(pair[side] for pair in pairs for side in "ab")]
    return "\n".join(texts)


def run_on(name: str, of: World, out: Path) -> Outcome:
    """Run a command; whatever it writes lies where it was told to, under a plain name."""
    inputs = {"SPECS": of.specs, "REGISTRY": of.registry, "RESULTS": of.results, "RUN": of.run}
    values = {word: [str(path)] for word, path in inputs.items()}
    values |= {"JUDGE": of.judge, "ONE": [of.texts[4]], "OTHER": [of.texts[5]]}
    words = [part for word in COMMANDS[name].split() for part in values.get(word, [re.sub("^OUT", str(out), word)])]
    (out if "OUT/" in COMMANDS[name] else out.parent).mkdir(parents=True)
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = run_command_line(words)
    assert code == 2 if "refuses" in name else code in (0, 1, 3), f"{code}: {output.getvalue()}"
    assert {path.name for path in out.parent.iterdir()} <= {"out"}
    files = {str(path.relative_to(out)): path for path in sorted(out.rglob("*")) if path.is_file()}
    for path in files:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", path), path
    texts = {path: file.read_text() for path, file in files.items() if file.suffix in {*FORMS} - {".mcap"}}
    texts |= {path: read_mcap(file) for path, file in files.items() if file.suffix == ".mcap"}
    return Outcome(output.getvalue(), texts, files)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_text_is_only_ever_shown(name: str, run_once: Callable[[str, str], Outcome]) -> None:
    bad, good = run_once(name, "bad"), run_once(name, "good")
    (console_json if "json" in COMMANDS[name] and "OUT" not in COMMANDS[name] else console)(bad.printed, good.printed)
    assert len(bad.files) >= len(good.files)
    for path, text in bad.texts.items():
        suffix = Path(path).suffix
        FORMS[suffix](text, "\n".join(plain for name, plain in good.texts.items() if Path(name).suffix == suffix))


def test_no_script_runs_even_if_the_pages_own_policy_is_switched_off(
    run_once: Callable[[str, str], Outcome], browser: Browser
) -> None:
    pages = [
        path
        for name in ("score", "tables html", "board", "figures")
        for path in run_once(name, "bad").files.values()
        if path.suffix in (".html", ".svg")
    ]
    assert len(pages) > 20
    browser.ask("Page.setBypassCSP", enabled=True)
    for path in pages:
        browser.open(path)
        browser.run("document.querySelectorAll('*').forEach(e => ['mouseover', 'click'].forEach("
                    "kind => e.tagName == 'A' || e.dispatchEvent(new Event(kind))))")  # fmt: skip
        assert browser.run("typeof window.PWNED") == "undefined", path
        assert browser.run("[...document.querySelectorAll('a')].every(a => a.protocol != 'javascript:')"), path
        assert all(url.startswith("file:") for url in browser.requests()), path


def test_a_mark_would_have_been_seen(tmp_path: Path) -> None:
    """The page's check would fail on text that is not escaped, and so would a browser."""
    text = "".join(TEXTS.values())
    with pytest.raises(AssertionError):
        page(f"<p>{text}</p>", "<p></p>")
    assert MARK in text
