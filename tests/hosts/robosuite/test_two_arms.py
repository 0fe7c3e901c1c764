"""robosuite's tasks of two arms: what is recorded is what a plain loop measures, for two Pandas and for one GR1."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from safevla_bench.hosts import drawn_reset_seed
from safevla_bench.hosts.robosuite import host
from safevla_bench.hosts.robosuite.host import RobosuiteHost
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.mujoco.hook import hook_after

pytestmark = [pytest.mark.robocasa, pytest.mark.filterwarnings("ignore")]
START = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10)
HORIZON = 100


def all_tasks() -> dict[str, Any]:
    robosuite = RobosuiteHost()
    return {task.task_id: task for suite in robosuite.suites() for task in robosuite.tasks(suite) if task.arms}


def record(name: str, actions: Any) -> tuple[Batch, bool]:
    """The episode of these actions, and its success."""
    with closing(RobosuiteHost().make(all_tasks()[name], Wants())) as env:
        env.reset(START)
        success = False
        for action in actions:
            _, success = env.step(action)
        return env.recorded(), success


class PlainLoop:
    """TwoArmLift in a loop that knows nothing of the recorder, with what it measures after each control step."""

    def __init__(self) -> None:
        self.env = host.make_env("TwoArmLift", Wants(), drawn_reset_seed(START))
        self.env.reset()
        self.still = np.array(host.find_team("TwoArmLift").still)
        for _ in range(START.wait_steps):
            self.env.step(self.still)
        self.model, self.data = self.env.sim.model._model, self.env.sim.data._data
        hook_after(self.env.sim, "step2", self.measure_forces)
        self.peaks: dict[tuple[str, str], float] = {}
        self.actions: list[Any] = []
        self.rows = [self.measure()]

    def touching(self) -> list[tuple[str, str, float]]:
        """The bodies of each contact and the norm of its force; the pot's bodies are the pot."""
        import mujoco

        found, wrench = [], np.zeros(6)
        for k, contact in enumerate(self.data.contact[: self.data.ncon]):
            if contact.efc_address >= 0:
                mujoco.mj_contactForce(self.model, self.data, k, wrench)
                names = sorted(self.model.body(self.model.geom_bodyid[geom]).name for geom in contact.geom)
                first, second = ("pot" if name.startswith("pot") else name for name in names)
                found.append((first, second, float(np.linalg.norm(wrench[:3]))))
        return found

    def measure_forces(self) -> None:
        for first, second, force in self.touching():
            if (first == "pot") != (second == "pot") and "table" not in (first, second):
                self.peaks[first, second] = max(self.peaks.get((first, second), 0.0), force)

    def measure(self) -> dict[str, Any]:
        dofs = [self.model.joint(f"robot{arm}_joint{k}").dofadr[0] for arm in range(2) for k in range(1, 8)]
        sites = [self.data.site(f"gripper{arm}_right_grip_site").xpos for arm in range(2)]
        tips = [("leftfinger", "finger_joint1_tip"), ("rightfinger", "finger_joint2_tip")]
        touched = {body for first, second, _ in self.touching() if "pot" in (first, second) for body in (first, second)}
        grips = [all(any(f"gripper{arm}_right_{tip}" in touched for tip in side) for side in tips) for arm in range(2)]
        self.peaks, peaks = {}, self.peaks
        torques = self.data.qfrc_actuator[dofs].copy()
        place = self.data.body("pot_root").xpos.copy()
        return {"eef": np.concatenate(sites), "torque": torques, "grips": grips, "pot": place, "peaks": peaks}

    def step(self, height_m: float, grip: float, up_m: float | None = None) -> None:
        """Move both hands to a height over the handles, or up, with the fingers across the handles."""
        action = list[float]()
        for arm, robot in enumerate(self.env.robots):
            base = self.data.body(robot.robot_model.root_body).xmat.reshape(3, 3)
            bar, hand = (
                self.data.geom(f"pot_handle{arm}_c").xmat.reshape(3, 3)[:, 1],
                self.data.site(f"gripper{arm}_right_grip_site").xmat.reshape(3, 3)[:, 0],
            )
            turn = (np.arctan2(bar[1], bar[0]) - np.arctan2(hand[1], hand[0]) + np.pi / 2) % np.pi - np.pi / 2
            handle = self.env._gripper0_to_handle0 if arm == 0 else self.env._gripper1_to_handle1
            move = np.array(handle) + [0, 0, height_m] if up_m is None else np.array([0, 0, up_m])
            action += [*np.clip(10 * base.T @ move, -1, 1), 0, 0, np.clip(turn, -1, 1) if up_m is None else 0, grip]
        self.actions.append(np.array(action))
        self.env.step(self.actions[-1].copy())
        self.rows.append(self.measure())


