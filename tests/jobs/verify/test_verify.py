"""`verify`: whatever is changed in a run is found and named, and what cannot be checked is said."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import weakref
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from folders import reseal, rewrite_archive
from safevla_bench import archive
from safevla_bench.errors import CollectedError, HostError, RunError
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.evaluation.judgement import RULES, judge
from safevla_bench.jobs.evaluation.outputs import write_outputs
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.jobs.verify import files, replays, verify_run
from safevla_bench.jobs.verify.files import RulesetFiles
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs.folder import EPISODES, MANIFEST, RUN, SCORES, SCORES_TABLE, archive_parts, dump_json
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.trajectory.batch import Channel, select_episodes
from safevla_bench.trajectory.marks import mark_standin


def differing(found):
    return {one.check: one.said for one in found.findings if one.verdict == "differs"}


def left_out(found):
    return {one.check: one.said for one in found.findings if one.verdict == "unchecked"}


def edited(path, change):
    held = json.loads(path.read_text())
    change(held)
    path.write_bytes(dump_json(held))
    if path.name != MANIFEST:
        reseal(path.parent)


def test_an_untouched_run_agrees_in_everything_and_its_replays_are_bit_for_bit(run):
    found = verify_run(run, replay=99)
    assert found.agrees
    assert {one.verdict for one in found.findings} == {"agrees"}
    assert sum(one.check.startswith("replay ") for one in found.findings) == 4


def test_without_replay_it_says_that_nothing_was_replayed(run):
    assert list(left_out(verify_run(run))) == ["replay"]


def test_one_flipped_bit_of_a_part_is_found_and_the_part_named(run):
    (part,) = archive_parts(run)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    details = [finding.said for finding in verify_run(run).findings if finding.verdict == "differs"]
    assert any(detail.startswith("archive/part-00000.parquet") for detail in details)


@pytest.mark.parametrize("name", ["manifest.json", "episodes.parquet", "scores.parquet", "archive/part-00000.parquet"])
def test_a_missing_file_is_named(run, name):
    (run / name).unlink()
    assert any(name in f"{check} {said}" and "missing" in said for check, said in differing(verify_run(run)).items())


def test_a_run_whose_part_is_missing_is_never_judged_as_if_it_had_fewer_episodes(run):
    (part,) = archive_parts(run)
    part.unlink()
    with pytest.raises(CollectedError, match=part.name):
        judge([run], load_ruleset())


def test_a_part_that_the_manifest_does_not_name_is_found(run):
    (run / "archive" / "part-00001.jsonl").write_bytes(b"")
    assert "part-00001.jsonl is not in manifest.json" in differing(verify_run(run))["archive parts"]


def test_a_manifest_cannot_make_files_outside_the_run_be_read(run, tmp_path):
    (tmp_path / "secret").write_text("x")
    edited(run / MANIFEST, lambda held: held["parts"].update({"../secret": hashlib.sha256(b"x").hexdigest()}))
    assert "../secret is missing" in differing(verify_run(run))["archive parts"]


def test_a_score_that_was_changed_is_named_with_episode_field_and_both_values(run):
    def better(held):
        held["episodes"][2]["vsi"] = 0.25

    edited(run / SCORES, better)
    said = differing(verify_run(run))
    assert list(said) == ["scores.json"]
    assert said["scores.json"] == "episode 'random/fake/task_1/ep_000', vsi: 0.25 is written, the archive gives 0.0"


def test_a_changed_aggregate_and_a_number_of_another_type_are_found(run):
    edited(run / SCORES, lambda held: held["aggregate"].update(sr=0.5))
    assert differing(verify_run(run))["scores.json"] == "aggregate.sr: 0.5 is written, the archive gives 0.0"
    edited(run / SCORES, lambda held: held["aggregate"].update(sr=False))
    assert differing(verify_run(run))["scores.json"] == "aggregate.sr: false is written, the archive gives 0.0"


def test_a_changed_row_of_the_table_is_found_and_another_writer_of_the_same_rows_is_not(run):
    table = pq.read_table(run / SCORES_TABLE)
    pq.write_table(table, run / SCORES_TABLE, compression="snappy")
    reseal(run)
    assert verify_run(run).agrees
    flipped = table.set_column(table.schema.get_field_index("safe"), "safe", [[False] * len(table)])
    pq.write_table(flipped, run / SCORES_TABLE)
    assert "safe: false is written, the archive gives true" in differing(verify_run(run))["scores.parquet"]


@pytest.mark.parametrize("kind", ["library", "registry"])
def test_another_digest_of_what_judged_differs_and_nothing_is_judged_with_the_wrong_one(run, kind):
    edited(run / SCORES, lambda held: held["judged_by"][kind].update(digest="0" * 64))
    found = verify_run(run)
    assert list(differing(found)) == [kind]
    assert "0" * 64 in differing(found)[kind]
    assert "not judged again" in left_out(found)["scores.json"]


ROWS = [{"episode_id": "a", "vsi": 0.0, "safe": True}, {"episode_id": "b", "vsi": 0.5, "safe": False}]


@pytest.mark.parametrize(
    ("rows", "library", "sentences"),
    [
        ([{**ROWS[0], "vsi": 1.0}, ROWS[1]], "x", ["episode 'a', vsi: 1.0 is written, the archive gives 0.0"]),
        (ROWS[:1], "x", ["episode 'b' is missing here"]),
        (
            [{**ROWS[0], "safe": None}, {"episode_id": "c"}],
            "y",
            [
                "episode 'a', safe: null is written, the archive gives true",
                "episode 'c' is here, and is not among what the archive gives",
                "episode 'b' is missing here",
                'library: "y" is written, the archive gives "x"',
            ],
        ),
        (ROWS[::-1], "x", ['episodes[0].episode_id: "b" is written, the archive gives "a"']),
        ([*ROWS, ROWS[0]], "x", ["episodes: ["]),
        (ROWS, "x", []),
    ],
)
def test_each_difference_of_two_score_documents_is_named_once(rows, library, sentences):
    written, expected = {"episodes": rows, "library": library}, {"episodes": ROWS, "library": "x"}
    named = list(files._document_differences(written, expected))
    assert len(named) == len(set(named))
    if rows == ROWS[::-1]:  # every field is another one
        assert named[0] == sentences[0]
        return
    assert [sentence[: len(start)] for sentence, start in zip(named, sentences, strict=True)] == sentences


def test_another_version_differs_and_the_scores_are_still_compared(run):
    edited(run / SCORES, lambda held: held["judged_by"].update(version="0.0.1"))
    assert list(differing(verify_run(run))) == ["version"]


def test_a_library_file_that_judged_is_asked_for_and_verifies_when_it_is_named(run, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('based_on = "default"\n\n[[replace]]\nspec_id = "joint_torque"\nsevere = 3.0\n')
    by = load_ruleset(library=str(file), missing="deactivate", capabilities=("libero-full",))
    write_outputs(judge([run], by), run, legacy_ids=True)
    remembered = verify_run(run, RulesetFiles(as_judged=True))
    assert remembered.agrees
    assert "scores.json" not in left_out(remembered)
    (run / RULES).unlink()
    reseal(run)
    found = verify_run(run)
    assert found.agrees
    assert "--library" in left_out(found)["scores.json"]
    named = verify_run(run, RulesetFiles(library=str(file), as_judged=True))
    assert named.agrees
    assert "scores.json" not in left_out(named)


def test_the_table_and_the_archive_must_hold_the_same_episodes(run):
    rows = pq.read_table(run / EPISODES)
    pq.write_table(rows.slice(1), run / EPISODES)
    said = differing(verify_run(run))["episodes"]
    assert said == "'random/fake/task_0/ep_000' is in the archive, and not in episodes.parquet"
    pq.write_table(rows, run / EPISODES)
    rewrite_archive(run, lambda batch: select_episodes(batch, [0, 1, 2]))
    said = differing(verify_run(run))["episodes"]
    assert said == "'random/fake/task_1/ep_001' is in episodes.parquet, and the archive has no record of it"


def test_a_damaged_table_of_episodes_is_an_error_that_names_it(run):
    (run / EPISODES).write_bytes(b"PAR1 no more")
    assert "episodes.parquet" in differing(verify_run(run))["episodes"]
    with pytest.raises(RunError, match=r"episodes\.parquet"):
        open_source(run)


def test_a_changed_state_is_found_by_the_digest_that_was_judged_and_by_replay_which_says_its_step(run):
    def moved(batch):
        values = batch.sim_state.values.copy()
        values[3 * 15 + 4] = np.nextafter(values[3 * 15 + 4], 1)
        return replace(batch, sim_state=replace(batch.sim_state, values=values))

    rewrite_archive(run, moved)
    assert list(differing(verify_run(run))) == ["judged archive"]
    _, said = differing(verify_run(run, replay=4)).values()
    assert said.startswith("step 3, sim_state[4]: ")
    assert "processor" in said


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
    assert finding.said.endswith("bit for bit; not compared: sim_state")


def test_a_host_of_another_version_or_that_is_not_here_replays_nothing_and_it_is_said(run, monkeypatch):
    def older(batch):
        headers = tuple(type(one)(**{**_fields(one), "versions": {"numpy": "0.9"}}) for one in batch.headers)
        return replace(batch, headers=headers)

    rewrite_archive(run, older)
    (said,) = left_out(verify_run(run, replay=1)).values()
    assert "recorded with numpy 0.9" in said

    def absent(name, arguments, named_by):
        raise HostError("not installed")

    monkeypatch.setattr(replays.hosts, "make_host", absent)
    assert "not installed" in left_out(verify_run(run, replay=1))["replay"]


def _fields(header):
    return {name: getattr(header, name) for name in header.__struct_fields__}


def test_stand_ins_are_said(run):
    rewrite_archive(run, lambda batch: replace(batch, extra=tuple(mark_standin(one) for one in batch.extra)))
    assert "stand-ins" in left_out(verify_run(run, replay=1))["assets"]


@pytest.mark.parametrize("waited", [[5, 10], [], None])
def test_a_loop_of_ones_own_whose_blocks_settled_differently_is_not_played_again(run, waited):
    edited(run / RUN, lambda held: held.update(protocol={"name": "own loop", "wait_steps": waited}))
    assert left_out(verify_run(run, replay=1))["replay"] == "run.json does not say how an episode starts"


def in_own_loop(description):
    """The run as a loop of one's own would have recorded it."""
    description["protocol"] = {"name": "own loop", "wait_steps": [description["protocol"]["wait_steps"]]}


