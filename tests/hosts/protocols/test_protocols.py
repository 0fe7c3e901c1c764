"""Protocols are data: every value has a source, and says what the projects do."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from safevla_bench.errors import RunError
from safevla_bench.hosts import protocols
from safevla_bench.hosts.libero.tasks import STILL
from safevla_bench.jobs import doctor
from safevla_bench.policies.servers.transforms import STATES

NAMES = protocols.protocol_names()
LIBERO = ("libero-spatial", "libero-object", "libero-goal", "libero-10")


def test_the_published_protocols_are_listed():
    published = {"openpi", "openvla", "openvla-oft", "lerobot", "gr00t", "vla-eval", "safevla-bench"}
    assert published <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_a_source_and_a_description(name):
    rows = protocols.protocol_rows(protocols.load_protocol(name))
    assert [row.field for row in rows if row.sources == (protocols.UNKNOWN_SOURCE,)] == []
    assert all(protocols.describe_field(row.field) for row in rows)
    assert protocols.load_protocol(name).name == name


def test_a_value_that_replaces_a_base_s_has_a_source_of_its_own():
    """Else the base's source would be cited for it."""
    folder, derived = Path(protocols.__file__).parent, 0
    for name in NAMES:
        own = msgspec.toml.decode((folder / f"{name}.toml").read_bytes())
        derived += "base" in own
        sources = own.pop("sources")
        values = {field: value for field, value in own.items() if field not in ("name", "base", "about")}
        for field, _ in protocols._flatten_field("", values):
            assert "base" not in own or any(f"{field}.".startswith(f"{source}.") for source in sources), (name, field)
    assert derived >= 9


@pytest.mark.parametrize("name", NAMES)
def test_every_source_is_of_a_value(name):
    protocol = protocols.load_protocol(name)
    fields = {row.field for row in protocols.protocol_rows(protocol)}
    assert [
        key for key in protocol.sources if not any(field == key or field.startswith(f"{key}.") for field in fields)
    ] in (
        [],
        ["horizons"],  # a protocol that leaves them to the host says where that stands
    )


@pytest.mark.parametrize("name", NAMES)
def test_states_are_put_together_from_what_hosts_show(name):
    inference = protocols.load_protocol(name).inference
    readings = ("extra/agent_pos",)
    assert inference is None or set(inference.state) <= {*STATES, *readings}


