"""`verify`: whatever is changed in a run is found and named, and what cannot be checked is said."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import episode, numbers_in, official_fields
from folders import change_description, picture, reseal, rewrite_archive
from safevla_bench import archive
from safevla_bench.errors import CollectedError, HostError, RunError
from safevla_bench.jobs.evaluation.judgement import RULES, find_rules, format_rescore_command, judge
from safevla_bench.jobs.evaluation.outputs import write_outputs
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.jobs.verify import AuditPlan, audit_source, files, replays, verify_run
from safevla_bench.jobs.verify.files import check_identity, check_protocol
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs.episode_index import scan
from safevla_bench.sources.runs.folder import (
    EPISODES,
    FRAMES,
    MANIFEST,
    REPORT,
    RUN,
    SCORES,
    SCORES_TABLE,
    archive_parts,
    dump_json,
    read_description,
    read_episodes,
    write_episodes,
)
from safevla_bench.sources.runs.parts import add_digests
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.trajectory.batch import Channel, select_episodes
from safevla_bench.trajectory.marks import STANDIN
from safevla_recorder.episode import add_header_mark


def findings_of(verification, verdict):
    return {finding.check: finding.said for finding in verification.findings if finding.verdict == verdict}


def differing(run, *files, **options):
    return findings_of(verify_run(run, *files, **options), "differs")


def shows_value(said, place, written):
    """Whether a finding names a place and the value in the file, before that of the archive."""
    start, _, values = said.partition(": the file has ")
    return start == place and values.startswith(f"{written}, but ")


def unchecked(run, **options):
    return findings_of(verify_run(run, **options), "unchecked")


def test_the_code_of_the_episodes_is_compared_with_that_of_the_run_and_of_this_process(run):
    (own,) = read_description(run)["code"]
    assert own in findings_of(verify_run(run), "agrees")["code"]
    other = own[:-16] + 16 * "0"
    for codes, verdict in (([own, other], "unchecked"), ([other], "differs"), (["unknown", own], "unchecked")):
        change_description(run, code=codes)
        said = findings_of(verify_run(run), verdict)["code"]
        assert all(code in said for code in codes)
    rows = [replace(row, code=other) for row in read_episodes(run)]
    write_episodes(run, rows)
    change_description(run, code=[other])
    assert f"here is {own}" in unchecked(run)["code"]


def unchecked_of_agreeing(run, *files):
    verification = verify_run(run, *files)
    assert verification.agrees
    return findings_of(verification, "unchecked")


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_bytes(dump_json(document))
    if path.name != MANIFEST:
        reseal(path.parent)


def test_an_episode_that_stands_in_two_parts_is_found(run):
    (part,) = archive_parts(run)
    shutil.copy(part, part.with_name(part.name.replace("00000", "00001")))
    reseal(run)
    assert "episode_id is repeated" in differing(run)[files.PARTS]
    assert audit_source(run, AuditPlan(2, 7))["random"].unreplayed


def edit_headers(run, **changes):
    def change(batch):
        headers = (msgspec.structs.replace(header, **changes) for header in batch.headers)
        return replace(batch, headers=tuple(headers))

    rewrite_archive(run, change)


@pytest.fixture
def no_host(monkeypatch):
    def refuse(name, arguments, named_by):
        raise HostError("not installed")

    monkeypatch.setattr(replays.hosts, "make_host", refuse)


def test_an_untouched_run_agrees_in_everything_and_its_replays_are_bit_for_bit(run):
    findings = verify_run(run, replay=99).findings
    assert {finding.verdict for finding in findings} == {"agrees"}
    assert sum(finding.check.startswith("replay ") for finding in findings) == 4
    assert list(unchecked_of_agreeing(run)) == ["replay"], "it says that nothing was replayed"


@pytest.mark.parametrize("name", ["manifest.json", "episodes.parquet", "scores.parquet", "archive/part-00000.parquet"])
def test_a_missing_file_is_named(run, name):
    (run / name).unlink()
    assert any(name in f"{check} {message}" and "missing" in message for check, message in differing(run).items())


def test_a_run_whose_part_is_missing_is_never_judged_as_if_it_had_fewer_episodes(run):
    (part,) = archive_parts(run)
    part.unlink()
    with pytest.raises(CollectedError, match=part.name):
        judge([run], load_ruleset())


def test_a_part_that_the_manifest_does_not_name_is_found(run):
    (run / "archive" / "part-00001.jsonl").write_bytes(b"")
    said = [finding.said for finding in verify_run(run).findings if finding.verdict == "differs"]
    assert "part-00001.jsonl" in " ".join(said)


def test_a_manifest_cannot_make_files_outside_the_run_be_read(run, tmp_path):
    (tmp_path / "secret").write_text("x")
    edit(run / MANIFEST, lambda document: document["parts"].update({"../secret": hashlib.sha256(b"x").hexdigest()}))
    assert "../secret is missing" in differing(run)["archive parts"]


def test_a_score_that_was_changed_is_named_with_its_place_and_both_values(run):
    edit(run / SCORES, lambda document: document["episodes"][2].update(vsi=0.25))
    ((check, said),) = differing(run).items()
    assert check == "scores.json"
    assert shows_value(said, "episodes[2].vsi", "0.25")
    assert said.endswith(" gives 0.0")


@pytest.mark.parametrize(("sr", "shown"), [(0.5, "0.5"), (False, "false")])
def test_a_changed_aggregate_and_a_number_of_another_type_are_found(run, sr, shown):
    edit(run / SCORES, lambda document: document["aggregate"].update(sr=sr))
    assert shows_value(differing(run)["scores.json"], "aggregate.sr", shown)


def test_a_changed_row_of_the_table_is_found_and_another_writer_of_the_same_rows_is_not(run):
    table = pq.read_table(run / SCORES_TABLE)
    pq.write_table(table, run / SCORES_TABLE, compression="snappy")
    reseal(run)
    assert verify_run(run).agrees
    flipped = table.set_column(table.schema.get_field_index("safe"), "safe", [[False] * len(table)])
    pq.write_table(flipped, run / SCORES_TABLE)
    assert shows_value(differing(run)["scores.parquet"], "episodes[0].safe", "false")


@pytest.mark.parametrize("kind", ["library", "registry"])
def test_another_digest_of_what_judged_differs_and_nothing_is_judged_with_the_wrong_one(run, kind):
    edit(run / SCORES, lambda document: document["judged_by"][kind].update(digest="0" * 64))
    verification = verify_run(run)
    (check, message), *others = findings_of(verification, "differs").items()
    assert (check, "0" * 64 in message, others) == (kind, True, [])
    assert "not judged again" in findings_of(verification, "unchecked")["scores.json"]


def forge(run, name, old, new):
    """Replace a text of a file and renew its digest, as anyone who changes the file can."""
    content = (run / name).read_bytes()
    assert old in content
    (run / name).write_bytes(content.replace(old, new))
    add_digests(run, {name: (run / name).read_bytes()})


def test_a_changed_report_is_found_though_its_digest_was_renewed(run):
    """hostile/16: only a report that is made again shows that its numbers are the run's."""
    forge(run, REPORT, b"100.0", b"99.9")
    (message,) = differing(run).values()
    assert "99.9" in message.partition("but a new report")[0]
    assert "100.0" in message.partition("but a new report")[2]
    (run / SCORES).unlink()
    add_digests(run, {SCORES: None})
    verification = verify_run(run)
    assert "nothing says how" in findings_of(verification, "unchecked")[REPORT]
    assert verification.has_open_checks


