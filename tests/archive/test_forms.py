"""All forms of archive hold the same bits, repeat their bytes, and are written whole or not at all."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import (
    BOWL,
    DRAWER,
    HAND,
    PLATE,
    contacts,
    episode,
    header,
    header_fields,
    recording,
    recordings,
    same_bits,
)
from safevla_bench.archive import (
    append_episodes,
    detect_suffix,
    jsonl,
    open_archive,
    parquet,
    read_episodes,
    write_archive,
    write_batches,
)
from safevla_bench.archive.jsonl import encode_json
from safevla_bench.archive.parquet_rows import to_table
from safevla_bench.archive.record_schema import record_schema
from safevla_bench.errors import CollectedError, DamageError, FileError, RecordError
from safevla_bench.trajectory.batch import Batch, concatenate_batches, select_episodes
from safevla_bench.trajectory.single_episode import empty_batch, from_recording
from safevla_recorder.episode import EpisodeArrays

MANY = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"]
SINGLE = [".json", ".npz"]

HOST_FIELDS = {
    "header": {"note": "é\x00", "big": -(10**30), "nested": [{"a": [None, True, 0.1, -0.0]}]},
    "steps": {"0": {"rgb": [1, 2.5]}, "2": {"": ""}},
    "contacts": {"0": {"geom": "g1"}, "1": {"dist": -1e-9}},
}


def full() -> EpisodeArrays:
    """An episode that has a bit of everything: unknown impulses, nothing gripped, −0.0, widths of zero, host fields."""
    touching = contacts((0, HAND, BOWL, 5e-324), (2, HAND, DRAWER, 1e99))
    return recording(
        3,
        seed=-(2**63),
        versions={"mujoco": "3", "ü": ""},
        dropped_pairs=(("link7", "hand"),),
        contacts=replace(touching, impulse_ns=np.array([np.nan, 0.0])),
        eef_pos_m=np.array([[-0.0, 0.0, 5e-324]] * 3),
        gripped_body=np.array([-1, BOWL, -1]),
        sim_state=np.empty((3, 0)),
        action=np.empty((2, 0)),
        extra=HOST_FIELDS,
    )


LOST = "a body that was lost, and stamps of its time"
EDGES = {
    "a bit of everything": full(),
    "no family at all": EpisodeArrays(header_fields(target_object=None), {}, 4),
    "families that are empty": recording(2, pos_bodies=(), body_pos_m=np.empty((2, 0, 3)), contacts=contacts()),
    "one record": recording(1),
    "nothing ever gripped": recording(2, gripped_body=np.array([-1, -1])),
    "a null in a name": EpisodeArrays(
        header_fields(episode_id="a\x00/../b\n", target_object=None), {"x\x00": "robot"}, 1
    ),
    "no torques": recording(2, joint_torque_limit_nm=(), joint_torque_nm=np.empty((2, 0))),
    LOST: recording(
        3,
        valid_bodies=(DRAWER, PLATE),
        pose_valid=np.array([[True, False], [True, True], [False, True]]),
        further={"time_s": np.array([-0.0, 0.05, 0.2])},
    ),
    "costs of the simulator's own": recording(3, further={"label_cost": np.array([[0.0, 1.0], [0.1, 0.0]])}),
    "sub-goals of the goal": recording(
        3, further={"subgoals": np.array([[True, False], [False, False], [True, True]])}
    ),
    "net impulses of one contact of two": recording(
        3,
        contacts=replace(
            contacts((0, HAND, BOWL, 1.0), (2, HAND, DRAWER, 2.0)), net_impulse_ns=np.array([np.nan, 0.5])
        ),
    ),
    "tracking of no body": recording(2, valid_bodies=(), pose_valid=np.empty((2, 0), dtype=np.bool_)),
    "other places in the body table": recording(
        2, pos_bodies=(DRAWER, BOWL), body_pos_m=np.arange(12.0).reshape(2, 2, 3)
    ),
}


@pytest.mark.parametrize("suffix", MANY + SINGLE)
@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_case_round_trips_bit_for_bit(tmp_path, suffix, edge):
    batch = from_recording(EDGES[edge])
    write_archive(tmp_path / f"x{suffix}", batch)
    assert same_bits(open_archive(tmp_path / f"x{suffix}"), batch)


def test_a_table_has_columns_of_rare_channels_only_where_an_episode_has_them(tmp_path):
    plain, tracked = (episode(3, episode_id="plain"), rename(EDGES[LOST], "lost"))
    rare = {"pose_valid", "valid_bodies", "time_s"}
    for batches, expected in (([plain], set()), ([plain, tracked], rare)):
        write_batches(tmp_path / "x.parquet", batches)
        assert rare & set(pq.read_schema(tmp_path / "x.parquet").names) == expected


def test_a_table_has_the_same_bytes_whichever_group_first_has_a_rare_channel(tmp_path, monkeypatch):
    """The columns are known at the first episode that has them; what stands before it is written again."""
    monkeypatch.setattr(parquet, "_GROUP_EPISODES", 2)
    tracked = rename(EDGES[LOST], "lost")
    episodes = [*(episode(3, episode_id=f"e{k}") for k in range(5)), tracked]
    write_batches(tmp_path / "late.parquet", episodes)
    write_batches(tmp_path / "whole.parquet", [concatenate_batches(episodes)])
    monkeypatch.setattr(parquet.parquet_rows, "rare_channels", lambda batch: frozenset(["pose_valid", "time_s"]))
    write_batches(tmp_path / "early.parquet", episodes)
    late, whole, early = ((tmp_path / f"{name}.parquet").read_bytes() for name in ("late", "whole", "early"))
    assert late == whole == early
    assert same_bits(open_archive(tmp_path / "late.parquet"), concatenate_batches(episodes))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=st.lists(recordings(), min_size=1, max_size=3))
def test_any_episodes_pass_through_every_form_in_turn_bit_for_bit(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("forms")
    batch = original = concatenate_batches([rename(recording, f"e{k}") for k, recording in enumerate(drawn)])
    for k, suffix in enumerate([*MANY, *MANY[::-1]]):
        write_archive(folder / f"{k}{suffix}", batch)
        batch = open_archive(folder / f"{k}{suffix}")
        assert same_bits(batch, original), suffix
    json.loads(encode_json(batch), parse_constant=lambda name: pytest.fail(name))  # strict: any reader takes it
    for k in range(len(batch)):
        write_archive(folder / f"{k}.npz", select_episodes(batch, [k]))
    paths = [folder / f"{k}.npz" for k in range(len(batch))]
    assert same_bits(concatenate_batches([open_archive(path) for path in paths]), original)


def rename(recording: EpisodeArrays, name: str) -> Batch:
    return from_recording(replace(recording, header={**recording.header, "episode_id": name}))


@pytest.mark.parametrize("suffix", jsonl.SUFFIXES)
def test_a_file_that_grows_holds_the_same_episodes_and_repeats_its_bytes(tmp_path, suffix):
    batches = [rename(recording, name) for name, recording in EDGES.items()]
    for name in ("one", "two"):
        for batch in batches:
            append_episodes(str(tmp_path / f"{name}{suffix}"), batch)
    assert same_bits(open_archive(tmp_path / f"one{suffix}"), concatenate_batches(batches))
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_the_schema_describes_what_is_written():
    import jsonschema

    validator, tree = jsonschema.Draft202012Validator(record_schema()), json.loads(encode_json(episode(3)))
    validator.validate(tree)
    assert not validator.is_valid({**tree, "dt": -1})


@pytest.mark.parametrize("suffix", MANY + SINGLE)
def test_the_same_episodes_give_the_same_bytes_at_any_time(tmp_path, suffix, monkeypatch):
    write_archive(tmp_path / f"one{suffix}", from_recording(full()))
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2040, 1, 1, 0, 0, 0, 0, 0, 0))
    write_archive(tmp_path / f"two{suffix}", open_archive(tmp_path / f"one{suffix}"))
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_an_npz_file_is_plain_numpy(tmp_path):
    write_archive(tmp_path / "x.npz", from_recording(full()))
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        assert json.loads(arrays["header"].tobytes())["episode_id"] == header().episode_id
        assert arrays["body_pos_m"].shape == (3, 3, 3)
        assert all(arrays[name].dtype.kind in "fiub" for name in arrays)


def test_a_parquet_file_has_a_row_an_episode_and_steps_as_lists(tmp_path):
    write_archive(tmp_path / "x.parquet", concatenate_batches([episode(3, episode_id="a"), episode(5, episode_id="b")]))
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert [(row["episode_id"], row["dt"], len(row["body_pos_m"])) for row in rows] == [("a", 0.05, 3), ("b", 0.05, 5)]
    assert rows[0]["body_pos_m"][2][1] == [0.6, 0.1, 0.8]
    assert rows[0]["bodies"][2] == {"name": "bowl", "role": "target"}


def count_groups(path: Path) -> list[int]:
    """The episodes of each row group."""
    with pq.ParquetFile(path) as file:
        return [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]


def test_row_groups_hold_few_episodes_and_few_bytes(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    write_archive(path, concatenate_batches([episode(2, episode_id=f"{k:02}") for k in range(33)]))
    assert count_groups(path) == [32, 1]
    lengths = [8, 8, 2, 40]
    sizes = [to_table(episode(length)).nbytes for length in lengths]
    monkeypatch.setattr(parquet, "_GROUP_BYTES", sizes[0] + sizes[1])
    write_archive(
        path, concatenate_batches([episode(length, episode_id=f"{length}{k}") for k, length in enumerate(lengths)])
    )
    assert count_groups(path) == [2, 1, 1]


@pytest.mark.parametrize("suffix", MANY)
def test_episodes_that_come_some_at_a_time_give_the_same_bytes_and_leave_memory(tmp_path, suffix):
    episodes = [episode(3, episode_id=f"{k:02}") for k in range(40)]
    alive: list[weakref.ref[object]] = []

    def chunks() -> Iterator[Batch]:
        for start in range(0, 40, 4):
            batch = concatenate_batches(episodes[start : start + 4])
            alive.append(weakref.ref(batch.starts))
            yield batch
            del batch
            assert sum(batch() is not None for batch in alive) <= 1

    write_batches(tmp_path / f"some{suffix}", chunks())
    write_archive(tmp_path / f"all{suffix}", concatenate_batches(episodes))
    assert (tmp_path / f"some{suffix}").read_bytes() == (tmp_path / f"all{suffix}").read_bytes()


TWO = concatenate_batches([episode(2, episode_id=name) for name in "ab"])
REPEATED = concatenate_batches([episode(2), episode(3)])
REFUSED = [
    *((suffix, write_archive, TWO, "holds one episode, but there are 2") for suffix in SINGLE),
    *((suffix, write_archive, empty_batch(), "holds one episode, but there are 0") for suffix in SINGLE),
    *((suffix, append_episodes, episode(2), "cannot be appended to") for suffix in (".parquet", *SINGLE)),
    *((suffix, write_archive, REPEATED, "the episode_id is repeated") for suffix in MANY),
]


@pytest.mark.parametrize(("suffix", "write", "batch", "problem"), REFUSED)
def test_what_a_form_cannot_hold_or_could_not_read_again_is_not_written(tmp_path, suffix, write, batch, problem):
    with pytest.raises(RecordError, match=problem):
        write(tmp_path / f"x{suffix}", batch)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", MANY)
def test_two_policies_with_the_same_ids_share_an_archive(tmp_path, suffix):
    """The ids of the paper's Appendix B name suite, task and number, not the policy."""
    batch = concatenate_batches([episode(2, policy=policy) for policy in ("a", "b", None)])
    write_archive(tmp_path / f"x{suffix}", batch)
    read = open_archive(tmp_path / f"x{suffix}")
    assert same_bits(read, batch)
    assert [header.key for header in read.headers] == [(policy, batch.headers[0].episode_id) for policy in "ab"] + [
        (None, batch.headers[0].episode_id)
    ]


