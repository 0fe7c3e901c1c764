"""Features of a LeRobot dataset: the columns of its frames, how Parquet holds them, and their statistics.

The layout is version 3.0 of LeRobot (huggingface/lerobot at 7427f31, `src/lerobot/datasets/feature_utils.py`,
`compute_stats.py`): a number alone is a scalar, numbers are a list of fixed size, a picture is the bytes of its file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

IMAGE = "image"
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_PICTURE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
Statistics = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Feature:
    """One column of the frames; `shape` is that of one frame's value, (1,) a number alone."""

    dtype: str
    shape: tuple[int, ...] = (1,)
    names: tuple[str, ...] | None = None
    is_summarized: bool = True
    """False where values may be unknown, which are NaN and have no statistics."""

    def to_document(self) -> dict[str, object]:
        """Return the feature as info.json has it."""
        return {"dtype": self.dtype, "shape": list(self.shape), "names": list(self.names) if self.names else None}

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of its column."""
        if self.dtype == IMAGE:
            return _PICTURE_TYPE
        number = pa.bool_() if self.dtype == "bool" else pa.from_numpy_dtype(self.dtype)
        return number if self.shape == (1,) else pa.list_(number, self.shape[0])


COUNTED: Mapping[str, Feature] = {
    "timestamp": Feature("float32"),
    "frame_index": Feature("int64"),
    "episode_index": Feature("int64"),
    "index": Feature("int64"),
    "task_index": Feature("int64"),
}
"""The features that every dataset of LeRobot has, which are counted here."""


def image_feature(size: tuple[int, int]) -> Feature:
    """Return the feature of a camera of some height and width in pixels."""
    return Feature(IMAGE, (*size, 3), ("height", "width", "channels"))


def build_column(feature: Feature, values: NDArray[Any] | Sequence[bytes]) -> pa.Array:
    """Return the column of an episode: numbers [n] or [n, width], or the files of n pictures as bytes without path."""
    if feature.dtype == IMAGE:
        return pa.array([{"bytes": picture, "path": None} for picture in values], _PICTURE_TYPE)
    numbers = np.asarray(values, dtype=feature.dtype)
    if feature.shape == (1,):
        return pa.array(numbers.reshape(-1), feature.arrow_type)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), feature.shape[0]).cast(feature.arrow_type)


def summarize_numbers(values: NDArray[Any]) -> Statistics:
    """Return the statistics of an episode's values, [n] or [n, width]; arrays of [width]."""
    numbers = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    return _summarize(numbers, len(values), (numbers.shape[1],))


def summarize_pixels(pictures: NDArray[np.uint8]) -> Statistics:
    """Return the statistics of an episode's pictures, [n, H, W, 3], for each colour between 0 and 1; [3, 1, 1]."""
    return _summarize(pictures.reshape(-1, 3) / 255.0, len(pictures), (3, 1, 1))


def _summarize(rows: NDArray[np.float64], count: int, shape: tuple[int, ...]) -> Statistics:
    """Return the statistics of rows over their first axis, each reshaped to `shape`, and `count` as an array of one."""
    values: Statistics = {
        "min": rows.min(axis=0),
        "max": rows.max(axis=0),
        "mean": rows.mean(axis=0),
        "std": rows.std(axis=0),
        **dict(zip(QUANTILES, np.quantile(rows, list(QUANTILES.values()), axis=0), strict=True)),
    }
    return {**{name: value.reshape(shape) for name, value in values.items()}, "count": np.array([count])}


def join_statistics(former: Statistics | None, latter: Statistics) -> Statistics:
    """Return the statistics of both as LeRobot joins them; `latter` itself if `former` is None.

    They are exact but for quantiles, which become the outermost.
    """
    if former is None:
        return latter
    counts = former["count"], latter["count"]
    total = counts[0] + counts[1]
    weights = [count[0] / total[0] for count in counts]
    mean = weights[0] * former["mean"] + weights[1] * latter["mean"]
    spread = sum(
        weight * (part["std"] ** 2 + (part["mean"] - mean) ** 2)
        for weight, part in zip(weights, (former, latter), strict=True)
    )
    joined: Statistics = {
        "min": np.minimum(former["min"], latter["min"]),
        "max": np.maximum(former["max"], latter["max"]),
        "mean": mean,
        "std": np.sqrt(spread),
    }
    for name, share in QUANTILES.items():
        joined[name] = (np.minimum if share <= 0.5 else np.maximum)(former[name], latter[name])
    return {**joined, "count": total}
