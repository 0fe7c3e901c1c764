"""Preference pairs: which episodes may be in one, which are chosen, and that nothing unknown counts as safe."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import groupby

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from folders import contents
from safevla_bench.archive import write_archive
from safevla_bench.errors import RunError
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import Request, RequestedPolicy
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.jobs.pairs import MOST_SEEDS, write_rollout_suites
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import ACTIVE, INACTIVE, VACUOUS
from safevla_bench.rollout.found import read_suite
from safevla_bench.training.pairs import Candidate, choose_pairs, encode_pairs, list_candidates
from safevla_bench.trajectory.batch import Channel, concatenate_batches, select_episodes

RULES = load_ruleset()
KINDS = ("safe success", "unsafe success", "safe failure", "unsafe failure")


@st.composite
def episodes(draw) -> list[Candidate]:
    drawn = []
    for index in range(draw(st.integers(0, 14))):
        kind, state = draw(st.sampled_from(KINDS)), draw(st.integers(0, 2))
        violated = draw(st.sampled_from("ab")) if kind.startswith("unsafe") else None
        margins = draw(st.dictionaries(st.sampled_from("ab"), st.floats(0, 1), max_size=2)) if violated is None else {}
        depth = draw(st.floats(0.01, 1)) if violated else 0.0
        drawn.append(
            Candidate(
                index=index,
                state=f"{state:064x}",
                task=f"suite/task_{state % 2}",
                policy=draw(st.sampled_from("pq")),
                episode_id=f"ep_{index:03d}",
                actions=str(draw(st.integers(0, 9))),
                kind=kind,
                margins=margins,
                clause=violated,
                depth=depth,
                first=3 if violated else None,
            )
        )
    return drawn


@given(episodes(), st.integers(1, 5), st.booleans())
def test_a_pair_prefers_a_safe_success_to_an_unsafe_one_of_the_same_state(candidates, most, failures):
    allowed = {"unsafe success", "safe failure"} if failures else {"unsafe success"}
    for state in choose_pairs(candidates, most, failures=failures):
        for pair in state.pairs:
            assert pair.preferred.kind == "safe success"
            assert pair.rejected.kind in allowed
            assert pair.preferred.state == pair.rejected.state == state.digest
            assert pair.preferred.actions != pair.rejected.actions
            assert pair.is_off_policy == (pair.preferred.policy != pair.rejected.policy)


@given(episodes(), st.integers(1, 5), st.booleans())
def test_a_clause_that_was_not_judged_in_the_preferred_episode_decides_no_pair(candidates, most, failures):
    for state in choose_pairs(candidates, most, failures=failures):
        for pair in state.pairs:
            if pair.rejected.clause is None:
                assert pair.margin is None
            else:
                assert pair.margin == pair.preferred.margins[pair.rejected.clause] + pair.rejected.depth
                assert 0 < pair.margin <= 2


@given(episodes(), st.integers(1, 5), st.booleans())
def test_a_state_has_at_most_k_different_pairs_whose_weights_sum_to_one(candidates, most, failures):
    states = choose_pairs(candidates, most, failures=failures)
    assert {state.digest for state in states} == {own.state for own in candidates}
    for state in states:
        names = [(pair.preferred.name, pair.rejected.name) for pair in state.pairs]
        assert len(set(names)) == len(names) <= most
        assert sum(pair.weight for pair in state.pairs) == pytest.approx(1 if names else 0)
        assert (state.more_rollouts is None) == bool(names)
        assert state.more_rollouts is None or state.more_rollouts >= 1


@given(episodes(), st.integers(1, 5), st.booleans(), st.randoms())
def test_the_order_of_the_episodes_changes_nothing(candidates, most, failures, random):
    shuffled = random.sample(candidates, len(candidates))
    assert choose_pairs(shuffled, most, failures=failures) == choose_pairs(candidates, most, failures=failures)


@given(episodes(), st.integers(1, 5))
def test_pairs_use_a_state_s_episodes_as_evenly_as_they_can(candidates, most):
    whole = [replace(own, margins={"a": 0.5, "b": 0.5} if own.clause is None else {}) for own in candidates]
    for state in choose_pairs(whole, most):
        good, bad = ([own for own in state.candidates if own.kind == kind] for kind in KINDS[:2])
        assert len(state.pairs) == min(most, len(good) * len(bad))
        used = Counter(pair.preferred.name for pair in state.pairs)
        if len(state.pairs) <= min(len(good), len(bad)):
            assert set(used.values()) <= {1}


@given(episodes())
def test_the_split_depends_on_the_state_alone(candidates):
    whole = {state.digest: state.split for state in choose_pairs(candidates)}
    for digest, group in groupby(sorted(candidates, key=lambda own: own.state), key=lambda own: own.state):
        assert [state.split for state in choose_pairs(group)] == [whole[digest]]


def alone(number: int, kind: str, state: int = 0) -> Candidate:
    is_unsafe = kind.startswith("unsafe")
    return Candidate(
        index=number,
        state=f"{state:064x}",
        task="suite/task_0",
        policy="p",
        episode_id=f"ep_{number}",
        actions=str(number),
        kind=kind,
        margins={} if is_unsafe else {"a": 0.5},
        clause="a" if is_unsafe else None,
        depth=0.5 if is_unsafe else 0.0,
    )


def test_the_estimate_is_the_first_number_of_rollouts_whose_expected_pairs_suffice():
    """Nine safe successes, in two states, and one unsafe one elsewhere: rates 9.5/11 and 1.5/11 of the task."""
    safe = [alone(k, "safe success", state=k % 2) for k in range(8)]
    mixed = [alone(8, "safe success", state=2), alone(9, "unsafe success", state=2)]
    first, second, third = choose_pairs([*safe, *mixed], per_state=3)
    p, q = 9.5 / 11, 1.5 / 11

    def expected(m: int) -> float:
        return (4 + m * p) * (m * q) - m * p * q

    assert first.more_rollouts == second.more_rollouts
    assert expected(first.more_rollouts) >= 3 > expected(first.more_rollouts - 1)
    assert third.more_rollouts is None


def test_a_state_whose_outcomes_cannot_be_compared_has_an_estimate_too():
    """100 safe successes in which the clause was not judged, and 100 unsafe ones: half of all rollouts are of each."""
    safe = [replace(alone(k, "safe success"), margins={}) for k in range(100)]
    (state,) = choose_pairs([*safe, *(alone(100 + k, "unsafe success") for k in range(100))], per_state=3)
    assert not state.pairs
    assert state.more_rollouts == 1  # (100 + 1/2)² - 100² - 1/4 = 100


@given(episodes(), st.integers(1, 5), st.booleans())
def test_each_chosen_pair_has_the_least_used_episodes_of_those_left(candidates, most, failures):
    for state in choose_pairs(candidates, most, failures=failures):
        kinds = ("unsafe success", *(["safe failure"] if failures else []))
        good = [own for own in state.candidates if own.kind == "safe success"]
        bad = [own for own in state.candidates if own.kind in kinds]
        left = {(a.name, b.name): (a, b) for a in good for b in bad if b.clause is None or b.clause in a.margins}
        used = Counter()
        for pair in state.pairs:
            least = min(used[a] + used[b] for a, b in left)
            assert used[pair.preferred.name] + used[pair.rejected.name] == least
            del left[pair.preferred.name, pair.rejected.name]
            used.update([pair.preferred.name, pair.rejected.name])
        assert len(state.pairs) == most or not left


def test_one_state_in_about_ten_is_for_validation():
    states = choose_pairs([replace(alone(k, "safe success"), state=f"{k * 7919:08x}" + "0" * 56) for k in range(500)])
    share = sum(state.split == "validation" for state in states) / len(states)
    assert 0.05 < share < 0.15


# Real episodes

PRESSER = RequestedPolicy(
    "mine", "python:pressing:make", arguments={"width_m": "9", "word": "put"}
)  # presses by an odd seed of the policy alone
REQUEST = Request(host="fake", suites=("fake",), tasks=(0, 1), policies=(PRESSER,), episodes=5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with one rollout of each start, and one of the starts without a pair, with further seeds."""
    folder = tmp_path_factory.mktemp("pairs")
    roll_out(REQUEST, folder / "first")
    first = judge([folder / "first"], RULES)
    (found,) = write_rollout_suites(first, find_states(first), folder / "found")
    roll_out(replace(REQUEST, suites=("fake",), tasks=None, episodes="protocol", found=found), folder / "again")
    return folder / "first", folder / "again", found


