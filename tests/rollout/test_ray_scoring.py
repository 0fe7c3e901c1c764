"""Judging in pieces on a cluster: the scores, and what is said of bad episodes, are those of one process."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders import episode
from safevla_bench import archive
from safevla_bench.archive import parquet
from safevla_bench.errors import CollectedError, RunError, SafevlaError, SignalError, UnknownTaskError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import score_files, write_outputs
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.rollout import ray_cluster as cluster
from safevla_bench.rollout import ray_scoring
from safevla_bench.rollout.ray_cluster import RayCluster
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs.folder import archive_parts
from safevla_bench.sources.runs.parts import FORMS
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.trajectory.batch import concatenate_batches
from scenes import Watcher

ANYWHERE = RayCluster()
FIVE = [episode(4 + k, episode_id=f"ep_{k}", policy="one") for k in range(5)]


class Inline:
    """As much of Ray as judging needs, in this process; what a task is given and gives back is pickled."""

    exceptions = SimpleNamespace(RayError=ZeroDivisionError)

    def __init__(self) -> None:
        self.asked: list[ray_scoring.Piece] = []

    def put(self, value):
        return pickle.dumps(value)

    def cluster_resources(self):
        return {"CPU": 2.0}

    def remote(self, task):
        def run(piece, shared):
            self.asked.append(piece)
            return pickle.dumps(task(pickle.loads(pickle.dumps(piece)), pickle.loads(shared)))

        handle = SimpleNamespace(remote=run)
        handle.options = lambda **how: handle
        return handle

    def get(self, reference):
        return pickle.loads(reference)


@pytest.fixture
def inline(monkeypatch):
    ray = Inline()

    @contextmanager
    def connected(cluster, slots):
        yield ray

    monkeypatch.setattr(ray_scoring.clusters, "connect_ray", connected)
    return ray


@pytest.fixture
def small(monkeypatch):
    """Files of few episodes, row groups of fewer, and pieces between the two."""
    monkeypatch.setattr(parts, "EPISODES_A_PART", 5)
    monkeypatch.setattr(parquet, "_GROUP_EPISODES", 2)
    monkeypatch.setattr(ray_scoring, "PIECE_EPISODES", 3)


def same(paths, by=load_ruleset(), **more) -> bool:  # noqa: B008
    here, there = judge(paths, by, **more), judge(paths, by, cluster=ANYWHERE, **more)
    assert score_files(there) == score_files(here)
    assert there.records.headers == here.records.headers
    assert there.records.lengths.tolist() == here.records.lengths.tolist()
    assert (there.privileged, there.scores.standin_suites) == (here.privileged, here.scores.standin_suites)
    return True


def run_of(folder: Path, form: str, policy: str = "random") -> Path:
    request = Request(host="fake", suites=("fake",), episodes=5, policies=(policy,), max_steps=6, archive=form)
    roll_out(request, folder)
    return folder


def lines(path: Path, *batches) -> Path:
    for batch in batches:
        archive.append(path, batch)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_the_files_of_a_judgement_do_not_depend_on_where_it_was_made(tmp_path, small, inline, form):
    run = run_of(tmp_path / "run", form)
    whole = tmp_path / "five.parquet"
    archive.write_archive(whole, concatenate_batches(FIVE))
    sources = [run, whole, lines(tmp_path / "more.jsonl.zst", episode(9, episode_id="else", policy="two"))]
    assert same(sources, load_ruleset(missing="deactivate"))
    assert len(inline.asked) > len(sources)
    here, there = (judge([run], load_ruleset(), cluster=where) for where in (None, ANYWHERE))
    write_outputs(here, tmp_path / "here")
    write_outputs(there, tmp_path / "there")
    for path in (tmp_path / "here").iterdir():
        assert path.read_bytes() == (tmp_path / "there" / path.name).read_bytes()


def test_paths_may_be_relative_to_where_the_command_runs(tmp_path, small, inline, monkeypatch):
    run_of(tmp_path / "run", "parquet")
    monkeypatch.chdir(tmp_path)
    assert same([Path("run")])
    assert all(piece.file.is_absolute() for piece in inline.asked)


def test_pieces_hold_every_episode_once_in_order_and_end_where_row_groups_end(tmp_path, small):
    path = tmp_path / "seven.parquet"
    archive.write_archive(
        path, concatenate_batches([*FIVE, *(episode(4, episode_id=f"more_{k}", policy="one") for k in range(2))])
    )
    places = [piece.places for piece in ray_scoring.cut_source(open_source(path))]
    assert list(chain(*places)) == list(range(7))
    assert all(places.stop % 2 == 0 for places in places[:-1])
    assert len(places) > 1


# What is wrong is said as it is said here


def outcome(paths, where, **more) -> str:
    with pytest.raises(SafevlaError) as raised:
        judge(paths, load_ruleset(), cluster=where, **more)
    return f"{type(raised.value).__name__}: {raised.value}"


def damaged(path: Path) -> Path:
    lines(path, *FIVE[:2])
    with path.open("ab") as stream:
        stream.write(b'{"episode_id": \n')
    return lines(path, *FIVE[2:])


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (damaged, CollectedError),
        (lambda path: lines(path, FIVE[0], FIVE[1], FIVE[0]), CollectedError),
        (lambda path: lines(path, episode(5, benchmark="nowhere", task_id="no_task")), UnknownTaskError),
        (lambda path: lines(path, FIVE[0], episode(5, episode_id="bare", joint_torque_nm=None)), SignalError),
    ],
)
def test_what_is_wrong_is_the_same_error(tmp_path, inline, make, kind):
    path = make(tmp_path / "odd.jsonl")
    assert outcome([path], ANYWHERE) == outcome([path], None)
    assert outcome([path], None).startswith(kind.__name__)
    if kind is CollectedError:
        assert same([path], skip_invalid=True)


def test_an_id_that_comes_twice_in_a_run_is_found_across_its_pieces(tmp_path, small, inline):
    run = run_of(tmp_path / "run", "parquet")
    first, second = archive_parts(run)[:2]
    second.write_bytes(first.read_bytes())
    assert outcome([run], ANYWHERE) == outcome([run], None)
    assert "repeated" in outcome([run], ANYWHERE)


def test_an_unfinished_run_is_read_here(tmp_path, inline):
    request = Request(host="fake", suites=("fake",), tasks=(0,), episodes=5, policies=("noop",), max_steps=6)
    with pytest.raises(KeyboardInterrupt):
        roll_out(request, tmp_path / "run", Watcher(stop_after=3))
    assert same([tmp_path / "run"])
    assert inline.asked == []


# What a node must have


def judged(piece: ray_scoring.Piece, versions=ray_scoring._VERSIONS):
    return ray_scoring.judge_piece(piece, (load_ruleset(), versions))


def test_a_file_that_a_node_does_not_have_is_an_error_that_names_the_node_and_the_file(tmp_path, inline, monkeypatch):
    run = run_of(tmp_path / "run", "parquet")
    anywhere = judged(ray_scoring.Piece(tmp_path / "gone.parquet", None, 9))
    assert f"on the node {cluster.node_name()}: the file cannot be read there: No such file" in anywhere
    (part, *_) = archive_parts(run)
    other = judged(ray_scoring.Piece(part, None, part.stat().st_size + 1))
    assert f"on the node {cluster.node_name()}: the file there has {part.stat().st_size} bytes" in other
    pieces = ray_scoring.cut_source
    monkeypatch.setattr(ray_scoring, "cut_source", lambda source: (replace(piece, size=1) for piece in pieces(source)))
    with pytest.raises(RunError, match="on the node") as raised:
        judge([run], load_ruleset(), cluster=ANYWHERE)
    assert str(part) in str(raised.value)
    assert "without --engine ray" in raised.value.remedy


def test_a_node_with_other_versions_does_not_judge(tmp_path):
    refused = judged(ray_scoring.Piece(tmp_path, None, 0), {"safevla-bench": "0.0"})
    assert "other versions" in refused
    assert "not 0.0" in refused


def test_what_ray_says_of_its_own_failures_is_one_line(tmp_path, inline, monkeypatch):
    run = run_of(tmp_path / "run", "jsonl")

    def fails(reference):
        raise inline.exceptions.RayError(
            "Task failed (pid=9, ip=10.0.0.3)\n\nThe worker died. Some common causes are many."
        )

    monkeypatch.setattr(inline, "get", fails)
    with pytest.raises(RunError) as raised:
        judge([run], load_ruleset(), cluster=ANYWHERE)
    assert raised.value.problem == "judging failed: on the node 10.0.0.3: ZeroDivisionError: The worker died."
