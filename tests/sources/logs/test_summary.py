"""`safevla validate` says what each channel of a log holds, and what of it cannot be."""

from __future__ import annotations

import numpy as np

from safevla_bench.sources.logs import describe_log
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
