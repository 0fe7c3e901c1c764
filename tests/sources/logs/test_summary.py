"""`safevla validate` says what each channel of a log holds, and what of it cannot be."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from safevla_bench.sources.logs import describe_log
from safevla_bench.sources.logs.mappings import LogMapping
from safevla_bench.sources.logs.records import LoggedEpisode, Series
from safevla_bench.sources.logs.summary import describe_channels
from sources.logs.log_files import save_mapping, straight_line, write_dataset

MAPPED = (
    '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\nquaternion_order = "wxyz"\n[gripper]\nfrom = "grip"\n'
    '[torque]\nfrom = "effort"\nlimits_nm = [10, 10]\n'
)


def described(tmp_path, **changes: np.ndarray) -> str:
    plain = {"eef": straight_line(), "grip": np.arange(30.0)[:, None] % 2, "effort": np.full((30, 2), 9.0)}
    folder = write_dataset(tmp_path / "d", [plain, {**plain, **changes}])
    save_mapping(folder, MAPPED)
    return "\n".join(describe_log(folder))


def test_each_channel_has_its_source_time_base_rate_and_extremes(tmp_path):
    text = described(tmp_path)
    assert "to 0.145, 0" in text
    assert "to 9.00 N·m" in text
    assert "warning" not in text


def test_what_is_physically_impossible_is_a_warning(tmp_path):
    poses = straight_line()
    poses[10, 0] += 1.0
    poses[14:27] = np.nan
    effort = np.full((30, 2), 9.0)
    effort[3, 1] = -31.0
    text = described(tmp_path, eef=poses, effort=effort)
    assert "speed reaches 20" in text
    assert "for 0.700 s" in text
    assert "3.10 times" in text
    assert text.count("warning") == 3


def test_a_gripper_that_never_changes_is_a_warning_and_another_source_has_no_lines(tmp_path):
    plain = {"eef": straight_line(), "grip": np.zeros((30, 1)), "effort": np.zeros((30, 2))}
    folder = write_dataset(tmp_path / "d", [plain])
    save_mapping(folder, MAPPED)
    assert "the value never changes" in str(list(describe_log(folder)))
    assert not list(describe_log(tmp_path / "nowhere.jsonl"))


def lines_of(tree: dict, *parts: dict[str, Series], robot: str | None = None) -> list[str]:
    """What is said of episodes of four instants, 0.5 s apart."""
    episodes = [
        LoggedEpisode(name=f"e{k}", file="f", time_s=np.arange(4) * 0.5, dt_s=0.5, series=series, embodiment=robot)
        for k, series in enumerate(parts)
    ]
    return list(describe_channels(episodes, msgspec.convert(tree, LogMapping)))


def series(rows: list, known: list[bool] | None = None, **fields: object) -> Series:
    values = np.array(rows, dtype=np.float64)
    return Series(values, np.ones(len(values), np.bool_) if known is None else np.array(known), **fields)


PLACES = [[0.0, 0, 0], [1.0, 0, 0], [2.0, 0, 0], [3.0, 0, 4.0]]
EEF = {"eef": {"from": "/e"}}


def test_extremes_are_those_of_all_episodes_in_meters_and_of_known_instants():
    first = series([[1.0, 0, 0], [-2.0, 0, 0], [9e9, 0, 0], [0.0, 0, 0.05]], [True, True, False, True])
    line, *_ = lines_of({"eef": {"from": "/e", "unit": "cm"}}, {"eef": first}, {"eef": series([[0.0, 0.3, 0]] * 4)})
    assert line == "  [eef] /e: the clock, 2.00 Hz; -2.00 to 1.00, 0 to 0.300, 0 to 0.0500 m"
    assert lines_of(EEF, {"eef": series(PLACES, [False] * 4)}) == []


def test_of_a_pose_the_extremes_of_its_position_are_shown():
    (line,) = lines_of(EEF, {"eef": series([[1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0]] * 4)})
    assert line.endswith("; 1.00 to 1.00, 2.00 to 2.00, 3.00 to 3.00 m")


def test_messages_between_the_instants_count_unless_none_is_known():
    torque = {"torque": {"from": "/t", "limits_nm": [10.0]}}
    rows, at = [[1.0]] * 4, np.zeros(2, np.int64)
    line, *_ = lines_of(torque, {"torque": series(rows, between=(np.array([[-3.0], [np.nan]]), at), rate_hz=100.0)})
    assert line == "  [torque] /t: the clock, 100 Hz; -3.00 to -3.00 N·m"
    (line,) = lines_of(torque, {"torque": series(rows, between=(np.array([[np.nan]] * 2), at), time_base="log time")})
    assert line == "  [torque] /t: log time, 2.00 Hz; 1.00 to 1.00 N·m"


@pytest.mark.parametrize(("fastest", "warns"), [(5.0, False), (5.2, True)])
def test_a_speed_above_5_m_s_is_a_warning(fastest, warns):
    places = [
        [0.0, 0, 0],
        [0.1, 0, 0],
        [0.1 + 0.3 * fastest, 0, 0.4 * fastest],
        [0.1 + 0.3 * fastest, 0, 0.4 * fastest],
    ]
    assert ["the speed reaches" in line for line in lines_of(EEF, {"eef": series(places)})[1:]] == [True] * warns
    assert len(lines_of(EEF, {"eef": series(places, [False, True, False, False])})) == 1
    assert len(lines_of(EEF, {"eef": series(places, [False, True, True, False])})) == 1 + warns


@pytest.mark.parametrize(("gap_s", "rate_hz", "warns"), [(2.0, 5.0, False), (2.1, 5.0, True), (None, 10.0, True)])
def test_a_gap_of_more_than_ten_periods_is_a_warning(gap_s, rate_hz, warns):
    samples = series(PLACES, [True, False, False, True], longest_gap_s=gap_s, rate_hz=rate_hz)
    assert ["no message for" in line for line in lines_of(EEF, {"eef": samples})[1:]] == [True] * warns


@pytest.mark.parametrize(
    ("torque", "limits", "robot", "warns"),
    [
        (-30.0, [10.0, 10.0], None, False),
        (-31.0, [10.0, 10.0], None, True),
        (31.0, [10.0], None, False),  # a limit is missing
        (1000.0, None, "panda", False),
        (1000.0, None, None, False),
    ],
)
def test_a_torque_above_three_times_its_limit_is_a_warning(torque, limits, robot, warns):
    tree = {"torque": {"from": "/t", **({"limits_nm": limits} if limits else {})}}
    lines = lines_of(tree, {"torque": series([[0.0, 0.0], [0.0, torque], [1.0, 0.0], [0.0, 1.0]])}, robot=robot)
    assert ["times its limit" in line for line in lines[1:]] == [True] * warns


@pytest.mark.parametrize(("robot", "stated"), [("panda", None), ("unknown", "panda"), ("ur5e", "panda")])
def test_the_limits_of_a_robot_are_known_by_its_name_in_the_mapping_or_else_in_the_log(robot, stated):
    tree = {"torque": {"from": "/t"}, "episode": {"embodiment": stated} if stated else {}}
    lines = lines_of(tree, {"torque": series([[0.0] * 6 + [50.0]] * 4)}, robot=robot)  # of 12 N·m
    assert "4.17 times" in lines[1]


def test_eight_extremes_and_eight_warnings_of_a_part_are_shown():
    gap = {"longest_gap_s": 99.0}
    action = {"action": {"from": "/a"}, "gripper": {"from": "/g"}}
    parts = [{"action": series([[float(k)] * 9] * 4, **gap), "gripper": series([[float(k > 0)]] * 4)} for k in range(9)]
    lines = lines_of(action, *parts)
    assert lines[0] == "  [gripper] /g: the clock, 2.00 Hz; 0 to 1.00"
    assert lines[1].count(" to ") == 8
    assert [line.split()[1] for line in lines[2:]] == [f"e{k}:" for k in range(8)]
    assert "never changes" in lines_of(action, parts[0] | {"action": parts[0]["gripper"]})[1]
