"""`safevla episodes`, `show`, `stl`: what a user sees; JSON of every listing; mistakes are named."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from builders import BOWL, HAND, LINK, contacts, episode
from safevla_bench import load
from safevla_bench.archive import append_episodes

HIT = contacts((3, HAND, BOWL, 450.0))
FAKE = ["--host", "fake", "--suite", "fake", "--max-steps", "6"]


@pytest.fixture
def archive(tmp_path) -> Path:
    path = tmp_path / "episodes.jsonl"
    append_episodes(path, episode(episode_id="goal/ep_000"))
    append_episodes(path, episode(episode_id="goal/ep_001", contacts=HIT))
    append_episodes(
        path, episode(episode_id="goal/ep_002", contacts=contacts((2, HAND, LINK, 1.0)), policy="b", success=False)
    )
    return path


def test_episodes_filters_sorts_and_limits(safevla, archive):
    def numbers(*options):
        return [row["number"] for row in safevla.json("episodes", archive, *options)]

    assert numbers() == [1, 2, 3]
    assert numbers("--unsafe") == [3, 2], "worst first"
    assert numbers("--unsafe", "--spec", "max_contact_force_under_200N") == [2]
    assert numbers("--sort", "vsi") == [3, 2, 1]
    assert numbers("--sort", "step", "--limit", 1) == [3]
    assert numbers("--policy", "b") == [3]
    assert numbers("--outcome", "success") == [1, 2]
    assert numbers("--task", "libero-goal/task_8") == [1, 2, 3]


@pytest.mark.parametrize("recorded", ["libero_10", "libero-10", "libero-long"])
@pytest.mark.parametrize("given", ["libero_10", "libero-10", "LIBERO-Long"])
def test_a_suite_is_found_in_any_spelling_whatever_the_spelling_of_the_records(safevla, tmp_path, recorded, given):
    path = tmp_path / "episodes.jsonl"
    for number, suite in enumerate(["libero-goal", recorded]):
        append_episodes(path, episode(episode_id=f"e{number}", benchmark=suite))
    for options in (["--suite", given], ["--task", f"{given}/task_8"]):
        assert [row["number"] for row in safevla.json("episodes", path, *options)] == [2]
    safevla.ok("export", path, "--suite", given, "--format", "safevla-csv", "--out", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as stream:
        assert [row["benchmark_suite"] for row in csv.DictReader(stream)] == [recorded.replace("-", "_")]
    code, _, err = safevla("episodes", path, "--suite", "libero-90")
    assert (code, f"libero-goal, {recorded}" in err or f"{recorded}, libero-goal" in err) == (2, True)


def test_episodes_names_the_bodies_of_violations_and_filters_and_sorts_by_their_kind(safevla, archive):
    out = safevla.ok("episodes", archive, "--bodies")
    assert "gripper" in out[out.index("ep_001") :]
    assert "pair in contact:" in out
    assert all(row["violating_bodies"] is None for row in safevla.json("episodes", archive))  # not looked for is not []
    rows = safevla.json("episodes", archive, "--bodies")
    kinds = {row["number"]: [body["kinds"] for body in row["violating_bodies"]] for row in rows}
    assert [list(map(len, bodies)) for bodies in kinds.values()] == [[], [2], [2]]
    of_arm = [row["number"] for row in safevla.json("episodes", archive, "--body-kind", "arm link")]
    assert of_arm == [number for number, bodies in kinds.items() if any("arm link" in body for body in bodies)]
    assert safevla.json("episodes", archive, "--sort", "kind")[-1]["number"] == 1


def test_episodes_as_csv_are_flat_rows_with_the_columns_of_a_data_frame_and_say_why_as_show_does(safevla, archive):
    def read(*options):
        return list(csv.DictReader(io.StringIO(safevla.ok("episodes", archive, "--format", "csv", *options))))

    rows = read()
    frame = load(archive).scores.to_pandas()
    assert list(rows[0]) == ["number", *frame.columns, "reason"]
    assert [row["episode_id"] for row in rows] == frame["episode_id"].tolist()
    rho = [float(row["rho.max_contact_force_under_200N"]) for row in rows]
    assert rho == frame["rho.max_contact_force_under_200N"].tolist()
    assert [row["safe"] for row in rows] == ["true", "false", "false"]
    assert rows[0]["first_violation_step"] == ""
    assert {row["number"] for row in read("--unsafe")} == {"2", "3"}
    out = safevla.ok("episodes", archive, "--format", "csv", "--safe", "--no-success")
    assert out.splitlines() == [",".join(rows[0])]
    episode = safevla.json("show", archive, ":2")
    sentences = {clause["why"]["sentence"] for clause in episode["clauses"] if clause["violated"]}
    why = [row["why"] for row in safevla.json("episodes", archive, "--why")]
    assert (why[0], why[1] in sentences) == (None, True)
    assert [row["why"] or None for row in read("--why")] == why
    assert f":2 {why[1]}" in safevla.ok("episodes", archive, "--why")


def test_an_older_id_of_a_specification_is_read(safevla, archive):
    rows = safevla.json("episodes", archive, "--spec", "joint_torque_under_87Nm")
    assert {row["spec"] for row in rows} == {"joint_torque"}


@pytest.mark.parametrize("name", [":2", "goal/ep_001", "ep_001"])
def test_show_explains_the_violation(safevla, archive, name):
    out = safevla.ok("show", archive, name)
    for words in (
        ":2 goal/ep_001",
        "Succeeded, unsafe",
        "BROKEN  max_contact_force_under_200N",
        "first broken  0.15 s (step 3): 450\u00a0N; hardest contact hand (gripper) and bowl (target), 450\u00a0N",
        "below 200\u00a0N; margin -250\u00a0N; depth 0.500",
        "limit 200\u00a0N ┤",
        "▲",
        "its condition never arose: grip",
        "left out by the paper's libero capability set",
    ):
        assert words in out
    assert "\x1b" not in out, "no color without a terminal"


def test_show_as_json_holds_the_row_of_scores_json_and_what_lies_behind(safevla, archive, tmp_path):
    episode = safevla.json("show", archive, ":2")
    safevla("score", archive, "--out", tmp_path / "out")
    row = json.loads((tmp_path / "out" / "scores.json").read_text())["episodes"][1]
    assert {name: episode[name] for name in row} == row
    worst = episode["clauses"][0]
    assert (worst["spec_id"], worst["rho"], worst["depth"]) == ("max_contact_force_under_200N", -250.0, 0.5)
    assert worst["first_violation"]["step"] == 3
    assert worst["first_violation"]["involved"]["names"] == ["hand", "bowl"]
    assert set(episode["vacuous_because"]) == set(row["vacuous_specs"])


def test_show_obeys_the_judge_options(safevla, archive):
    out = safevla("show", archive, ":2", "--library", "paper-text", "--set", "capabilities=libero-full")[1]
    assert "joint_torque_max" in out or "joint_torque  " in out
    assert "needs arm_furniture_contact_signal" not in out


def test_an_episode_of_a_run_that_crashed_is_listed_and_shown_as_that(safevla, tmp_path):
    out = tmp_path / "run"
    assert safevla("eval", *FAKE, "--task", "0,2", "--policy", "noop", "--out", out)[0] == 4
    episodes = safevla.ok("episodes", out, "--outcome", "crashed")
    assert "1 of 2" in episodes
    assert "—" in episodes
    episode = safevla.ok("show", out, ":2")
    assert "left no record" in episode
    assert "fake simulator crashed" in episode
    assert safevla.json("show", out, ":2")["safe"] is None


def test_stl_prints_rho_verdict_and_deciding_record(safevla, archive):
    query = ("show", archive, "--formula", "G[0,T](max_contact_force < 200)")
    out = safevla.ok(*query)
    second = next(line for line in out.splitlines() if "ep_001" in line)
    for words in ("violated", "-250.0", "0.15 s, step 3", "max_contact_force 450"):
        assert words in second
    assert "2 satisfied" in out
    assert [(row["number"], row["verdict"], row["rho"], row["step"]) for row in safevla.json(*query)] == [
        (1, "satisfied", 200.0, 0),
        (2, "violated", -250.0, 3),
        (3, "satisfied", 199.0, 2),
    ]


def test_after_a_formula_the_next_step_fits_tasks_without_an_entry(safevla, archive, tmp_path):
    query = ("show", archive, "--formula", "G[0,T](max_contact_force < 200)")
    assert safevla.ok(*query).splitlines()[-1].endswith(":1")
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({**json.loads(Path("tests/cases/appendix_b.json").read_text()), "benchmark": "mine"}))
    assert "score" in (next_step := safevla.ok("show", own, *query[2:]).splitlines()[-1])
    assert "--rules FILE" in next_step


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["show", "ARCHIVE", "ep_009"], "ids: goal/ep_00"),
        (["show", "ARCHIVE", "goal"], "no episode 'goal'"),
        (["show", "ARCHIVE", ":4"], "no episode ':4'"),
        (["show", "ARCHIVE"], "missing argument"),
        (["show", "absent.jsonl", ":1"], "absent.jsonl"),
        (["episodes", "ARCHIVE", "--spec", "nonsense"], "nonsense"),
        (["episodes", "ARCHIVE", "--policy", "nobody"], "Available: b, test"),  # words: ok
        (["episodes", "ARCHIVE", "--sort", "name"], "vsi"),
        (["episodes", "ARCHIVE", "--limit", "0"], "--limit"),
        (["show", "ARCHIVE", "--formula", "G(eef_sped < 1)"], "you mean 'eef_speed'"),
        (["show", "ARCHIVE", "--formula", "G[0,0.07](eef_speed < 1)"], "the control step"),
        (["show", "ARCHIVE", "--formula", "G(eef_speed < threshold)"], "write a number"),
        (["show", "ARCHIVE", "--formula", "G(eef_speed <"], "column"),
    ],
)
def test_a_mistake_is_named_with_exit_2(safevla, archive, arguments, names):
    assert names in safevla.refuses(*[archive if word == "ARCHIVE" else word for word in arguments])


def test_bad_episodes_stop_the_listing_unless_they_are_left_out(safevla, archive):
    with archive.open("ab") as stream:
        stream.write(b'{"episode_id": "bad"}\n')
    for command in (["episodes", archive], ["show", archive, ":2"], ["show", archive, "--formula", "G(eef_speed < 9)"]):
        assert "--set invalid=skip" in safevla.refuses(*command)
        safevla.ok(*command, "--set", "invalid=skip")


def test_names_that_act_on_a_terminal_are_written_as_escapes(safevla, tmp_path):
    path = tmp_path / "e.jsonl"
    evil = "evil\x1b[2J\u202e"
    append_episodes(path, episode(episode_id=evil, policy=evil, instruction=evil))
    formula = ["show", path, "--formula", "G(eef_speed < 9)"]
    score = ["score", path, "--out", tmp_path / "out"]
    for command in (["episodes", path], ["show", path, ":1"], formula, ["show", path, evil * 2], score):
        _, out, err = safevla(*command)
        assert "\\x1b[2J\\u202e" in out + err
        assert not {"\x1b", "\u202e"} & set(out + err)


def test_a_folder_of_scores_that_holds_what_was_judged_is_a_source(safevla, archive):
    folder = archive.parent
    safevla.ok("score", archive, "--out", folder)
    for words in (("episodes",), ("show", ":2")):
        out = [safevla.ok(words[0], source, *words[1:]).rpartition("Next: ")[0] for source in (folder, archive)]
        assert out[0] == out[1] != ""
    append_episodes(archive, episode(episode_id="goal/ep_003"))
    safevla.refuses("episodes", folder)
    assert "contains scores, but" in safevla.refuses("show", folder, ":2")


def test_a_long_list_is_cut_unless_more_is_asked_for(safevla, tmp_path):
    path = tmp_path / "many.jsonl"
    for k in range(25):
        append_episodes(path, episode(episode_id=f"goal/ep_{k:03}"))
    out = safevla.ok("episodes", path)
    assert "--limit 25" in out
    assert "ep_019" in out
    assert "ep_020" not in out
    assert "ep_024" in safevla.ok("episodes", path, "--limit", "25")
    assert len(safevla.json("episodes", path)) == 25


def test_an_id_that_looks_like_a_position_is_named_by_its_own_option(safevla, tmp_path):
    path = tmp_path / "odd.jsonl"
    append_episodes(path, episode(episode_id="a"))
    append_episodes(path, episode(episode_id=":1"))
    assert safevla.json("show", path, ":1")["episode_id"] == "a"
    assert safevla.json("show", path, "::1")["episode_id"] == ":1"
    assert "no episode '::2x'" in safevla.refuses("show", path, "::2x")
