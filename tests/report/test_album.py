"""Pictures and replays of runs in the page: those that exist and fit, as inert data, under the page's policy."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import struct
import zlib

import pytest
from PIL import Image

from report.scenes import run
from safevla_bench.errors import RunError
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.album import Album, Replays, collect_images, collect_replays, embed_replays, read_replay
from safevla_bench.report.episode_details import EpisodeRecords
from safevla_bench.report.page import render_page
from safevla_bench.sources.runs.folder import FRAMES, RUN, Frame, write_frames

RULESET = load_ruleset()
BATCH = run(["hasty"], [1.0], 4, ["libero-10"])
SCORES = score(BATCH, RULESET)
KEY = BATCH.headers[1].key


def page(**content: object) -> str:
    return render_page(SCORES, BATCH, RULESET, title="t", **content)


# Pictures

PICTURES = {}
for form in ("png", "jpeg", "webp"):
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (200, 30, 30)).save(stream, form)
    PICTURES[form] = stream.getvalue()


def frame(kind: str, file: str, **changes: object) -> Frame:
    about = {"episode_id": KEY[1], "policy": KEY[0], "success": True}
    caption = {"kind": kind, "caption": f"The {kind} <state>.", "record": 3, "time_s": 0.15}
    image = {"camera": "front", "width": 8, "height": 6, "file": file}
    return Frame(**{**about, **caption, **image, **changes})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FRAMES).mkdir()
    (tmp_path / RUN).write_text("{}")
    for name, form in (("a.png", "png"), ("b.jpg", "jpeg"), ("c.mp4", "png"), ("d.webp", "webp")):
        (tmp_path / FRAMES / name).write_bytes(PICTURES[form])
    write_frames(tmp_path, [frame("final", "a.png"), frame("initial", "b.jpg"), frame("violation", "c.mp4")])
    return tmp_path


def test_images_are_embedded_in_the_order_of_time_and_other_files_are_counted(folder):
    album = collect_images([folder])
    images = album.images[KEY]
    assert [frame.kind for frame, _ in images] == ["initial", "final"]
    assert images[0][1] == f"data:image/jpeg;base64,{base64.b64encode(PICTURES['jpeg']).decode()}"
    assert album.left_out == 1


def test_a_page_links_to_the_film_from_where_it_lies(folder, tmp_path):
    write_frames(folder, [frame("video", "c.mp4")])
    for page_folder, address in ((folder, "frames/c.mp4"), (tmp_path / "a b", "../frames/c.mp4")):
        shown = page(album=collect_images([folder], page_folder=page_folder))
        assert shown.count(f'<a href="{address}">Film') == 2, "in the list, and where the episode is drawn large"
    assert "Film of" not in page(album=collect_images([folder]))
    (folder / FRAMES / "c.mp4").unlink()
    assert not collect_images([folder], page_folder=folder).films


def test_no_more_than_fits_is_embedded(folder):
    room = len(PICTURES["png"]) * 2  # the JPEG is larger
    album = collect_images([folder], most_bytes=room)
    assert [frame.kind for frame, _ in album.images[KEY]] == ["final"]
    assert album.left_out == 2
    assert collect_images([folder], most_bytes=10) == Album(left_out=3)


def test_missing_pictures_are_left_out(folder):
    (folder / FRAMES / "a.png").unlink()
    assert collect_images([folder]).left_out == 2


def link_out(path):
    (path.parents[2] / "outside.png").write_bytes(PICTURES["png"] + b"of another file")
    path.symlink_to(path.parents[2] / "outside.png")


def enlarged_png(width: int, height: int) -> bytes:
    """A small PNG whose header claims another size."""
    claim = b"IHDR" + struct.pack(">II", width, height) + PICTURES["png"][24:29]
    return PICTURES["png"][:12] + claim + struct.pack(">I", zlib.crc32(claim)) + PICTURES["png"][33:]


DISGUISES = {
    "a link out of the run": link_out,
    "a pipe": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "the environment of the process": lambda path: path.symlink_to("/proc/self/environ"),
    "a folder": lambda path: path.mkdir(),
    "no picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\nnot really"),
    "a picture of another form": lambda path: path.write_bytes(PICTURES["jpeg"]),
    "half a picture": lambda path: path.write_bytes(PICTURES["png"][:50]),
    "a picture of a billion pixels": lambda path: path.write_bytes(enlarged_png(40_000, 30_000)),
    "a file without end": lambda path: path.touch() or os.truncate(path, 1 << 40),
}


@pytest.mark.parametrize("kind", DISGUISES)
def test_only_pictures_that_are_files_of_the_run_are_embedded(folder, kind):
    path = folder / FRAMES / "a.png"
    path.unlink()
    DISGUISES[kind](path)
    album = collect_images([folder])
    assert album.left_out == 2
    assert [frame.kind for frame, _ in album.images[KEY]] == ["initial"]


def test_a_pointer_of_git_lfs_is_left_out_like_a_missing_file(folder):
    """A clone of a run folder without Git LFS has such a pointer in place of each picture and replay."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    for name in ("a.png", "e.json"):
        (folder / FRAMES / name).write_bytes(pointer)
    write_frames(folder, [frame("final", "a.png"), frame("replay3d", "e.json")])
    assert (collect_images([folder]), collect_replays([folder])) == (Album({}, 1), {})


def test_a_link_within_the_run_is_followed(folder):
    (folder / FRAMES / "a.png").rename(folder / "kept.png")
    (folder / FRAMES / "a.png").symlink_to(folder / "kept.png")
    assert collect_images([folder]).left_out == 1


