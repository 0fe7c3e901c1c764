"""Frames in the report: those that exist and fit, in order, as data in the page."""

from __future__ import annotations

import base64
import re

import pytest

from report.scenes import run
from safevla_bench.errors import RunError
from safevla_bench.report.page import render_page
from safevla_bench.report.sections import Album, collect_images
from safevla_bench.ruleset import load_ruleset
from safevla_bench.runs import FRAMES, RUN, Frame, write_frames
from safevla_bench.scoring import score

BATCH = run(["hasty"], [1.0], 2, ["libero-10"])
PNG = b"\x89PNG not really"


def frame(kind: str, file: str, **changes: object) -> Frame:
    about = {"episode_id": BATCH.headers[1].episode_id, "policy": "hasty", "success": True}
    seen = {"kind": kind, "caption": f"The {kind} <state>.", "record": 3, "time_s": 0.15}
    image = {"camera": "front", "width": 8, "height": 6, "file": file}
    return Frame(**{**about, **seen, **image, **changes})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FRAMES).mkdir()
    (tmp_path / RUN).write_text("{}")
    for name in ("a.png", "b.jpg", "c.mp4", "d.webp"):
        (tmp_path / FRAMES / name).write_bytes(PNG)
    write_frames(tmp_path, [frame("final", "a.png"), frame("initial", "b.jpg"), frame("clip", "c.mp4")])
    return tmp_path


def test_images_are_embedded_in_the_order_of_time_and_clips_are_counted(folder):
    album = collect_images([folder])
    images = album.of_episode("hasty", BATCH.headers[1].episode_id)
    assert [image.kind for image in images] == ["initial", "final"]
    assert images[0].source == f"data:image/jpeg;base64,{base64.b64encode(PNG).decode()}"
    assert album.left_out == 1


def test_no_more_than_fits_is_embedded(folder):
    assert len(collect_images([folder], most_bytes=60).images) == 1
    assert collect_images([folder], most_bytes=60).left_out == 2
    assert collect_images([folder], most_bytes=10) == Album(left_out=3)


def test_missing_pictures_are_left_out(folder):
    (folder / FRAMES / "a.png").unlink()
    assert collect_images([folder]).left_out == 2


def test_sources_without_frames_have_none(tmp_path):
    (tmp_path / RUN).write_text("{}")
    (tmp_path / "file.jsonl").write_text("")
    assert collect_images([tmp_path, tmp_path / "file.jsonl"]) == Album()


def test_an_index_that_cannot_be_read_is_an_error(folder):
    (folder / FRAMES / "index.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        collect_images([folder])


def test_the_page_shows_each_picture_once_with_its_caption(folder):
    scores = score(BATCH, load_ruleset())
    text = render_page(scores, BATCH, load_ruleset(), title="t", album=collect_images([folder]))
    assert len(re.findall("<img ", text)) == 2
    assert "The initial &lt;state&gt;." in text
    assert "safevla frames RUN" not in text
    assert "1 more picture or clip lies" in text
    assert "safevla frames RUN" in render_page(scores, BATCH, load_ruleset(), title="t")
