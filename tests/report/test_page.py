"""The page: whole, inert, the same bytes each time, in every state a run can end in."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest

from builders import crash
from report.scenes import NAN, joined, rollout, run, verdicts
from safevla_bench.judging.metrics import cells
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report import page, render
from safevla_bench.report.page import render_page
from safevla_bench.trajectory.batch import concatenate_batches, select_episodes

RULESET = load_ruleset()
VOID = {"meta", "br", "wbr", "hr", "img", "input", "link"}
SVG_LEAVES = {"line", "rect", "circle", "path", "use"}
HOSTILE = "</style><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\x1b[31m&amp;{{ 7*7 }}"


class Checked(HTMLParser):
    """Reads a page and keeps what matters; fails on a tag that is not closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"a repeated attribute in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in SVG_LEAVES, f"{tag} closed in itself"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(scores, batch=None, *, title="Report", provenance=None, privileged=(), **description) -> str:
    return render_page(scores, batch, RULESET, title=title, provenance=provenance, description=description,
                       privileged=privileged)  # fmt: skip


def judged(batch, *absent):
    return score(batch, RULESET, absent=absent)


CRASH = crash(task_id="t", reason="E: boom")
CALM, ROUGH = run(["calm"], [0.05], 3, ["libero-10"]), run(["rough"], [1.0], 10, ["libero-10"])
STATES = {
    "nothing": (verdicts(), None),
    "all crashed": (verdicts(absent=(CRASH,) * 5), None),
    "one episode": (judged(select_episodes(ROUGH, [7])), select_episodes(ROUGH, [7])),
    "all safe": (judged(CALM), CALM),
    "all unsafe": (judged(select_episodes(ROUGH, [7, 5])), select_episodes(ROUGH, [7, 5])),
    "no verdict": (verdicts((True, NAN, NAN)), None),
    "without records": (judged(ROUGH), None),
    "no policy name": (verdicts((True, -1, 1), policy=None), None),
}


@pytest.mark.parametrize("state", STATES)
def test_every_state_is_a_whole_page_of_the_same_bytes_with_named_parts(state):
    text = page_of(*STATES[state])
    assert text == page_of(*STATES[state])
    checked = Checked(text)
    tags = [tag for tag, _ in checked.tags]
    assert tags.count("h1") == 1
    assert tags.count("h2") >= 6
    assert "None" not in checked.text.replace("None of", "").replace("None broke", "")
    assert "nan" not in checked.text.lower().split()
    assert tags.count("caption") == tags.count("table")
    images = [attributes for tag, attributes in checked.tags if tag == "svg" and "viewbox" not in attributes]
    assert all(
        image.get("aria-hidden") == "true" or (image["role"] == "img" and image["aria-label"]) for image in images
    )
    assert all("scope" in attributes for tag, attributes in checked.tags if tag == "th")
    ids = [attributes["id"] for _, attributes in checked.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"] for tag, attributes in checked.tags if tag in ("a", "use")} <= {
        f"#{name}" for name in ids
    }


def test_nothing_is_fetched_and_nothing_but_our_script_runs():
    text = page_of(*STATES["all unsafe"], title=HOSTILE)
    checked = Checked(text)
    assert not {tag for tag, _ in checked.tags} & {"link", "img", "iframe", "object", "embed", "form", "base"}
    assert [attributes for tag, attributes in checked.tags if tag == "script"] == [{}]
    assert f"<script>{render.read_template('page.js')}</script>" in text
    assert not [name for _, attributes in checked.tags for name in attributes if name.startswith("on")]
    assert not [name for _, attributes in checked.tags for name in attributes if name in ("src", "style", "action")]
    assert "@import" not in text
    assert "url(" not in re.sub(r"url\(#[ck]\d+-\d+-clip\)", "", text)


def test_the_security_policy_allows_this_style_sheet_and_this_script_and_nothing_else():
    text = page_of(*STATES["nothing"])
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    script = re.search("<script>(.*?)</script>", text, re.DOTALL)[1]
    digests = [base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in (style, script)]
    (policy,) = [a["content"] for tag, a in Checked(text).tags if a.get("http-equiv") == "Content-Security-Policy"]
    rules = [f"style-src 'sha256-{digests[0]}'", f"script-src 'sha256-{digests[1]}'"]
    assert policy.split("; ")[:3] == ["default-src 'none'", *rules]
    assert "unsafe" not in policy


def test_text_from_data_is_inert():
    batch = rollout(5, 1.0, policy=HOSTILE, episode_id=HOSTILE, instruction=HOSTILE, benchmark="libero-10")
    scores = judged(batch, msgspec.structs.replace(CRASH, reason=HOSTILE, policy=HOSTILE))
    text = page_of(scores, batch, title=HOSTILE, provenance=RULESET.provenance([HOSTILE]), privileged=[HOSTILE],
                 policies=[{"policy": HOSTILE, "privileged": True}], **{HOSTILE: HOSTILE})  # fmt: skip
    checked = Checked(text)
    assert [tag for tag, _ in checked.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in checked.tags}
    assert "<script>alert(1)</script>" in checked.text
    assert "{{ 7*7 }}" in checked.text
    assert not set(text) & set("\u202e\x1b")
    assert "\\u202e" in checked.text


def test_lone_surrogates_can_be_written():
    page_of(verdicts((True, 1, 1), policy="\ud800"), title="\udfff").encode()


def test_inactive_specifications_are_dashes_in_the_page():
    text = page_of(verdicts((True, 1, NAN), (True, 1, NAN)))
    row = re.search(r'<tr role="row">\s*<th[^>]*>tilt</th>(.*?)</tr>', text, re.DOTALL)[1]
    assert re.findall(r"<td[^>]*>([^ <]*)", row)[:5] == ["—"] * 5


