"""Registries from files: a user's own TOML, the paper's rows, and every way of being refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from safevla_bench.errors import RegistryError, UnknownTaskError
from safevla_bench.specs.loader import load_library
from safevla_bench.tasks import active_specs, task_listings
from safevla_bench.tasks.file_formats import paper_task_rows
from safevla_bench.tasks.loader import load_registry

CASES = Path(__file__).parents[1] / "cases"
ROW = json.loads((CASES / "appendix_b_tags.json").read_text())
OWN = """
[benchmarks.mine]
host = "mine"
capabilities = "seen"
[capabilities.seen]
host = "mine"
tags = ["joint_torque_signal"]
"""
TASK = """
[[tasks]]
benchmark = "mine"
task_id = "wipe"
template = "push-no-lift"
instruction = "wipe the table"
"""


def write(tmp_path: Path, text: str, name: str = "mine.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def row(**changes: object) -> str:
    return json.dumps({**ROW, **changes})


def test_goal_bodies_of_a_file_replace_the_built_in_ones_and_change_no_digest(tmp_path):
    # A suite may be written in another spelling.
    own = load_registry([write(tmp_path, '[goal_bodies.libero_spatial]\ntask_0 = { receptacles = ["tray_1"] }\n')])
    assert own.find_goal_bodies("libero-spatial", "task_0").receptacles == ("tray_1",)
    assert own.find_goal_bodies("libero-spatial", "task_1").receptacles == ("plate_1",)
    assert own.find_goal_bodies("nowhere", "task_0") is None
    assert own.digest == load_registry().digest


def test_the_paper_s_row_and_specification_activate_what_the_paper_shows():
    chosen = load_library(CASES / "appendix_b_specs.json")
    tags = load_registry([CASES / "appendix_b_tags.json"]).task_tags("libero-spatial", "task_0")
    assert [spec.spec_id for spec in active_specs(chosen, tags)] == ["non_target_max_disp_5mm"]
    tags_of_row = {*ROW["task_tags"], *ROW["object_tags"], *ROW["benchmark_signal_tags"]}
    assert tags == tags_of_row | load_registry().templates["pnp-basic"].tags


def test_a_row_takes_the_place_of_the_built_in_entry_of_its_task_and_of_no_other(tmp_path):
    changed = load_registry([write(tmp_path, row(), "rows.json")])
    before, after = list(load_registry().list_entries()), list(changed.list_entries())
    differing = [(entry.benchmark, entry.task_id) for entry, other in zip(before, after, strict=True) if entry != other]
    assert differing == [("libero-spatial", "task_0")]
    assert "gripper_contact_signal" not in changed.task_tags("libero-spatial", "task_0")
    assert "gripper_contact_signal" in changed.task_tags("libero-spatial", "task_1")
    assert "gripper_contact_signal" in changed.task_tags("libero-spatial", "task_0", ["libero-full"])


@pytest.mark.parametrize("benchmark", ["libero-10", "LIBERO_10", "libero-long"])
@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_an_entry_holds_under_all_names_and_spellings_of_its_suite(tmp_path, benchmark, suffix):
    task = {"benchmark": benchmark, "task_id": "task_0", "instruction": "turn", "template": "knob-twist"}
    signals = {"task_tags": [], "object_tags": [], "benchmark_signal_tags": ["max_contact_force_signal"]}
    toml = "[[tasks]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in task.items())
    text = json.dumps(task | signals) if suffix == "json" else toml
    own = load_registry([write(tmp_path, text, f"rows.{suffix}")])
    for name in ("libero-10", "libero_10", "libero-long"):
        assert own.find_entry(name, "task_0").template == "knob-twist"
        assert own.find_entry(name, "task_1") == load_registry().find_entry(name, "task_1")
    assert own.find_entry("libero-10-swap", "task_0") == load_registry().find_entry("libero-10-swap", "task_0")


def test_tags_that_say_that_objects_spill_and_do_not_are_named(tmp_path, caplog):
    load_registry([write(tmp_path, row(object_tags=["non_spillable"]), "one.json")])
    assert not caplog.text
    load_registry([write(tmp_path, row(object_tags=["spillable", "non_spillable"]), "both.json")])
    assert "libero-spatial task_0: both spillable and non_spillable, so tilt is not judged" in caplog.text


def test_a_family_matches_ids_and_the_host_s_names(tmp_path):
    family = '[[families]]\nbenchmark = "libero-90"\npatterns = ["{}"]\ntemplate = "navigate"\n'
    built_in = load_registry()
    by_id, by_name = (
        load_registry([write(tmp_path, family.format(pattern), "own.toml")])
        for pattern in ("task_3", "KITCHEN_SCENE10_*")
    )
    assert by_id.find_entry("libero-90", "task_3").template == "navigate"
    assert by_id.find_entry("libero-90", "task_4") == built_in.find_entry("libero-90", "task_4")
    assert by_name.find_entry("libero-90", "task_0").template == "navigate"


def test_entries_that_no_task_has_are_listed_and_families_that_single_entries_hide(tmp_path):
    task = '[[tasks]]\nbenchmark = "libero-goal"\ntask_id = "{}"\ninstruction = "x"\ntemplate = "navigate"\n'
    family = '[[families]]\nbenchmark = "libero-goal"\npatterns = ["*"]\ntemplate = "navigate"\n'
    tasks = [("libero_goal", "task_0"), ("libero-goal", "task_1"), ("libero-10", "task_0")]

    def unused(text: str) -> dict[str, tuple[list[str], list[str]]]:
        return load_registry([write(tmp_path, text, "own.toml")]).list_unused(load_registry(), tasks)

    assert unused(task.format("task_01")) == {"libero-goal": (["task_01"], ["task_0", "task_1"])}
    assert unused(task.format("task_1")) == {}
    assert unused(task.format("task_1") + family) == {"libero-goal": (["task_1", "*"], ["task_0"])}
    assert unused(family.replace("libero-goal", "libero-90")) == {}
    assert load_registry().list_unused(load_registry(), tasks) == {}


def test_rows_one_a_line_and_rows_of_a_benchmark_that_nobody_declared(tmp_path):
    rows = [row(benchmark="new", task_id="a"), row(benchmark="new", task_id="b", task_tags=None)]
    own = load_registry([write(tmp_path, "\n".join(rows), "rows.jsonl")])
    assert [entry.task_id for entry in own.list_entries("new")] == ["a", "b"]
    assert own.task_tags("new", "a") == own.task_tags("new", "b")


def test_task_tags_of_a_row_are_united_with_its_template_s(tmp_path):
    """Eq. 2. One tag more on pnp-basic leaves all five specifications of the task active."""
    changed_row = row(task_tags=["goal_moves_small_fixture"], benchmark_signal_tags=None)
    own = load_registry([write(tmp_path, changed_row, "rows.json")])
    before = load_registry().task_tags("libero-spatial", "task_0")
    assert own.task_tags("libero-spatial", "task_0") == before | {"goal_moves_small_fixture"}
    inert = load_registry(
        [write(tmp_path, row(task_tags=["object_transport"], benchmark_signal_tags=None), "inert.json")]
    )
    assert len(active_specs(load_library(), inert.task_tags("libero-spatial", "task_0"))) == 5
    parts = json.loads(changed_row) | {"template": None, "components": ["knob-twist", "pnp-basic"]}
    two_templates = load_registry([write(tmp_path, json.dumps(parts), "parts.json")])
    assert before | load_registry().templates["knob-twist"].tags <= two_templates.task_tags("libero-spatial", "task_0")


def test_a_template_that_is_not_known_is_its_row_s_task_tags_and_that_is_said(tmp_path, caplog):
    own = load_registry([write(tmp_path, row(template="pour"), "rows.json")])
    assert own.find_entry("libero-spatial", "task_0").tags == set(ROW["task_tags"])
    assert "template 'pour'" in caplog.text
    with pytest.raises(RegistryError, match="'pour' is not"):
        load_registry([write(tmp_path, row(template="pour", task_tags=None), "other.json")])


def test_the_registry_written_as_the_paper_s_rows_is_read_back_whole(tmp_path):
    """The interchange of Table 13: tasks, families, tags, reasons and what each host measures."""
    path = write(tmp_path, json.dumps(paper_task_rows(load_registry())), "rows.json")
    assert load_registry([path]) == load_registry()
    assert load_registry([path]).digest == load_registry().digest
    assert list(load_registry([path]).list_entries()) == list(load_registry().list_entries())


def test_written_task_rows_have_the_fields_of_appendix_b():
    (first, *_) = paper_task_rows(load_registry(), "libero-spatial")
    assert paper_task_rows(load_registry(), "libero_spatial") == paper_task_rows(load_registry(), "libero-spatial")
    assert ROW.keys() <= first.keys()
    assert {key: first[key] for key in ("benchmark", "task_id", "template", "object_tags")} == {
        key: ROW[key] for key in ("benchmark", "task_id", "template", "object_tags")
    }


def test_a_registry_of_one_s_own_survives_but_for_what_its_benchmark_is(tmp_path):
    """A row has no place for a benchmark's host or for a template's meaning: these stay in the TOML file."""
    more = """
    [tags.object]
    hot = "it burns"
    [templates.pour]
    meaning = "pour"
    tags = ["held_target"]
    [[families]]
    benchmark = "mine"
    patterns = ["pour_*"]
    template = "pour"
    object_tags = { hot = "a kettle" }
    """
    toml = write(tmp_path, OWN + TASK + more)
    ours = load_registry([toml])
    rows = write(tmp_path, json.dumps(paper_task_rows(ours, "mine")), "rows.json")
    read = load_registry([rows])
    for task in ("wipe", "pour_tea"):
        assert read.task_tags("mine", task) == ours.task_tags("mine", task)
    assert read.find_entry("mine", "pour_tea").object_tags == {"hot": "a kettle"}


def test_only_what_is_asked_for_is_written():
    rows = paper_task_rows(load_registry(), "libero-goal")
    assert {row["benchmark"] for row in rows} == {"libero-goal"}
    with pytest.raises(RegistryError, match="no suite 'libero-gol'"):
        paper_task_rows(load_registry(), "libero-gol")


def test_a_toml_file_adds_benchmarks_capabilities_templates_tags_tasks_and_families(tmp_path):
    more = """
    [templates.pour]
    meaning = "pour a liquid"
    tags = ["held_target", "hot"]
    [tags.object]
    hot = "it burns"
    [[families]]
    benchmark = "mine"
    patterns = ["Pour*"]
    template = "pour"
    tags = ["scene_contact_risk"]
    object_tags = { spillable = "a full jug" }
    """
    own = load_registry([write(tmp_path, OWN + TASK + more)])
    assert own.task_tags("mine", "wipe") == {"joint_torque_signal", *load_registry().templates["push-no-lift"].tags}
    expected = {"joint_torque_signal", "held_target", "hot", "scene_contact_risk", "spillable"}
    assert own.task_tags("mine", "PourTea") == expected
    assert [entry.task_id for entry in own.list_entries("mine")] == ["wipe"]
    assert "mine" not in load_registry().benchmarks


def test_a_user_s_family_is_asked_before_the_built_in_ones_and_an_entry_before_both(tmp_path):
    text = '[[families]]\nbenchmark = "robocasa-365"\npatterns = ["Open*"]\ntemplate = "navigate"\n'
    own = load_registry([write(tmp_path, text)])
    assert own.find_entry("robocasa-365", "OpenFridge").template == "navigate"
    assert own.find_entry("robocasa-365", "OpenDrawer").template == "articulated-manipulation"


def test_files_may_refer_to_each_other(tmp_path):
    files = [write(tmp_path, TASK, "tasks.toml"), write(tmp_path, OWN, "bench.toml")]
    assert load_registry(files).find_entry("mine", "wipe").instruction == "wipe the table"


@pytest.mark.parametrize(("benchmark", "task_id"), [("my bench", 'say "hi"'), ("libero-goal", "task_10")])
def test_an_unknown_task_says_what_to_add_and_that_text_works(tmp_path, benchmark, task_id):
    with pytest.raises(UnknownTaskError, match=f"benchmark {benchmark!r}") as error:
        load_registry().task_tags(benchmark, task_id)
    toml = error.value.remedy.split("\n", 1)[1]
    own = load_registry([write(tmp_path, toml)])
    assert own.find_entry(benchmark, task_id).template == "pnp-basic"
    assert own.task_tags(benchmark, task_id)


def test_one_error_names_all_unknown_tasks_and_its_text_defines_them(tmp_path):
    base, known = load_registry(), {("libero-goal", "task_0"): None}
    base.require_entries(known)
    unknown = {("mine", f"task {number}"): "wipe 🍎" if number else None for number in range(25)}
    with pytest.raises(UnknownTaskError, match="25 tasks") as error:
        base.require_entries({**known, **unknown})
    own = load_registry([write(tmp_path, error.value.remedy.split("\n", 1)[1])])
    entries = [own.find_entry(*task) for task in list(unknown)[:20]]
    assert [entry.instruction for entry in entries] == ["", *["wipe 🍎"] * 19]
    with pytest.raises(UnknownTaskError, match="benchmark 'mine' has no task 'task 20'"):
        own.require_entries(unknown)


def test_an_unknown_benchmark_or_capability_set_lists_the_known_ones():
    with pytest.raises(RegistryError, match=r"no suite 'libero'\n.*libero-spatial"):
        task_listings(load_registry(), load_library(), "libero")
    with pytest.raises(RegistryError, match="capability set 'full'"):
        load_registry().task_tags("libero-goal", "task_0", ["full"])


REFUSED = [
    ("task = 1", r"field task: unknown key 'task'\n.*did you mean 'tasks'"),
    ("[[tasks]", r"is not TOML"),
    ('[goal_bodies.mine]\nwipe = { receptacle = ["x"] }', r"goal_bodies\.mine\.wipe: unknown key 'receptacle'"),
    (OWN + TASK + TASK, r"task mine wipe already exists"),
    ('[templates.pnp-basic]\nmeaning = "x"\ntags = []', r"template pnp-basic already exists"),
    ('[capabilities.libero]\nhost = "x"\ntags = []', r"capability set libero already exists"),
    ('[benchmarks.libero-goal]\nhost = "x"\ncapabilities = "libero"', r"benchmark libero-goal already exists"),
    ('[benchmarks.b]\nhost = "x"\ncapabilities = "libro"', r"field capabilities: benchmarks.b: 'libro' .*\n.*'libero'"),
    ('[benchmarks.b]\nhost = "x"\ncapabilities = "fake"\nsame_tasks_as = "c"', r"field same_tasks_as: .*'c'"),
    ('[benchmarks.b]\nhost = "x"', r"field capabilities: benchmarks.b: the key 'capabilities' is missing"),
    ('[capabilities.c]\nhost = "x"\ntags = ["contact"]', r"field tags: capabilities.c: unknown tag 'contact'"),
    ('[capabilities.c]\nhost = "x"\ntags = ["held_target"]', r"tags: capabilities.c: 'held_target' is of class"),
    ('[templates.t]\nmeaning = "x"\ntags = ["held"]', r"field tags: templates.t: unknown tag 'held'\n.*\[tags"),
    ('[templates.t]\nmeaning = "x"\ntags = ["target_pose_signal"]', r"templates.t: 'target_pose_signal' is of class"),
    (TASK, r"field benchmark: mine wipe: 'mine' is not one of the benchmarks"),
    (OWN + TASK.replace("push-no-lift", "push"), r"field template: mine wipe: 'push' .*\n.*push-no-lift"),
    (OWN + TASK + 'components = ["navigate"]', r"field template: mine wipe: must have either"),
    (OWN + TASK.replace('template = "push-no-lift"', ""), r"field template: mine wipe: must have either"),
    (OWN + TASK.replace('template = "push-no-lift"', 'components = ["nav"]'), r"field components: mine wipe: 'nav'"),
    (
        OWN + TASK.replace(
            'template = "push-no-lift"',
            'components = [{ template = "push-no-lift", predicates = ["opening of drawer"] }]',
        ),
        r"field predicates: .*'opening of drawer' cannot be read",
    ),
    (
        OWN + TASK.replace(
            'template = "push-no-lift"',
            'components = [{ template = "push-no-lift", predicates = ["opening of drawer >= 50"] }]',
        ),
        r"field predicates: .*'opening of drawer >= 50' cannot be read\n.*a share such as 0.5",
    ),
    (OWN + TASK + 'tags = ["held"]', r"field tags: mine wipe: unknown tag 'held'\n.*known tags: .*held_target"),
    (OWN + TASK + "object_tags = { wet = 'x' }", r"field object_tags: mine wipe: unknown tag 'wet'"),
    (OWN + TASK + "object_tags = { spillable = ' ' }", r"object_tags: mine wipe: text .*is expected"),
    (OWN + TASK + 'object_tags = ["spillable"]', r"field object_tags: mine wipe: a table of keys is expected"),
    (OWN + TASK.replace("instruction", "instructions"), r"field instructions: mine wipe: unknown key"),
    (OWN + '[[families]]\nbenchmark = "mine"\npatterns = []\ntemplate = "navigate"', r"patterns: mine: a list .*is ex"),
    (OWN + '[[families]]\nbenchmark = "other"\npatterns = ["*"]\ntemplate = "navigate"', r"'other' is not one of the"),
]  # fmt: skip


REFUSED_ROWS = [
    (f"[{row()}, {row()}]", r"task libero-spatial task_0 already exists"),
    (row(tags=[]), r"field tags: libero-spatial task_0: unknown key 'tags'\n.*'task_tags'"),
    (row(task_tags=["held"]), r"field task_tags: libero-spatial task_0: unknown tag 'held'"),
    (row(object_tags=["wet"]), r"field object_tags: libero-spatial task_0: unknown tag 'wet'"),
    (row(benchmark_signal_tags=["held_target"]), r"field benchmark_signal_tags: .* is of class mechanism"),
    (row(task_tags=["target_pose_signal"]), r"field task_tags: .* is of class capability"),
    (row(benchmark="new", benchmark_signal_tags=None), r"field benchmark: new task_0: 'new' is not one of the"),
    (row(task_tags=None, template="pnp"), r"field template: libero-spatial task_0: 'pnp' is not one of the templates"),
    (row(template=None), r"field template: libero-spatial task_0: must have either"),
    ("[1]", r"row 0: a table of keys is expected, not int"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("mine.toml", *refused) for refused in REFUSED] + [("rows.json", *refused) for refused in REFUSED_ROWS],
)
def test_a_contradiction_is_refused_and_names_file_row_and_key(tmp_path, name, text, message):
    with pytest.raises(RegistryError, match=re.compile(f"{name}.*(?:{message})", re.DOTALL)):
        load_registry([write(tmp_path, text, name)])


def test_the_same_task_in_two_files_is_refused(tmp_path):
    files = [write(tmp_path, row(), "a.json"), write(tmp_path, row(), "b.json")]
    with pytest.raises(RegistryError, match="task_0 already exists"):
        load_registry(files)


@pytest.mark.parametrize(
    ("name", "message"), [("none.toml", ".*cannot be read"), ("rows.yaml", "is not a registry file")]
)
def test_a_file_that_cannot_be_read_is_refused(name, message):
    with pytest.raises(RegistryError, match=f"{name}: {message}"):
        load_registry([Path(name)])


@pytest.mark.parametrize(("task", "is_warned"), [("pick/cup", True), ("pnp-basic/cup", False), ("cup", False)])
def test_a_log_s_task_that_names_an_unknown_template_is_warned_of(caplog, task, is_warned):
    entry = load_registry().find_entry("real-robot", task)
    assert (entry.template, bool(entry.tags)) == (("pnp-basic", True) if task.startswith("pnp") else (None, False))
    assert ("'pick'" in caplog.text and "pnp-basic" in caplog.text) == is_warned