@pytest.mark.parametrize("target", ["outside.json", "/dev/zero"])
def test_a_replay_is_a_file_of_the_run_too(folder, target):
    (folder.parent / "outside.json").write_text('{"version": 1, "meshes": {}}')
    write_frames(folder, [frame("replay3d", "r.json")])
    (folder / FRAMES / "r.json").symlink_to(folder.parent / target)
    assert not collect_replays([folder])
    (folder / FRAMES / "r.json").unlink()
    (folder / FRAMES / "r.json").write_text('{"version": 1, "meshes": {}}')
    assert len(collect_replays([folder])) == 1


def test_sources_without_frames_have_none(tmp_path):
    (tmp_path / RUN).write_text("{}")
    (tmp_path / "file.jsonl").write_text("")
    assert collect_images([tmp_path, tmp_path / "file.jsonl"]) == Album()


def test_an_index_that_cannot_be_read_is_an_error(folder):
    (folder / FRAMES / "index.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        collect_images([folder])


def test_the_page_shows_each_picture_once_with_its_caption(folder):
    text = page(album=collect_images([folder]))
    assert len(re.findall("<img ", text)) == 2
    assert "The initial &lt;state&gt;." in text
    assert "safevla frames RUN" not in text
    assert "1 more picture" in text
    assert "safevla frames RUN" in page()


# Replays

HOSTILE = "</script><script>alert(1)</script><!-- & \u2028"


def replay(*meshes: str, name: str = "plate_1") -> dict[str, object]:
    return {
        "version": 1,
        "dt_s": 0.05,
        "records": 3,
        "parts": [name],
        "meshes": {digest: {"corners": [0, "eA=="]} for digest in meshes},
    }


def replays(*documents: dict[str, object]) -> Replays:
    return dict(zip((header.key for header in BATCH.headers), documents, strict=False))


def data_blocks(html: str) -> dict[str, object]:
    blocks = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', html, re.DOTALL)
    return {name: json.loads(text) for name, text in blocks}


def test_a_mesh_of_several_episodes_is_in_the_page_once():
    blocks = data_blocks(page(replays=replays(replay("arm", "cup"), replay("arm"), replay("arm", "bowl"))))
    assert set(blocks["replay3d-meshes"]) == {"arm", "cup", "bowl"}
    assert {name for name in blocks if name != "replay3d-meshes"} == {"replay3d-1", "replay3d-2", "replay3d-3"}
    assert all("meshes" not in block for name, block in blocks.items() if name != "replay3d-meshes")


def test_a_page_without_replays_holds_no_player():
    html = page()
    assert "three.js" not in html
    assert "application/json" not in html


def test_the_policy_allows_exactly_the_scripts_that_are_there():
    html = page(replays=replays(replay("arm")))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = {f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}" for script in scripts}
    assert len(scripts) == 3
    allowed = re.search(r"script-src ([^;]+);", policy.replace("&#39;", "'"))[1]
    assert {digest.strip("'") for digest in allowed.split()} == digests


def test_no_name_ends_its_block():
    html = page(replays=replays(replay("arm", name=HOSTILE)))
    assert HOSTILE not in html
    assert data_blocks(html)["replay3d-1"]["parts"] == [HOSTILE]


def test_the_same_inputs_give_the_same_bytes():
    assert page(replays=replays(replay("b", "a"))) == page(replays=replays(replay("a", "b")))


def test_what_does_not_fit_is_counted():
    records = EpisodeRecords(SCORES, BATCH, RULESET)
    documents = replays(replay("arm"), replay("cup"), replay("bowl"))
    whole = embed_replays(records, documents)
    texts = sum(len(text) for text in whole.episodes.values())  # without meshes, so that the last has no room
    part = embed_replays(records, documents, most_bytes=texts)
    assert part.left_out == 1
    assert len(part.episodes) == 2
    assert embed_replays(records, documents, most_bytes=10).scripts == ()


def test_clauses_have_the_stretches_the_moments_and_the_bodies():
    html = page(replays=replays(replay("arm")))
    clauses = data_blocks(html)["replay3d-1"]["clauses"]
    broken = [clause for clause in clauses if clause["violated"]]
    assert broken, "the case needs a violation"
    for clause in broken:
        column = [spec.spec_id for spec in SCORES.specs].index(clause["spec"])
        assert clause["first"] == SCORES.first[column, 0]
        assert any(first <= clause["worst"] <= last for first, last in clause["spans"])
        assert clause["spans"][0][0] == clause["first"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"version": 2, "meshes": {}}', b'{"version": 1}', b"[" * 9999]
)
def test_a_file_that_is_not_a_replay_is_passed_over(content):
    assert read_replay(content) is None


def test_a_person_whom_the_rules_place_is_in_every_replay(tmp_path):
    place = 'at = "world"\noffset_m = [1, 0, 0]\nheight_m = 1.75\nreaction_s = 0.1\nstopping_s = 0.3\nof = "eef"\n'
    (tmp_path / "near.toml").write_text(f'based_on = "person"\n[person]\n{place}')
    records = EpisodeRecords(SCORES, BATCH, load_ruleset(tmp_path / "near.toml"))
    (text,) = embed_replays(records, replays(replay("arm"))).episodes.values()
    assert [box["body"] for box in json.loads(text)["boxes"]] == [None] * 3
    assert "boxes" not in json.loads(
        *embed_replays(EpisodeRecords(SCORES, BATCH, RULESET), replays(replay("arm"))).episodes.values()
    )
