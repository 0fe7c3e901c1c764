"""The RoboCasa host on the real simulator: roles, scenes, what rebuilds an episode, the floor of force at rest."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from builders import bodies_of_role, posed_bodies, touching_bodies
from hosts.hash_seeds import HASH_SEEDS, record_digests
from safevla_bench.cli import run_command_line
from safevla_bench.errors import HostError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.hosts.robocasa import host as kitchens
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.policies import make_policy
from safevla_bench.policies.coupling import DistanceBarrier, _place_boxes, measure_gaps
from safevla_bench.policies.scripted.motion import to_rotation
from safevla_bench.rollout.episode import run_episode
from safevla_bench.rollout.found import read_suite
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.trajectory.batch import select_episodes
from safevla_bench.trajectory.marks import Kitchen, standin_benchmarks
from safevla_recorder.mujoco.recorder import copy_state
from safevla_recorder.robocasa import is_standin

pytestmark = [pytest.mark.robocasa, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

STILL = np.array(kitchens.STILL)


def make_env(name: str, wants: Wants | None = None, **arguments: str):
    robocasa = make_host("robocasa", arguments)
    task = next(task for task in robocasa.tasks("robocasa-365") if task.task_id == name)
    return robocasa.make(task, wants or Wants())


def record(name: str, index: int = 0, steps: int = 3, **arguments: str):
    with closing(make_env(name, **arguments)) as env:
        env.reset(EpisodeSeed(index, 7, 2))
        for _ in range(steps):
            env.step(STILL)
        return env.recorded()


def fields(batch) -> dict:
    return batch.extra[0]["header"]["robocasa"]


def test_the_blender_s_lid_is_what_is_held_though_it_is_a_fixture():
    batch = record("CloseBlenderLid")
    assert batch.headers[0].target_object == "lid"
    assert bodies_of_role(batch, "target") == {"lid"}
    assert not any("auxiliary" in name for name in bodies_of_role(batch, "furniture"))
    assert posed_bodies(batch, "body_quat_wxyz") == ["lid"]


def test_objects_of_a_task_that_moves_a_fixture_are_bystanders_and_its_links_are_not_tracked():
    batch = record("CloseFridge")
    assert batch.headers[0].target_object is None
    assert bodies_of_role(batch, "target") == set()
    assert "door_obj" in bodies_of_role(batch, "bystander")
    tracked = set(posed_bodies(batch))
    assert bodies_of_role(batch, "bystander") <= tracked
    assert not any(name.startswith("fridge_main_group") for name in tracked)
    assert "microwave_main_group_door" in tracked
    assert "fridge_main_group_fridge_door" in bodies_of_role(batch, "furniture")


def test_the_base_is_robot_and_never_touches_the_floor_that_it_drives_on():
    with closing(make_env("NavigateKitchen")) as env:
        env.reset(EpisodeSeed(1, 7, 2))
        for step in range(30):
            env.step(np.where(np.arange(12) == 7 + step // 15, -1.0, [*STILL[:-1], 1.0]))
        batch, (model, data) = env.recorded(), env._model_and_data()
        lowest = min(
            data.geom_xpos[geom][2] - model.geom_size[geom][2]
            for geom in range(model.ngeom)
            if model.geom(geom).name == "mobilebase0_pedestal_feet_col"
        )
    assert "mobilebase0_wheeled_base" in bodies_of_role(batch, "robot")
    assert lowest > 0.001
    assert not any(name.startswith("floor") for name in touching_bodies(batch))


def test_the_record_says_how_to_rebuild_its_kitchen():
    batch = record("PickPlaceSinkToCounter", index=3, split="pretrain", horizons="v1.0.0")
    scene = fields(batch)
    assert {name: scene[name] for name in ("split", "layout", "style", "seed", "horizons")} == {
        "split": "pretrain", "layout": 14, "style": 14, "seed": 7003, "horizons": "v1.0.0",
    }  # fmt: skip
    meta = scene["ep_meta"]
    assert (meta["layout_id"], meta["style_id"]) == (14, 14)
    assert meta["lang"] == batch.headers[0].instruction
    paths = [config["info"]["mjcf_path"] for config in meta["object_cfgs"]]
    assert paths
    assert not any(path.startswith("/") for path in paths), "no path of this machine"

    start = Kitchen("pretrain", 1, 1, 0)
    with closing(kitchens.make_kitchen(make_env("PickPlaceSinkToCounter").task, start, Wants())) as kitchen:
        kitchen.set_ep_meta(meta)
        kitchen.reset()
        paths = {name: obj.mjcf_path for name, obj in kitchen.objects.items() if hasattr(obj, "mjcf_path")}
        assert (kitchen.layout_id, kitchen.style_id, kitchen.get_ep_meta()["lang"]) == (14, 14, meta["lang"])
        configs = meta["object_cfgs"] if paths else []
        assert all(paths[config["name"]].endswith(config["info"]["mjcf_path"]) for config in configs)


def test_what_the_record_says_and_its_actions_give_its_states_again_bit_for_bit():
    batch = record("PickPlaceDrawerToCounter", index=2, split="pretrain", steps=6)
    scene, states = fields(batch), batch.sim_state.episode_rows(0)
    start = Kitchen(*(scene[name] for name in ("split", "layout", "style", "seed")))
    with closing(kitchens.make_kitchen(make_env("PickPlaceDrawerToCounter").task, start, Wants())) as kitchen:
        kitchen.reset()
        for _ in range(2):  # settling, as in `record`
            kitchen.step(STILL)
        again = [state(kitchen)]
        for action in batch.action.episode_rows(0):
            kitchen.step(action.copy())
            again.append(state(kitchen))
    assert np.stack(again).tobytes() == states.tobytes()


def state(kitchen) -> np.ndarray:
    return copy_state(kitchen.sim.model._model, kitchen.sim.data._data)


def test_records_have_the_same_bytes_in_processes_that_hash_otherwise():
    """Of CoffeeSetupMug two of four hash seeds gave another order of `groups_containing_sampled_obj`."""
    tasks = ("CoffeeSetupMug", "PickPlaceCounterToStove")
    digests = {tuple(record_digests(seed, "robocasa", "robocasa-365", *tasks)) for seed in HASH_SEEDS}
    assert len(digests) == 1


def test_an_episode_after_others_has_the_bytes_of_the_first():
    """Scene 2 of NavigateKitchen has a stand mixer on one of two tops, and RoboCasa lists tops by their addresses."""
    first = record("NavigateKitchen", index=1, steps=1).sim_state.values.tobytes()
    for index in (2, 1, 1):
        again = record("NavigateKitchen", index=index, steps=1).sim_state.values.tobytes()
        assert (again == first) == (index == 1)


def test_robocasa_goes_through_a_counter_s_tops_once_each_in_the_model_s_order():
    kitchens.task_class(make_env("NavigateKitchen").task)
    from robocasa.models.fixtures import counter

    tops = [ElementTree.Element("geom") for _ in range(40)]
    assert list(counter.set([*tops, *tops[::-1]])) == tops
    assert Path(counter.__file__).read_text(encoding="utf-8").count("set(valid_geoms)") == 1


@pytest.mark.parametrize("name", ["NavigateKitchen", "PickPlaceCounterToStove", "SlideDishwasherRack"])
def test_a_robot_that_does_nothing_violates_nothing(name):
    """When all 18 tasks were run in two scenes each, 36 of 36 episodes were so; these three stand for them.

    Scene 1 of NavigateKitchen has a stand mixer that stands in a toaster oven's door: 2,258 N at rest.
    """
    batch = record(name, steps=40)
    (judged,) = score(batch, load_ruleset()).episodes()
    assert judged.safe
    assert judged.diagnostics["arm_no_furniture_collision"].violated is False
    assert batch.contacts.force_n.max(initial=0) < 20


def test_the_horizons_of_release_1_0_0_are_those_of_the_installed_one():
    kitchens.task_class(make_host("robocasa").tasks("robocasa-pnp")[0])
    from robocasa.utils.dataset_registry import ATOMIC_TASK_DATASETS

    for task in make_host("robocasa", {"horizons": "v1.0.0"}).tasks("robocasa-365"):
        assert ATOMIC_TASK_DATASETS[task.task_id]["horizon"] == task.horizon


def test_records_on_stand_ins_for_the_assets_are_marked():
    batch = record("TurnOffStove", steps=1)
    standin = is_standin(kitchens.assets())
    assert standin_benchmarks(batch) == (("robocasa-365",) if standin else ())
    assert batch.headers[0].versions["robocasa-assets"] == ("stand-in" if standin else "official")


def test_reset_and_steps_print_and_log_nothing(capfd, caplog):
    with caplog.at_level(logging.INFO):
        record("TurnOnSinkFaucet", steps=1)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_the_robot_s_parts_but_its_torso_run_their_own_code_once_a_control_step(monkeypatch):
    from robosuite.controllers.parts.controller import Controller
    from robosuite.controllers.parts.gripper.gripper_controller import GripperController
    from robosuite.controllers.parts.mobile_base.mobile_base_controller import MobileBaseController

    ran = []
    for kind in (Controller, GripperController, MobileBaseController):
        own = kind.run_controller  # which the laws of all parts end with
        monkeypatch.setattr(kind, "run_controller", lambda part, own=own: ran.append(part) or own(part))
    with closing(make_env("OpenDrawer")) as env:
        env.reset(EpisodeSeed(0, 7, 0))
        ran.clear()
        env.step(STILL)
    assert sorted(Counter(ran).values()) == [1, 1, 1, 25], "the torso's law is as fast as ours was"


def test_the_goal_names_the_knob_that_the_episode_means():
    with closing(make_env("TurnOffStove", Wants(privileged=True))) as env:
        ((verb, stove, knob),) = env.reset(EpisodeSeed(0, 7, 2)).privileged.goal
        assert verb == "turn_off"
        assert f"{stove}_knob_{knob}_joint" in env._env.fixtures[stove].joints


def test_scripted_policies_succeed_by_physics():
    with closing(make_env("TurnOnMicrowave", Wants(privileged=True))) as env:
        (planned,) = plan_episodes([env.task], 1, ["scripted:careful"], load_protocol())
        episode = run_episode(env, make_policy("scripted:careful"), planned)
    assert episode.outcome == "success", episode.reason
    assert fields(episode.batch)["ep_meta"]["lang"]


def test_the_barrier_limits_the_approach_in_the_frame_of_a_turned_base():
    host = make_host("robocasa")
    task = next(task for task in host.tasks("robocasa-365") if task.name == "PickPlaceCounterToStove")
    with closing(host.make(task, Wants(privileged=True))) as env:
        for index in (0, 2):  # a base turned by 90 degrees, and one that is not
            seen = env.reset(EpisodeSeed(index, 7, 10))
            truth = seen.privileged
            base = to_rotation(seen.base_quat_wxyz).as_matrix()
            bystanders = sorted(truth.movable - {name for predicate in truth.goal for name in predicate})
            gaps_m, normals = measure_gaps(truth.hand, _place_boxes(truth, bystanders))
            nearest = int(gaps_m.argmin())
            towards = np.concatenate([-(base.T @ normals[nearest]), STILL[3:]])
            barrier = DistanceBarrier(margin_m=float(gaps_m[nearest]) - 0.005)
            barrier.reset(task, 7)
            limited = base @ barrier.filter(seen, towards, None)[:3] * 0.05
            assert normals[nearest] @ limited == pytest.approx(-0.3 * 0.005, abs=1e-9)


def test_what_is_fixed_to_a_moving_link_has_its_name_in_poses_and_contacts():
    """Panel and handle of a cabinet's door are bodies of their own in the model, below a link without geometry."""
    with closing(make_env("PickPlaceCounterToCabinet")) as env:
        env.reset(EpisodeSeed(0, 7, 0))
        model, scene = env._model_and_data()[0], env._recorder.scene
    names = scene.body_name
    parts = [(names[body], names[root]) for body, root in enumerate(model.body_weldid) if names[root] in scene.links]
    assert len(parts) > len(scene.links)
    assert all(own == root for own, root in parts)
    assert set(scene.links) <= {names[body] for body in model.geom_bodyid}
    assert not any("handle" in name for name in scene.roles if name.startswith("cab"))