def test_the_metadata_of_the_table_of_scores_are_compared(run):
    table = pq.read_table(run / SCORES_TABLE)
    metadata = {**table.schema.metadata, b"judged_by": b"{}"}
    pq.write_table(table.replace_schema_metadata(metadata), run / SCORES_TABLE)
    reseal(run)
    assert differing(run) == {SCORES_TABLE: "judged_by differs"}


def test_scores_of_another_length_are_compared_in_limited_memory_and_cut(run):
    """hostile/04: a document of any size is read in `limit_memory`."""
    forge(run, SCORES, b'"absent": [', b'"absent": [' + b"[]," * 100_000)
    assert differing(run)[SCORES].startswith("absent: ")
    assert "[[], [], " in differing(run)[SCORES]
    assert len(differing(run)[SCORES]) < 500
    pq.write_table(pa.table({"seed": pa.nulls(100_000, pa.int64())}), run / SCORES_TABLE)
    assert differing(run)[SCORES_TABLE].startswith("the file has 100000 episodes, but")


def test_excerpts_that_look_alike_are_replaced_by_where_the_values_differ():
    texts = ("x" * 300 + "a", "x" * 300 + "b")
    first, second = files._describe_values(("field", *texts)).split(", but the archive gives ")
    assert ('xa"' in first, 'xb"' in second) == (True, True)
    assert numbers_in(files._describe_values(("field", [0] * 300, [0] * 301))) == [300, 301]


