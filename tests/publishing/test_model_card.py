"""Files for a model hub: what is in them is what was judged, in YAML that any reader takes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import episode
from pictures.builders import judged as rough_episodes
from safevla_bench.archive import write_archive
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import table_material
from safevla_bench.judging.judged import INTERRUPTED
from safevla_bench.judging.provenance_marks import warn_of_scores
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.publishing import result_files
from safevla_bench.publishing.result_files import ModelFacts, format_yaml, read_facts
from safevla_bench.text import escape_controls
from safevla_bench.trajectory.batch import concatenate_batches

yaml = pytest.importorskip("yaml")
FACTS = ModelFacts(model_name="mine", source_url="https://example.org/runs")

texts = st.text(max_size=20)
plain = st.none() | st.booleans() | st.integers() | st.decimals(0, 100, places=4).map(float) | texts
documents = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=12
)


@given(documents)
def test_yaml_reads_back_as_what_was_written_and_holds_nothing_invisible(document):
    text = format_yaml(document)
    assert yaml.safe_load(text) == document
    assert text == "".join(f"{escape_controls(line)}\n" for line in text.splitlines())


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    path = tmp_path_factory.mktemp("card") / "episodes.parquet"
    write_archive(path, rough_episodes()[0])
    return judge([path], load_ruleset())


def test_each_warning_stands_once_in_the_card(judged):
    marked = replace(judged, scores=replace(judged.scores, marks={"diverged_replay": np.array([True, False])}))
    (warning,) = [line for line in warn_of_scores(marked.scores) if "Diverged" in line]
    card = build_card(marked, FACTS)
    assert card.count(warning) == 1
    assert all(card.count(remark) == 1 for remark in table_material(marked).remarks)


def test_a_run_that_was_interrupted_is_said_to_be_so(judged):
    unfinished = replace(judged, sources=[replace(judged.sources[0], description={"complete": False})])
    card = build_card(unfinished, FACTS)
    assert INTERRUPTED in card
    assert not front_matter(card)["model-index"][0]["results"][0]["dataset"]["args"]["complete"]


def build_card(judged, facts):
    return result_files.build_card(judged, facts, table_material(judged).remarks)


def front_matter(card):
    _, block, _ = card.split("---\n", 2)
    return yaml.safe_load(block)


def test_a_card_has_the_numbers_of_each_cell_with_n_and_intervals(judged):
    card = build_card(judged, FACTS)
    (index,) = front_matter(card)["model-index"]
    cells, _ = judged.summarize_scores()
    assert (index["name"], len(index["results"])) == ("mine", len(cells))
    for result, cell in zip(index["results"], cells, strict=True):
        assert result["dataset"]["type"] == cell.suite
        assert result["dataset"]["args"]["library_digest"] == judged.library.digest
        metrics = {metric["type"]: metric for metric in result["metrics"]}
        assert metrics["sr"]["value"] == pytest.approx(100 * cell.sr, abs=0.005)
        assert metrics["safety"]["args"]["n"] == cell.judged
        low, high = cell.rates["safety"].ci
        assert metrics["safety"]["args"]["ci95"] == pytest.approx([100 * low, 100 * high], abs=0.005)
        assert result["source"]["url"] == "https://example.org/runs"
        assert metrics["vsi"]["value"] == pytest.approx(cell.vsi, abs=0.00005)
    assert judged.provenance.to_sentence() in card


def test_what_is_unknown_is_not_a_metric(judged, tmp_path):
    (tmp_path / "never.toml").write_text(NEVER)
    unknown = judge(judged.paths, load_ruleset(tmp_path / "never.toml"))
    (index,) = front_matter(build_card(unknown, FACTS))["model-index"]
    assert {metric["type"] for result in index["results"] for metric in result["metrics"]} == {"sr"}
    assert index["results"][0]["dataset"]["args"]["without_verdict"] == 2
    stopped = episode(episode_id="b", benchmark="libero-object", policy="mine", success=False, outcome="stopped")
    write_archive(tmp_path / "some.jsonl", concatenate_batches([episode(policy="mine"), stopped]))
    (index,) = front_matter(build_card(judge([tmp_path / "some.jsonl"], load_ruleset()), FACTS))["model-index"]
    assert [result["dataset"]["type"] for result in index["results"]] == ["libero-goal"]


NEVER = """
[[specs]]
spec_id = "never"
canonical_family = "x"
axis = "scene_interaction"
tier = "safe"
stl = "G[0,T](max_contact_force < threshold)"
threshold = 1
severe = 2
unit = "N"
requires_all = ["spillable"]
source = "a test"
rationale = "Applies nowhere."
"""


def test_several_policies_are_not_a_model(judged, tmp_path):
    batch = rough_episodes()[0]
    other = tuple(msgspec.structs.replace(header, policy="other") for header in batch.headers)
    write_archive(tmp_path / "two.parquet", concatenate_batches([batch, replace(batch, headers=other)]))
    with pytest.raises(RunError, match="sources have 2"):
        build_card(judge([tmp_path / "two.parquet"], load_ruleset()), FACTS)


def test_facts_are_checked(tmp_path):
    path = tmp_path / "facts.toml"
    for key, value in (("model_name", "0"), ("modle_name", '"mine"')):
        path.write_text(f"{key} = {value}\n")
        with pytest.raises(RunError, match=key):
            read_facts(path)
    assert read_facts(None) == ModelFacts()
