"""The site: whole pages that link only to each other, inert whatever a policy is called, the same bytes each time."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

import pytest

from builders import crash
from publishing.boards import episodes, measured
from report.test_page import HOSTILE, Checked, colors, contrast
from safevla_bench.errors import FileError, RunError
from safevla_bench.publishing.board import render_site, report_path, write_folder

NAMES = [HOSTILE, "../../etc/passwd", "..", "", "a", "A", "con", "x" * 400, "\ud800", "\u202eevil", "π0.5", "a/b",
         "a\\b", "index.html", "{{ 7*7 }}", "%2e%2e", "javascript:alert(1)", "\x00", None]  # fmt: skip
LOST = crash(task_id="task_1")
STATES = {
    "published alone": None,
    "one policy": measured(episodes("a", "10")),
    "all safe": measured(episodes("a", "11"), episodes("b", "11")),
    "all unsafe": measured(episodes("a", "00"), episodes("b", "00")),
    "nothing at all": measured(),
    "all crashed": measured(episodes("a", "", absent=(LOST,))),
    "hostile suite": measured(
        episodes("a", "10", suite=HOSTILE, tasks=[HOSTILE, ".."]), episodes("b", "1", suite="..")
    ),
    "hostile names": measured(*(episodes(name, "10") for name in NAMES), privileged=[HOSTILE]),
}


@pytest.fixture(scope="module", params=STATES)
def site(request) -> dict[str, str]:
    results = STATES[request.param]
    reports = map(report_path, results.policies if results else ())
    results = replace(results, has_reports=True) if results else None
    return render_site(results) | dict.fromkeys(reports, "")


@pytest.fixture(scope="module")
def pages(site) -> dict[str, Checked]:
    return {path: Checked(text) for path, text in site.items() if text}


def page_text(results, path: str = "index.html") -> str:
    return Checked(render_site(results)[path]).text


def test_every_page_is_whole_and_every_link_leads_to_one(site, pages):
    for path, page in pages.items():
        assert [tag for tag, _ in page.tags].count("h1") == 1
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        for tag, attributes in page.tags:
            if tag not in ("a", "use"):
                continue
            to, _, part = attributes["href"].partition("#")
            assert not part or part in ids
            assert not to or posixpath.normpath(posixpath.join(posixpath.dirname(path), to)) in site, (path, to)


def test_every_page_and_report_is_linked_from_the_index(site, pages):
    links = {attributes["href"] for tag, attributes in pages["index.html"].tags if tag == "a"}
    assert {"method.html", *(path for path in site if path.startswith("reports/"))} <= links


def test_nothing_is_fetched_nothing_runs_and_the_policy_says_so(pages):
    for page in pages.values():
        tags = {tag for tag, _ in page.tags}
        assert tags.isdisjoint({"script", "link", "iframe", "object", "embed", "form", "base"})
        names = {name for _, attributes in page.tags for name in attributes}
        assert not [name for name in names if name.startswith("on") or name in ("style", "action", "srcset")]
        assert "img" not in tags
        (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src")
        assert "unsafe" not in policy


def test_text_is_inert_and_can_be_written(site):
    for text in site.values():
        text.encode()
        assert not [part for part in ("\u202e", "\x1b", "\x00", "<script") if part in text]


def test_tables_and_pictures_are_named(pages):
    for page in pages.values():
        tags = [tag for tag, _ in page.tags]
        assert tags.count("caption") == tags.count("table")
        assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")


@pytest.mark.parametrize("name", [name for name in NAMES if name is not None])
def test_a_name_is_never_a_path(name):
    file = report_path(name).partition("/")[2]
    assert re.fullmatch(r"(?:[a-z0-9-]+-)?[0-9a-f]{12}\.html", file)
    assert len(file) < 64


def test_names_that_look_alike_have_reports_of_their_own():
    paths = [report_path(name).lower() for name in NAMES]
    assert len(set(paths)) == len(paths)


def test_if_nothing_was_counted_the_page_says_so_and_gives_no_zero():
    assert "no episode" in page_text(STATES["all crashed"])


def test_a_table_of_several_physics_versions_is_marked():
    results = measured(episodes("a", "10"), episodes("b", "11"))
    versions = {"a": {"mujoco": "3.2.3"}, "b": {"mujoco": "3.17.0"}}
    scores = replace(results.inputs.scores, simulator=tuple(versions[name] for name in results.inputs.scores.policy))
    text = page_text(replace(results, inputs=replace(results.inputs, scores=scores)))
    assert "different simulators" in text
    assert "physics" not in page_text(results)


def test_the_same_results_give_the_same_bytes():
    assert render_site(STATES["all safe"]) == render_site(STATES["all safe"])


def test_published_numbers_are_never_called_runs():
    assert "None yet." in page_text(None)
    assert page_text(None).count("with your runs") == 2


# Writing


def test_a_board_is_written_over_and_its_old_reports_go(tmp_path):
    pages = render_site()
    write_folder({**pages, report_path("a"): "a"}, tmp_path)
    assert (tmp_path / report_path("a")).exists()
    mine = {"reports/mine.txt", "reports/My-notes_abcdef012345.html", f"reports/{'deadbeef' * 5}.html"}
    for name in mine:
        (tmp_path / name).write_text("kept")
    files = {**pages, report_path("b"): "b"}
    write_folder(files, tmp_path)
    paths = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert paths == {*files, *mine}


@pytest.mark.parametrize("name", ["notes.txt", "index.html"])
def test_what_is_not_a_board_is_never_written_over(tmp_path, name):
    (tmp_path / name).write_text("<html>mine</html>")
    with pytest.raises(RunError, match="holds no board"):
        write_folder(render_site(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_board_whose_writing_was_cut_off_is_written_again(tmp_path):
    files = render_site()
    write_folder({path: text for path, text in files.items() if path != "index.html"}, tmp_path)
    write_folder(files, tmp_path)
    assert (tmp_path / "index.html").exists()


def test_a_file_in_the_way_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="Choose another --out"):
        write_folder(render_site(), tmp_path / "file")
    with pytest.raises(FileError, match="can be written"):
        write_folder(render_site(), tmp_path / "file" / "below")


# The drawing


def test_the_diagram_shows_the_way_from_record_to_scores():
    text = render_site()["method.html"]
    labels = re.findall(r'aria-label="(From record to score[^"]*)"', text)
    assert len(labels) == 2
    for step in ("Record", "Signals", "tags", "margin", "Scores"):
        assert step in labels[0]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"), [("ink", "tint"), ("muted", "tint"), ("unsafe-ink", "tint"), ("on-unsafe", "unsafe")]
)
def test_text_has_double_a_contrast_in_both_schemes(text, ground, scheme):
    scheme_colors = colors()[scheme]
    assert contrast(scheme_colors[text], scheme_colors[ground]) >= 4.5


def test_no_color_but_those_of_the_two_schemes_is_used():
    sheet = re.search("<style>(.*?)</style>", render_site()["index.html"], re.DOTALL)[1]
    ours = sheet[sheet.index("/* The board") :]
    assert not re.findall(r"#[0-9a-fA-F]{3,6}\b", ours)