@pytest.mark.parametrize("suffix", MANY + SINGLE)
def test_a_file_that_cannot_be_written_is_a_typed_error(tmp_path, suffix):
    with pytest.raises(FileError, match="No such file"):
        write_archive(tmp_path / "nowhere" / f"x{suffix}", episode(2))


def test_every_form_is_judged_by_the_same_rules(tmp_path):
    """A repeated id over several files, and what only validation knows."""
    paths = [tmp_path / f"x{suffix}" for suffix in MANY + SINGLE]
    for path in paths:
        write_archive(path, episode(2))
    problems = [batch for batch in read_episodes(paths) if isinstance(batch, RecordError)]
    assert len(problems) == len(paths) - 1
    assert all("episode_id is repeated" in str(problem) for problem in problems)


def test_an_archive_without_episodes_is_an_error(tmp_path):
    write_archive(tmp_path / "x.parquet", select_episodes(episode(2), []))
    (tmp_path / "x.jsonl").write_bytes(b"")
    for name in ("x.parquet", "x.jsonl"):
        with pytest.raises(RecordError, match="no episodes"):
            open_archive(tmp_path / name)


def test_every_bad_row_is_listed_with_its_number(tmp_path):
    path = tmp_path / "x.parquet"
    write_archive(path, concatenate_batches([episode(2, episode_id=name) for name in "abc"]))
    table = pq.read_table(path)
    table = table.set_column(table.schema.get_field_index("dt"), "dt", [[-1.0, 0.05, float("inf")]])
    pq.write_table(table, path)
    with pytest.raises(CollectedError) as raised:
        open_archive(path)
    assert [(error.place.line, error.place.episode, error.place.field) for error in raised.value.errors] == [
        (1, "a", "dt"),
        (3, "c", "dt"),
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".npz"])
def test_a_pointer_of_git_lfs_loses_an_unknown_number_of_episodes(tmp_path, suffix):
    (tmp_path / f"x{suffix}").write_text("version https://git-lfs.github.com/spec/v1\n")
    (problem,) = read_episodes([tmp_path / f"x{suffix}"])
    assert isinstance(problem, DamageError)
    assert (problem.episodes, "git lfs pull" in problem.remedy) == (None, True)


def test_the_name_says_the_form():
    assert [detect_suffix(Path(f"a.b{suffix}")) for suffix in MANY + SINGLE] == MANY + SINGLE
    with pytest.raises(RecordError, match=r"\.jsonl\.zst"):
        detect_suffix(Path("x.csv"))


def test_a_folder_names_what_reads_it(tmp_path):
    with pytest.raises(RecordError, match="a folder, not"):
        open_archive(tmp_path)


@pytest.mark.parametrize(("group", "word"), [("data/demo_0", "eval --policy replay"), ("observations", "LeRobot")])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_hdf5_is_told_by_its_groups_from_other_hdf5_and_each_has_its_own_remedy(tmp_path, group, word, libver):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.hdf5", "w", libver=libver) as file:
        file[f"{group}/actions"] = np.zeros((1 << 16, 7))
    with pytest.raises(RecordError) as caught:
        open_archive(tmp_path / "x.hdf5")
    assert word in caught.value.remedy
