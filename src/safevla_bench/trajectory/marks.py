"""Marks of episodes: host-specific header fields that restrict what a result means, so that reports must show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safevla_bench.trajectory.batch import Batch
from safevla_recorder.episode import ABSOLUTE as ABSOLUTE

PRIVILEGED = "privileged"
"""Host-specific header field: true if the policy saw simulator state that a real robot cannot measure."""
STANDIN = "standin_assets"
"""Host-specific header field: true if the host used placeholders for its assets."""
STOPPED_ON_VIOLATION = "stopped_on_violation"
"""Host-specific header field: true if the episode was stopped because it violated a scored specification."""

DRAWN = "drawn_start"
"""Host-specific header field: true if the start was drawn at random instead of taken from the task's initial states."""

DIVERGED = "diverged_replay"
"""Host-specific header field: true if a replay deviated from its recording, or could not be compared."""

FOREIGN_LOG = "foreign_log"
"""Header field: true if the episode was read from a robot's log, which has only what the robot's sensors measure."""
LOG_BENCHMARK = "real-robot"
"""Benchmark name for logs without a benchmark. Such a task needs no registry entry: its id can name a template."""

SINGLE = "float32_channels"
"""Header field: names of the channels that were stored as float32, such as ["body_pos_m", "time_s"].

A value counts as equal to a limit up to a relative difference of 1e-4 in these channels, and of 1e-9 in all others.
Readers of logs set the field with `add_header_field(extra, SINGLE, [names])` for channels of type float32."""

REPLAY = "replay"
"""Host-specific header field of a replay: facts about the recording that it replays."""
EARLIER_RESETS = "earlier_resets"
"""Host-specific header field: number of earlier resets of the environment, if it is seeded only once per task. For a
replay, the `REPLAY` field has the number for the replayed recording."""


class Mark(NamedTuple):
    """A header field that is copied to scores: its names in the header, in a row of scores and in a summary."""

    field: str
    of_episode: str = ""
    of_cell: str = ""
    is_counted: bool = False
    """True if the summary counts episodes with the mark; false if it only says whether such episodes exist."""


MARKS = (
    Mark(STANDIN, "standin_assets", "standin_assets"),
    Mark(STOPPED_ON_VIOLATION, "stopped_on_violation", "stopped_on_violation", is_counted=True),
    Mark(DIVERGED, "diverged_replay", "diverged_replays", is_counted=True),
    Mark(FOREIGN_LOG),
    Mark(REPLAY),
    Mark(PRIVILEGED),
)
CLIPPED = "clipped_actions"
"""Header field: number of actions that were clipped to the valid range, if the policy's protocol clips actions."""
CLIPPED_NUMBERS = "clipped_numbers"
"""Header field: how often each number of an action was clipped, and its largest magnitude before clipping, [A, 2]."""

DELAY = "delay"
"""Header field: delay of the policy's answers, in control steps; absent if no answer was late."""
CHOSEN = "chosen_start"
"""Header field of an episode whose start a search chose. `init_state_index` is the index of the host's initial state
that was changed, and `placed_m` maps names to changed coordinates [m]. The header's index counts the chosen starts."""
FOUND, SEARCHED = "found", "search"
"""Prefixes of suites whose initial states a search found or tried, such as `found:NAME:SUITE`. In run.json of a
search, the key `SEARCHED` describes the search, and the key `episodes` has the value `SEARCHED`, not a number."""

WAIT_STEPS = "wait_steps"
MOST_RESETS = 1000
"""A record with more resets or settling steps than this is damaged."""


def standin_benchmarks(batch: Batch) -> tuple[str, ...]:
    """Return the benchmarks that have episodes with placeholder assets, in order of first appearance."""
    marked = zip(batch.headers, mark_flags(batch, STANDIN), strict=True)
    return tuple(dict.fromkeys(header.benchmark for header, has_standins in marked if has_standins))


def replay_fields(batch: Batch) -> tuple[Mapping[str, object], ...]:
    """Return the facts that each replay contains about its recording, [E]; {} for episodes that are not replays."""
    replays = (fields.get(REPLAY) for fields in header_fields(batch))
    return tuple(replay if isinstance(replay, Mapping) else {} for replay in replays)


def earlier_resets(batch: Batch) -> tuple[int | None, ...]:
    """Return each episode's number of earlier resets of its environment, which was seeded only once, [E]; None =
    unknown. A replay gets the number for its recorded episode, if known.
    """
    counts: list[int | None] = []
    for fields, replay in zip(header_fields(batch), replay_fields(batch), strict=True):
        source = replay if EARLIER_RESETS in replay else fields
        counts.append(read_count(source, EARLIER_RESETS))  # None if absent or invalid
    return tuple(counts)


def header_fields(batch: Batch) -> list[Mapping[str, object]]:
    """Return the host-specific header fields of each episode, [E]."""
    # Host-specific header fields are not defined by the record format; {} for an episode without such fields.
    return [host_header(extra) for extra in batch.extra]


def host_header(extra: Mapping[str, object]) -> Mapping[str, object]:
    """Return the host-specific header fields in `extra` of one episode; {} if there are none."""
    header = extra.get("header")
    return header if isinstance(header, Mapping) else {}


