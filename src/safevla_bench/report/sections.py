"""Sections of the page as values: outcomes and violations of a cell, the worst episodes, and the frames of episodes."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from safevla_bench.explain import trace
from safevla_bench.explain.trace import SpecTrace
from safevla_bench.judging.metrics import Summary, has_verdict
from safevla_bench.judging.rates import Rate
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import NO_VERDICT, Scores, verdict_word
from safevla_bench.report.charts import Chart, draw_chart
from safevla_bench.report.tables.cells import violation_table
from safevla_bench.report.tables.table import UNNAMED, Table, policy_name
from safevla_bench.sources.runs.folder import FRAMES, RUN, Frame, read_frames, read_picture
from safevla_bench.sources.runs.policy_names import PolicyNames
from safevla_bench.text import NO_VALUE, format_fixed, format_interval, format_percent
from safevla_bench.trajectory.batch import Batch, select_episodes

# Success and safety


@dataclass(frozen=True, slots=True)
class Whisker:
    """A proportion and its interval as places across a strip, in percent."""

    name: str
    kind: str
    value: str
    at: str
    low: str
    length: str
    interval: str


@dataclass(frozen=True, slots=True)
class OutcomeShare:
    """One of the four outcomes: count, percentage, and the place of its part of the bar, in percent."""

    name: str
    kind: str
    count: int
    percent: str
    at: str
    width: str


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """A cell's success and safety, drawn."""

    policy: str
    suite: str
    n: int
    lost: str
    privileged: bool
    standin: bool
    stopped: bool
    """True if a violation stopped episodes, so that only Safety is known."""
    whiskers: tuple[Whisker, ...]
    shares: tuple[OutcomeShare, ...]


def draw_outcome(cell: Summary, privileged: bool) -> CellOutcome:
    """Return the drawing of a cell; no whisker or share for what was not counted or not judged.

    No shares either where a violation stopped episodes. `privileged` says whether the policy saw simulator state.
    """
    verdict = has_verdict(cell)
    outside = (("crashed", cell.crashed), ("stopped", cell.stopped), ("without a verdict", cell.unjudged))
    lost = [f"{count} {name}" for name, count in outside if count]
    return CellOutcome(
        policy=policy_name(cell),
        suite=cell.suite or NO_VALUE,
        n=cell.n,
        lost=", ".join(lost),
        privileged=privileged,
        standin=cell.standin_assets,
        stopped=bool(cell.stopped_on_violation),
        whiskers=(
            *_draw_whisker("Success", "sr", cell.rates["sr"]),
            *(_draw_whisker("Safety", "safety", cell.rates["safety"]) if verdict else ()),
        ),
        shares=_outcome_shares(cell) if verdict and not cell.stopped_on_violation else (),
    )


def _draw_whisker(name: str, kind: str, rate: Rate) -> tuple[Whisker, ...]:
    """Return a tuple of one whisker; () where nothing was counted."""
    if rate.ci is None or rate.value is None:
        return ()
    low, high = rate.ci
    return (
        Whisker(
            name=name,
            kind=kind,
            value=format_percent(rate.count, rate.n),
            at=format_fixed(100 * rate.value, 2),
            low=format_fixed(100 * low, 2),
            length=format_fixed(100 * (high - low), 2),
            interval=format_interval(low, high, digits=1, scale=100),
        ),
    )


def _outcome_shares(cell: Summary) -> tuple[OutcomeShare, ...]:
    """Return safe and unsafe success and failure, then both without a verdict if any lacks one; () where n is 0."""
    counts: tuple[tuple[str, str, int], ...] = (
        ("succeeded, safe", "ss", cell.success_safe),
        ("succeeded, unsafe", "su", cell.success_unsafe),
        ("failed, safe", "fs", cell.failure_safe),
        ("failed, unsafe", "fu", cell.failure_unsafe),
    )
    succeeded = cell.rates["sr"].count
    unjudged = (
        (f"succeeded, {NO_VERDICT}", "nv", succeeded - cell.success_safe - cell.success_unsafe),
        (f"failed, {NO_VERDICT}", "nv", cell.n - succeeded - cell.failure_safe - cell.failure_unsafe),
    )
    counts += unjudged if any(count for _, _, count in unjudged) else ()
    before = [sum(count for _, _, count in counts[:k]) for k in range(len(counts))]
    return tuple(
        OutcomeShare(
            name, kind, count, format_percent(count, cell.n), _format_share(start, cell.n), _format_share(count, cell.n)
        )
        for (name, kind, count), start in zip(counts, before, strict=True)
        if cell.n
    )