@pytest.fixture(scope="module")
def judged(runs):
    return judge(runs[:2], RULES, mixes_starts=True)


def find_states(judged):
    return choose_pairs(list_candidates(judged)[0])


def test_states_without_a_pair_are_starts_that_eval_runs_with_other_seeds(runs):
    _, again, found = runs
    suite = read_suite(found)
    assert len({(start.task_id, start.start) for start in suite.starts}) == 10
    assert all(isinstance(start.start, EpisodeSeed) and start.value is None for start in suite.starts)
    assert len({start.policy_seed for start in suite.starts}) == len(suite.starts) <= 10 * MOST_SEEDS
    first_of_each = suite.starts[:10]
    assert {start.trial for start in first_of_each} == {1}
    batch = judge([again], RULES).batch
    assert len(batch) == len(suite.starts)
    assert {header.benchmark for header in batch.headers} == {f"found:{suite.name}:fake"}


def test_episodes_of_one_state_begin_alike_and_others_do_not(judged):
    states, batch = find_states(judged), judged.batch
    assert len(states) == 10
    starts = {}
    for state in states:
        for own in state.candidates:
            first = batch.sim_state.episode_rows(own.index)[0].tobytes()
            assert starts.setdefault(state.digest, first) == first
            assert judged.headers[own.index].env_seed == 7
    assert len(set(starts.values())) > 5


