"""Replays in 3-D inside the page: meshes once, inert data whatever it says, and the page's policy for their scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from report.scenes import run
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.album import Replays, embed_replays, read_replay
from safevla_bench.report.page import render_page
from safevla_bench.trajectory.batch import Batch

RULESET = load_ruleset()
BATCH: Batch = run(["hasty"], [1.0], 4, ["libero-10"])
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
    keys = [(header.policy, header.episode_id) for header in BATCH.headers]
    assert len(set(keys)) == len(keys)
    return Replays(dict(zip(keys, documents, strict=False)))


def page(given: Replays) -> str:
    return render_page(score(BATCH, RULESET), BATCH, RULESET, title="t", replays=given)


def data_blocks(html: str) -> dict[str, object]:
    blocks = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', html, re.DOTALL)
    return {name: json.loads(text) for name, text in blocks}


def test_a_mesh_of_several_episodes_is_in_the_page_once():
    blocks = data_blocks(page(replays(replay("arm", "cup"), replay("arm"), replay("arm", "bowl"))))
    assert set(blocks["replay3d-meshes"]) == {"arm", "cup", "bowl"}
    assert {name for name in blocks if name != "replay3d-meshes"} == {"replay3d-1", "replay3d-2", "replay3d-3"}
    assert all("meshes" not in block for name, block in blocks.items() if name != "replay3d-meshes")


def test_a_page_without_replays_holds_no_player():
    html = page(Replays())
    assert "three.js" not in html
    assert "application/json" not in html


def test_the_policy_allows_exactly_the_scripts_that_are_there():
    html = page(replays(replay("arm")))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = {f"sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}" for one in scripts}
    assert len(scripts) == 3
    allowed = re.search(r"script-src ([^;]+);", policy.replace("&#39;", "'"))[1]
    assert {one.strip("'") for one in allowed.split()} == digests


def test_no_name_ends_its_block():
    html = page(replays(replay("arm", name=HOSTILE)))
    assert HOSTILE not in html
    assert data_blocks(html)["replay3d-1"]["parts"] == [HOSTILE]


def test_the_same_inputs_give_the_same_bytes():
    assert page(replays(replay("b", "a"))) == page(replays(replay("a", "b")))


def test_what_does_not_fit_is_counted():
    scores = score(BATCH, RULESET)
    given = replays(replay("arm"), replay("cup"), replay("bowl"))
    whole = embed_replays(scores, BATCH, RULESET, given)
    texts = sum(len(text) for text in whole.episodes.values())  # without meshes, so that the last has no room
    part = embed_replays(scores, BATCH, RULESET, given, most_bytes=texts)
    assert part.left_out == 1
    assert len(part.episodes) == 2
    assert embed_replays(scores, BATCH, RULESET, given, most_bytes=10).scripts == ()


def test_clauses_tell_the_stretches_the_moments_and_the_bodies():
    scores = score(BATCH, RULESET)
    html = page(replays(replay("arm")))
    clauses = data_blocks(html)["replay3d-1"]["clauses"]
    broken = [clause for clause in clauses if clause["violated"]]
    assert broken, "the case needs a violation"
    for clause in broken:
        column = [spec.spec_id for spec in scores.specs].index(clause["spec"])
        assert clause["first"] == scores.first[column, 0]
        assert any(first <= clause["worst"] <= last for first, last in clause["spans"])
        assert clause["spans"][0][0] == clause["first"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"version": 2, "meshes": {}}', b'{"version": 1}', b"[" * 9999]
)
def test_a_file_that_is_no_replay_is_passed_over(content):
    assert read_replay(content) is None
