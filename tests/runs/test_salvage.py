"""A damaged archive: what is behind the damage is read, every lost episode is named and counted, none slips through."""

from __future__ import annotations

import pytest

from safevla_bench import archive, evaluate, runs
from safevla_bench.errors import CollectedError, RecordError
from safevla_bench.trajectory import Batch

COUNT = 5


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("salvage") / "run"
    asked = evaluate.Request(
        host="fake", suites=("fake",), tasks=(0,), episodes=COUNT, policies=("random",), max_steps=4
    )
    evaluate.roll_out(asked, folder)
    (part,) = runs.archive_parts(folder)
    return folder, part.read_bytes()


@pytest.fixture
def run(whole):
    folder, content = whole
    part = folder / "archive" / "part-00000.jsonl.zst"
    part.write_bytes(content)
    yield folder
    part.write_bytes(content)


@pytest.fixture
def part(run):
    return run / "archive" / "part-00000.jsonl.zst"


def frames(content):
    magic = b"\x28\xb5\x2f\xfd"
    starts = [k for k in range(len(content)) if content.startswith(magic, k)]
    return [*starts, len(content)]


def read(part):
    found = list(archive.read([part]))
    names = [header.episode_id for one in found if isinstance(one, Batch) for header in one.headers]
    return names, [one for one in found if isinstance(one, RecordError)]


def ids(*numbers):
    return [f"random/fake/task_0/ep_{number:03d}" for number in numbers]


@pytest.mark.parametrize("place", ["magic", "header", "content", "checksum"])
def test_a_flipped_bit_costs_one_episode_wherever_in_its_member_it_lies(part, place):
    content = bytearray(part.read_bytes())
    starts = frames(content)
    begin, end = starts[2], starts[3]
    content[{"magic": begin, "header": begin + 5, "content": (begin + end) // 2, "checksum": end - 1}[place]] ^= 4
    part.write_bytes(content)
    names, errors = read(part)
    assert names == ids(0, 1, 3, 4)
    assert part.name in str(errors[0])


def test_a_record_is_never_given_before_its_checksum_was_read(part):
    content = part.read_bytes()
    starts = frames(content)
    for cut in range(1, 8):
        part.write_bytes(content[: starts[1] - cut])
        assert read(part)[0] == []


def test_a_cut_off_part_keeps_what_is_before_the_cut(part):
    content = part.read_bytes()
    part.write_bytes(content[: frames(content)[4] - 10])
    assert read(part)[0] == ids(0, 1, 2)


@pytest.mark.parametrize("damage", ["cut", "missing", "two members"])
def test_every_lost_episode_of_a_run_is_an_error_and_is_counted_when_the_rest_is_salvaged(run, part, damage):
    content = bytearray(part.read_bytes())
    starts = frames(content)
    if damage == "missing":
        part.unlink()
    elif damage == "cut":
        part.write_bytes(content[: starts[2] + 7])
    else:
        for begin in starts[1:3]:
            content[begin + 40] ^= 1
        part.write_bytes(content)
    lost = {"cut": 3, "missing": COUNT, "two members": 2}[damage]
    with pytest.raises(CollectedError) as raised:
        evaluate.judge([run], evaluate.Judge())
    assert len(raised.value.errors) == lost
    judged = evaluate.judge([run], evaluate.Judge(), skip_invalid=True)
    assert (len(judged.scores), judged.skipped) == (COUNT - lost, lost)


def test_what_was_lost_is_named_with_its_episode_and_the_part(run, part):
    content = part.read_bytes()
    part.write_bytes(content[: frames(content)[3] + 7])
    with pytest.raises(CollectedError) as raised:
        evaluate.judge([run], evaluate.Judge())
    said = str(raised.value)
    assert all(name in said for name in ids(3, 4))
    assert part.name in said
