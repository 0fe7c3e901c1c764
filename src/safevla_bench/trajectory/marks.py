"""Marks of episodes: host-specific header fields that reports must not lose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safevla_bench.trajectory.batch import Batch

PRIVILEGED = "privileged"
"""Host-specific header field: true where the policy saw state that no real robot has."""
STANDIN = "standin_assets"
"""Host-specific header field: true where the host ran on placeholders in the place of its own assets."""
STOPPED_ON_VIOLATION = "stopped_on_violation"
"""Host-specific header field: true where the episode was stopped because it violated a scored specification."""
ABSOLUTE = "absolute_actions"
"""Host-specific header field: true where the actions are poses in the world and not changes of pose."""

DRAWN = "drawn_start"
"""Host-specific header field: true where the start was drawn and not one of the task's initial states."""

DIVERGED = "diverged_replay"
"""Host-specific header field: true where the episode is a replay that left its recording, or may have."""

FOREIGN_LOG = "foreign_log"
"""Header field: true where the episode was read from the log of a robot, which holds what its rig measures."""
LOG_BENCHMARK = "real-robot"
"""The benchmark of a log that names none. It needs no entries: each task has what a log can hold, and its template."""

SINGLE = "float32_channels"
"""Header field: the channels whose numbers were stored as float32, such as ["body_pos_m", "time_s"].

A value computed from one of them equals a limit up to a relative 1e-4, any other up to 1e-9. A reader of logs sets it
where the file's own type is float32, with `add_header_field(extra, SINGLE, [names])`, and omits it where none is."""

REPLAY = "replay"
"""Host-specific header field: what the record of a replay says of its recording."""
EARLIER_RESETS = "earlier_resets"
"""Host-specific header field: how many resets the environment made since it was seeded, where it is seeded once a task.
A replay has it among what it says of its recording."""


class Mark(NamedTuple):
    """A mark that scores carry along: its header field, and its fields in a row of scores and in a summary."""

    field: str
    of_episode: str = ""
    of_cell: str = ""
    is_counted: bool = False
    """True if the summary counts the episodes that have it, and does not only say that there are some."""


MARKS = (
    Mark(STANDIN, "standin_assets", "standin_assets"),
    Mark(STOPPED_ON_VIOLATION, "stopped_on_violation", "stopped_on_violation", is_counted=True),
    Mark(DIVERGED, "diverged_replay", "diverged_replays", is_counted=True),
    Mark(FOREIGN_LOG),
)
CLIPPED = "clipped_actions"
"""Header field: how many actions were out of range and clipped, where the policy's own protocol clips."""
CLIPPED_NUMBERS = "clipped_numbers"
"""Header field: of each number of the clipped actions, [A, 2], how often it was out of range, and its largest size."""

DELAY = "delay"
"""Header field: how late the policy's answers came, in control steps; it is there if any was late."""
CHOSEN = "chosen_start"
"""Header field: of an episode whose start a search chose, the host's own `init_state_index`, and under `placed_m` the
coordinates that replaced those of that state, name -> m. The header's index counts the search's starts."""
FOUND, SEARCHED = "found", "search"
"""How the names of suites begin whose starts a search found, or tried: `found:NAME:SUITE`. The latter is also the key
of run.json that holds what was searched for, and stands there in the place of a number of episodes."""

MOST_RESETS = 1000
"""More resets or settling steps than this are taken for a damaged record."""


def standin_benchmarks(batch: Batch) -> tuple[str, ...]:
    """Return the benchmarks with episodes on stand-in assets, in order of first appearance."""
    marked = zip(batch.headers, mark_flags(batch, STANDIN), strict=True)
    return tuple(dict.fromkeys(header.benchmark for header, has_standins in marked if has_standins))


def replay_fields(batch: Batch) -> tuple[Mapping[str, object], ...]:
    """Return what each record says of the recording that it replays, [E]; {} for an episode that is not a replay."""
    replays = (fields.get(REPLAY) for fields in header_fields(batch))
    return tuple(replay if isinstance(replay, Mapping) else {} for replay in replays)


def earlier_resets(batch: Batch) -> tuple[int | None, ...]:
    """Return how many resets a once seeded environment made before each episode's own, [E]; None = it does not say.
    What a replay says of its recording comes before its own.
    """
    own = ({EARLIER_RESETS: fields.get(EARLIER_RESETS)} for fields in header_fields(batch))
    return tuple(
        read_earlier_resets({**fields, **replay}) for fields, replay in zip(own, replay_fields(batch), strict=True)
    )


def header_fields(batch: Batch) -> list[Mapping[str, object]]:
    """Return the host-specific header fields of each episode, [E]."""
    return [_host_header(extra) for extra in batch.extra]


def _host_header(extra: Mapping[str, object]) -> Mapping[str, object]:
    header = extra.get("header")
    return header if isinstance(header, Mapping) else {}