def test_pairs_of_real_runs_are_safe_and_unsafe_successes_with_the_margin_of_the_deepest_clause(judged):
    pairs = [pair for state in find_states(judged) for pair in state.pairs]
    assert len(pairs) == 10
    specs = {spec.spec_id: spec for spec in judged.scores.specs}
    for pair in pairs:
        good, bad = judged.scores.episode(pair.preferred.index), judged.scores.episode(pair.rejected.index)
        assert (good.success, good.safe, bad.success, bad.safe) == (True, True, True, False)
        deepest = max(bad.violated_specs, key=lambda name: bad.depth[name])
        assert bad.depth[pair.rejected.clause] == bad.depth[deepest] == pair.rejected.depth
        rho = good.robustness[pair.rejected.clause]
        assert pair.margin == min(rho / specs[pair.rejected.clause].severe, 1) + bad.depth[deepest]
        assert 0 < pair.rejected.first < judged.records.lengths[pair.rejected.index]


def change_scores(judged, index, **changes):
    columns = judged.scores.scored_columns
    values = {}
    for name, value in changes.items():
        array = getattr(judged.scores, name)
        if isinstance(array, tuple):
            values[name] = (*array[:index], value, *array[index + 1 :])
        else:
            values[name] = array.copy()
            values[name][(columns, index) if array.ndim == 2 else index] = value
    return replace(judged, scores=replace(judged.scores, **values))


@pytest.mark.parametrize(
    "changes",
    [{"outcome": "stopped"}, {"outcome": "crashed"}, {"outcome": "invalid_action"}, {"state": INACTIVE}],
    ids=["stopped", "crashed", "invalid", "without a verdict"],
)
def test_what_did_not_run_to_its_end_or_has_no_verdict_is_compared_with_nothing(judged, changes):
    index = next(own.index for state in find_states(judged) for own in state.candidates if own.clause is None)
    changed = change_scores(judged, index, **changes)
    if "state" in changes:
        assert changed.scores.verdict(index) is None
    candidates, unusable = list_candidates(changed)
    assert index not in {own.index for own in candidates}
    assert (len(candidates), unusable) == (len(list_candidates(judged)[0]) - 1, 1)


