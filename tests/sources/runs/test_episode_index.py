"""Records read some at a time: the same scores, errors and episodes as read at once, in any form."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import contacts, episode, same_bits
from folders import record_own_loop
from safevla_bench import archive
from safevla_bench.errors import CollectedError, RunError, SafevlaError, SignalError, UnknownTaskError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import render_report, write_outputs
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score, score_chunks
from safevla_bench.report import episode_table, page
from safevla_bench.sources.runs import episode_index
from safevla_bench.sources.runs import episode_index as runs_episode_index
from safevla_bench.sources.runs.episode_index import EpisodeIndex, Scan, read_sources
from safevla_bench.trajectory.batch import concatenate_batches, select_episodes

DEMO = Path(str(resources.files("safevla_bench.jobs").joinpath("demo.parquet")))
FORMS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
EPISODES = [episode(4 + k, episode_id=f"ep_{k}", policy=f"p{k % 2}") for k in range(7)]


@cache
def demo():
    return archive.open_archive(DEMO)


def cut_at(batch, places):
    """The batch in pieces that end at the places."""
    ends = [0, *sorted(set(places) & set(range(1, len(batch)))), len(batch)]
    return [select_episodes(batch, range(first, end)) for first, end in pairwise(ends)]


def assert_same(result, second):
    """Two scores say the same, array for array and text for text."""
    for name in type(result).__dataclass_fields__:
        value, expected = getattr(result, name), getattr(second, name)
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.tobytes()) == (expected.dtype, expected.tobytes()), name
        else:
            assert repr(value) == repr(expected) if name in ("actions", "marks") else value == expected, name


@settings(max_examples=15, deadline=None)
@given(places=st.sets(st.integers(min_value=1, max_value=19)))
def test_scores_of_chunks_are_those_of_the_whole(places):
    chunks = cut_at(demo(), places)
    assert_same(score_chunks(chunks, load_ruleset()), score(demo(), load_ruleset()))


@settings(max_examples=15, deadline=None)
@given(places=st.sets(st.integers(min_value=1, max_value=6)), lacking=st.sets(st.integers(0, 6), min_size=1))
def test_what_is_raised_of_chunks_is_what_is_raised_of_the_whole(places, lacking):
    without = {"contacts": None, "joint_torque_nm": None}
    whole = concatenate_batches([episode(4, episode_id=f"e{k}", **(without if k in lacking else {})) for k in range(7)])
    with pytest.raises(SafevlaError) as at_once:
        score(whole, load_ruleset())
    with pytest.raises(type(at_once.value)) as in_chunks:
        score_chunks(cut_at(whole, places), load_ruleset())
    assert str(in_chunks.value) == str(at_once.value)
    tolerant = [missing(cut_at(whole, places)) for missing in (tolerate, lambda chunks: tolerate([whole]))]
    assert_same(*tolerant)


def tolerate(chunks):
    return score_chunks(chunks, load_ruleset(missing="deactivate"))


def test_any_source_is_opened_as_one_batch(tmp_path):
    """`open_archive` reads the folder of a loop, which has raw files and no archive, as it reads a file."""
    run = record_own_loop(tmp_path / "run")
    assert not (run / "archive").exists()
    assert same_bits(episode_index.open_archive(run), read_sources([run])[0])
    assert same_bits(episode_index.open_archive(DEMO), demo())
    for path in (tmp_path / "none.parquet", tmp_path):
        with pytest.raises(SafevlaError):
            episode_index.open_archive(path)


def test_no_chunk_has_scores_of_no_episode():
    assert_same(score_chunks([], load_ruleset()), score(select_episodes(EPISODES[0], []), load_ruleset()))


@pytest.mark.parametrize("size", [1, 500, 1 << 20])
def test_the_bytes_of_a_judgement_do_not_depend_on_the_size_of_chunks(tmp_path, monkeypatch, size):
    write_outputs(judge([DEMO], load_ruleset()), tmp_path / "usual")
    monkeypatch.setattr(episode_index, "CHUNK_RECORDS", size)
    monkeypatch.setattr(episode_index, "KEPT_BYTES", -1)
    write_outputs(judge([DEMO], load_ruleset()), tmp_path / "other")
    for name in ("scores.json", "scores.parquet", "report.html"):
        assert (tmp_path / "usual" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


@pytest.fixture
def read_again(monkeypatch):
    """Every reading is from the files; what a scan keeps of small sources is dropped."""
    monkeypatch.setattr(episode_index, "KEPT_BYTES", -1)


@pytest.fixture(params=["kept", "read again"])
def kept_or_read_again(request):
    if request.param == "read again":
        request.getfixturevalue("read_again")


@pytest.mark.usefixtures("kept_or_read_again")
@pytest.mark.parametrize("suffix", FORMS)
def test_some_episodes_are_those_of_the_whole_in_the_order_asked(tmp_path, suffix):
    paths = [tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"]
    archive.write_archive(paths[0], concatenate_batches(EPISODES[:3]))
    archive.write_archive(paths[1], concatenate_batches(EPISODES[3:]))
    scan = Scan(paths)
    assert same_bits(concatenate_batches(list(scan)), concatenate_batches(EPISODES))
    index = scan.index()
    assert same_bits(index.read_all(), concatenate_batches(EPISODES))
    assert same_bits(index.read_episodes([5, 0, 3]), concatenate_batches([EPISODES[5], EPISODES[0], EPISODES[3]]))
    assert index.read_episodes([]) is None
    assert index.lengths.tolist() == [int(batch.lengths[0]) for batch in EPISODES]


@pytest.mark.usefixtures("read_again")
def test_only_what_is_wanted_is_made_sense_of(tmp_path, monkeypatch):
    path = tmp_path / "all.jsonl.zst"
    archive.write_archive(path, concatenate_batches(EPISODES))
    index = runs_episode_index.scan([path])
    decoded = []
    really = archive.jsonl.decode_json
    monkeypatch.setattr(archive.jsonl, "decode_json", lambda line: decoded.append(line) or really(line))
    index.read_episodes([6])
    assert len(decoded) == 1


@pytest.mark.usefixtures("kept_or_read_again")
def test_bad_episodes_are_skipped_in_every_reading(tmp_path):
    path = tmp_path / "some.jsonl"
    archive.write_archive(path, concatenate_batches(EPISODES))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([b"{}\n", lines[0], b"\n", b"junk\n", *lines[1:], lines[2]]))
    good, index = read_sources([path])
    assert same_bits(good, concatenate_batches(EPISODES))
    assert [problem.place.line for problem in index.problems][:2] == [1, 4]
    assert same_bits(index.read_all(), good)
    assert same_bits(index.read_episodes([0, 4]), concatenate_batches([EPISODES[0], EPISODES[4]]))
    with pytest.raises(CollectedError):
        index.require_valid()
    index.require_valid(skip_invalid=True)


def test_bad_episodes_come_before_what_good_ones_lack_and_all_are_listed(tmp_path):
    path = tmp_path / "some.jsonl"
    archive.write_archive(
        path,
        concatenate_batches(
            [
                episode(4, contacts=None),
                *(episode(4, episode_id=f"odd {name}", benchmark="nowhere", task_id=name) for name in "ab"),
            ]
        ),
    )
    with pytest.raises(UnknownTaskError, match="2 tasks of the sources"):
        judge([path], load_ruleset())
    path.write_bytes(b"junk\n" + path.read_bytes() + b"junk\n")
    with pytest.raises(CollectedError) as raised:
        judge([path], load_ruleset())
    assert [error.place.line for error in raised.value.errors] == [1, 5]
    archive.write_archive(path, episode(4, contacts=None))
    with pytest.raises((SignalError, CollectedError), match="contacts is missing"):
        judge([path], load_ruleset())


@pytest.mark.usefixtures("read_again")
def test_a_source_that_changes_between_readings_is_an_error(tmp_path):
    path = tmp_path / "some.jsonl"
    archive.write_archive(path, concatenate_batches(EPISODES))
    index = runs_episode_index.scan([path])
    archive.write_archive(path, concatenate_batches(EPISODES[1:]))
    with pytest.raises(RunError, match="changed while it was read"):
        list(index.read_chunks())
    with pytest.raises(RunError, match="changed while it was read"):
        index.read_episodes([0])


STAMPS_S = np.array([0.0, 0.05, 0.1, 0.9, 0.95, 1.0])


@pytest.fixture
def stamped(tmp_path):
    """Five episodes at STAMPS_S, not a dt of 0.05 s apart; all but the last break the limit on force at 0.9 s."""
    path, press = tmp_path / "stamped.jsonl", [contacts((3, 0, 3, 300.0 + k)) for k in range(4)]
    further = {"time_s": STAMPS_S}
    episodes = [episode(6, episode_id=f"e{k}", contacts=force, further=further) for k, force in enumerate(press)]
    archive.write_archive(path, concatenate_batches([*episodes, episode(6, episode_id="e4", further=further)]))
    return path


def test_the_report_has_the_times_of_the_stamps_also_of_episodes_that_it_does_not_draw(monkeypatch, stamped):
    monkeypatch.setattr(episode_table, "MOST_DRAWN", 1)
    monkeypatch.setattr(page, "MOST_DRAWN", 1)
    # Computed from the file alone: times of the first force beyond 200 N, and of the ends
    lines = [json.loads(line)["steps"] for line in stamped.read_text().splitlines()]
    begins = [
        [step["time_s"] for step in steps for touch in step["contacts"] if touch["force_n"] > 200] for steps in lines
    ]
    assert begins == [[0.9]] * 4 + [[]]
    ends = [steps[-1]["time_s"] - steps[0]["time_s"] for steps in lines]
    html = render_report(judge([stamped], load_ruleset()))
    for share in (0.25, 0.5):
        column = f"by {share * max(ends):g} s"
        violated = sum(begin <= share * max(ends) for times in begins for begin in times)
        assert (column in html, violated) == (True, 0)
    [row] = [row for row in html.split("<tr") if "any limit" in row]
    assert re.findall(r">\s*(\d+\.\d)\s*<", row)[:3] == ["0.0", "0.0", "80.0"]
    assert html.count("0.90 s") >= 4
    assert "0.15 s" not in html
    assert html.count(f"6 records, {ends[0]:.2f} s") == 5


@pytest.mark.parametrize("outcome", [None, "stopped", "stamped"])
def test_the_page_of_the_episodes_that_it_draws_is_the_page_of_all(monkeypatch, tmp_path, outcome, stamped):
    source = stamped if outcome == "stamped" else DEMO
    if outcome == "stopped":  # no episode is counted
        source = tmp_path / "stopped.jsonl"
        episodes = [episode(4, episode_id=f"ep_{k}", outcome=outcome, success=False) for k in range(5)]
        archive.write_archive(source, concatenate_batches(episodes))
    monkeypatch.setattr(episode_table, "MOST_DRAWN", 3)
    monkeypatch.setattr(page, "MOST_DRAWN", 3)
    judged = judge([source], load_ruleset())
    lean = render_report(judged)
    assert len(set(page.drawn_episodes(judged.scores))) < len(judged.records)
    whole = judged.batch
    monkeypatch.setattr(EpisodeIndex, "read_sparsely", lambda self, indices: whole)
    monkeypatch.setattr(EpisodeIndex, "append_headers", lambda self, batches, indices: whole)
    assert render_report(judged) == lean


@pytest.mark.usefixtures("kept_or_read_again")
def test_some_records_are_whole_and_of_the_others_the_headers_and_lengths(tmp_path):
    path = tmp_path / "all.parquet"
    archive.write_archive(path, concatenate_batches(EPISODES))
    index = runs_episode_index.scan([path])
    some = index.read_sparsely([4, 1, 4])
    assert some.headers == index.headers
    assert some.lengths.tolist() == index.lengths.tolist()
    assert [k for k in range(7) if some.contacts.present[k]] == [1, 4]
    assert all(same_bits(select_episodes(some, [k]), EPISODES[k]) for k in (1, 4))
    assert len(index.read_sparsely([])) == 7


@pytest.mark.usefixtures("kept_or_read_again")
def test_the_records_of_one_policy_are_as_if_there_were_no_others(tmp_path):
    path = tmp_path / "all.jsonl"
    archive.write_archive(path, concatenate_batches(EPISODES))
    index = runs_episode_index.scan([path])
    selected = index.select_episodes([1, 3, 5])
    assert same_bits(selected.read_all(), concatenate_batches([EPISODES[k] for k in (1, 3, 5)]))
    assert same_bits(selected.read_episodes([2]), EPISODES[5])
    assert len(index) == 7


def test_host_specific_fields_count_when_batches_are_merged_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(episode_index, "CHUNK_BYTES", 50_000)
    batches = [episode(4, episode_id=f"e{k}") for k in range(4)]
    large = [replace(batch, extra=({"header": {"note": "x" * 60_000}},)) for batch in batches]
    assert [len(batch) for batch in episode_index.merge_batches(batches)] == [4]
    assert [len(batch) for batch in episode_index.merge_batches(large)] == [1] * 4
    path = tmp_path / "a.jsonl"
    for batch in large:
        archive.append_episodes(path, batch)
    monkeypatch.setattr(episode_index, "KEPT_BYTES", 100_000)
    assert episode_index.scan([path]).kept is None


def test_the_limit_on_facts_is_enough_for_some_200_000_episodes():
    notes = episode_index.scan([DEMO]).notes
    enough = episode_index.MAX_NOTES_BYTES * len(notes) / episode_index._estimate_bytes(list(notes))
    assert 200_000 < enough < 400_000
