"""Replays in three dimensions inside a page: the files of run folders, with what was broken when.

A replay is inert data until the reader opens it. Meshes stand in the page once, however many episodes have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from markupsafe import Markup

from safevla_bench.explain import trace
from safevla_bench.explain.contributors import find_contributors
from safevla_bench.explain.trace import SpecTrace
from safevla_bench.files import read_input
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.report.render import player_scripts
from safevla_bench.report.sections import EpisodeKey
from safevla_bench.signals.signal import RecordFields
from safevla_bench.sources.runs.folder import FRAMES, MAX_FRAME_BYTES, RUN, read_frames
from safevla_bench.sources.runs.policy_names import PolicyNames
from safevla_bench.tasks.entries import Registry
from safevla_bench.trajectory.batch import Batch, select_episodes

MOST_BYTES = 6_000_000
"""Size of all replays in a page, meshes included; the player itself has half a megabyte more."""
_NO_MESHES = Markup("{}")
Document = dict[str, object]


@dataclass(frozen=True)
class Replays:
    """Replays by episode, as their files have them, and the reasons why episodes have none."""

    documents: Mapping[EpisodeKey, Document] = field(default_factory=dict)
    missing: Mapping[EpisodeKey, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplaySection:
    """The content of a page: data by the episode's number, meshes by digest, and the scripts that show them.

    `left_out` of the replays did not fit.
    """

    episodes: Mapping[int, Markup] = field(default_factory=dict)
    missing: Mapping[int, str] = field(default_factory=dict)
    meshes: Markup = _NO_MESHES
    scripts: tuple[str, ...] = ()
    left_out: int = 0


def read_replay(content: bytes) -> Document | None:
    """Return a replay's document; None if `content` is no JSON object with `version` 1 and a mapping of `meshes`."""
    try:
        document = msgspec.json.decode(content, type=Document)
    except (msgspec.DecodeError, RecursionError):
        return None
    return document if document.get("version") == 1 and isinstance(document.get("meshes"), dict) else None


def collect_replays(paths: Sequence[Path], names: Sequence[PolicyNames] = ()) -> Replays:
    """Return the replays of the run folders among the sources.

    Other sources, missing files, files of more than 50 MB or outside of the run, and those that `read_replay` refuses
    are passed over. `names`
    holds recorded name -> new name of a policy for each source; none = all as recorded.

    Raises:
        RunError: an index of frames cannot be read, or names a file by more than a plain file name.
    """
    documents: dict[EpisodeKey, Document] = {}
    for folder, renamed in zip(paths, names or [{}] * len(paths), strict=False):
        for frame in read_frames(folder) if (folder / RUN).exists() else ():
            if frame.kind != "replay3d":
                continue
            try:
                document = read_replay(read_input(folder / FRAMES / frame.file, MAX_FRAME_BYTES, within=folder))
            except OSError:
                continue
            if document is not None:
                documents[renamed.get(frame.policy, frame.policy), frame.episode_id] = document
    return Replays(documents)


def embed_replays(
    scores: Scores, batch: Batch | None, ruleset: Ruleset, replays: Replays, most_bytes: int = MOST_BYTES
) -> ReplaySection:
    """Return the replays of a page with their clauses, the worst episodes first, up to `most_bytes` of data.

    Replays that do not fit are counted in `left_out`, and smaller ones after them may still fit. Episodes without a
    record in `batch` have none. There are scripts only if there is a replay.
    """
    place = {(header.policy, header.episode_id): k for k, header in enumerate(batch.headers if batch else ())}
    keys = {k: (scores.policy[k], scores.episode_id[k]) for k in range(len(scores))}
    candidates = [k for k in trace.rank_by_severity(scores) if keys[k] in replays.documents and keys[k] in place]
    episodes: dict[int, Markup] = {}
    meshes: Document = {}
    left_out, room = 0, most_bytes
    for k in candidates:
        assert batch is not None
        document = dict(replays.documents[keys[k]])
        own = document.pop("meshes")
        assert isinstance(own, dict)
        new = {digest: mesh for digest, mesh in sorted(own.items()) if digest not in meshes}
        clauses = list(_clauses(scores, k, select_episodes(batch, [place[keys[k]]]), ruleset))
        text = _inert_json({**document, "clauses": clauses})
        size = len(text) + (len(_inert_json(new)) if new else 0)
        if size > room:
            left_out += 1
            continue
        room -= size
        meshes |= new
        episodes[k + 1] = text
    missing = {k + 1: replays.missing[key] for k, key in keys.items() if key in replays.missing}
    scripts = player_scripts() if episodes else ()
    return ReplaySection(episodes, missing, _inert_json(meshes), scripts, left_out)


def _inert_json(document: object) -> Markup:
    text = msgspec.json.encode(document, order="deterministic").decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


# What was broken when, for the player's marks


def _clauses(scores: Scores, episode: int, record: Batch, ruleset: Ruleset) -> Iterator[Document]:
    """Yield every clause with a verdict, violated ones first: its first violating record (-1 for none), its worst, the
    spans of its violation, and the bodies behind both records.
    """
    reading = ruleset.read_fields(record)
    for spec_trace in trace.trace_specs(scores, episode, reading, ruleset):
        line = spec_trace.signal_trace
        yield {
            "spec": spec_trace.spec.spec_id,
            "violated": spec_trace.violated,
            "first": spec_trace.first,
            "worst": line.worst,
            "spans": _spans(line.failing),
            "bodies": _bodies(spec_trace, line.worst, reading, ruleset.registry),
            "bodies_first": _bodies(spec_trace, spec_trace.first, reading, ruleset.registry),
        }


def _spans(failing: trace.Bools) -> list[list[int]]:
    edges = np.diff(np.concatenate([[0], failing.astype(np.int8), [0]]))
    pairs = zip(np.flatnonzero(edges == 1).tolist(), (np.flatnonzero(edges == -1) - 1).tolist(), strict=True)
    return [[first, last] for first, last in pairs]


def _bodies(spec_trace: SpecTrace, record: int, reading: RecordFields, registry: Registry) -> list[str]:
    if record < 0:
        return []
    involved = find_contributors(reading, spec_trace.signal_trace.signal, record, registry)
    return list(involved.names) if involved else []
