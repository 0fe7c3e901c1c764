"""Bounds on what a reader decodes: the size of an episode, so that a small hostile file cannot fill the memory, and the
selection of the episodes that are wanted.
"""

from __future__ import annotations

from collections.abc import Collection

from safevla_bench.errors import RecordError

MAX_EPISODE_BYTES = 1 << 30
"""One episode, uncompressed: a line of JSON, the arrays of a file, or a row group, which is read at once.

An hour at 20 Hz with 20 bodies has about 0.6 GB as JSON.
"""
MAX_RECORDS = 10_000_000
"""Records of one episode, in forms that state their number; five days at 20 Hz."""
MAX_VALUES, MAX_CONTAINERS = 1 << 26, 1 << 23
"""Values of one episode in JSON, by its commas; lists and objects among them, by their brackets.

Python needs some 32 bytes for a number, and 70 for an empty list of two characters. The hour above has about 30 million
values in 4 million lists.
"""
MAX_WIDE_BYTES = 1 << 28
"""One episode in JSON that is not ASCII throughout: Python may need four bytes for each of its characters."""
MAX_BAD_LINES = 10_000
"""Bad lines of one file, each of which is reported."""
MAX_BLANK_LINES = 1 << 20
"""Empty lines of one file."""
REMEDY_BROKEN = "The file is cut off or damaged; make it anew, or copy it again."
REMEDY_LARGE = "Cut the episode into shorter ones, or leave sim_state out; a small file that says this is hostile."


def check_size(size: int, what: str) -> None:
    """Refuse more bytes than an episode may hold. Writers check too, so that every file that is written can be read."""
    if size > MAX_EPISODE_BYTES:
        raise RecordError(f"{what} holds more than {MAX_EPISODE_BYTES >> 20} MiB", remedy=REMEDY_LARGE)


def check_values(text: bytes) -> None:
    """Refuse a JSON text whose values would take too much memory, before it is parsed. Writers check too."""
    if len(text) > MAX_WIDE_BYTES and not text.isascii():
        remedy = "Write characters beyond ASCII as \\u escapes, or cut the episode into shorter ones."
        raise RecordError(f"more than {MAX_WIDE_BYTES >> 20} MiB are not plain ASCII", remedy=remedy)
    if len(text) <= min(MAX_VALUES, MAX_CONTAINERS):
        return
    if text.count(b",") > MAX_VALUES or text.count(b"[") + text.count(b"{") > MAX_CONTAINERS:
        problem = f"more than {MAX_VALUES} values, or {MAX_CONTAINERS} lists and objects"
        raise RecordError(f"the line holds {problem}", remedy=REMEDY_LARGE)


def check_blank_lines(lines: int) -> None:
    """Refuse a file with more empty lines than `MAX_BLANK_LINES`."""
    if lines > MAX_BLANK_LINES:
        raise RecordError(f"more than {MAX_BLANK_LINES} lines are empty", remedy=REMEDY_LARGE)


class EpisodeSelection:
    """Counter of the episodes of a reading, which selects all of them or those at the wanted places, from 0."""

    def __init__(self, wanted: Collection[int] | None = None) -> None:
        self._wanted = None if wanted is None else frozenset(wanted)
        self._place = 0

    def next_wanted(self, count: int = 1) -> list[int]:
        """Return the offsets, within the next `count` episodes, of those that are wanted."""
        first, self._place = self._place, self._place + count
        if self._wanted is None:
            return list(range(count))
        return [k for k in range(count) if first + k in self._wanted]