def test_files_of_another_version_are_unchecked_and_its_scores_are_still_compared(run):
    edit(run / SCORES, lambda document: document["judged_by"].update(version="0.0.1"))
    verification = verify_run(run)
    assert verification.agrees
    assert verification.has_open_checks
    assert {"version", REPORT} <= findings_of(verification, "unchecked").keys()
    assert SCORES in findings_of(verification, "agrees")
    edit(run / SCORES, lambda document: document["judged_by"]["library"].update(digest="0" * 64))
    assert verify_run(run).agrees, "that version has another library"


def test_scores_of_an_older_schema_are_unchecked_and_the_version_that_wrote_them_is_named(run):
    edit(run / SCORES, lambda document: document.pop("scores_version"))
    verification = verify_run(run)
    assert verification.agrees
    unchecked = findings_of(verification, "unchecked")
    assert f"(version 1 of {SCORES})" in str(unchecked["version"])
    assert SCORES in unchecked


def test_pictures_are_compared_by_their_digests_and_the_report_with_or_without_them(run):
    picture(run)
    verification = verify_run(run)
    assert verification.agrees
    assert not verification.has_open_checks
    assert "add later results" in findings_of(verification, "agrees")[REPORT]
    write_outputs(judge([run], load_ruleset()), run)
    assert b"data:image/png" in (run / REPORT).read_bytes()
    assert "the same bytes" in findings_of(verify_run(run), "agrees")[REPORT]
    (run / FRAMES / "a.png").write_bytes(b"another")
    assert "frames/a.png was changed" in differing(run)[files.FILES]
    (run / FRAMES / "a.png").unlink()
    assert "frames/a.png is missing" in differing(run)[files.FILES]


def test_a_picture_without_a_digest_or_outside_of_the_run_is_not_taken_for_checked(run, tmp_path):
    picture(run)
    add_digests(run, {f"{FRAMES}/a.png": None})
    assert "1 of 2" in unchecked(run)[files.PICTURES]
    assert verify_run(run).has_open_checks
    picture(run)
    (run / FRAMES).rename(tmp_path / "elsewhere")
    (run / FRAMES).symlink_to(tmp_path / "elsewhere")
    assert "frames/a.png is missing" in [finding.said.split(",")[0] for finding in verify_run(run).findings]


def test_what_a_command_wrote_and_nothing_makes_again_is_unchecked_and_a_note_is_nobodys_check(run):
    (run / "notes.txt").write_text("mine")
    assert not verify_run(run).has_open_checks
    (run / "submission.json").write_text("{}")
    assert unchecked(run)[files.OTHERS].startswith("notes.txt, submission.json: ")
    assert verify_run(run).has_open_checks


def test_a_digest_does_not_make_a_file_checked_that_nothing_makes_again(run):
    (run / "table.html").write_text("<h1>Safety 100 %</h1>")
    add_digests(run, {"table.html": (run / "table.html").read_bytes()})
    assert unchecked(run)[files.OTHERS].startswith("table.html: ")
    assert verify_run(run).has_open_checks


def test_changed_rules_beside_the_scores_are_found(run):
    by = load_ruleset(library="paper-text")
    write_outputs(judge([run], by), run)
    assert RULES in findings_of(verify_run(run, by), "agrees")
    forge(run, RULES, b"paper-text", b"default")
    assert "not the rules" in differing(run, by)[RULES]


def test_rules_made_in_python_are_no_difference(run):
    judged = judge([run], load_ruleset())
    write_outputs(replace(judged, ruleset=replace(judged.ruleset, recipe=None)), run)
    assert "made in Python" in unchecked(run)[RULES]
    assert differing(run) == {}
    assert not verify_run(run).has_open_checks


def test_for_rules_made_in_python_no_remedy_names_stored_rules(run):
    by = replace(load_ruleset(), library=load_ruleset(library="paper-text").library)
    write_outputs(judge([run], by), run)
    remedy = unchecked_of_agreeing(run)["scores.json"].splitlines()[-1]
    assert "--library" in remedy
    assert "as-judged" not in remedy + format_rescore_command(run)
    assert "scores.json" not in unchecked_of_agreeing(run, by)


