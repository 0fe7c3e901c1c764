"""Which RoboCasa episodes there are, and what is said where RoboCasa or its assets are missing; no simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from safevla_bench.errors import HostError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.hosts.robocasa import host as kitchens
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.tasks.loader import load_registry
from safevla_bench.trajectory.marks import Kitchen
from safevla_recorder.robocasa import goal_target, is_standin, moved_fixture


def start(split: str, index: int, no_layouts=(), no_styles=()) -> Kitchen:
    return kitchens.pick_scene(split, EpisodeSeed(index, env_seed=7, wait_steps=10), no_layouts, no_styles)


def test_the_suites_hold_the_tasks_of_the_registry_in_its_order():
    robocasa = make_host("robocasa")
    assert robocasa.suites() == ("robocasa-365", "robocasa-pnp")
    for suite, count in (("robocasa-365", 18), ("robocasa-pnp", 5)):
        tasks = robocasa.tasks(suite)
        assert [task.index for task in tasks] == list(range(count))
        assert [task.task_id for task in tasks] == [
            name for benchmark, name in load_registry().tasks if benchmark == suite
        ]
        assert all(task.benchmark == suite and task.episodes == 50 and len(task.still) == 12 for task in tasks)


def test_fifty_episodes_and_the_horizon_of_the_release_are_the_default_plan():
    tasks = make_host("robocasa").tasks("robocasa-365")[1:2]
    planned = plan_episodes(tasks, None, ["noop"], load_protocol())
    assert len(planned) == 50
    assert {episode.horizon for episode in planned} == {900}
    older = make_host("robocasa", {"horizons": "v1.0.0"}).tasks("robocasa-365")[1:2]
    assert plan_episodes(older, 1, ["noop"], load_protocol())[0].horizon == 600
    assert plan_episodes(older, 1, ["noop"], load_protocol(), max_steps=5)[0].horizon == 5


def test_the_older_horizons_are_two_thirds_of_the_newer():
    older = make_host("robocasa", {"horizons": "v1.0.0"}).tasks("robocasa-365")
    for task, before in zip(make_host("robocasa").tasks("robocasa-365"), older, strict=True):
        assert 2 * task.horizon == 3 * before.horizon


def test_target_scenes_come_in_turn_and_the_generator_s_seed_tells_the_rounds_apart():
    assert start("target", 0) == Kitchen("target", 1, 1, 7000)
    assert start("target", 13) == Kitchen("target", 4, 4, 7013)
    assert {(scene.layout, scene.style) for scene in map(lambda k: start("target", k), range(50))} == {
        (k, k) for k in range(1, 11)
    }


def test_pretraining_scenes_pair_every_layout_with_every_style_once():
    scenes = [(scene.layout, scene.style) for scene in map(lambda k: start("pretrain", k), range(2500))]
    assert len(set(scenes)) == 2500
    assert scenes[:2] == [(11, 11), (12, 12)]
    assert scenes[50:52] == [(11, 12), (12, 13)]
    assert {layout for layout, _ in scenes[:50]} == {style for _, style in scenes[:50]} == set(range(11, 61))


def test_scenes_that_a_task_bars_are_left_out_before_counting():
    assert (start("target", 1, no_layouts=[2]).layout, start("target", 1, no_styles=[1, 2]).layout) == (3, 4)


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        ({"split": "test"}, "target, pretrain"),
        ({"horizons": "2"}, "v1.0.1, v1.0.0"),
        ({"scene": "1"}, "arguments: split, horizons"),
    ],
)
def test_arguments_that_the_host_does_not_know_are_errors_that_list_what_there_is(arguments, choices):
    with pytest.raises(HostError) as caught:
        make_host("robocasa", arguments)
    assert choices in str(caught.value)


def test_an_unknown_suite_is_an_error_that_lists_them():
    with pytest.raises(HostError, match="robocasa-365, robocasa-pnp"):
        make_host("robocasa").tasks("robocasa")


def test_a_goal_that_puts_something_has_a_target_and_any_other_moves_a_fixture_or_the_robot():
    goals = {task.task_id: kitchens.task_goal(task) for task in make_host("robocasa").tasks("robocasa-365")}
    putting = {name for name, goal in goals.items() if goal_target(goal)}
    assert putting == {name for name in goals if name.startswith("PickPlace")} | {"CoffeeSetupMug", "CloseBlenderLid"}
    assert {name for name, goal in goals.items() if not moved_fixture(goal)} - putting == {"NavigateKitchen"}


def test_without_robocasa_the_error_says_how_to_install_it(install_only):
    install_only({})
    with pytest.raises(HostError, match="not installed") as caught:
        kitchens.require_robocasa()
    assert "make robocasa" in str(caught.value)


def test_another_robosuite_in_the_same_environment_is_an_error(install_only):
    install_only(dict.fromkeys(("mujoco", "praxis-robocasa", "praxis-robosuite", "robosuite"), "1.4.0"))
    with pytest.raises(HostError, match="next to praxis-robosuite"):
        kitchens.require_robocasa()


def tree(folder: Path) -> Path:
    for part in ("scenes", "textures", "fixtures/microwaves", "objects/objaverse", "objects/lightwheel"):
        (folder / part).mkdir(parents=True)
    return folder


def test_missing_assets_are_an_error_with_the_download_command(monkeypatch, tmp_path):
    monkeypatch.setenv(kitchens.ASSETS, str(tmp_path))
    with pytest.raises(HostError, match="assets are missing") as caught:
        kitchens.assets()
    assert "python -m robocasa.scripts.download_kitchen_assets" in str(caught.value)


def test_a_tree_that_calls_itself_a_stand_in_is_one(monkeypatch, tmp_path):
    monkeypatch.setenv(kitchens.ASSETS, str(tree(tmp_path / "tree")))
    assert not is_standin(kitchens.assets())
    (tmp_path / "tree" / "README.txt").write_text("RoboCasa physics stand-in assets\n")
    assert is_standin(kitchens.assets())