def _format_share(count: int, n: int) -> str:
    return format_percent(count, n, digits=2)


# Violations


@dataclass(frozen=True, slots=True)
class CellViolations:
    """A cell's violations in a sentence and a table, and the clauses outside every score."""

    name: str
    words: str
    scored: Table
    others: Table


def summarize_violations(cell: Summary) -> CellViolations:
    """Return a cell's tables of violations, scored and not, and the sentence on its unsafe episodes above them."""
    safety = cell.rates["safety"]
    top = max(
        (spec for spec in cell.specs if spec.tier == "safe"), key=lambda spec: spec.violations.count, default=None
    )
    most = f", most often {top.spec_id} ({top.violations.count})" if top and top.violations.count else ""
    return CellViolations(
        name=f"{policy_name(cell)}, {cell.suite or NO_VALUE}",
        words=f"{safety.n - safety.count} of {safety.n} unsafe{most}" if has_verdict(cell) else NO_VERDICT,
        scored=violation_table([cell]),
        others=violation_table([cell], scored=False),
    )


# The worst episodes


@dataclass(frozen=True, slots=True)
class WorstEpisode:
    """An episode with a chart for each specification with a verdict; `number` is that of its line in the table."""

    number: int
    key: tuple[str | None, str]
    """Policy, as the record names it, and episode id."""
    episode_id: str
    policy: str
    suite: str
    task: str
    instruction: str
    outcome: str
    kind: str
    vsi: str
    broken: tuple[tuple[SpecTrace, Chart], ...]
    kept: tuple[tuple[SpecTrace, Chart], ...]


def worst_episodes(scores: Scores, batch: Batch | None, ruleset: Ruleset) -> Iterator[WorstEpisode]:
    """Yield the up to 6 episodes that `select_worst` picks, in its order; without charts where `batch` lacks theirs."""
    headers = batch.headers if batch else ()
    place = {(header.policy, header.episode_id): k for k, header in enumerate(headers)}
    for episode in trace.select_worst(scores):
        batch_index = place.get((scores.policy[episode], scores.episode_id[episode]))
        record = select_episodes(batch, [batch_index]) if batch is not None and batch_index is not None else None
        yield _worst_episode(scores, episode, record, ruleset)


def _worst_episode(scores: Scores, episode: int, record: Batch | None, ruleset: Ruleset) -> WorstEpisode:
    """Return an episode with a chart for each specification with a verdict; without charts if `record` is None."""
    spec_traces = trace.trace_specs(scores, episode, record, ruleset) if record else []
    drawn = [(spec_trace, draw_chart(spec_trace)) for spec_trace in spec_traces]
    success, safe = bool(scores.success[episode]), scores.verdict(episode)
    vsi = float(scores.vsi[episode])
    return WorstEpisode(
        number=episode + 1,
        key=(scores.policy[episode], scores.episode_id[episode]),
        episode_id=scores.episode_id[episode],
        policy=scores.policy[episode] or UNNAMED,
        suite=scores.benchmark[episode],
        task=scores.task_id[episode],
        instruction=(record.headers[0].instruction or "") if record else "",
        outcome=describe_ending(success, safe, scores.outcome[episode]),
        kind=("s" if success else "f") + ("s" if safe else "u"),
        vsi=NO_VALUE if np.isnan(vsi) else format_fixed(vsi, 3),
        broken=tuple(pair for pair in drawn if pair[0].violated),
        kept=tuple(pair for pair in drawn if not pair[0].violated),
    )


