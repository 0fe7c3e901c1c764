"""A model that expects pictures turned or mirrored is noticed by its replies to scenes of recorded episodes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from jobs.doctor.test_server import ROWS, look
from policies.servers.stub_servers import OPENPI_REQUEST, TASK, openpi, websockets
from safevla_bench import archive
from safevla_bench.jobs.doctor import pictures
from safevla_bench.jobs.doctor.pictures import AS_SENT, TURNS, judge_turns, load_scenes, measure_turns
from safevla_bench.policies.servers import ChunkModel, dialects

DIALECT = "openpi-libero"
SIGNS = {"turned by 180 degrees": (-1, -1), "mirrored left to right": (1, -1), "upside down": (-1, 1), AS_SENT: (1, 1)}


class Decoder:
    """Knows each scene in each turn, as the dialect sends it, and so which scene and turn a picture is."""

    def __init__(self, trained: str, dialect: str = DIALECT) -> None:
        self.trained, sends = trained, dialects.load_dialect(dialect)
        self.scenes = load_scenes()
        self.seen = {
            (k, name): sends.view(pictures.fit_images(scene, sends.wants, turn).images["agentview"])
            for (k, scene), (name, turn) in product(enumerate(self.scenes), TURNS.items())
        }

    def rows(self, image: np.ndarray) -> np.ndarray:
        """The recorded actions, moved to where a model that was trained on the turn `trained` sees the object."""
        (place, turn), *others = [key for key, sent in self.seen.items() if np.array_equal(sent, image)]
        assert not others
        rows = self.scenes[place].actions.copy()
        rows[:, :2] *= np.array(SIGNS[self.trained]) * SIGNS[turn]
        return rows


def find_pictures(answer):
    with websockets(openpi(lambda request, number: {"actions": answer(request)}, OPENPI_REQUEST)) as peer:
        return look(f"openpi:{peer.url}")["pictures"]


@pytest.mark.parametrize("trained", TURNS)
def test_the_orientation_that_a_model_was_trained_on_is_the_nearest(trained):
    decoder = Decoder(trained)
    known = [*decoder.seen.values()]

    def answer(request):
        image = request["observation/image"]
        return decoder.rows(image) if any(np.array_equal(image, each) for each in known) else ROWS  # a made-up scene

    finding = find_pictures(answer)
    assert finding.level == ("ok" if trained == AS_SENT else "warning")
    assert f"   0° {trained}" in finding.found
    assert finding.found.count("   0°") == 1
    assert trained == AS_SENT or f"expect pictures {trained}" in finding.found


def test_a_server_that_does_not_look_is_not_said_to_be_right():
    assert find_pictures(lambda request: ROWS).found.startswith("orientation unknown")


def test_replies_by_chance_rarely_decide():
    drawn = np.random.default_rng(0).uniform(0, 180, (2000, len(load_scenes()), len(TURNS))).mean(axis=1)
    levels = [judge_turns(dict(zip(TURNS, angles, strict=True))).level for angles in drawn]
    assert levels.count("warning") < 0.05 * len(drawn)


@pytest.mark.parametrize(
    ("angles", "level", "words"),
    [
        ((20, 90, 90, 90), "ok", "turned as the model expects"),
        ((90, 20, 90, 90), "warning", "to expect pictures turned by 180 degrees"),
        ((35, 20, 90, 90), "ok", "orientation undecided"),
        ((90, 50, 90, 90), "ok", "orientation undecided"),
        ((50, 60, 90, 90), "ok", "orientation undecided"),
    ],
)
def test_only_a_near_and_clear_orientation_decides(angles, level, words):
    finding = judge_turns(dict(zip(TURNS, angles, strict=True)))
    assert finding.level == level
    assert words in finding.found


class Absolute(ChunkModel):
    """Answers with poses in the world on the way that was recorded, for pictures as they are sent."""

    def __init__(self):
        super().__init__(dialects.load_dialect("xvla-libero"))
        self.decoder = Decoder(AS_SENT, "xvla-libero")

    def begin(self, task, seed): ...

    def query(self, observation): ...

    def infer(self, observation):
        poses = self.decoder.rows(self.dialect.view(observation.images["agentview"]))
        poses[:, :2] = observation.extra["controller_pos"][:2] + 0.03 * np.cumsum(poses[:, :2], axis=0)
        return poses


def test_poses_are_compared_by_the_way_to_them():
    angles = measure_turns(Absolute(), TASK, load_scenes())
    assert min(angles, key=angles.get) == AS_SENT
    assert angles[AS_SENT] < 1e-3


def test_the_dialects_of_other_hosts_and_other_cameras_are_not_checked():
    actions = np.tile(np.linspace(0.1, 0.4, 12), (10, 1))
    request = {**OPENPI_REQUEST, "observation/right_image": ("|u1", (224, 224, 3)), "observation/state": ("<f8", (16,))}
    with websockets(openpi(lambda request, number: {"actions": actions}, request)) as peer:
        assert look(f"openpi:{peer.url}")["pictures"].found.startswith("orientation not checked")


def test_the_scenes_are_of_successful_episodes_of_the_demo(shipped):
    batch, step, scenes = archive.open_archive(shipped), 10, load_scenes()
    hands = batch.eef_pos_m.values.reshape(-1, 3)[batch.starts[:-1] + step]
    wins = [header.success and header.policy == "scripted:careful" for header in batch.headers]
    for scene in scenes:
        place = int(np.argmin(np.where(wins, np.linalg.norm(hands - scene.observation.eef_pos_m, axis=1), np.inf)))
        first = batch.starts[place] - place + step  # an episode has an action less than records
        assert (batch.action.values.reshape(-1, 7)[first : first + 8] == scene.actions).all()
        assert {*scene.observation.images} == {*pictures.CAMERAS}
    assert len({scene.observation.instruction for scene in scenes}) == 5