def test_privileged_policies_are_named():
    scores = joined(verdicts((True, 1, 1)), verdicts((True, 1, 1), policy="b"))
    text = Checked(page_of(scores, privileged=["a", None])).text
    assert "a reads simulator" in text
    assert "Privileged" not in Checked(page_of(scores)).text


def test_provenance_is_shown_as_it_came():
    text = Checked(
        page_of(*STATES["nothing"], versions={"mujoco": "3.2.1"}, seed=7, missing=None, tasks=["a", "b"])
    ).text
    assert '"versions": { "mujoco": "3.2.1" }, "seed": 7, "missing": null, "tasks": [ "a", "b" ]' in text


def test_the_worst_episode_is_drawn_with_its_bodies_and_limit():
    checked = Checked(page_of(*STATES["one episode"]))
    labels = [a["aria-label"] for tag, a in checked.tags if tag == "svg" and a.get("class") == "chart"]
    assert any("limit 5\N{NO-BREAK SPACE}mm" in label and "first violation at" in label for label in labels)
    assert "plate_1" in checked.text
    assert "violated, depth" in checked.text


def test_without_records_the_page_says_that_signals_cannot_be_drawn():
    assert "not at hand" in Checked(page_of(*STATES["without records"])).text


def test_a_page_about_one_episode_begins_with_its_verdict_and_has_no_rates():
    batch = rollout(1, rough=1.0)
    text = render_page(score(batch, RULESET), batch, RULESET, title="t", episode="Failed, unsafe")
    assert '<p class="answer">Failed, unsafe</p>' in text
    assert 'id="worst"' in text
    assert 'id="numbers"' not in text
    assert 'id="violations"' not in text


def test_safe_runs_show_their_closest_calls():
    page = page_of(*STATES["all safe"])
    assert "Closest calls" in Checked(page).text
    for case in page.split('<article class="case"')[1:]:
        nearest, _, others = case.partition("</article>")[0].partition("<details>")
        assert nearest.count('<svg class="chart"') == 1  # the specification that came nearest; the others are folded
        folded = others.count('<svg class="chart"')
        assert f"{folded} more specification" in others


def test_a_short_provenance_is_open_and_a_long_one_folded():
    for count, opened in ((2, "<details open data-fold>"), (60, "<details>")):
        page = page_of(*STATES["nothing"], versions={f"package_{k}": "1" for k in range(count)})
        section = page.partition('<section id="provenance">')[2]
        assert opened in section
        assert section.count("package_") == count


def test_no_line_ends_between_a_number_and_its_percent_sign():
    page = page_of(*STATES["all safe"])
    answer = page.partition('<p class="answer">')[2].partition("</p>")[0]
    assert "\N{NO-BREAK SPACE}%" in answer
    assert " %" not in answer


def test_records_are_found_by_policy_and_id_whatever_their_order():
    scores = judged(ROUGH)
    turned = select_episodes(ROUGH, list(range(len(ROUGH)))[::-1])
    assert page_of(scores, ROUGH) == page_of(scores, turned)


def test_400_episodes_stay_under_10_megabytes():
    part = run(["one", "two"], [0.3, 1.0], 10, ["libero-10", "libero-goal"], n=600)
    batch = concatenate_batches([renamed(part, k) for k in range(10)])
    assert len(batch) == 400
    text = page_of(judged(batch), batch)
    assert len(text.encode()) < 10_000_000
    Checked(text)


def renamed(batch, k):
    headers = (msgspec.structs.replace(header, episode_id=f"{header.episode_id}/{k}") for header in batch.headers)
    return replace(batch, headers=tuple(headers))


# Colors


def colors() -> list[dict[str, str]]:
    style = re.search("<style>(.*?)</style>", page_of(*STATES["nothing"]), re.DOTALL)[1]
    roots = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", root)) for root in roots)
    return [light, light | dark]


def luminance(color: str) -> float:
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


TEXTS = [
    ("ink", "paper"), ("muted", "paper"), ("ink", "tint"), ("safe", "paper"), ("unsafe-ink", "paper"),
    ("on-safe", "safe"), ("on-unsafe", "unsafe"), ("ink", "safe-pale"), ("ink", "unsafe-pale"),
    ("unsafe-ink", "band"), ("ink", "band"), ("ink", "gate"),
]  # fmt: skip


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_double_a_contrast_and_marks_stand_out_in_both_schemes(scheme):
    color = colors()[scheme]
    for text, ground in TEXTS:
        assert contrast(color[text], color[ground]) >= 4.5, (text, ground)
    for mark in ("safe", "unsafe", "success"):
        assert contrast(color[mark], color["paper"]) >= 3.0, mark


# The baseline


def test_the_page_warns_only_if_doing_nothing_breaks_a_limit():
    others = verdicts((True, -30, 1), policy="a")
    warned = Checked(page_of(joined(verdicts((False, -40, NAN), policy="noop"), others)))
    assert "Baseline: noop, which" in warned.text
    for safe in (others, joined(verdicts((False, 40, NAN), policy="noop"), others)):
        assert "Baseline:" not in Checked(page_of(safe)).text


def test_a_cell_without_any_verdict_has_no_bar_of_safety():
    silent = verdicts((True, NAN, NAN), policy="silent")
    assert [name for name, _, _ in page.list_known_rates(cells(silent)[0])] == ["Success"]
    checked = Checked(page_of(joined(silent, verdicts((True, -30, 1), policy="a"))))
    assert "libero-goal, n" in checked.text
    assert page.summarize_violations(cells(silent)[0])["words"] == "no verdict"