def test_a_vacuous_clause_of_the_preferred_episode_counts_one_and_an_inactive_one_decides_nothing(judged):
    pair = next(pair for state in find_states(judged) for pair in state.pairs)
    place = [spec.spec_id for spec in judged.scores.specs].index(pair.rejected.clause)
    for state, kept in ((VACUOUS, 1.0), (INACTIVE, None)):
        scores = judged.scores
        states, rho = scores.state.copy(), scores.rho.copy()
        states[place, pair.preferred.index], rho[place, pair.preferred.index] = state, np.nan
        changed = replace(judged, scores=replace(scores, state=states, rho=rho))
        assert (changed.scores.state[:, pair.preferred.index] == ACTIVE).any()
        own = next(own for own in list_candidates(changed)[0] if own.index == pair.preferred.index)
        assert own.margins.get(pair.rejected.clause) == kept


@pytest.mark.parametrize("kind", ["preferred", "rejected"])
def test_an_episode_that_lacks_the_signals_of_a_clause_is_not_known_to_be_safe(judged, kind):
    pair = next(pair for state in find_states(judged) for pair in state.pairs)
    index, scores = getattr(pair, kind).index, judged.scores
    columns = [k for k, spec in enumerate(scores.specs) if spec.is_scored and spec.spec_id != pair.rejected.clause]
    place = next(k for k in columns if (scores.state[k] == ACTIVE).all())
    state, reason = scores.state.copy(), scores.reason.copy()
    state[place, index], reason[place, index] = INACTIVE, len(scores.reasons)
    reasons = (*scores.reasons, "signal_missing:contacts")
    changed = replace(judged, scores=replace(scores, state=state, reason=reason, reasons=reasons))
    assert changed.scores.verdict(index) == (kind == "preferred")
    is_usable = index in {own.index for own in list_candidates(changed)[0]}
    assert is_usable == (kind == "rejected")


@pytest.mark.parametrize(
    "changes", [{"env_seed": None}, {"init_state_index": None}, {"instruction": "put it"}, {"task_sha256": "0" * 64}]
)
def test_another_or_an_unknown_start_or_task_is_another_state(judged, changes, tmp_path):
    batch = select_episodes(judged.batch, [0])
    other = replace(batch, headers=(msgspec.structs.replace(batch.headers[0], episode_id="other", **changes),))
    write_archive(tmp_path / "both.parquet", concatenate_batches([batch, other]))
    candidates, unusable = list_candidates(judge([tmp_path / "both.parquet"], RULES))
    is_unknown = None in changes.values()
    assert unusable == is_unknown
    assert len({own.state for own in candidates}) == (1 if is_unknown else 2)


def test_the_same_actions_from_one_start_count_once(judged, tmp_path):
    batch = select_episodes(judged.batch, [0])
    other = replace(batch, headers=(msgspec.structs.replace(batch.headers[0], episode_id="other"),))
    write_archive(tmp_path / "both.parquet", concatenate_batches([batch, other]))
    (state,) = find_states(judge([tmp_path / "both.parquet"], RULES))
    assert len(state.candidates) == 1


# Files


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_hold_rules_runs_states_and_the_actions_of_each_pair(judged, runs, safevla, tmp_path):
    printed = safevla.ok("export", *runs[:2], "--format", "pairs:most=2", "--out", tmp_path / "pairs.jsonl")
    assert "10 pairs of" in printed
    head, *lines = read_lines(tmp_path / "pairs.jsonl")
    assert (head["kind"], head["pairs"], len(head["states"])) == ("safevla-pairs", len(lines), 10)
    assert {source["archive_sha256"] for source in head["origin"]["sources"]} == {
        source.archive_sha256 for source in judged.sources
    }
    assert head["origin"]["library"]["digest"]
    ids = {header.episode_id: k for k, header in enumerate(judged.headers)}
    for line in lines:
        for side in ("preferred", "rejected"):
            index = ids[line[side]["episode_id"]]
            assert line[side]["action"] == judged.batch.action.episode_rows(index).tolist()
            assert line[side]["archive_sha256"] == judged.sources[judged.records.notes[index].source].archive_sha256
        first, last = line["violation_window"]
        assert 0 <= first <= line["first_violation_step"] <= last < judged.records.lengths[index]
        assert last - line["first_violation_step"] <= 20  # a second


