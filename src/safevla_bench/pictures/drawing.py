"""Pictures with a border, outlines and a caption (JPEG), and films of episodes (H.264; needs the extra `video`).

Each picture of a film shows one record: all cameras in a row, the task, the time and the violated specifications.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import binary_dilation

from safevla_bench.explain.episode import Explanation
from safevla_bench.explain.trace import MARGIN, TraceChart
from safevla_bench.interface.stage import Camera
from safevla_bench.text import escape_controls, format_fixed

Pixels = NDArray[np.uint8]
Color = tuple[int, int, int]
RED, GREEN, GREY = (200, 30, 30), (30, 140, 60), (150, 150, 150)
OUTLINE_NOW, OUTLINE_BEFORE = (255, 196, 0), (255, 255, 255)
QUALITY = 80  # quality of JPEG files, from 0 to 100
PAPER = (255, 255, 255)  # background of captions
_BORDER_PX, _PADDING_PX, _TEXT_COLOR = 6, 8, (25, 25, 25)
_TITLE_SIZE, _DETAIL_SIZE = 15, 13
_SMALLEST_SIZE = 9  # smallest size of the font
_OUTLINE_PX = 2
# Bodies that fill at least this fraction of the picture, such as a floor or a table top, get no outline.
_SURFACE_SHARE = 0.25
_CAPTION_PX = 50  # height of a caption


def add_caption(image: Pixels, border: Color, title: str, detail: str) -> Pixels:
    """Return the picture [H, W, 3] framed in the color `border`, with the lines `title` and `detail` below it."""
    height, width = image.shape[:2]
    sheet = Image.new("RGB", (width + 2 * _BORDER_PX, height + 2 * _BORDER_PX + _CAPTION_PX), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.rectangle((0, 0, sheet.width - 1, height + 2 * _BORDER_PX - 1), fill=border)
    sheet.paste(Image.fromarray(image), (_BORDER_PX, _BORDER_PX))
    # The title is 5 pixels below the frame, and the detail begins 22 pixels below the top of the title.
    title_y = height + 2 * _BORDER_PX + 5
    write_fitting(pen, title_y, title, "DejaVuSans-Bold.ttf", _TITLE_SIZE, sheet.width)
    write_fitting(pen, title_y + 22, detail, "DejaVuSans.ttf", _DETAIL_SIZE, sheet.width)
    return np.asarray(sheet)


def outline_bodies(image: Pixels, seen: Pixels, color: Color = OUTLINE_NOW) -> Pixels:
    """Return a copy of the picture [H, W, 3] with a 2-pixel line around each body's region. `seen` [H, W] holds the
    number of the body at each pixel: 1, 2, ..., or 0 where there is no body. Bodies that fill at least a quarter of the
    picture get no line.
    """
    outlined = image.copy()
    for body in range(1, int(seen.max(initial=0)) + 1):
        is_inside = seen == body
        # The mean of the mask is the share of the picture that the body fills.
        if is_inside.mean() < _SURFACE_SHARE:
            # The line is just outside the region, so that no pixel of the body is hidden.
            outlined[binary_dilation(is_inside, iterations=_OUTLINE_PX) & ~is_inside] = color
    return outlined


def encode_jpeg(image: Pixels) -> bytes:
    """Return the bytes of a JPEG file; the same picture gives the same bytes with the same version of Pillow."""
    sink = io.BytesIO()
    Image.fromarray(image).save(sink, "JPEG", quality=QUALITY, optimize=True)
    return sink.getvalue()


def write_fitting(pen: ImageDraw.ImageDraw, top: int, text: str, font_name: str, size: int, width: int) -> None:
    """Draw text on one line, in the largest size that fits. If no size fits, use the smallest, on up to two lines."""
    # `top` is the y of the first line, and `width` is the picture's width [pixels]. `size` is the largest font size.
    fonts = [load_font(font_name, font_size) for font_size in range(size, _SMALLEST_SIZE - 1, -1)]
    room_px = width - 2 * _PADDING_PX
    font = next((font for font in fonts if pen.textlength(text, font=font) <= room_px), None)
    if font is None:
        # `max_characters` is 90 % of the number of average characters that fit, since a line may have wider characters.
        max_characters = int(0.9 * len(text) * room_px / pen.textlength(text, font=fonts[-1]))
        text, font = "\n".join(wrap(text, max_characters, max_lines=2, placeholder=" …")), fonts[-1]
    # `text` has several lines only if the font is the smallest, so the distance between lines is fixed.
    for k, line in enumerate(text.split("\n")):
        write_line(pen, (_PADDING_PX, top + k * (_SMALLEST_SIZE + 1)), line, font, width)


def write_line(
    pen: ImageDraw.ImageDraw, position: tuple[int, int], text: str, font: ImageFont.FreeTypeFont, width: int
) -> None:
    """Draw text on one line at `position`; an ellipsis ends text that is wider than `width` minus padding [pixels]."""
    # Shorten the text by one character at a time until it fits together with the ellipsis.
    beginning, shown = text, text
    while beginning and pen.textlength(shown, font=font) > width - 2 * _PADDING_PX:
        beginning = beginning[:-1]
        shown = f"{beginning}…"
    pen.text(position, shown, fill=_TEXT_COLOR, font=font)


@cache
def load_font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """Return a font from a file that comes with matplotlib, so that pictures look the same on every machine."""
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), size)


# The first available encoder is used. No encoder needs special hardware; browsers play the output of the first two.
_CODECS, _PIXEL_FORMAT = ("libx264", "libopenh264", "mpeg4"), "yuv420p"
# All pictures use this fixed quantizer, because x264's rate control (crf) is not always reproducible.
_QUANTIZER = "27"


def can_film() -> bool:
    """Return whether the extra `video` is installed."""
    # `av` (PyAV) is the package that the extra `video` installs.
    return find_spec("av") is not None


def encode_film(pictures: Iterable[Pixels], frames_per_s: Fraction) -> bytes:
    """Return the bytes of an MP4 file: H.264, which browsers play, or MPEG-4 if no H.264 encoder is installed. All
    `pictures` [H, W, 3] have the same size. The format needs even sizes, so if `H` or `W` is odd, the last row or
    column is cut. Raises `ImportError` without the extra `video`.
    """
    import av

    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        stream = None
        for picture in pictures:
            height, width = (side - side % 2 for side in picture.shape[:2])  # rounded down to even numbers
            if stream is None:  # the first picture determines the film's size
                # `_CODECS` are in order of preference. If none is installed, av raises an error about the last one.
                codec = next((name for name in _CODECS if name in av.codecs_available), _CODECS[-1])
                stream = container.add_stream(codec, rate=frames_per_s, options={"qp": _QUANTIZER})
                stream.height, stream.width, stream.pix_fmt = height, width, _PIXEL_FORMAT
                stream.codec_context.thread_count = 1  # with one thread, equal pictures give equal bytes
            frame = av.VideoFrame.from_ndarray(picture[:height, :width].copy(), format="rgb24")
            container.mux(stream.encode(frame))
        if stream is not None:
            container.mux(stream.encode())  # flush the encoder
    return sink.getvalue()


# Films of whole episodes. They are rendered from recorded states, so they can be made after the run.

RenderPicture = Callable[[int, Camera], Pixels]  # (record index, camera) -> picture [H, W, 3]


def compose_video(explanation: Explanation, cameras: Sequence[Camera], render: RenderPicture) -> Iterator[Pixels]:
    """Yield one picture per record of an episode, all of the same size; there must be at least one camera. Below the
    camera views are the task, the time, and the specifications that the record violates, with values. The border is red
    in a violation; without one, it is green in the last record of a success, and gray otherwise.
    """
    # `render(record, camera)` returns a camera's picture [H, W, 3]; `explanation.records` is the number of records.
    charts_by_spec = {trace.spec.spec_id: trace.chart for trace in explanation.violated_clauses}
    task = escape_controls(explanation.instruction or explanation.score.task_id)
    last_record = explanation.records - 1
    for record in range(explanation.records):
        # The cameras' pictures are next to each other, in one row.
        views = np.concatenate([render(record, camera) for camera in cameras], axis=1)
        violations = [
            f"{spec_id}: {format_value_and_limit(chart, chart.format_value(record))}"
            for spec_id, chart in charts_by_spec.items()
            if chart.failing[record]
        ]
        border = GREEN if explanation.score.success and record == last_record else GREY
        if violations:  # red has priority over green
            border = RED
        time_text = f"{format_fixed(explanation.elapsed_s(record), 2)} s, record {record} of {last_record}"
        yield add_caption(views, border, task, escape_controls("; ".join([time_text, *violations])))


# Values and limits in captions


def format_value_and_limit(chart: TraceChart, value: str) -> str:
    """Return a formatted value with its limit, such as `288 N, limit 200 N`. A margin gets no limit: `margin 0.2`."""
    # `MARGIN` is the name of a chart that shows a formula's distance to violation; its limit is always 0.
    return f"margin {value}" if chart.signal == MARGIN else f"{value}, limit {chart.limit_text}"
