"""The table "ability × host" of docs/reference/hosts.md, run for real: what a host declares works, and what it does not
declare is refused before the run. Each host's column runs where its simulator is: `make test`, `make test-robocasa`.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from hosts import vulkan
from safevla_bench.archive import write_archive
from safevla_bench.cli import run_command_line
from safevla_bench.hosts import make_host
from safevla_bench.interface.environment import Host, HostSupport
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed, Task
from safevla_bench.judging.activity import measure_engagement
from safevla_bench.signals.signal import RecordFields
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import DRAWN, mark_flags

pytestmark = pytest.mark.filterwarnings("ignore")

PLACES = {
    "fake": ("fake", 0, ()),
    "libero": ("libero-object", 0, pytest.mark.libero),
    "robocasa": ("robocasa-365", 16, pytest.mark.robocasa),
    "robosuite": ("robosuite", 0, pytest.mark.robocasa),
    "metaworld": ("mt10", 2, pytest.mark.metaworld),
    "maniskill": ("maniskill", 0, pytest.mark.maniskill),
}
"""Host -> a suite, a task of it, and the mark of its environment."""
COLUMNS = [pytest.param(name, marks=mark) for name, (*_, mark) in PLACES.items()]
SIZE = 32, 24
SEED = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=2)


class Watcher:
    """A policy that wants what its arguments name, and fails unless each observation has it."""

    def __init__(self, cameras="", readings="", privileged="", absolute=""):
        names = [tuple(filter(None, text.split(","))) for text in (cameras, readings)]
        self.wants = Wants(names[0], SIZE, bool(privileged), absolute=bool(absolute), extra=names[1])

    def reset(self, task, seed):
        self.still = np.array(task.still)

    def act(self, seen):
        assert [seen.images[name].shape for name in self.wants.cameras] == [(*SIZE, 3)] * len(self.wants.cameras)
        assert all(np.ptp(image) for image in seen.images.values()), "a picture of one color"
        assert set(self.wants.extra) <= set(seen.extra)
        if self.wants.privileged and not self.wants.extra:
            assert seen.privileged.body_pos_m
        return [*seen.eef_pos_m, np.pi, 0, 0, -1.0] if self.wants.absolute else self.still


@dataclass
class Column:
    """A host, a run of one episode of it, and commands on its task."""

    host: Host
    task: Task
    run: Path
    safevla: object = None

    @property
    def supports(self) -> HostSupport:
        return self.host.supports

    def command(self, name: str, *arguments: object, steps: int = 3) -> list[object]:
        where = ["--host", self.host.name, "--suite", self.task.benchmark, "--task", self.task.index]
        return [name, *where, "--max-steps", steps, *arguments]

    def watch(self, **wanted: str) -> list[object]:
        given = [f"{name}={value}" for name, value in wanted.items()]
        return ["--policy", f"python:{__name__}:Watcher", *(word for each in given for word in ("--policy-arg", each))]

    def evaluate(self, out: Path, *arguments: object) -> Batch:
        """Return the records of an evaluation that succeeds without a crash."""
        self.safevla.ok(*self.command("eval", "--episodes", 1, "--out", out, *arguments))
        return self.read(out)

    def refuse(self, out: Path, *arguments: object, dry: bool = True) -> None:
        for further in [[], *([["--dry-run"]] if dry else [])]:
            self.safevla.refuses(*self.command("eval", "--episodes", 1, "--out", out, *arguments), *further)
        assert not out.exists()

    @staticmethod
    def read(run: Path) -> Batch:
        return read_sources([run])[0]


@pytest.fixture(scope="module", params=COLUMNS)
def recorded(request, tmp_path_factory) -> Column:
    suite, index, _ = PLACES[request.param]
    host = make_host(request.param)
    column = Column(host, host.tasks(suite)[index], tmp_path_factory.mktemp(host.name) / "run")
    command = column.command("eval", "--policy", "random", "--episodes", 1, "--out", column.run)
    assert run_command_line([str(word) for word in command]) == 0
    return column


@pytest.fixture
def column(recorded, safevla) -> Column:
    return replace(recorded, safevla=safevla)


def states(batch: Batch) -> np.ndarray:
    return batch.sim_state.episode_rows(0)


def without_start(batch: Batch) -> Batch:
    """The same records, as those of a loop that does not say where an episode started."""
    header = msgspec.structs.replace(batch.headers[0], env_seed=None, init_state_index=None, episode_id="own/ep_000")
    return replace(batch, headers=(header,))


def cannot_render(column: Column) -> bool:
    return column.host.name == "maniskill" and bool(vulkan.MISSING)


# On every host


def test_verify_doctor_and_a_replay_agree(column, tmp_path):
    assert "agrees" in column.safevla.ok("verify", column.run, "--replay", 1)
    assert column.safevla("doctor", "--host", column.host.name)[0] == 0
    column.safevla.ok("eval", "--policy", f"replay:{column.run}", "--out", tmp_path / "again")
    assert np.array_equal(states(column.read(column.run)), states(column.read(tmp_path / "again")))


def test_noop_is_never_engaged(column, tmp_path):
    """Whatever it touches or moves is settling, or the floor."""
    column.safevla.ok(
        *column.command("eval", "--policy", "noop", "--episodes", 2, "--out", tmp_path / "noop", steps=20)
    )
    assert measure_engagement(RecordFields(column.read(tmp_path / "noop"))).tolist() == [0.0, 0.0]


def test_changes_of_the_actions_alone_work(column):
    for cause in ("slow", "hold:1-3"):
        column.safevla.ok("show", column.run, 0, "--without", cause)


# One test for each row of the table


def test_cameras_and_further_readings(column, tmp_path):
    supports = replace(column.supports, cameras=() if cannot_render(column) else column.supports.cameras)
    readings = (*supports.readings, *supports.privileged_readings)
    wanted = {"privileged": "yes"} if supports.privileged_readings else {}
    if supports.cameras or readings:
        own = column.watch(cameras=",".join(supports.cameras), readings=",".join(readings), **wanted)
        assert column.evaluate(tmp_path / "run", *own).headers[0].outcome == "timeout"
    for absent in ({"cameras": "no-such-camera"}, {"readings": "no-such-reading"}):
        column.refuse(tmp_path / "refused", *column.watch(**absent), dry=False)
    for reading in supports.privileged_readings:
        column.refuse(tmp_path / "refused", *column.watch(readings=reading), dry=False)


def test_poses_of_bodies_for_policies_and_filters(column, tmp_path):
    barrier = ["--policy", "random", "--filter", "distance-barrier"]
    if column.supports.privileged:
        column.evaluate(tmp_path / "watched", *column.watch(privileged="yes"))
        column.evaluate(tmp_path / "filtered", *barrier)
        return
    column.refuse(tmp_path / "watched", *column.watch(privileged="yes"), dry=False)
    column.refuse(tmp_path / "scripted", "--policy", "scripted:careful")
    column.refuse(tmp_path / "filtered", *barrier)


def test_actions_that_are_poses(column, tmp_path):
    absolute = column.watch(absolute="yes")
    if column.supports.absolute:
        column.evaluate(tmp_path / "run", *absolute)
    else:
        column.refuse(tmp_path / "run", *absolute, dry=False)


def test_motion_of_the_hand_and_drawn_starts(column):
    unit_m, task = column.supports.unit_m, column.task
    with closing(column.host.make(task, Wants())) as env:
        hand = [env.reset(SEED).eef_pos_m]
        action = np.array(task.still)
        action[0] = 1.0
        hand += [env.step(action)[0].eef_pos_m for _ in range(8)]
        per_step = np.linalg.norm(hand[-1] - hand[0]) / 8
        if unit_m is not None:
            assert 0.1 * unit_m < per_step <= 1.01 * unit_m
        if column.supports.drawn or not task.init_states:
            starts = []
            for index in (0, 1, 0):
                env.reset(replace(SEED, init_state_index=index, drawn=True))
                starts.append(env.recorded())
            assert mark_flags(starts[0], DRAWN)[0] == (column.supports.drawn and bool(task.init_states))
            first, other, again = (states(batch).tobytes() for batch in starts)
            assert first == again != other


def test_starts_from_a_recorded_state(column, tmp_path):
    batch = column.read(column.run)
    write_archive(tmp_path / "own.jsonl", without_start(batch))
    replayed = ["--policy", f"replay:{tmp_path / 'own.jsonl'}"]
    if column.supports.states:
        again = column.evaluate(tmp_path / "again", *replayed)
        assert np.allclose(states(again)[0], states(batch)[0], atol=1e-6)
    else:
        column.refuse(tmp_path / "again", *replayed)


def test_objects_at_chosen_places(column, tmp_path):
    search = ["--policy", "noop", "--budget", 2, "--method", "random", "--until", "budget", "--out", tmp_path / "run"]
    if column.host.name == "metaworld":  # its own protocol begins at initial states, which no seed draws
        column.safevla.refuses(*column.command("search", *search))
        search += ["--protocol", "lerobot-metaworld"]
    column.safevla.ok(*column.command("search", *search))
    found = tmp_path / "run/found/run.json"
    document = json.loads(found.read_text())
    assert document["tasks"][0]["trials"] == 2
    body, place_m = "none", 0.1
    if column.supports.placed:
        space = column.host.search_space(column.task, SEED)
        body, place_m = space.names[0], float(np.mean([space.low[0], space.high[0]]))
    start = {"init_state_index": 0, "env_seed": 7, "wait_steps": 0, "placed": [[body, place_m]]}
    trial = {"policy_seed": 0, "trial": 1, "value": -1.0, "violated": [], "distance_m": None, "merged": 0}
    document["starts"] = [{"task_id": column.task.task_id, "start": start, **trial}]
    document["tasks"][0] |= {"successes": 1, "hits": 1, "first": 1}
    found.write_text(json.dumps(document))
    command = ["eval", "--suite", f"found:{found}", "--policy", "noop", "--max-steps", 2, "--out", tmp_path / "placed"]
    if not column.supports.placed:
        for further in ([], ["--dry-run"]):
            column.safevla.refuses(*command, *further)
        assert not (tmp_path / "placed").exists()
        return
    column.safevla.ok(*command)
    name, _, axis = body.rpartition(".")
    batch = column.read(tmp_path / "placed")
    bodies, positions_m = batch.body_pos_m.episode_poses(0)
    of_body = [batch.body_label(int(k)) for k in bodies].index(name)
    assert positions_m[0, of_body, "xy".index(axis)] == pytest.approx(place_m, abs=5e-3)


def test_changed_physics(column):
    changeable, batch = column.supports.changeable, column.read(column.run)
    body = next((name for name, role in batch.body_roles(0).items() if role in {"target", "bystander"}), "furniture")
    causes = {"apart": f"contact:robot,{body}", "without": f"body:{body}"}
    for field, cause in causes.items():
        code, _, err = column.safevla("show", column.run, 0, "--without", cause)
        assert code == (0 if field in changeable else 2), err
    physics = ["sensitivity", column.run, "--physics"]
    if changeable:
        column.safevla.ok(*physics)
    else:
        column.safevla.refuses(*physics)


def test_pictures_and_films(column):
    if cannot_render(column):
        pytest.skip(vulkan.MISSING)
    frames = ["frames", column.run, "--size", *SIZE, "--video", "--3d"]
    if column.supports.pictures:
        column.safevla.ok(*frames)
        kinds = {path.suffix for path in (column.run / "frames").rglob("*")}
        assert {".jpg", ".mp4", ".json"} <= kinds
    else:
        column.safevla.refuses(*frames)
        column.safevla.refuses(*frames[:2])


def test_every_row_of_the_table_has_a_test():
    """A row that is added to docs/reference/hosts.md gets a test above, and its name a line here."""
    page = Path(__file__).parents[2] / "docs/reference/hosts.md"
    rows = [
        line.split(" | ")[0].strip("| ")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    assert rows[1:] == [
        "cameras",
        "poses of bodies, for privileged policies and filters",
        "further readings",
        "actions that are poses",
        "motion of the hand by an action of 1",
        "drawn starts besides initial states",
        "starts from a recorded state",
        "objects at chosen places",
        "changed physics",
        "pictures and films of recorded episodes",
    ]