def clipped_numbers(batch: Batch, index: int) -> NDArray[np.float64] | None:
    """Return how often each number of an action was clipped, and its largest magnitude before clipping, [A, 2]. Return
    None if the record lacks the field, or if the field has a wrong shape or a number that is not finite.
    """
    try:
        numbers = np.asarray(host_header(batch.extra[index]).get(CLIPPED_NUMBERS), dtype=np.float64)
    except (TypeError, ValueError):
        return None
    # `width` is the number of dimensions A of the episode's actions.
    is_valid = numbers.shape == (batch.action.width[index], 2) and bool(np.isfinite(numbers).all())
    return numbers if is_valid else None


def start_marks(batch: Batch) -> tuple[tuple[str, ...], ...]:
    """Return each episode's header fields that mark its start as different from the suite's initial states, [E]."""
    # Episodes are marked if they are replays, if a search chose their start, or if their start was drawn at random.
    # An episode with a usual start gets ().
    return tuple(tuple(name for name in (REPLAY, CHOSEN, DRAWN) if fields.get(name)) for fields in header_fields(batch))


def label_suite(kind: str, name: str, suite: str) -> str:
    """Return the name of a suite of initial states that the search `name` found (`FOUND`) or tried (`SEARCHED`)."""
    # `kind` is `FOUND` or `SEARCHED`, and `suite` is the suite that provides the tasks.
    return f"{kind}:{name}:{suite}"


def is_chosen(suite: str) -> bool:
    """Return whether a search chose the suite's initial states. If so, results are not the benchmark's results."""
    # The name of such a suite is "found:NAME:SUITE" or "search:NAME:SUITE".
    return suite.partition(":")[0] in (FOUND, SEARCHED) and suite.count(":") > 1


def base_suite(suite: str) -> str:
    """Return the suite that provides the tasks: the part SUITE of a name from `label_suite`, or else `suite` itself.

    >>> base_suite("found:edge:libero-goal"), base_suite("libero-goal")
    ('libero-goal', 'libero-goal')
    """
    return suite.split(":", 2)[2] if is_chosen(suite) else suite


def chosen_start(batch: Batch) -> tuple[int | None, tuple[tuple[str, float], ...]]:
    """For a batch of one, return the index of the host's initial state, and the names and values [m] of the coordinates
    that a search changed. If no search chose the start, return the header's index and ().
    """
    # A search writes the field `CHOSEN`: the index of the changed initial state, and `placed_m`.
    # `placed_m` maps names to changed coordinates in meters. If the index is not an integer, None replaces it.
    chosen = header_fields(batch)[0].get(CHOSEN)
    if not isinstance(chosen, Mapping):
        return batch.headers[0].init_state_index, ()
    index, placed = chosen.get("init_state_index"), chosen.get("placed_m")
    pairs = placed.items() if isinstance(placed, Mapping) else ()
    coordinates = tuple((str(name), float(value)) for name, value in pairs if isinstance(value, int | float))
    return index if isinstance(index, int) else None, coordinates


class Kitchen(NamedTuple):
    """The values that fix the start of a RoboCasa episode: split, layout, style, and seed of the random generator."""

    split: str
    layout: int
    style: int
    seed: int


def kitchens(batch: Batch) -> tuple[Kitchen | None, ...]:
    """Return the kitchen of each episode, [E]; None if the record does not determine it."""
    # A `Kitchen` has the split, the layout, the style and the seed of the objects' positions.
    fields = (header.get("robocasa") for header in header_fields(batch))
    return tuple(map(_read_kitchen, fields, (header.env_seed for header in batch.headers)))


def _read_kitchen(field: object, env_seed: int | None) -> Kitchen | None:
    # Returns the values that fix an episode's start, given its header fields `robocasa` and `env_seed`.
    # None if the layout, style or seed is not an integer. A missing split becomes the text "None".
    if not isinstance(field, Mapping):
        return None
    options = field.get("options")  # records of safevla_recorder have split and seed in other fields
    if isinstance(options, Mapping):
        field = {**field, "split": options.get("obj_instance_split"), "seed": env_seed}
    split, layout, style, seed = (field.get(name) for name in Kitchen._fields)
    if not isinstance(layout, int) or not isinstance(style, int) or not isinstance(seed, int):
        return None
    return Kitchen(str(split), layout, style, seed)


def read_count(fields: Mapping[str, object], name: str) -> int | None:
    """Return a count, `EARLIER_RESETS` or `WAIT_STEPS` (settling), from header fields or a replay's facts. Return None
    if the count is missing, or not an integer from 0 to `MOST_RESETS`.
    """
    count = fields.get(name)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_RESETS:
        return None
    return count


def mark_flags(batch: Batch, mark: str) -> tuple[bool, ...]:
    """Return whether each episode has a mark, such as `STANDIN`, [E]. `REPLAY` marks all replays."""
    if mark == REPLAY:
        return tuple(map(bool, replay_fields(batch)))
    # A mark is a host-specific header field whose value is true.
    return tuple(fields.get(mark) is True for fields in header_fields(batch))


def single_channels(batch: Batch, index: int) -> frozenset[str]:
    """Return the channels of an episode whose numbers were stored as float32 (`SINGLE`)."""
    # The host-specific header field `SINGLE` lists the names. A field of a wrong type counts as absent.
    names = host_header(batch.extra[index]).get(SINGLE)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return frozenset()
    return frozenset(names)
