"""A damaged archive: what is before the damage is read, every lost episode is named and counted, none slips through."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest
import zstandard

from safevla_bench import archive
from safevla_bench.archive.jsonl import encode_json
from safevla_bench.errors import CollectedError, DamageError, RunError
from safevla_bench.jobs import verify
from safevla_bench.jobs.evaluation.judgement import describe_losses, judge
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import EPISODES, archive_parts, read_description
from safevla_bench.sources.runs.parts import FORMS, episode_rows
from safevla_bench.sources.runs.writer import RunFolderWriter
from safevla_bench.trajectory.batch import Batch

COUNT = 5
MAGIC = {".zst": b"\x28\xb5\x2f\xfd", ".gz": b"\x1f\x8b\x08"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def run(form):
        folder = tmp_path_factory.mktemp("salvage") / "run"
        request = Request(
            host="fake", suites=("fake",), tasks=(0,), episodes=COUNT, policies=("random",), max_steps=4, archive=form
        )
        roll_out(request, folder)
        return folder

    return {form: run(form) for form in FORMS}


@pytest.fixture
def run(runs, tmp_path):
    shutil.copytree(runs["jsonl"], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def part(run):
    return run / "archive" / "part-00000.jsonl.zst"


def members(content, suffix=".zst"):
    starts = [k for k in range(len(content)) if content.startswith(MAGIC[suffix], k)]
    return [*starts, len(content)]


def read(path):
    results = list(archive.read_episodes([path]))
    names = [header.episode_id for batch in results if isinstance(batch, Batch) for header in batch.headers]
    return names, [error for error in results if not isinstance(error, Batch)]


def ids(*numbers):
    return [f"random/fake/task_0/ep_{number:03d}" for number in numbers]


def flip(path, *places):
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= 4
    path.write_bytes(content)


def inside(path, number, place, suffix=".zst"):
    """A byte of a member: its first, one of its header, one of what it holds, one of its checksum."""
    starts = members(path.read_bytes(), suffix)
    begin, end = starts[number], starts[number + 1]
    checksum = end - 1 if suffix == ".zst" else end - 7
    return {"magic": begin, "header": begin + 5, "content": (begin + end) // 2, "checksum": checksum}[place]


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
@pytest.mark.parametrize("place", ["magic", "content", "checksum"])
def test_what_is_before_a_flipped_bit_is_read_wherever_in_its_member_it_lies(part, tmp_path, suffix, place):
    path = tmp_path / f"episodes.jsonl{suffix}"
    for batch in archive.read_episodes([part]):
        archive.append_episodes(path, batch)
    starts = members(path.read_bytes(), suffix)
    flip(path, inside(path, 2, place, suffix))
    names, (damage,) = read(path)
    assert names == ids(0, 1)
    assert isinstance(damage, DamageError)
    assert all(text in str(damage) for text in (path.name, f"from byte {starts[2]}"))


def test_nothing_of_a_member_is_given_before_its_checksum_was_read(part, tmp_path):
    path = tmp_path / "episodes.jsonl.gz"
    text = b"".join(encode_json(batch) for batch in archive.read_episodes([part]))
    path.write_bytes(gzip.compress(text, mtime=0))
    assert read(path)[0] == ids(*range(COUNT))
    flip(path, path.stat().st_size - 6)
    assert read(path)[0] == []


def test_a_line_may_lie_in_several_members(part, tmp_path):
    path = tmp_path / "episodes.jsonl.gz"
    text = b"".join(encode_json(batch) for batch in archive.read_episodes([part]))
    path.write_bytes(b"".join(gzip.compress(text[k : k + 999]) for k in range(0, len(text), 999)) + bytes(512))
    assert read(path) == (ids(*range(COUNT)), [])


def test_a_cut_off_part_keeps_what_is_before_the_cut(part):
    content, starts = part.read_bytes(), members(part.read_bytes())
    part.write_bytes(content[: starts[4] - 10])
    names, (damage,) = read(part)
    assert names == ids(0, 1, 2)
    assert "file's end" in damage.problem
    for cut in range(1, 8):  # no record is given before its checksum was read
        part.write_bytes(content[: starts[1] - cut])
        assert read(part)[0] == []


def spoil(run, part, kind):
    """Damage a run, and how many episodes that costs."""
    starts = members(part.read_bytes())
    if kind == "missing":
        part.unlink()
        return COUNT
    if kind == "cut":
        part.write_bytes(part.read_bytes()[: starts[2] + 7])
        return 3
    flip(part, inside(part, 3, "content"))
    return 2


@pytest.mark.parametrize("kind", ["cut", "missing", "flipped bit"])
def test_a_damaged_run_is_refused_and_salvaged_with_each_lost_episode_named_and_counted(run, part, kind):
    count_lost = spoil(run, part, kind)
    with pytest.raises(CollectedError, match="Copy the files" if kind == "missing" else "invalid=skip") as raised:
        judge([run], load_ruleset())
    assert str(part) in str(raised.value)
    names = [error.place.episode for error in raised.value.errors if error.place.episode]
    judged = judge([run], load_ruleset(), skip_invalid=True)
    assert (len(judged.scores), judged.left_out.count) == (COUNT - count_lost, count_lost)
    lost_episodes = judged.provenance.lost
    assert (lost_episodes.episodes, lost_episodes.more, list(lost_episodes.named)) == (count_lost, False, names)
    assert len(names) == count_lost
    assert set(names) | {header.episode_id for header in judged.records.headers} == set(ids(*range(COUNT)))


def test_a_damaged_row_group_of_parquet_costs_its_own_episodes(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(archive.parquet, "_GROUP_EPISODES", 2)
    path = tmp_path / "episodes.parquet"
    archive.write_archive(path, read_sources([runs["jsonl"]])[0])
    size, refusals = path.stat().st_size, 0
    for place in range(100, size // 2, 1999):
        good = path.read_bytes()
        flip(path, place)
        names, errors = read(path)
        assert len(names) + sum(error.episodes for error in errors) == COUNT
        assert len(names) >= COUNT - 2
        refusals += bool(errors)
        path.write_bytes(good)
    assert refusals > 3


def test_a_damaged_run_in_parquet_names_what_is_lost(runs, tmp_path):
    shutil.copytree(runs["parquet"], tmp_path / "run")
    (part,) = archive_parts(tmp_path / "run")
    part.write_bytes(part.read_bytes()[:-100])
    judged = judge([tmp_path / "run"], load_ruleset(), skip_invalid=True)
    assert list(judged.provenance.lost.named) == ids(*range(COUNT))


def test_a_part_that_reads_well_and_is_another_is_refused(run, part):
    batch = read_sources([run])[0]
    part.unlink()
    archive.write_archive(part, batch)
    part.write_bytes(part.read_bytes() + archive.jsonl._COMPRESS[".jsonl.zst"](b"\n"))
    with pytest.raises(CollectedError, match="was changed"):
        judge([run], load_ruleset())
    judged = judge([run], load_ruleset(), skip_invalid=True)
    assert (len(judged.scores), judged.left_out.count) == (COUNT, 0)
    assert ["was changed" in kind for kind in judged.left_out.describe_kinds()] == [True]


def test_an_archive_without_a_table_of_episodes_does_not_know_how_many_it_lost(part, tmp_path):
    path = tmp_path / "copy.jsonl.zst"
    shutil.copy(part, path)
    flip(path, inside(path, 1, "content"))
    judged = judge([path], load_ruleset(), skip_invalid=True)
    assert judged.left_out.unknown
    assert ["an unknown number" in loss for loss in describe_losses(judged)] == [True]
    assert judged.provenance.lost.more is True


def test_scores_tables_and_page_say_what_was_lost(safevla, run, part, tmp_path):
    flip(part, inside(part, COUNT - 1, "content"))
    code, _, err = safevla("score", run, "--out", tmp_path / "scores")
    assert code == 2
    assert "--set invalid=skip" in err
    assert "Traceback" not in err
    assert not (tmp_path / "scores").exists()
    code, out, _ = safevla("score", run, "--out", run, "--set", "invalid=skip")
    assert code == 0
    assert "1 episode lost" in out
    scores = json.loads((run / "scores.json").read_text())
    assert scores["judged_by"]["lost"]["named"] == ids(COUNT - 1)
    page = (run / "report.html").read_text().replace("<wbr>", "")
    assert ids(COUNT - 1)[0] in page
    assert "1 episode lost" in page
    code, out, _ = safevla("tables", run, "--set", "invalid=skip", "--which", "main")
    assert "1 episode lost" in out
    code, out, _ = safevla("gate", run, "--set", "invalid=skip", "--min-safety", "0")
    assert code == 3
    code, out, _ = safevla("convert", run, tmp_path / "out.jsonl", "--set", "invalid=skip")
    assert "1 episode lost" in out
    code, out, _ = safevla("validate", run)
    assert (code, "1 lost" in out) == (2, True)


def test_a_judgement_before_and_one_after_the_damage_are_verified_and_compared(safevla, run, part, runs):
    safevla("score", run, "--out", run)
    flip(part, inside(part, COUNT - 1, "content"))
    assert verdicts(run)["scores.json"] == "differs"
    safevla("score", run, "--out", run, "--set", "invalid=skip")
    assert (verdicts(run)["archive parts"], verdicts(run)["scores.json"]) == ("differs", "agrees")
    code, out, err = safevla("compare", run, runs["jsonl"], "--set", "invalid=skip")
    assert code == 0, err
    assert "1 pair was" in " ".join(out.split())
    for command in (["compare", runs["jsonl"]], ["episodes"], ["sensitivity"], ["show", "--formula", "G grip"]):
        code, out, err = safevla(*command, run, "--set", "invalid=skip")
        assert code == 0, err
        assert "1 episode lost" in " ".join(out.split())


def verdicts(run):
    return {finding.check: finding.verdict for finding in verify.verify_run(run).findings}


def test_a_flipped_bit_in_the_table_of_episodes_is_found(run):
    table = run / EPISODES
    good, errors = table.read_bytes(), 0
    expected = episode_rows(run)
    for place in range(4, len(good), 13):
        flip(table, place)
        try:
            assert episode_rows(run) == expected, place
        except RunError:
            errors += 1
        table.write_bytes(good)
    assert errors > 50


def leave_unfinished(runs, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(RunFolderWriter, "finish", lambda writer, **_: None)
        request = Request(host="fake", suites=("fake",), tasks=(0,), episodes=COUNT, policies=("random",), max_steps=4)
        roll_out(request, tmp_path / "unfinished")
    return tmp_path / "unfinished"


def test_of_an_unfinished_run_the_rows_name_what_is_damaged(runs, tmp_path, monkeypatch):
    run = leave_unfinished(runs, tmp_path, monkeypatch)
    path = run / "raw" / "000001.npz"
    flip(path, path.stat().st_size // 2)
    with pytest.raises(CollectedError, match="--set invalid=skip"):
        judge([run], load_ruleset())
    judged = judge([run], load_ruleset(), skip_invalid=True)
    assert list(judged.provenance.lost.named) == ids(1)
    assert ["1 episode lost" in kind for kind in judged.left_out.describe_kinds()] == [True]


def test_crashed_episodes_are_not_run_again_over_a_damaged_archive(run, part):
    flip(part, inside(part, COUNT - 1, "content"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    description = {name: value for name, value in read_description(run).items() if name != "complete"}
    with (
        RunFolderWriter(run, description, resume=True) as writer,
        pytest.raises(RunError, match="file first"),
    ):
        writer.reopen({})
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_window_of_a_frame_is_bounded(part):
    wide = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    part.write_bytes(frame.compress(b" " * (1 << 20)) + frame.flush())
    (damage,) = read(part)[1]
    assert "much memory" in damage.problem