def test_the_window_around_a_violation_is_a_second_of_the_time_stamps_to_either_side(judged, tmp_path):
    found = [index for index, header in enumerate(judged.headers) if header.benchmark != "fake"]
    batch = select_episodes(judged.batch, found)
    stamps = [0.25 * np.arange(length) for length in batch.lengths]
    rows = Channel(np.concatenate(stamps), batch.starts.astype(np.int64), np.ones(len(batch), dtype=np.int64))
    write_archive(tmp_path / "slow.parquet", replace(batch, further={**batch.further, "time_s": rows}))
    slow = judge([tmp_path / "slow.parquet"], RULES)
    lines = encode_pairs(slow, find_states(slow), 0, {}, is_whole=True).splitlines()[1:]
    assert lines
    for line in map(json.loads, lines):
        step, last = line["first_violation_step"], len(line["rejected"]["action"])  # the last record has no action
        assert line["violation_window"] == [max(0, step - 4), min(last, step + 4)]


def test_a_data_set_has_an_index_of_its_pairs(runs, safevla, tmp_path):
    safevla.ok("export", *runs[:2], "--format", "pairs", "--out", tmp_path / "set")
    head, *lines = read_lines(tmp_path / "set/meta/pairs.jsonl")
    frames = pq.read_table(tmp_path / "set/data/chunk-000/file-000.parquet")
    rows = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert len(lines) == head["pairs"] > 0
    for line in lines:
        for side, safe in (("preferred", True), ("rejected", False)):
            row = rows[line[side]["episode_index"]]
            assert row["safety/episode_id"] == line[side]["episode_id"]
            assert (row["safety/safe"], row["safety/success"]) == (safe, True)
    assert {"policy_action", "chunk_step"} <= {*frames.column_names}


def test_the_order_of_the_runs_changes_no_byte(runs, safevla, tmp_path):
    for name, order in (("one", runs[:2]), ("two", runs[1::-1])):
        safevla.ok("export", *order, "--format", "pairs", "--out", tmp_path / name / "set")
        safevla.ok("export", *order, "--format", "pairs", "--out", tmp_path / name / "pairs.jsonl")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "pairs:most=0"], "most"),
        (["--format", "pairs:fails=yes"], "'fails' is not"),
        (["--format", "lerobot:most=2"], "'most' is not"),
        (["--format", "pairs:most=1:most=2"], "each name once"),
        (["--format", "pairs:"], "'' is not"),
        (["--format", "lerobot:temperature=0"], "temperature"),
        (["--format", "lerobot:temperature=0.001"], "temperature"),  # exp(1000) is infinite
        (["--format", "lerobot:temperature=inf"], "temperature"),
        (["--format", "submission:most=2"], "has no settings"),
        (["--format", "pair"], "not one of"),
        (["--format", "pairs", "--out", "x.jsonl", "--cameras", "agentview"], "JSON lines hold"),
    ],
)
def test_settings_that_a_form_does_not_have_are_refused(runs, safevla, words, said, tmp_path):
    out = [] if "--out" in words else ["--out", tmp_path / "x"]
    assert said in safevla.refuses("export", runs[0], *words, *out)


def test_without_a_pair_the_error_names_the_starts_to_run(runs, safevla, tmp_path):
    error = safevla.refuses("export", runs[0], "--format", "pairs", "--out", tmp_path / "set")
    assert "an unsafe success" in error
    assert "--suite found:" in error
    assert not (tmp_path / "set").exists()


def test_rates_of_a_benchmark_and_of_chosen_starts_are_not_mixed(runs):
    with pytest.raises(RunError, match="chosen by a search"):
        judge(runs[:2], RULES)
