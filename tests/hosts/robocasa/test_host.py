"""The RoboCasa host on the real simulator: roles, scenes, what rebuilds an episode, the floor of force at rest."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from builders import bodies_of_role, posed_bodies, touching_bodies
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.hosts.robocasa import host as kitchens
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.policies import make_policy
from safevla_bench.rollout.episode import run_episode
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.trajectory.marks import standin_benchmarks
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
        batch, (model, data) = env.recorded(), env._mujoco()
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

    start = kitchens.KitchenStart("pretrain", 1, 1, 0)
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
    start = kitchens.KitchenStart(*(scene[name] for name in ("split", "layout", "style", "seed")))
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


def test_the_same_episode_in_a_process_that_hashes_otherwise_has_the_same_bytes():
    code = "from test_host import *; print(digest('PickPlaceCounterToStove'))"
    here = Path(__file__).parent
    folders = os.pathsep.join(map(str, (here, *sys.path)))
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": folders}
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split()[-1] == digest("PickPlaceCounterToStove")


def digest(name: str) -> str:
    return hashlib.sha256(record(name).sim_state.values.tobytes()).hexdigest()


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
