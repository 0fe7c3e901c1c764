"""Frames in the report: those that exist and fit, in order, as data in the page."""

from __future__ import annotations

import base64
import io
import os
import re

import pytest
from PIL import Image

from report.scenes import run
from safevla_bench.errors import RunError
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.album import Album, collect_images, collect_replays
from safevla_bench.report.page import render_page
from safevla_bench.sources.runs.folder import FRAMES, RUN, Frame, write_frames

BATCH = run(["hasty"], [1.0], 2, ["libero-10"])
PICTURES = {}
for form in ("png", "jpeg", "webp"):
    drawn = io.BytesIO()
    Image.new("RGB", (8, 6), (200, 30, 30)).save(drawn, form)
    PICTURES[form] = drawn.getvalue()


def frame(kind: str, file: str, **changes: object) -> Frame:
    about = {"episode_id": BATCH.headers[1].episode_id, "policy": "hasty", "success": True}
    seen = {"kind": kind, "caption": f"The {kind} <state>.", "record": 3, "time_s": 0.15}
    image = {"camera": "front", "width": 8, "height": 6, "file": file}
    return Frame(**{**about, **seen, **image, **changes})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FRAMES).mkdir()
    (tmp_path / RUN).write_text("{}")
    for name, form in (("a.png", "png"), ("b.jpg", "jpeg"), ("c.mp4", "png"), ("d.webp", "webp")):
        (tmp_path / FRAMES / name).write_bytes(PICTURES[form])
    write_frames(tmp_path, [frame("final", "a.png"), frame("initial", "b.jpg"), frame("clip", "c.mp4")])
    return tmp_path


def test_images_are_embedded_in_the_order_of_time_and_clips_are_counted(folder):
    album = collect_images([folder])
    images = album.images[BATCH.headers[1].key]
    assert [frame.kind for frame, _ in images] == ["initial", "final"]
    assert images[0][1] == f"data:image/jpeg;base64,{base64.b64encode(PICTURES['jpeg']).decode()}"
    assert album.left_out == 1


def test_no_more_than_fits_is_embedded(folder):
    room = len(PICTURES["png"]) * 2  # the JPEG is larger
    album = collect_images([folder], most_bytes=room)
    assert [frame.kind for frame, _ in album.images[BATCH.headers[1].key]] == ["final"]
    assert album.left_out == 2
    assert collect_images([folder], most_bytes=10) == Album(left_out=3)


def test_missing_pictures_are_left_out(folder):
    (folder / FRAMES / "a.png").unlink()
    assert collect_images([folder]).left_out == 2


OUTSIDE = "of another file"


def link_out(path):
    (path.parents[2] / "outside.png").write_bytes(PICTURES["png"] + OUTSIDE.encode())
    path.symlink_to(path.parents[2] / "outside.png")


HOSTILE = {
    "a link out of the run": link_out,
    "a pipe": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "the environment of the process": lambda path: path.symlink_to("/proc/self/environ"),
    "a folder": lambda path: path.mkdir(),
    "no picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\nnot really"),
    "a picture of another form": lambda path: path.write_bytes(PICTURES["jpeg"]),
    "half a picture": lambda path: path.write_bytes(PICTURES["png"][:50]),
    "a picture of a billion pixels": lambda path: Image.new("1", (40_000, 30_000)).save(path, "png"),
    "a file without end": lambda path: path.touch() or os.truncate(path, 1 << 40),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_only_pictures_that_are_files_of_the_run_are_embedded(folder, kind):
    path = folder / FRAMES / "a.png"
    path.unlink()
    HOSTILE[kind](path)
    album = collect_images([folder])
    assert album.left_out == 2
    assert [frame.kind for frame, _ in album.images[BATCH.headers[1].key]] == ["initial"]


def test_a_link_within_the_run_is_followed(folder):
    (folder / FRAMES / "a.png").rename(folder / "kept.png")
    (folder / FRAMES / "a.png").symlink_to(folder / "kept.png")
    assert collect_images([folder]).left_out == 1


@pytest.mark.parametrize("target", ["outside.json", "/dev/zero"])
def test_a_replay_is_a_file_of_the_run_too(folder, target):
    (folder.parent / "outside.json").write_text('{"version": 1, "meshes": {}}')
    write_frames(folder, [frame("replay3d", "r.json")])
    (folder / FRAMES / "r.json").symlink_to(folder.parent / target)
    assert not collect_replays([folder]).documents
    (folder / FRAMES / "r.json").unlink()
    (folder / FRAMES / "r.json").write_text('{"version": 1, "meshes": {}}')
    assert len(collect_replays([folder]).documents) == 1


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
