"""The seven human handovers in robosuite 1.4.0's wheel, played state by state: grips pass from one arm to the other."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.signals import derive_signals
from safevla_bench.signals.signal import RecordFields
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder import Arm, EpisodeRecorder, SceneMap

pytestmark = pytest.mark.libero
WRITTEN_AT = "/home/robot/installed_libraries/robosuite/robosuite"
TIPS = ("leftfinger", "finger_joint1_tip"), ("rightfinger", "finger_joint2_tip")


def play(model: Any, states: Any) -> Batch:
    """The record of an episode whose simulator states are set one by one; forces are those of each instant."""
    import mujoco

    data = mujoco.MjData(model)
    names = [str(model.body(body).name) for body in range(model.nbody)]
    owners = [names[body].replace("hammer_root", "hammer") for body in model.geom_bodyid]
    roles = {
        name: "target" if name == "hammer" else "furniture" if name in ("table", "world") else "robot"
        for name in dict.fromkeys(owners)
    }

    def fingers(arm: int) -> Any:
        return tuple(
            [k for k, name in enumerate(owners) if name in {f"gripper{arm}_{tip}" for tip in side}] for side in TIPS
        )

    prefixes = [(f"robot{arm}", f"gripper{arm}", f"mount{arm}") for arm in range(2)]
    arms = {
        own[0]: Arm([name for name in roles if name.startswith(own)], fingers(arm)) for arm, own in enumerate(prefixes)
    }
    scene = SceneMap(shapes=dict(enumerate(owners)), roles=roles, substep_s=0.05)
    recorder = EpisodeRecorder(scene, arms=arms)

    def contacts() -> Iterator[tuple[int, int, float]]:
        wrench = np.zeros(6)
        for k, contact in enumerate(data.contact[: data.ncon]):
            if contact.efc_address >= 0:
                mujoco.mj_contactForce(model, data, k, wrench)
                yield int(contact.geom1), int(contact.geom2), float(np.linalg.norm(wrench[:3]))

    def reading() -> dict[str, Any]:
        hands = {}
        for arm in range(2):
            site, quat = data.site(f"gripper{arm}_grip_site"), np.empty(4)
            mujoco.mju_mat2Quat(quat, site.xmat)
            hands[f"robot{arm}"] = site.xpos.copy(), quat
        hammer = data.body("hammer_root")
        return {"poses": {"hammer": (hammer.xpos.copy(), hammer.xquat.copy())}, "eef": hands}

    for t, state in enumerate(states):
        data.time, data.qpos[:], data.qvel[:] = state[0], state[1 : 1 + model.nq], state[1 + model.nq :]
        mujoco.mj_forward(model, data)
        if t == 0:
            recorder.begin(list(contacts()), **reading())
        else:
            recorder.substep(list(contacts()))
            recorder.step([0.0], **reading())
    named = {"episode_id": "e", "benchmark": "robosuite", "task_id": "TwoArmHandover", "success": True, "dt": 0.05}
    return from_recording(recorder.build_recording({**named, "target_object": "hammer"}))


@pytest.fixture(scope="module")
def demonstrations() -> list[Batch]:
    import h5py
    import mujoco

    spec = find_spec("robosuite")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(spec.submodule_search_locations[0])
    played = []
    with h5py.File(root / "models/assets/demonstrations/handover/panda_panda/demo.hdf5") as file:
        for name in sorted(file["data"]):
            text = str(file["data"][name].attrs["model_file"]).replace(WRITTEN_AT, str(root))
            played.append(play(mujoco.MjModel.from_xml_string(text), file["data"][name]["states"][:]))
    return played


def test_each_hands_the_hammer_over_which_is_neither_a_release_nor_a_slip_in_the_hand_that_takes_it(demonstrations):
    assert len(demonstrations) == 7
    for batch in demonstrations:
        giver, taker = batch.gripper_contact.episode_rows(0).T != 0
        both = np.flatnonzero(giver & taker)
        assert 8 <= len(both) <= 34
        assert giver.argmax() < taker.argmax() == both[0]  # the second arm takes what the first holds
        assert taker[-1]
        assert not giver[-1]
        views = RecordFields(batch).views(["grip"])
        assert [view.name_arm() for view in views] == ["robot0", "robot1"]
        for view in views:
            signals = derive_signals(view, ["released", "grasped", "held_object_slip", "grip"])
            assert not signals["released"].any()
            assert signals["grasped"].sum() == 1  # it is the first arm's grasp in the view of the second, too
            assert signals["grip"][both[0] :].all()
            assert signals["held_object_slip"][both].min() > -0.005  # in some, it has slipped by 3 cm in the first hand
        (episode,) = score(batch, load_ruleset("coordination", missing="deactivate")).episodes()
        assert episode.diagnostics["hands_apart_5cm"].extreme == pytest.approx(0.07, abs=0.021)
        assert episode.diagnostics["shared_grip_turn_15deg"].extreme < 5


def test_an_arm_against_the_other_is_a_self_collision_of_both(demonstrations):
    struck = []
    for batch in demonstrations:
        (episode,) = score(batch, load_ruleset(missing="deactivate")).episodes()
        if "self_collision_free" in episode.violated_specs:
            owner, contacts = batch.headers[0].arm_bodies or {}, batch.contacts
            names = [
                (batch.body_label(int(a)), batch.body_label(int(b)))
                for a, b in zip(contacts.a, contacts.b, strict=True)
            ]
            struck += [{owner[a], owner[b]} for a, b in names if a in owner and b in owner]
    assert struck
    assert all(arms == {"robot0", "robot1"} for arms in struck)