def test_a_library_file_that_judged_is_asked_for_and_verifies_when_it_is_named(run, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('based_on = "default"\n\n[[replace]]\nspec_id = "joint_torque"\nsevere = 3.0\n')
    by = load_ruleset(library=str(file), missing="deactivate", capabilities=("libero-full",))
    write_outputs(judge([run], by), run)
    assert "scores.json" not in unchecked_of_agreeing(run, find_rules([run], as_judged=True))
    (run / RULES).unlink()
    reseal(run)
    assert "--library" in unchecked_of_agreeing(run)["scores.json"]
    assert "scores.json" not in unchecked_of_agreeing(run, by)


def test_the_table_and_the_archive_must_hold_the_same_episodes(run):
    rows = pq.read_table(run / EPISODES)
    pq.write_table(rows.slice(1), run / EPISODES)
    message = differing(run)["episodes"]
    assert message.startswith("random/fake/task_0/ep_000: nothing")
    pq.write_table(rows, run / EPISODES)
    rewrite_archive(run, lambda batch: select_episodes(batch, [0, 1, 2]))
    message = differing(run)["episodes"]
    assert message.endswith("the archive")


def test_a_damaged_table_of_episodes_is_an_error_that_names_it(run):
    (run / EPISODES).write_bytes(b"PAR1 no more")
    assert "episodes.parquet" in differing(run)["episodes"]
    with pytest.raises(RunError, match=r"episodes\.parquet"):
        open_source(run)


def test_a_changed_state_is_found_by_the_digest_that_was_judged_and_by_replay_which_says_its_step(run):
    def moved(batch):
        values = batch.sim_state.values.copy()
        values[3 * 15 + 4] = np.nextafter(values[3 * 15 + 4], 1)
        return replace(batch, sim_state=replace(batch.sim_state, values=values))

    rewrite_archive(run, moved)
    assert list(differing(run)) == ["judged archive"]
    _, message = differing(run, replay=4).values()
    assert message.startswith("step 3, sim_state[4]: ")
    assert "processor" in message


def test_which_episodes_are_replayed_depends_on_their_names_and_never_on_their_order(run):
    (part,) = archive_parts(run)
    batch = archive.open_archive(part)
    turned = select_episodes(batch, [3, 2, 1, 0])
    names = {batch.headers[k].episode_id for k in replays.choose_episodes(batch.headers, 2)}
    assert names == {turned.headers[k].episode_id for k in replays.choose_episodes(turned.headers, 2)}


def test_a_record_without_states_is_compared_in_all_that_is_judged_and_it_is_said(run):
    def without(batch):
        none = np.zeros(len(batch) + 1, dtype=np.int64)
        return replace(batch, sim_state=Channel(np.empty(0), none, none[:-1] - 1))

    rewrite_archive(run, without)
    finding = verify_run(run, replay=1).findings[-1]
    assert finding.verdict == "agrees"
    assert finding.said.endswith("compared: sim_state")


def test_a_host_of_another_version_replays_nothing_and_it_is_said(run):
    edit_headers(run, versions={"numpy": "0.9"})
    (message,) = unchecked(run, replay=1).values()
    assert "numpy 0.9" in message


def test_a_replay_that_was_asked_for_and_could_not_be_made_is_not_an_agreement(run, no_host):
    assert not verify_run(run).has_open_checks
    assert verify_run(run, replay=1).has_open_checks
    assert "not installed" in unchecked(run, replay=1)["replay"]


def test_stand_ins_are_said(run):
    rewrite_archive(
        run, lambda batch: replace(batch, extra=tuple(add_header_mark(extra, STANDIN) for extra in batch.extra))
    )
    assert "stand-ins" in unchecked(run, replay=1)["assets"]


@pytest.mark.parametrize("waited", [[5, 10], [], None])
def test_a_loop_of_ones_own_whose_blocks_settled_differently_is_not_played_again(run, waited):
    edit(run / RUN, lambda document: document.update(protocol={"name": "own loop", "wait_steps": waited}))
    assert "run.json does not" in unchecked(run, replay=1)["replay"]


def in_own_loop(description):
    """The run as a loop of one's own would have recorded it."""
    description["protocol"] = {"name": "own loop", "wait_steps": [description["protocol"]["wait_steps"]]}


def test_a_loop_of_ones_own_is_played_again_as_it_settled(run):
    edit(run / RUN, in_own_loop)
    assert verify_run(run, replay=1).findings[-1].verdict == "agrees"
    edit_headers(run, env_seed=None)
    unknown = unchecked(run, replay=1).values()
    assert any("initial state nor" in message for message in unknown)


def test_an_episode_without_its_planned_start_is_not_played_again(run):
    edit_headers(run, env_seed=None)
    assert "env_seed: the record has null" in " ".join(differing(run, replay=1).values())


def test_a_run_without_scores_says_that_nothing_was_judged(run):
    for name in (SCORES, SCORES_TABLE):
        (run / name).unlink()
    assert "scores.json is missing" in differing(run)["files"]
    reseal(run)
    assert "scores.json" in unchecked_of_agreeing(run)


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 5000, '{"judged_by": {"library": 3}}', "\ud800"])
def test_scores_that_are_none_are_named(run, content):
    (run / SCORES).write_bytes(content.encode(errors="surrogatepass"))
    assert "scores.json" in differing(run)