def describe_ending(success: bool, safe: bool | None, outcome: str) -> str:
    """Return the ending and the verdict in words, such as `Failed, unsafe`, or `Stopped, unsafe`.

    An outcome that says more than success or failure follows in brackets.
    """
    if outcome == "stopped":
        return f"Stopped, {verdict_word(safe)}"
    ending = f"{'Succeeded' if success else 'Failed'}, {verdict_word(safe)}"
    return ending if outcome in ("success", "failure") else f"{ending} ({outcome.replace('_', ' ')})"


# Frames of run folders as data URIs, up to a size limit


MOST_BYTES = 3_000_000
"""Size of all frames in a page [bytes of base64]."""

EpisodeKey = tuple[str | None, str]
"""Policy and episode id."""


@dataclass(frozen=True, slots=True)
class FrameImage:
    """One frame in the page."""

    kind: str
    caption: str
    success: bool
    width: int
    height: int
    source: str
    """A data URI."""


@dataclass(frozen=True)
class Album:
    """Images by episode; `left_out` of them did not fit or are clips, and lie in the run's `frames` only."""

    images: Mapping[EpisodeKey, tuple[FrameImage, ...]] = field(default_factory=dict)
    left_out: int = 0
    films: Mapping[EpisodeKey, str] = field(default_factory=dict)
    """The film of the whole episode, from the run folder, in which the page lies as a rule."""

    def film_of(self, policy: str | None, episode_id: str) -> str | None:
        """Return the path of the film of one episode, relative to the run folder; None if there is none."""
        return self.films.get((policy, episode_id))

    def of_episode(self, policy: str | None, episode_id: str) -> tuple[FrameImage, ...]:
        """Return the images of one episode; () if there are none."""
        return self.images.get((policy, episode_id), ())


def collect_images(paths: Sequence[Path], names: Sequence[PolicyNames] = (), most_bytes: int = MOST_BYTES) -> Album:
    """Return the images of the run folders among the sources as data URIs, as far as they fit, and the paths of films.

    An episode's images are those of its initial state, its violations, its final state, then others. Images that do not
    fit, are missing or of another type are counted in `left_out`. Sources that are no run folders are passed over.

    Args:
        paths: the sources.
        names: for each source, recorded name -> new name of a policy; none = all as recorded.
        most_bytes: of all images together, in base64.

    Raises:
        RunError: an index cannot be read, or names a file by more than a plain file name.
    """
    images: dict[EpisodeKey, list[FrameImage]] = {}
    films: dict[EpisodeKey, str] = {}
    left_out, room = 0, most_bytes
    for folder, renamed in zip(paths, names or [{}] * len(paths), strict=False):
        for frame in read_frames(folder) if (folder / RUN).exists() else ():
            if frame.kind == "video":
                films[renamed.get(frame.policy, frame.policy), frame.episode_id] = f"{FRAMES}/{frame.file}"
                continue
            if frame.kind == "replay3d":
                continue  # report/replay3d.py
            image = _load_image(folder, frame, room)
            if image is None:
                left_out += 1
                continue
            room -= len(image.source)
            images.setdefault((renamed.get(frame.policy, frame.policy), frame.episode_id), []).append(image)
    return Album({key: tuple(_sort_images(episode_images)) for key, episode_images in images.items()}, left_out, films)


def _load_image(folder: Path, frame: Frame, room: int) -> FrameImage | None:
    picture = read_picture(folder, frame, room * 3 // 4)
    if picture is None:
        return None
    source = f"data:image/{picture[0].lower()};base64,{base64.b64encode(picture[1]).decode()}"
    return FrameImage(frame.kind, frame.caption, frame.success, frame.width, frame.height, source)


def _sort_images(images: Sequence[FrameImage]) -> list[FrameImage]:
    order = ("initial", "violation", "final")
    return sorted(images, key=lambda image: order.index(image.kind) if image.kind in order else len(order))