# LIBERO's protocols, as the projects' own files have them.
TABLE = {
    "openpi": (10, 7, "episode", 5, (224, 224), "pad-bilinear", 1.0, False, "raw", (220, 280, 300, 520)),
    "openvla": (10, 0, "episode", 1, (224, 224), "lanczos3", 0.9, True, "open-is-one", (220, 280, 300, 520)),
    "openvla-oft": (10, 0, "episode", 8, (224, 224), "lanczos3", 0.9, True, "open-is-one", (220, 280, 300, 520)),
    "vla-eval": (10, "7 or server", "episode", "server", (256, 256), "none", 1.0, False, "sign", (220, 280, 300, 520)),
    "lerobot": (10, "1000 + episode", "episode % count", "server", (360, 360), "none", 1.0, False, "raw",
                (280, 280, 300, 520)),
    "gr00t": (0, "sha256", "drawn", 8, (256, 256), "none", 1.0, False, "open-is-one", (720, 720, 720, 720)),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_the_values_are_the_projects_own(name):
    protocol = protocols.load_protocol(name)
    inference = protocol.inference
    assert (
        protocol.wait_steps,
        protocol.env_seed,
        protocol.init_state,
        inference.replan,
        inference.image_size,
        inference.resize,
        inference.crop,
        inference.jpeg,
        inference.gripper,
        tuple(protocol.horizons[suite] for suite in LIBERO),
    ) == TABLE[name]
    turn = "eef_axis_angle_float32" if name == "lerobot" else "eef_axis_angle"
    assert (inference.flip, inference.state) == ("180", ("eef_pos", turn, "gripper_qpos"))
    assert protocol.stop_at_success


def test_the_still_action_is_libero_s_dummy_action():
    own = {name for name in NAMES if protocols.load_protocol(name).wait_action != "still"}
    assert own == {"starvla-metaworld"}
    assert list(STILL) == [0.0] * 6 + [-1.0]


def test_the_preset_runs_the_paper_s_episodes():
    preset = protocols.load_protocol()
    assert {preset.trials[suite] for suite in LIBERO} == {20}
    assert preset.trials["robocasa-365"] == 50
    assert preset.inference is None


def test_two_protocols_differ_where_their_values_do():
    rows = protocols.protocol_rows(*map(protocols.load_protocol, ("openpi", "vla-eval")))
    differ = {row.field: row.values for row in rows if row.differs}
    assert differ == {
        "env_seed": (7, "7 or server"),
        "resets": ("as-upstream", None),
        "inference.image_size": ((224, 224), (256, 256)),
        "inference.resize": ("pad-bilinear", "none"),
        "inference.gripper": ("raw", "sign"),
        "inference.replan": (5, "server"),
        "simulator.libero.robosuite": ("1.4.1", "1.4.0"),
    }


def test_an_unknown_protocol_is_an_error_that_lists_them():
    with pytest.raises(RunError, match="'opempi'"):
        protocols.load_protocol("opempi")


def test_an_environment_seed_that_is_not_a_rule_is_refused():
    values = msgspec.to_builtins(protocols.load_protocol())
    with pytest.raises(msgspec.ValidationError, match=r"\$\.env_seed"):
        msgspec.convert({**values, "env_seed": "episode"}, protocols.EvaluationProtocol)


def test_a_suite_whose_evaluator_ends_episodes_otherwise_has_its_own_default():
    """SimplerEnv's looks at success in the last step; the preset's first success would be a higher rate."""
    assert protocols.default_protocol(["simpler-widowx"]) == "simplerenv"
    assert not protocols.load_protocol("simplerenv").stop_at_success
    for suites in (["libero-goal"], ["simpler-widowx", "libero-goal"], []):
        assert protocols.default_protocol(suites) == protocols.PRESET


# The simulator's versions


HOSTS = {"robocasa": "robocasa", "mt": "metaworld", "simpler": "maniskill"}


@pytest.mark.parametrize("name", NAMES)
def test_a_protocol_names_mujoco_and_robosuite_of_each_host_it_is_for(name):
    protocol = protocols.load_protocol(name)
    hosts = {HOSTS.get(re.match("[a-z]*", suite)[0], "libero") for suite in protocol.trials}
    is_preset = name == protocols.load_protocol().name
    extra_hosts = {"maniskill", "metaworld", "robosuite"} if is_preset else set()  # the paper has no trials of these
    assert set(protocol.simulator) == hosts | extra_hosts
    assert all({"mujoco", "sapien"} & set(versions) for versions in protocol.simulator.values())
    assert all("robosuite" in protocol.simulator[host] for host in hosts - {"maniskill", "metaworld"})


def test_the_preset_names_the_versions_that_this_project_is_tested_with():
    preset = protocols.load_protocol()
    for host, simulator in doctor.tested_versions().hosts.items():
        assert preset.version_differences(host, simulator.versions) == {}, host
        engine = "sapien" if "sapien" in simulator.versions else "mujoco"
        assert preset.version_differences(host, simulator.versions | {engine: "9.9"}) == {
            engine: (simulator.versions[engine], "9.9")
        }


@pytest.mark.parametrize(
    ("name", "installed", "differing"),
    [
        ("openpi", {"mujoco": "3.2.3", "robosuite": "1.4.1"}, {}),
        ("openpi", {"mujoco": "3.3.1", "robosuite": "1.4.1"}, {"mujoco": ("3.2.3", "3.3.1")}),
        ("lerobot", {"mujoco": "3.8.1", "robosuite": "1.4.0"}, {}),
        ("lerobot", {"mujoco": "3.17.0"}, {"mujoco": ("<3.9.0", "3.17.0")}),
        ("openvla", {"mujoco": "3.17.0", "robosuite": "1.4.1"}, {}),
        ("openvla", {}, {}),
        ("cosmos-policy", {"mujoco": "3.2.3"}, {"mujoco": ("3.3.2", "3.2.3")}),
    ],
)
def test_an_installed_version_differs_from_a_number_or_a_bound_and_never_from_what_is_unknown(
    name, installed, differing
):
    assert protocols.load_protocol(name).version_differences("libero", installed) == differing


def test_another_packaging_of_a_version_is_that_version():
    installed = {"mujoco": "3.3.1", "praxis-robosuite": "1.5.2.post1"}
    assert protocols.load_protocol("robocasa-365").version_differences("robocasa", installed) == {}
    assert protocols.load_protocol("robocasa-365").version_differences("libero", installed) == {}


def test_robocasa_s_fork_of_openpi_replans_every_five_actions_and_stops_at_success():
    fork = protocols.load_protocol("robocasa-365-openpi")
    assert (fork.inference.replan, fork.stop_at_success, fork.env_seed) == (5, True, "7 + episode")
    assert all("36ad632" in fork.sources[name] for name in ("inference.replan", "stop_at_success"))


def test_lerobot_s_trials_are_those_of_its_published_results_and_its_default_where_it_published_none():
    trials = protocols.load_protocol("lerobot").trials
    assert {suite: trials[suite] for suite in LIBERO} == dict.fromkeys(LIBERO, 10)
    assert trials["libero-90"] == 50


CITED = {
    "openpi": "15a9616",
    "openvla": "c8f03f4",
    "openvla-oft": "213c5ff",
    "lerobot": "7427f31",
    "gr00t": "626af89",
    "gr00t-n1.5": "4af2b62",
    "vla-eval": "e1ee9ad",
    "cosmos-policy": "18a2acc",
}


@pytest.mark.parametrize("name", CITED)
def test_every_source_that_names_a_file_names_its_commit(name):
    cited = protocols.load_protocol(name).sources.values()
    assert [source for source in cited if ".py" in source and CITED[name] not in source] == []


def test_a_field_of_no_protocol_is_a_key_error():
    with pytest.raises(KeyError, match="nothing"):
        protocols.describe_field("nothing.at.all")