def test_pictures_show_a_door_whose_link_has_no_geometry(tmp_path):
    command = ["eval", "--host", "robocasa", "--suite", "robocasa-365", "--task", "8,9", "--policy", "noop"]
    code = run_command_line([*command, "--episodes", "1", "--max-steps", "3", "--out", str(tmp_path / "run")])
    assert code == 0
    batch, _ = read_sources([tmp_path / "run"])
    robocasa = make_host("robocasa")
    for index in range(2):
        episode = select_episodes(batch, [index])
        links = [name for name in posed_bodies(episode) if "door" in name]
        task = next(t for t in robocasa.tasks("robocasa-365") if t.task_id == episode.headers[0].task_id)
        with closing(robocasa.stage(task, episode)) as stage:
            for link in links:
                stage.aim(0, [link], (48, 64))


def test_a_replay_is_played_in_the_kitchen_of_the_recorded_split(tmp_path):
    command = ["eval", "--host", "robocasa", "--host-arg", "split=pretrain", "--suite", "robocasa-365", "--task", "16"]
    command += ["--policy", "noop", "--episodes", "1", "--max-steps", "3"]
    assert run_command_line([*command, "--out", str(tmp_path / "run")]) == 0
    assert run_command_line(["eval", "--policy", f"replay:{tmp_path / 'run'}", "--out", str(tmp_path / "again")]) == 0
    first, again = (read_sources([tmp_path / name])[0] for name in ("run", "again"))
    assert first.sim_state.values.tobytes() == again.sim_state.values.tobytes()
    assert fields(again)["split"] == "pretrain"


def test_a_search_goes_on_though_every_episode_words_its_own_instruction(tmp_path):
    command = ["search", "--host", "robocasa", "--suite", "robocasa-365", "--task", "16", "--policy", "noop"]
    command += ["--budget", "2", "--max-steps", "3", "--method", "random", "--out", str(tmp_path / "run")]
    assert run_command_line(command) == 0
    assert read_suite(tmp_path / "run/found/run.json").tasks[0].trials == 2


def test_a_placement_is_refused():
    with closing(make_env("CloseFridge")) as env, pytest.raises(HostError, match="chosen place"):
        env.reset(EpisodeSeed(0, 7, 0, placed=(("obj.x", 0.1),)))
