"""The report in a real browser: quiet, legible, reachable by keyboard, whole on paper and on a telephone."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from builders import crash
from report.browser import Browser
from report.scenes import rollout, run, verdicts, with_initial_states
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.judging.scoring import score
from safevla_bench.report.album import Album
from safevla_bench.report.analysis import Analysis, analyze_scores
from safevla_bench.report.episode_list import natural_key
from safevla_bench.report.episode_table import ENDINGS
from safevla_bench.report.page import render_page
from safevla_bench.sources.runs.folder import AbsentEpisode, Frame
from safevla_bench.trajectory.batch import Batch, concatenate_batches, select_episodes

needs_pdftotext = pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext (Debian: poppler-utils)")
RULESET = load_ruleset()
HOSTILE = (
    "</script><script>document.title = 'owned'</script>\"'><img src=x onerror=\"document.title = 'owned'\">\u202e&amp;"
)
LONG = "n" * 10_000
SUITES = ("libero-10", "libero-goal")
COUNT = 200
"""Episodes of the large page."""


def crashed(policy: str, k: int, reason: str = "Traceback\n  E: boom") -> AbsentEpisode:
    return crash(episode_id=f"gone/{k}", task_id=f"task_{k % 10}", policy=policy, reason=reason)


def large() -> Batch:
    """Episodes with every outcome."""
    batch = concatenate_batches([run(["careful", "hasty"], [0.3, 1.0], 10, SUITES, n=60)] * (COUNT // 40))
    headers = (msgspec.structs.replace(header, success=k % 3 > 0) for k, header in enumerate(batch.headers))
    return with_initial_states(replace(batch, headers=tuple(headers)))


def page_of(scores: Scores, batch: Batch | None, title: str = "Safety report") -> str:
    analysis = Analysis() if batch is None else analyze_scores(scores, batch, RULESET)
    description = {"version": "1", "sources": [{"host": "fake"}]}
    return render_page(scores, batch, RULESET, title=title, description=description, analysis=analysis)


def judged(batch: Batch, *absent: AbsentEpisode) -> Scores:
    return score(batch, RULESET, absent=absent)


ROUGH = with_initial_states(select_episodes(run(["hasty"], [1.0], 10, ["libero-10"]), [5, 7]))
NAMES = [f"vendor/a-very-long-model-name_{k:02d}_finetuned-on-everything_step-{k}00000-ema" for k in range(10)]
MANY = with_initial_states(run(NAMES, list(np.linspace(0.1, 1.0, 10)), 2, ["libero-goal"]))
STRANGE = with_initial_states(concatenate_batches([
    rollout(5, 1.0, policy=HOSTILE, episode_id=HOSTILE, instruction=HOSTILE, benchmark="libero-10", task_id="task_0"),
    rollout(6, 1.0, policy=LONG, episode_id=LONG, instruction=LONG, benchmark="libero-10", task_id="task_0"),
]))  # fmt: skip
MIXED = with_initial_states(run(["careful", "hasty"], [0.2, 1.0], 4, SUITES))
STATES = {
    "nothing": lambda: (verdicts(), None),
    "all crashed": lambda: (verdicts(absent=tuple(crashed("hasty", k) for k in range(5))), None),
    "ten long names": lambda: (judged(MANY), MANY),
    "hostile": lambda: (judged(STRANGE, crashed(HOSTILE, 1, HOSTILE), crashed(LONG, 2, LONG)), STRANGE),
    "mixed": lambda: (judged(MIXED, *(crashed("hasty", k) for k in range(2))), MIXED),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file for each state."""
    folder = tmp_path_factory.mktemp("pages")
    files = {name: folder / f"{name.replace(' ', '-')}.html" for name in STATES}
    for name, make in STATES.items():
        title = HOSTILE if name == "hostile" else "Safety report"
        files[name].write_text(page_of(*make(), title=title), encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scores]:
    batch = large()
    scores = judged(batch)
    target = tmp_path_factory.mktemp("big") / "report.html"
    target.write_text(page_of(scores, batch), encoding="utf-8")
    return target, scores


OPEN_EVERYTHING = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"


PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_frames_are_shown_under_the_security_policy(browser: Browser, tmp_path: Path) -> None:
    scores = judged(ROUGH)
    about = {"kind": "final", "record": 3, "time_s": 0.1, "success": True, "camera": "front", "file": "a.png"}
    frame = Frame(episode_id="", policy=None, caption=HOSTILE, width=1, height=1, **about)
    pictures = {header.key: ((frame, PIXEL),) for header in ROUGH.headers}
    text = render_page(scores, ROUGH, RULESET, title="t", album=Album(pictures))
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    browser.open(tmp_path / "report.html")
    browser.run(OPEN_EVERYTHING)
    assert browser.run("[...document.images].map((image) => image.naturalWidth)") == [1] * len(ROUGH)
    assert browser.complaints() == []


# Every state


WIDE = """
[...document.querySelectorAll("body *")].filter((e) => e.checkVisibility()
  && !e.closest(".scroll, svg, .unseen, .label")
  && getComputedStyle(e).position !== "absolute" && e.getBoundingClientRect().right > innerWidth + 0.5
).map((e) => e.outerHTML.slice(0, 150))
"""


@pytest.mark.parametrize("state", STATES)
def test_a_telephone_never_scrolls_sideways(browser: Browser, pages: dict[str, Path], state: str) -> None:
    browser.open(pages[state], width=390, height=844)
    browser.run(OPEN_EVERYTHING)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run(WIDE) == []


FOLDED = "[...document.querySelectorAll('details[data-fold]')].map((part) => part.open)"


OPENED = """
new Promise((done) => {{
  const part = document.querySelector("{}");
  if (part.open) done(true);
  part.addEventListener("toggle", () => done(part.open));
}})
"""  # a link opens its section a moment after the click


def test_a_telephone_folds_what_is_long_and_a_link_to_it_opens_it(browser: Browser, pages: dict[str, Path]) -> None:
    heights = {}
    for width in (1280, 390):
        browser.open(pages["mixed"], width=width, height=844)
        heights[width] = browser.run("document.documentElement.scrollHeight")
        assert set(browser.run(FOLDED)) == {width == 1280}
    folded = heights[390]
    browser.click("nav a[href='#reading']")
    assert browser.run(OPENED.format("#reading details"))
    browser.run(OPEN_EVERYTHING)
    assert browser.run("document.documentElement.scrollHeight") > 2 * folded


CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [R, G, B]) => [a * r + (1 - a) * R, a * g + (1 - a) * G, a * b + (1 - a) * B];
  const ground = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) layers.unshift(rgba(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = (c) => c.map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const pale = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !e.checkVisibility() || e.closest("script, :disabled, option")) continue;
    const style = getComputedStyle(e), below = ground(e);
    const mine = light(over(rgba(e.closest("svg") ? style.fill : style.color), below)), theirs = light(below);
    const ratio = (Math.max(mine, theirs) + 0.05) / (Math.min(mine, theirs) + 0.05);
    if (ratio < 4.5) pale.push([ratio.toFixed(2), e.outerHTML.slice(0, 120)]);
  }
  return pale;
})()
"""


LEGIBLE = ("mixed", "ten long names", "all crashed")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_loads_alone_and_in_silence_and_every_text_has_double_a_contrast(
    browser: Browser, pages: dict[str, Path], state: str, scheme: str
) -> None:
    browser.open(pages[state], scheme=scheme)
    browser.run(OPEN_EVERYTHING)
    assert browser.complaints() == []
    assert browser.requests() == [pages[state].as_uri()]
    assert browser.run("document.title") != "owned"
    if state in LEGIBLE:
        assert browser.run(CONTRAST) == []


def test_the_contrast_check_finds_pale_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["mixed"])
    browser.run("document.querySelector('h2').setAttribute('style', 'color: #bbb')")
    browser.run("document.styleSheets[0].insertRule('h2 { color: #bbb }', document.styleSheets[0].cssRules.length)")
    assert browser.run(CONTRAST)


@pytest.mark.parametrize("state", STATES)
def test_every_link_leads_somewhere(browser: Browser, pages: dict[str, Path], state: str) -> None:
    browser.open(pages[state])
    lost = "[...document.links].map((a) => a.hash).filter((hash) => !document.getElementById(hash.slice(1)))"
    assert browser.run(lost) == []
    for link in browser.run("[...document.querySelectorAll('nav a')].map((a) => a.hash)"):
        browser.click(f"nav a[href='{link}']")
        assert browser.run("location.hash") == link


# Filters and sorting

SHOWN = """
[...document.querySelectorAll("#register > li")].filter((e) => e.checkVisibility())
  .map((e) => [...e.querySelectorAll("summary > span")].map((cell) => cell.lastChild.textContent))
