"""Borders, outlines, captions and films, pixel by pixel."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
from PIL import Image

from safevla_bench.pictures.drawing import (
    GREEN,
    OUTLINE_BEFORE,
    OUTLINE_NOW,
    RED,
    add_caption,
    encode_film,
    encode_jpeg,
    outline_bodies,
)

PLAIN = np.full((40, 300, 3), 90, dtype=np.uint8)


def test_the_border_has_its_color_and_the_picture_is_untouched():
    for color in (RED, GREEN):
        sheet = add_caption(PLAIN, color, "title", "detail")
        assert tuple(sheet[0, 0]) == tuple(sheet[51, 311]) == color
        np.testing.assert_array_equal(sheet[6:46, 6:306], PLAIN)


def test_the_caption_is_below_and_is_never_wider_than_the_picture():
    blank = add_caption(PLAIN, RED, "", "")
    sheet = add_caption(PLAIN, RED, "a very long title " * 40, "∑ 12.0 N·m × μ")
    assert sheet.shape == blank.shape
    assert (blank[52:] == 255).all()
    text_columns = np.flatnonzero((sheet[52:] < 128).all(axis=2).any(axis=0))
    assert text_columns[0] >= 8
    assert text_columns[-1] < 304


def test_a_body_is_outlined_outside_of_itself():
    segmentation = np.zeros((40, 300), dtype=np.uint8)
    segmentation[10:20, 100:120] = 1
    outlined = outline_bodies(PLAIN, segmentation)
    assert tuple(outlined[9, 110]) == tuple(outlined[15, 99]) == OUTLINE_NOW
    np.testing.assert_array_equal(outlined[10:20, 100:120], PLAIN[10:20, 100:120])
    np.testing.assert_array_equal(outlined[:, 130:], PLAIN[:, 130:])
    assert tuple(outline_bodies(PLAIN, segmentation, OUTLINE_BEFORE)[9, 110]) == OUTLINE_BEFORE


def test_a_floor_that_fills_the_picture_has_no_outline_and_nothing_seen_changes_nothing():
    floor = np.zeros((40, 300), dtype=np.uint8)
    floor[:20] = 1
    np.testing.assert_array_equal(outline_bodies(PLAIN, floor), PLAIN)
    np.testing.assert_array_equal(outline_bodies(PLAIN, floor * 0), PLAIN)


def test_a_jpeg_can_be_opened_and_is_the_same_each_time():
    sheet = add_caption(PLAIN, RED, "title", "detail")
    assert encode_jpeg(sheet) == encode_jpeg(sheet)
    assert Image.open(io.BytesIO(encode_jpeg(sheet))).size == (312, 102)


def test_a_film_holds_every_picture_at_its_speed_and_is_the_same_each_time():
    import av

    pictures = [np.full((41, 61, 3), 40 * k, dtype=np.uint8) for k in range(5)]
    content = encode_film(pictures, Fraction(20))
    assert content == encode_film(pictures, Fraction(20))
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.height, stream.width) == ("h264", 40, 60)
        assert stream.average_rate == 20
        brightness = [frame.to_ndarray(format="rgb24").mean() for frame in container.decode(stream)]
    np.testing.assert_allclose(brightness, [0, 40, 80, 120, 160], atol=4)