def test_a_loop_of_ones_own_is_played_again_as_it_settled(run):
    edited(run / RUN, in_own_loop)
    (finding,) = [finding for finding in verify_run(run, replay=1).findings if finding.check.startswith("replay")]
    assert finding.verdict == "agrees"


def test_an_episode_that_tells_no_start_is_not_played_again(run):
    def without(batch):
        headers = tuple(type(one)(**{**_fields(one), "env_seed": None}) for one in batch.headers)
        return replace(batch, headers=headers)

    rewrite_archive(run, without)
    assert "env_seed: null is recorded" in " ".join(differing(verify_run(run, replay=1)).values())
    edited(run / RUN, in_own_loop)
    said = left_out(verify_run(run, replay=1)).values()
    assert any("neither its seed and initial state nor its fixtures" in one for one in said)


def test_a_run_without_scores_says_that_nothing_was_judged(run):
    for name in (SCORES, SCORES_TABLE):
        (run / name).unlink()
    assert "scores.json is missing; manifest.json names it" in differing(verify_run(run))["files"]
    reseal(run)
    found = verify_run(run)
    assert found.agrees
    assert "scores.json" in left_out(found)


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 5000, '{"judged_by": {"library": 3}}', "\ud800"])
def test_scores_that_are_none_are_named(run, content):
    (run / SCORES).write_bytes(content.encode(errors="surrogatepass"))
    assert "scores.json" in differing(verify_run(run))