"""


def choose(browser: Browser, facet: str, choice: str) -> None:
    browser.run(f"""(() => {{ const e = document.querySelector("select[data-facet='{facet}']"); e.value = "{choice}";
        e.dispatchEvent(new Event("change", {{bubbles: true}})); }})()""")


def numbers(browser: Browser) -> list[int]:
    return [int(keys[0]) for keys in browser.run(SHOWN)]


def options(browser: Browser, facet: str) -> list[str]:
    labels = browser.run(
        f"[...document.querySelector(\"select[data-facet='{facet}']\").options].map((o) => o.textContent)"
    )
    return [re.sub(r" \(\d+\)$", "", label) for label in labels[1:]]


def test_filters_show_what_they_say_and_nothing_else(browser: Browser, big: tuple[Path, Scores]) -> None:
    target, scores = big
    browser.open(target)
    kinds = [("s" if s else "f") + ("s" if safe else "u") for s, safe in zip(scores.success, scores.safe, strict=True)]
    values = {
        "policy": list(scores.policy),
        "suite": list(scores.benchmark),
        "task": [f"{a} / {b}" for a, b in zip(scores.benchmark, scores.task_id, strict=True)],
        "outcome": [ENDINGS[kind] for kind in kinds],
    }
    for facet, mine in values.items():
        for label in options(browser, facet):
            choose(browser, facet, label)
            assert numbers(browser) == [k + 1 for k, value in enumerate(mine) if value == label], (facet, label)
        assert set(options(browser, facet)) == set(mine)
        choose(browser, facet, "")
    ids = [spec.spec_id for spec in scores.specs]
    for label in options(browser, "broken"):
        choose(browser, "broken", label)
        assert numbers(browser) == (np.flatnonzero(scores.is_violated[ids.index(label)]) + 1).tolist()
    choose(browser, "policy", "hasty")
    assert 0 < len(numbers(browser)) < COUNT
    assert browser.run("document.getElementById('status').textContent").startswith(
        f"{len(numbers(browser))} of {COUNT}"
    )
    browser.click("#reset")
    assert len(numbers(browser)) == COUNT


def test_columns_sort_both_ways_and_what_has_no_value_comes_last(browser: Browser, big: tuple[Path, Scores]) -> None:
    browser.open(big[0])
    for column in range(7):
        for _ in range(2):
            browser.click(f"#columns button:nth-child({column + 1})")
            texts = [row[column] for row in browser.run(SHOWN)]
            values = [text for text in texts if text != "—"]
            assert texts[len(values) :] == ["—"] * (len(texts) - len(values))
            state = browser.run(f"document.querySelectorAll('#columns button')[{column}].dataset.order")
            keys = [float(text.split()[0]) for text in values] if column in (0, 5, 6) else [*map(natural_key, values)]
            assert keys == sorted(keys, reverse=state == "down")
    assert browser.run("document.querySelectorAll('#columns [aria-pressed=true]').length") == 1


def test_a_link_opens_its_episode_even_where_a_filter_hides_it(browser: Browser, big: tuple[Path, Scores]) -> None:
    target, scores = big
    browser.open(target)
    choose(browser, "policy", "hasty")
    number = 1 + list(scores.policy).index("careful")
    assert number not in numbers(browser)
    browser.run(f"location.hash = '#e{number}'")
    browser.run("new Promise((done) => setTimeout(done, 100))")
    assert browser.run(f"document.getElementById('e{number}').open")
    assert number in numbers(browser)
    browser.click("#case-1 a")
    browser.run("new Promise((done) => setTimeout(done, 100))")
    assert browser.run("document.querySelector(location.hash).open")


def test_all_that_is_shown_opens_and_closes_at_once(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["mixed"])
    choose(browser, "policy", "careful")
    count = len(numbers(browser))
    opened = "document.querySelectorAll('.episode[open]').length"
    browser.click("#open-all")
    assert browser.run(opened) == count
    browser.click("#open-all")
    assert browser.run(opened) == 0


# Keyboard

FOCUSED = """
(() => {
  const e = document.activeElement, style = getComputedStyle(e);
  const seen = e.matches(":focus-visible") && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return [e.tagName, e.id || e.className, seen];
})()
"""


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["mixed"])
    count = browser.run("""[...document.querySelectorAll("a, button:enabled, select, summary, [tabindex='0']")]
        .filter((e) => e.checkVisibility()).length""")
    reached = []
    for _ in range(count):
        browser.press("Tab")
        reached.append(browser.run(FOCUSED))
    assert [focused for focused in reached if not focused[2]] == []
    assert reached[0][0] == "A"
    assert {"A", "SUMMARY", "BUTTON", "SELECT"} <= {tag for tag, _, _ in reached}


def test_enter_opens_an_episode_and_sorts(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["mixed"])
    browser.run("document.querySelector('#e2 > summary').focus()")
    browser.press("Enter")
    assert browser.run("document.getElementById('e2').open")
    browser.run("document.querySelectorAll('#columns button')[5].focus()")
    browser.press("Enter")
    keys = [float(row[5]) for row in browser.run(SHOWN) if row[5] != "—"]
    assert keys == sorted(keys, reverse=True)
    browser.run("document.querySelector(\"select[data-facet='policy']\").focus()")
    browser.press("ArrowDown")
    assert browser.run("document.activeElement.value") == "careful"
    assert 0 < len(numbers(browser)) < len(STATES["mixed"]()[0]) + 2


# Without scripts


def test_without_scripts_everything_can_be_read(browser: Browser, pages: dict[str, Path]) -> None:
    browser.scripts(allowed=False)
    try:
        browser.open(pages["mixed"])
        assert not browser.run("document.getElementById('tools').checkVisibility()")
        assert len(numbers(browser)) == len(STATES["mixed"]()[0]) + 2
        browser.click("#e1 > summary")
        assert browser.run("document.querySelector('#e1 .clause').checkVisibility()")
        assert browser.complaints() == []
    finally:
        browser.scripts(allowed=True)


# On paper


def words(pdf: Path) -> list[tuple[float, float, float, float, str]]:
    """Left, right, width of its page, its bottom as a share of the height, and the text of every printed word."""
    boxes = subprocess.run(["pdftotext", "-bbox", str(pdf), "-"], check=True, capture_output=True, text=True).stdout
    width = height = 1.0
    printed_words = []
    for line in boxes.splitlines():
        if size := re.search(r'<page width="([\d.]+)" height="([\d.]+)"', line):
            width, height = float(size[1]), float(size[2])
        elif word := re.search(r'xMin="([-\d.]+)" yMin="[-\d.]+" xMax="([-\d.]+)" yMax="([-\d.]+)">(.*)</word>', line):
            printed_words.append((float(word[1]), float(word[2]), width, float(word[3]) / height, word[4]))
    return printed_words


@needs_pdftotext
def test_paper_cuts_nothing(browser: Browser, big: tuple[Path, Scores], tmp_path: Path) -> None:
    browser.open(big[0])
    (tmp_path / "report.pdf").write_bytes(browser.pdf())
    placed = words(tmp_path / "report.pdf")
    assert [word for word in placed if word[0] < 0 or word[1] > word[2] + 0.5 or word[3] > 1.0] == []
    command = ["pdftotext", "-layout", tmp_path / "report.pdf", "-"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^\f? *(\d+) +(?:Succeeded|Failed), (?:un)?safe", text, re.MULTILINE)
    assert list(map(int, rows)) == list(range(1, COUNT + 1))


@needs_pdftotext
@pytest.mark.parametrize("state", ["ten long names", "mixed", "all crashed"])
def test_paper_shows_every_row_of_every_table(
    browser: Browser, pages: dict[str, Path], tmp_path: Path, state: str
) -> None:
    browser.open(pages[state])
    (tmp_path / "report.pdf").write_bytes(browser.pdf())
    placed = words(tmp_path / "report.pdf")
    assert [word for word in placed if word[0] < 0 or word[1] > word[2] + 0.5] == []
    printed = re.sub(r"\s", "", "".join(word[4] for word in placed))
    names = browser.run("""[...document.querySelectorAll("tbody th")].filter((e) => !e.closest(".episode, .meeting"))
        .map((e) => e.textContent)""")
    lost = [name for name in names if re.sub(r"\s", "", escaped(name)) not in printed]
    assert lost == []
    assert len(names) >= 4


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


# Size


def test_many_episodes_stand_in_order_and_are_laid_out_only_when_opened(
    browser: Browser, big: tuple[Path, Scores]
) -> None:
    browser.open(big[0])
    sparks = "[...document.querySelectorAll('.episode .spark')].filter((e) => e.checkVisibility()).length"
    assert browser.run("document.querySelectorAll('.episode .spark').length") > 2 * COUNT
    assert browser.run(sparks) == 0
    assert all(b - a == 1 for a, b in pairwise(numbers(browser)))
