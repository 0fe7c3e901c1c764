"""How to judge, as one value: loading, provenance, and its sentence."""

import json
import pickle
from dataclasses import replace

import msgspec
import pytest

from builders import numbers_in
from safevla_bench.errors import RegistryError, RunError, SpecError
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import LostEpisodes, NamedDigest, Provenance, Ruleset, RulesetRecipe, load_ruleset
from safevla_bench.specs.loader import load_library
from safevla_bench.specs.table_reader import RuleFile
from safevla_bench.tasks.loader import load_registry
from safevla_bench.version import __version__


def test_without_options_the_built_in_library_and_registry_are_loaded():
    assert load_ruleset() == Ruleset(load_library(), load_registry())


def test_an_unknown_library_is_an_error_when_it_is_loaded():
    with pytest.raises(SpecError, match="nowhere"):
        load_ruleset("nowhere")


def test_a_ruleset_has_the_tags_of_its_capabilities():
    task = ("libero-goal", "task_8")
    assert load_ruleset(capabilities=("libero-full",)).tags(*task) == load_registry().task_tags(*task, ("libero-full",))


def test_its_provenance_survives_json_and_leaves_out_what_did_not_happen():
    provenance = load_ruleset(missing="deactivate").provenance(["episode e0: bad"])
    encoded = msgspec.json.encode(provenance)
    assert msgspec.json.decode(encoded, type=Provenance) == provenance
    assert list(msgspec.json.decode(encoded)) == [
        "library", "registry", "capabilities", "missing", "applicability", "skipped", "version"
    ]  # fmt: skip
    provenance_of_lost = load_ruleset().provenance(lost=LostEpisodes(episodes=2, places=("part-0: cut short",)))
    assert msgspec.to_builtins(provenance_of_lost)["lost"] == {
        "episodes": 2, "more": False, "named": (), "damage": ("part-0: cut short",)
    }  # fmt: skip


def test_its_sentence_names_library_and_registry_and_every_option_that_is_not_the_default():
    plain, ablated = load_ruleset(), load_ruleset("paper-text", applicability="off", missing="deactivate")
    digests = plain.library.digest[:12], plain.registry.digest[:12]
    text = f"Judged by safevla-bench {__version__}: library default ({digests[0]}), registry built-in ({digests[1]})."
    assert plain.provenance().to_sentence() == text
    short = f"Judged by safevla-bench {__version__}: library default, registry built-in."
    assert plain.provenance().to_sentence(digests=False) == short
    assert ablated.provenance().to_sentence().endswith("applicability off.")


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (LostEpisodes(), ""),
        (LostEpisodes(episodes=1, named=("e0",)), "1 episode lost"),
        (LostEpisodes(episodes=2, named=("e0",), places=("p",), more=True), "more than 2 episodes lost"),
        (LostEpisodes(places=("p",), more=True), "an unknown number of episodes lost"),
    ],
)
def test_lost_episodes_are_counted_in_words(lost, text):
    assert str(lost) == text


def test_nothing_is_watched_without_tags():
    with pytest.raises(RunError, match="needs the tasks'"):
        Monitor(load_ruleset(applicability="off"))


TAGS = RuleFile(
    "mine.toml",
    """
    [capabilities.mine]
    host = "mine"
    tags = ["max_contact_force_signal"]
    [benchmarks.mine]
    host = "mine"
    capabilities = "mine"
    [[tasks]]
    benchmark = "mine"
    task_id = "push"
    template = "push-no-lift"
    instruction = "push"
    """,
)


def test_the_tags_that_a_host_brings_are_added_once_and_are_not_an_option():
    plain = load_ruleset(intervals="paper")
    rules = plain.with_host_registry([TAGS, TAGS])
    assert "manipulated_target" in rules.tags("mine", "push")
    assert rules.with_host_registry([TAGS]) is rules
    assert rules.intervals == "paper"
    assert rules.recipe.is_default
    assert plain.with_host_registry([]) is plain
    assert rules.recipe.load().registry.digest == rules.registry.digest != plain.registry.digest


def test_tags_that_contradict_the_host_s_own_are_an_error():
    contradicting = RuleFile("other.toml", TAGS.text.replace("max_contact_force_signal", "gripper_contact_signal"))
    with pytest.raises(RegistryError, match="set mine already"):
        load_ruleset().with_host_registry([TAGS, contradicting])


def test_changed_limits_are_named_as_options(tmp_path):
    assert load_ruleset().describe_changes() == ""
    assert load_ruleset(missing="deactivate", capabilities=["libero-full"]).describe_changes() == ""
    assert load_ruleset("metaworld").describe_changes() == "--library metaworld"
    changed = load_ruleset("paper-text", thresholds=["joint_torque=1.5"])
    assert "paper-text --set joint_torque=1.5" in changed.describe_changes()


def test_options_are_described_as_on_the_command_line():
    assert load_ruleset().recipe.describe() == "the default rules"
    rules = load_ruleset(missing="deactivate", capabilities=["libero-full"], applicability="off")
    expected = "--set capabilities=libero-full --set missing=deactivate --set applicability=off"
    assert rules.recipe.describe() == expected