@pytest.fixture(scope="module")
def lift() -> tuple[PlainLoop, Batch, bool]:
    loop = PlainLoop()
    for t in range(HORIZON):
        loop.step(0.1 if t < 35 else 0.0, -1 if t < 55 else 1, None if t < 65 else 0.03)
    loop.env.close()
    return loop, *record("TwoArmLift", loop.actions)


def test_a_record_of_two_arms_equals_what_a_plain_loop_measures(lift):
    loop, batch, success = lift
    assert success
    header = batch.headers[0]
    assert (header.arms, header.arm_joints, header.embodiment) == (("robot0", "robot1"), (7, 7), "Panda")
    np.testing.assert_array_equal(batch.eef_pos_m.episode_rows(0), [row["eef"] for row in loop.rows])
    np.testing.assert_array_equal(batch.joint_torque_nm.episode_rows(0), [row["torque"] for row in loop.rows])
    np.testing.assert_array_equal(batch.gripper_contact.episode_rows(0), [row["grips"] for row in loop.rows])
    bodies, places = batch.body_pos_m.episode_poses(0)
    assert [batch.body_label(int(body)) for body in bodies] == ["pot"]
    np.testing.assert_array_equal(places[:, 0], [row["pot"] for row in loop.rows])
    for t, row in enumerate(loop.rows[1:], start=1):
        recorded = {}
        for k in range(batch.contacts.starts[t], batch.contacts.starts[t + 1]):
            names = sorted(batch.body_label(int(body[k])) for body in (batch.contacts.a, batch.contacts.b))
            if "pot" in names and "table" not in names:
                recorded[tuple(names)] = float(batch.contacts.force_n[k])
        assert recorded == pytest.approx(row["peaks"], rel=1e-9), t
    assert all(loop.rows[-1]["grips"])


def test_what_both_hands_lift_is_judged_for_each_and_for_their_coordination(lift):
    _, batch, _ = lift
    (episode,) = score(batch, load_ruleset()).episodes()
    assert {"stable_grasp_maintained_2cm", "held_object_tilt_world_15deg", "joint_torque"} <= {*episode.active_specs}
    assert not {"stable_grasp_maintained_2cm", "self_collision_free"} & {*episode.violated_specs}
    (episode,) = score(batch, load_ruleset("coordination")).episodes()
    assert 0 < episode.diagnostics["shared_grip_shift_2cm"].extreme < 0.04
    assert episode.diagnostics["hands_apart_5cm"].extreme > 0.1


@pytest.mark.parametrize("name", sorted(all_tasks()))
def test_each_arm_has_its_own_joints_and_bodies_and_is_observed_by_name(name):
    task = all_tasks()[name]
    with closing(RobosuiteHost().make(task, Wants(extra=("joint_pos",)))) as env:
        seen = env.reset(START)
        assert tuple(seen.arms) == task.arms
        places = np.concatenate([arm.eef_pos_m for arm in seen.arms.values()])
        np.testing.assert_array_equal(seen.eef_pos_m, places)
        assert np.linalg.norm(places[:3] - places[3:]) > 0.1
        assert len(seen.extra["joint_pos"]) == 14
        env.step(np.array(task.still))
        batch = env.recorded()
    header, roles = batch.headers[0], batch.body_roles(0)
    assert (header.arms, header.arm_joints) == (task.arms, (7, 7))
    owned = header.arm_bodies or {}
    assert {owned[body] for body in owned} == {*task.arms}
    rest = {body for body, role in roles.items() if role == "robot"} - {*owned}
    assert not [body for body in rest if any(word in body for word in ("gripper", "elbow", "hand", "wrist"))]
    assert bool(rest) == (header.embodiment == "GR1")


def test_peg_and_hole_are_targets_that_touch_each_other_without_a_self_collision():
    batch, _ = record("TwoArmPegInHole", [np.zeros(12)] * 3)
    roles = batch.body_roles(0)
    assert {body for body, role in roles.items() if role == "target"} == {"peg", "hole"}
    assert not batch.gripper_contact.present[0]
    (episode,) = score(batch, load_ruleset()).episodes()
    assert "stable_grasp_maintained_2cm" in episode.inactive_specs
    assert episode.robustness["self_collision_free"] == 0.5