@pytest.mark.parametrize("content", [None, "no JSON", '{"complete": false}'])
def test_what_is_not_a_complete_run_cannot_be_read(run, content):
    (run / RUN).unlink()
    if content is not None:
        (run / RUN).write_text(content)
    with pytest.raises(RunError):
        verify_run(run)


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(run):
    (part,) = archive_parts(run)
    part.unlink()
    part.mkdir()
    with pytest.raises(RunError, match=part.name):
        verify_run(run)


@pytest.mark.libero
def test_a_libero_episode_replays_bit_for_bit(tmp_path):
    asked = Request(host="libero", suites=("libero-object",), tasks=(0,), policies=("random",), max_steps=6, episodes=1)
    evaluate_request(asked, load_ruleset(), tmp_path / "run")
    assert "libero" in sys.modules
    findings = verify_run(tmp_path / "run", replay=1).findings
    assert {finding.verdict for finding in findings} == {"agrees"}
    assert "7 records" in findings[-1].said


def noticed(run):
    """Whether the digests, without any judging, or the reading of run.json notice a change."""
    try:
        findings = files.check_files(run)
    except RunError:
        return True
    return any(finding.verdict == "differs" for finding in findings)


FILES = ("run.json", "manifest.json", "episodes.parquet", "scores.json", "scores.parquet", "report.html")


@pytest.mark.parametrize("name", [*FILES, "archive/part-00000.parquet"])
def test_forty_flipped_bits_are_noticed_in_each_file_of_a_run(run, name):
    draw = random.Random(name)
    path = run / name
    content = path.read_bytes()
    for _ in range(40):
        flipped = bytearray(content)
        place = draw.randrange(8 * len(content))
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert noticed(run), f"bit {place}"
    path.write_bytes(content)
    assert not noticed(run)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_json_that_says_the_same_in_other_bytes_is_noticed(run, name):
    path = run / name
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=4))
    assert noticed(run)


def test_the_sources_that_were_judged_are_those_of_the_run(run):
    def rename(document):
        document["sources"][0]["policies"][0]["policy"] = "another"

    edit(run / SCORES, rename)
    assert shows_value(differing(run)["judged archive"], "sources[0].policies[0].policy", '"another"')


def test_a_protocol_that_differs_from_the_preset_of_its_name_is_found(run):
    protocol = read_description(run)["protocol"]
    change_description(run, protocol={**protocol, "env_seed": 99, "horizons": {**protocol["horizons"], "fake": 5}})
    (finding,) = check_protocol(run)
    assert (finding.verdict, finding.said.partition(" in ")[0]) == ("differs", "env_seed, horizons")
    change_description(run, versions={"safevla-bench": "0.0.1"})
    (older,) = check_protocol(run)
    assert (older.verdict, older.wanted) == ("unchecked", False)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [(official_fields("libero-goal", "task_8"), "agrees"), ({"task_sha256": "0" * 64}, "differs"), ({}, "unchecked")],
)
def test_verify_says_whether_the_tasks_are_the_official_ones(tmp_path, changes, verdict):
    archive.write_archive(tmp_path / "a.parquet", episode(**changes))
    (finding,) = check_identity(scan([tmp_path / "a.parquet"]))
    assert (finding.check, finding.verdict, finding.wanted) == ("task identity", verdict, verdict != "unchecked")
