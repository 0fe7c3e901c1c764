"""The sources of a judgement, as their run.json describes them."""

from pathlib import Path

from safevla_bench.judging.judged import JudgedSource

RUN = {
    "host": "fake",
    "policies": [{"policy": "a", "privileged": True}, {"policy": "b", "privileged": False}, "no policy"],
    "protocol": {"settle_steps": 10},
    "complete": False,
}


def test_a_run_is_described_by_its_run_json():
    source = JudgedSource(RUN, "0" * 64)
    assert (source.policies, source.privileged) == (("a", "b"), ("a",))
    assert source.protocol == {"settle_steps": 10}
    assert source.is_interrupted
    assert source.to_document() == {**RUN, "archive_sha256": "0" * 64}


def test_the_facts_of_the_day_are_left_out(tmp_path):
    assert JudgedSource.from_run(tmp_path, {**RUN, "volatile": {"started": "today"}}) == JudgedSource(RUN, None)


def test_an_archive_is_described_by_its_name(tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_bytes(b"")
    source = JudgedSource.from_run(Path(path), {})
    assert source.description == {"archive": "one.jsonl"}
    assert source.archive_sha256 is not None
    assert (source.policies, source.privileged, source.protocol, source.is_interrupted) == ((), (), None, False)
