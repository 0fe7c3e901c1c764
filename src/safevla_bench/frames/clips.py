"""Films of a few seconds, as H.264 in MP4; needs the extra `video`."""

from __future__ import annotations

import io
from collections.abc import Iterable
from fractions import Fraction
from importlib.util import find_spec

from safevla_bench.frames.annotation import Pixels

CLIP_SUFFIX = "mp4"
_CODEC, _PIXELS = "libx264", "yuv420p"
_QUANTIZER = "27"
"""Constant for every picture: x264's rate control (crf) does not always give the same bytes for the same pictures."""


def can_film() -> bool:
    """Return whether the extra `video` is installed."""
    return find_spec("av") is not None


def encode_clip(pictures: Iterable[Pixels], frames_per_s: Fraction) -> bytes:
    """Return an MP4 file (H.264) that browsers play.

    Args:
        pictures: [H, W, 3] each, of one size. An odd last row or column is left out: the format needs even sizes.
        frames_per_s: pictures per second.
    """
    import av

    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        stream = None
        for picture in pictures:
            height, width = (side - side % 2 for side in picture.shape[:2])
            if stream is None:
                stream = container.add_stream(_CODEC, rate=frames_per_s, options={"qp": _QUANTIZER})
                stream.height, stream.width, stream.pix_fmt = height, width, _PIXELS
                stream.codec_context.thread_count = 1
            colors = av.VideoFrame.from_ndarray(picture[:height, :width].copy(), format="rgb24")
            container.mux(stream.encode(colors))
        if stream is not None:
            container.mux(stream.encode())
    return sink.getvalue()