def test_another_library_of_a_built_in_name_is_called_another():
    assert NamedDigest("default", "0" * 64).label == "another default"
    assert NamedDigest("mine", "0" * 64).label == "mine"


def test_stored_rules_of_an_unknown_library_or_with_a_host_s_own_tags_of_built_in_tasks_are_refused():
    with pytest.raises(RunError, match="nowhere"):
        RulesetRecipe(library="nowhere").load()
    task = '[[tasks]]\nbenchmark = "libero-goal"\ntask_id = "task_8"\ntemplate = "push-no-lift"\ninstruction = "x"\n'
    with pytest.raises(RegistryError, match="redefine"):
        RulesetRecipe(host_registry=(RuleFile("host.toml", task),)).load()


def test_own_and_moved_specifications_are_those_that_the_options_changed():
    rules = load_ruleset(thresholds=["non_target_max_disp_5mm=20mm"])
    (own,) = rules.own_specs()
    assert own.threshold == 0.02
    assert rules.changed_specs() == [own]
    default = load_library()["non_target_max_disp_5mm"]
    severe_mm = [1000 * default.severe, 1000 * own.severe]
    assert numbers_in(rules.describe_moved_limits(own).replace("\N{NO-BREAK SPACE}", " ")) == [5, 20, *severe_mm]
    binary = load_library()["self_collision_free"]
    assert rules.describe_moved_limits(binary) == rules.describe_moved_limits(default) == ""
    assert load_ruleset().own_specs() == load_ruleset().changed_specs() == []
    assert Ruleset(rules.library, rules.registry).own_specs() == []


def test_specifications_of_a_file_are_own_ones():
    row = {"spec_id": "mine", "canonical_family": "mine", "axis": "execution", "tier": "safe", "unit": "m/s"}
    row |= {"stl": "G[0,T](eef_speed < threshold)", "source": "house", "rationale": "so it is"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**row, "threshold": 0.4, "severe": 1.0}.items()]
    rules = load_ruleset(RuleFile("mine.toml", "\n".join(["[[specs]]", *lines])))
    assert [spec.spec_id for spec in rules.own_specs()] == ["mine"]
    assert [spec.spec_id for spec in Ruleset(rules.library, rules.registry).changed_specs()] == []


@pytest.mark.parametrize(
    ("second", "further", "barred_by"),
    [
        ("pnp-basic", "", {"non_target_max_disp_5mm": {0}}),
        ("knob-twist", "", {}),
        ("pnp-basic", "object_tags = { goal_moves_small_fixture = 'a knob' }", {}),
    ],
)
def test_a_specification_is_judged_in_phases_if_a_component_bars_it_and_another_does_not(second, further, barred_by):
    toml = "[[tasks]]\nbenchmark = 'libero-10'\ntask_id = 'task_2'\ninstruction = ''\n"
    file = RuleFile("own.toml", f"{toml}components = ['knob-twist', '{second}']\n{further}\n")
    rules = load_ruleset(registry_files=[file], applicability="phased")
    barring = rules.barring_components("libero-10", "task_2")
    assert {spec.spec_id: barring[spec.spec_id] for spec in rules.library.safe if spec.spec_id in barring} == barred_by


def test_a_recipe_describes_the_rules_also_after_one_of_them_is_replaced():
    """Otherwise, a host's tags would bring the old library back, and `judged_with.json` would name it."""
    plain = load_ruleset()
    changed = replace(plain, missing="deactivate", capabilities=("libero-full",))
    assert changed.recipe == load_ruleset(missing="deactivate", capabilities=["libero-full"]).recipe
    assert changed.with_host_registry([TAGS]).missing == "deactivate"
    for name, value in (("library", load_library("paper-text")), ("registry", load_registry([TAGS]))):
        own = replace(plain, **{name: value})
        assert own.recipe is None
        assert own.with_host_registry([TAGS]) is own
    assert plain.recipe == RulesetRecipe()
    assert pickle.loads(pickle.dumps(plain)).with_host_registry([TAGS]).recipe.host_registry == (TAGS,)


@pytest.mark.parametrize("option", ["missing", "applicability", "intervals"])
@pytest.mark.parametrize("value", ["Error", "", False])
def test_an_option_that_is_none_of_its_choices_is_refused_with_the_choices(option, value):
    for refuse in (load_ruleset, lambda **options: replace(load_ruleset(), **options)):
        with pytest.raises(RunError, match=f"{option} is {value!r}") as caught:
            refuse(**{option: value})
        assert caught.value.remedy.startswith("Choose one of: ")


@pytest.mark.parametrize("tiers", [("saf",), ()])
def test_a_monitor_watches_only_tiers_that_there_are(tiers):
    with pytest.raises(RunError, match="tier is "):
        Monitor(tiers=tiers)


@pytest.mark.parametrize("name", ["spec_files", "registry_files", "thresholds", "capabilities"])
def test_a_text_instead_of_a_list_of_texts_is_refused(name):
    with pytest.raises(RunError, match=f"{name} is a single text"):
        load_ruleset(**{name: "joint_torque=1.5"})