def clipped_numbers(batch: Batch, index: int) -> NDArray[np.float64] | None:
    """Return of each number of an episode's clipped actions how often it was out of range and its largest size, [A, 2].
    None if the record does not say, or says it in another shape.
    """
    try:
        numbers = np.asarray(_host_header(batch.extra[index]).get(CLIPPED_NUMBERS), dtype=np.float64)
    except (TypeError, ValueError):
        return None
    is_whole = numbers.shape == (batch.action.width[index], 2) and bool(np.isfinite(numbers).all())
    return numbers if is_whole else None


def read_earlier_resets(replay: Mapping[str, object]) -> int | None:
    """Return how many resets a once seeded environment made before the replayed episode's own. None if the field is
    missing, or not a whole number from 0 to `MOST_RESETS`.
    """
    return _read_count(replay, EARLIER_RESETS)


def read_wait_steps(replay: Mapping[str, object]) -> int | None:
    """Return the settling steps with which a replayed episode began; None = as the run's protocol says. None too for a
    value that is not a whole number from 0 to `MOST_RESETS`.
    """
    return _read_count(replay, "wait_steps")


def start_marks(batch: Batch) -> tuple[tuple[str, ...], ...]:
    """Return which header fields say of each episode that it did not begin at one of the suite's own starts, [E]."""
    return tuple(tuple(name for name in (REPLAY, CHOSEN, DRAWN) if fields.get(name)) for fields in header_fields(batch))


def label_suite(kind: str, name: str, suite: str) -> str:
    """Return the name of the suite of starts that a search of this name found (`FOUND`) or tried (`SEARCHED`)."""
    return f"{kind}:{name}:{suite}"


def is_chosen(suite: str) -> bool:
    """Return whether a suite's starts were chosen by a search, so that its rates are none of the benchmark's."""
    return suite.partition(":")[0] in (FOUND, SEARCHED) and suite.count(":") > 1


def base_suite(suite: str) -> str:
    """Return the suite whose tasks a suite has: what `label_suite` was given, else the suite itself.

    >>> base_suite("found:edge:libero-goal"), base_suite("libero-goal")
    ('libero-goal', 'libero-goal')
    """
    return suite.split(":", 2)[2] if is_chosen(suite) else suite


def chosen_start(batch: Batch) -> tuple[int | None, tuple[tuple[str, float], ...]]:
    """Return the host's own initial state of a batch of one, and the coordinates [m] that a search chose, by name. ()
    if none did; the header's index then.
    """
    chosen = header_fields(batch)[0].get(CHOSEN)
    if not isinstance(chosen, Mapping):
        return batch.headers[0].init_state_index, ()
    index, placed = chosen.get("init_state_index"), chosen.get("placed_m")
    pairs = placed.items() if isinstance(placed, Mapping) else ()
    known = tuple((str(name), float(value)) for name, value in pairs if isinstance(value, int | float))
    return index if isinstance(index, int) else None, known


class Kitchen(NamedTuple):
    """The values that fix the start of a RoboCasa episode: split, layout, style, and the seed of its generator."""

    split: str
    layout: int
    style: int
    seed: int


def kitchens(batch: Batch) -> tuple[Kitchen | None, ...]:
    """Return the kitchen of each episode, [E]; None unless its record, of a rollout or an own loop, fixes a kitchen."""
    fields = (header.get("robocasa") for header in header_fields(batch))
    return tuple(map(_read_kitchen, fields, (header.env_seed for header in batch.headers)))


def _read_kitchen(field: object, env_seed: int | None) -> Kitchen | None:
    if not isinstance(field, Mapping):
        return None
    options = field.get("options")
    if isinstance(options, Mapping):
        field = {**field, "split": options.get("obj_instance_split"), "seed": env_seed}
    split, layout, style, seed = (field.get(name) for name in Kitchen._fields)
    if not isinstance(layout, int) or not isinstance(style, int) or not isinstance(seed, int):
        return None
    return Kitchen(str(split), layout, style, seed)


def _read_count(replay: Mapping[str, object], name: str) -> int | None:
    count = replay.get(name)
    is_count = isinstance(count, int) and not isinstance(count, bool)
    return count if isinstance(count, int) and is_count and 0 <= count <= MOST_RESETS else None


def mark_flags(batch: Batch, mark: str) -> tuple[bool, ...]:
    """Return whether each episode has a mark, such as `STANDIN`; [E]."""
    return tuple(fields.get(mark) is True for fields in header_fields(batch))


def single_channels(batch: Batch, index: int) -> frozenset[str]:
    """Return the channels of an episode whose numbers were stored as float32 (`SINGLE`)."""
    names = _host_header(batch.extra[index]).get(SINGLE)
    return frozenset(names if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else ())