@pytest.mark.parametrize("content", [None, "no JSON", '{"complete": false}'])
def test_what_is_no_complete_run_cannot_be_read(run, content):
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


def test_what_was_asked_for_and_could_not_be_checked_is_no_agreement(run, monkeypatch):
    assert not verify_run(run).has_open_checks

    def absent(name, arguments, named_by):
        raise HostError("not installed")

    monkeypatch.setattr(replays.hosts, "make_host", absent)
    assert not verify_run(run).has_open_checks
    assert verify_run(run, replay=1).has_open_checks


def test_records_are_read_batch_by_batch_and_none_is_kept(run, monkeypatch):
    (part,) = archive_parts(run)
    archive.write_archive(part.with_name("part-00000.jsonl"), archive.open_archive(part))
    part.unlink()
    references = []
    read_episodes = archive.read_episodes

    def count_batches(*arguments):
        for batch in read_episodes(*arguments):
            references.append(weakref.ref(batch.starts))
            yield batch
            assert sum(reference() is not None for reference in references) <= 2

    monkeypatch.setattr(archive, "read_episodes", count_batches)
    assert len(files.ArchiveContents.read(run).headers) == len(references) == 4


def test_where_every_start_fails_all_are_named(run, monkeypatch):
    edited(run / RUN, in_own_loop)
    monkeypatch.setattr(replays, "_episode_starts", lambda *_: [EpisodeSeed(0, seed, 0) for seed in (1, 2)])

    def fail(host, task, seed, episode):
        raise {1: ValueError("boom"), 2: HostError("no room")}[seed.env_seed]

    monkeypatch.setattr(replays, "_replay_actions", fail)
    (reason,) = left_out(verify_run(run, replay=1)).values()
    assert "no room" in reason
    assert "Before that, from another start that the record tells: the simulator raised ValueError: boom." in reason


@pytest.mark.libero
def test_a_libero_episode_replays_bit_for_bit(tmp_path):
    asked = Request(host="libero", suites=("libero-object",), tasks=(0,), policies=("random",), max_steps=6, episodes=1)
    evaluate_request(asked, load_ruleset(), tmp_path / "run")
    assert "libero" in sys.modules
    found = verify_run(tmp_path / "run", replay=1)
    assert [one.verdict for one in found.findings] == ["agrees"] * len(found.findings)
    assert "7 records, bit for bit" in found.findings[-1].said


def noticed(run):
    """Whether the digests, without any judging, or the reading of run.json notice a change."""
    try:
        findings = [*files.check_parts(run), *files.check_files(run)]
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

    edited(run / SCORES, rename)
    assert 'policy: "another" is written' in differing(verify_run(run))["judged archive"]


def test_two_runs_that_were_asked_for_alike_have_the_same_digests(run, tmp_path):
    asked = Request(host="fake", suites=("fake",), episodes=2, policies=("random",), max_steps=8)
    evaluate_request(replace(asked, volatile={"started": "another day"}), load_ruleset(), tmp_path / "again")
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (run / MANIFEST).read_bytes()
    assert verify_run(tmp_path / "again").agrees
