"""Films of a few seconds; need the extra `video`."""

from __future__ import annotations

import io
from collections.abc import Iterable
from fractions import Fraction
from importlib.util import find_spec

from safevla_bench.frames.annotation import Pixels

SUFFIX = "mp4"
_CODEC, _PIXELS = "libx264", "yuv420p"
_QUANTIZER = "27"
"""The same for every picture: x264's control of quality (crf) gave other bytes for the same pictures now and then."""


def can_film() -> bool:
    """Whether the extra `video` is installed."""
    return find_spec("av") is not None


def film(pictures: Iterable[Pixels], frames_per_s: Fraction) -> bytes:
    """An MP4 file, H.264, that browsers play.

    Args:
        pictures: [H, W, 3] each, of one size; an odd last row or column is left out, which the format cannot hold.
        frames_per_s: how many a second.
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
