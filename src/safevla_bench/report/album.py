"""Pictures, films and 3-D replays from run folders, for the report page.

Pictures are data URIs. The browser decodes a replay only when the reader opens it. A page stores each mesh once.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import msgspec
from markupsafe import Markup

from safevla_bench.errors import DamageError
from safevla_bench.explain.episode import Moment, rank_by_severity
from safevla_bench.files import read_input
from safevla_bench.memory import limit_memory
from safevla_bench.report.charts import true_runs
from safevla_bench.report.episode_details import EpisodeRecords
from safevla_bench.report.render import PLAYER_SCRIPTS, read_template
from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.signals.space import find_boxes
from safevla_bench.sources.runs.folder import FRAMES, MAX_FRAME_BYTES, RUN, Frame, read_frames, read_picture
from safevla_bench.sources.runs.policy_names import PolicyNames
from safevla_bench.text import escape_json
from safevla_bench.trajectory.header import EpisodeKey

MOST_PICTURES = 3_000_000  # maximum total size of pictures in a page [bytes of base64]
MOST_REPLAYS = 6_000_000  # maximum total size of replays and meshes in a page [bytes]; the 3-D player adds 0.5 MB
Document = dict[str, object]
Replays = Mapping[EpisodeKey, Document]  # episode -> the JSON object in its replay file


@dataclass(frozen=True)
class Album:
    """The pictures of each episode, as data URIs. `left_out` is the number of pictures that are not in the page.
    `films` maps an episode to the address of its film, relative to the page.
    """

    images: Mapping[EpisodeKey, tuple[tuple[Frame, str], ...]] = field(default_factory=dict)
    left_out: int = 0
    films: Mapping[EpisodeKey, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplaySection:
    """The 3-D player's scripts, replays by episode number, and meshes by digest. `left_out` counts omitted replays."""

    episodes: Mapping[int, Markup]
    meshes: Markup
    scripts: tuple[Markup, ...]
    left_out: int


def _list_frames(paths: Sequence[Path], names: Sequence[PolicyNames]) -> Iterator[tuple[EpisodeKey, Path, Frame]]:
    # Yield (key, run folder, frame) for each frame. A frame is a still, a film or a replay.
    # A key is (policy, episode id), with the policy's new name. `names` contains one mapping per path, or is empty.
    # Each mapping in `names` is recorded name -> new name. A policy without a new name keeps its recorded name.
    for folder, new_names in zip(paths, names or [{}] * len(paths), strict=False):
        # Only run folders contain frames. A run folder contains the file `RUN`.
        if (folder / RUN).exists():
            for frame in read_frames(folder):
                yield (new_names.get(frame.policy, frame.policy), frame.episode_id), folder, frame


def collect_images(
    paths: Sequence[Path],
    names: Sequence[PolicyNames] = (),
    most_bytes: int = MOST_PICTURES,
    page_folder: Path | None = None,
) -> Album:
    """Return the pictures of the run folders in `paths` as data URIs, and the addresses of films.

    The pictures of an episode are in this order: initial state, violations, final state, other states. `left_out`
    counts the pictures that do not fit, are missing or damaged, or have an unsupported type.

    Args:
        paths: the sources; those that are not run folders are skipped.
        names: for each source, recorded name of a policy -> new name; () = all policies keep their recorded names.
        most_bytes: maximum size of all pictures together, in base64.
        page_folder: the folder of the page, to link to films; None = no links to films.

    Raises:
        RunError: an index of frames cannot be read, or contains a path instead of a plain file name.
    """
    images: dict[EpisodeKey, list[tuple[Frame, str]]] = {}
    films: dict[EpisodeKey, str] = {}
    left_out, room_bytes = 0, most_bytes  # bytes of base64 left for further pictures
    for key, folder, frame in _list_frames(paths, names):
        if frame.kind == "video":
            if page_folder is not None and (folder / FRAMES / frame.file).is_file():
                # A film is linked, not embedded: its address is relative to the page.
                films[key] = quote(Path(os.path.relpath(folder / FRAMES / frame.file, page_folder)).as_posix())
        elif frame.kind != "replay3d":
            picture = read_picture(folder, frame, room_bytes * 3 // 4)  # base64 encodes 3 bytes as 4 characters
            if picture is None:
                left_out += 1
                continue
            picture_format, content = picture
            data_uri = f"data:image/{picture_format.lower()};base64,{base64.b64encode(content).decode()}"
            room_bytes -= len(data_uri)
            images.setdefault(key, []).append((frame, data_uri))
    kind_order = {"initial": 0, "violation": 1, "final": 2}  # all other kinds sort last
    for episode_images in images.values():
        episode_images.sort(key=lambda image: kind_order.get(image[0].kind, 3))
    return Album({key: tuple(episode_images) for key, episode_images in images.items()}, left_out, films)


def read_replay(content: bytes) -> Document | None:
    """Return a replay's JSON object; None if it is invalid, has no object `meshes`, or its `version` is not 1."""
    try:
        document = msgspec.json.decode(content, type=Document)
    except (msgspec.DecodeError, RecursionError):
        return None
    is_valid = document.get("version") == 1 and isinstance(document.get("meshes"), dict)
    return document if is_valid else None


def collect_replays(paths: Sequence[Path], names: Sequence[PolicyNames] = ()) -> Replays:
    """Return each episode's replay from the run folders. `paths`, `names` and errors are as in `collect_images`. A file
    is skipped if it is missing, larger than 50 MB or outside the run folder, or if `read_replay` returns None for it.
    """
    # For each of `paths`, `names` maps recorded names of policies to new names. A key is (policy, episode id).
    documents: dict[EpisodeKey, Document] = {}
    for key, folder, frame in _list_frames(paths, names):
        if frame.kind != "replay3d":
            continue
        try:
            # A small file may need much memory. If memory runs out, `limit_memory` raises `DamageError`.
            with limit_memory(folder / FRAMES / frame.file):
                document = read_replay(read_input(folder / FRAMES / frame.file, MAX_FRAME_BYTES, within=folder))
        except (OSError, DamageError):  # a `DamageError` is also raised for a Git LFS pointer
            continue
        if document is not None:
            documents[key] = document
    return documents


def embed_replays(records: EpisodeRecords, replays: Replays, most_bytes: int = MOST_REPLAYS) -> ReplaySection:
    """Return the replays for a page, worst episodes first, up to `most_bytes` of data. Each replay includes the
    verdicts on its episode. `left_out` counts the replays that do not fit; a later, smaller replay may still fit.
    Episodes without a record are skipped. The player's scripts are included only if there is a replay.
    """
    scores = records.scores
    keys = list(zip(scores.policy, scores.episode_id, strict=True))
    episodes: dict[int, Markup] = {}
    meshes: Document = {}
    left_out, room_bytes = 0, most_bytes
    # Signals whose names begin with `person_dist` are distances to a person.
    all_signals = {name for spec in records.ruleset.library for name in spec.signals}
    person_signals = [name for name in all_signals if name.startswith("person_dist")]
    for index in rank_by_severity(scores):
        if index not in records or keys[index] not in replays:
            continue
        # The meshes are removed from this copy of the replay, because the page stores them separately.
        document = dict(replays[keys[index]])
        episode_meshes = document.pop("meshes")
        assert isinstance(episode_meshes, dict)  # `read_replay` has checked the type
        # A page stores each mesh once, even if several episodes show it.
        new_meshes = {digest: mesh for digest, mesh in sorted(episode_meshes.items()) if digest not in meshes}
        # `boxes` are the boxes around persons, which the player always shows.
        # Boxes of other signals are part of `clauses`; the player shows them with the specification that uses them.
        if boxes := _find_signal_boxes(records.ruleset.read_fields(records.record(index)), person_signals):
            document["boxes"] = boxes
        episode_json = _inert_json({**document, "clauses": list(_describe_clauses(records, index))})
        characters = len(episode_json) + (len(_inert_json(new_meshes)) if new_meshes else 0)
        if characters > room_bytes:
            left_out += 1
            continue
        room_bytes -= characters
        meshes |= new_meshes
        episodes[index + 1] = episode_json  # the page numbers episodes from 1
    scripts = tuple(Markup(read_template(name)) for name in PLAYER_SCRIPTS) if episodes else ()
    return ReplaySection(episodes, _inert_json(meshes), scripts, left_out)


def _inert_json(document: object) -> Markup:
    # Return JSON text that can be inserted into an HTML page unchanged; equal documents give equal text.
    # Without the characters <, > and &, the text cannot end a script element or begin a tag.
    text = escape_json(msgspec.json.encode(document, order="deterministic")).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _describe_clauses(records: EpisodeRecords, episode: int) -> Iterator[Document]:
    # Yield a document for the 3-D player about each verdict in the episode. The episode must have a record.
    # `episode` is an index in the scores. `first` is the first violating record (-1 = none), `worst` the worst record.
    # `spans` lists the first and the last record of each violation.
    # `bodies` are the bodies involved in the worst record, `bodies_first` those involved in the first violating record.
    fields = records.ruleset.read_fields(records.record(episode))
    evidence = records.evidence(episode)
    for spec_trace in evidence.traces if evidence else ():
        signal_trace = spec_trace.signal_trace
        signal_names = records.ruleset.library[spec_trace.spec.spec_id].signals
        # Boxes around persons are left out here, because the player always shows them.
        boxes = _find_signal_boxes(fields, [name for name in signal_names if not name.startswith("person_dist")])
        yield {
            **({"boxes": boxes} if boxes else {}),
            "spec": " of ".join(filter(None, (spec_trace.spec.spec_id, spec_trace.arm))),
            "violated": spec_trace.violated,
            "first": spec_trace.chart.first,
            "worst": signal_trace.worst,
            "spans": true_runs(signal_trace.failing),
            "bodies": _list_involved(spec_trace.worst),
            "bodies_first": _list_involved(spec_trace.first),
        }


def _find_signal_boxes(fields: RecordFields, signal_names: Sequence[str]) -> list[Document]:
    # Return documents that describe the boxes to which these signals measure distances.
    # A `box` has the center's x, y and z, then three sizes, in m and in the frame of `body` (None = world).
    # `fields` are the values of one episode; `bodies.call` is the expression that defines a signal, with its arguments.
    documents: list[Document] = []
    for name in sorted({*signal_names}):
        bodies = SIGNALS[name].bodies  # None = the signal's value does not depend on particular bodies
        boxes = [] if bodies is None else find_boxes(fields, bodies.call)
        documents += [{"body": body, "center": box[:3], "size": box[3:]} for body, box in boxes]
    return documents


def _list_involved(moment: Moment | None) -> list[str]:
    # Return the names of the bodies (or of the joint) that determine a signal's value in one record.
    # Return [] if the bodies are unknown, or if there is no such record (`moment` is None).
    involved = moment.involved if moment else None
    if involved is None:
        return []
    if involved.joint is None:
        return [*involved.names]
    return [f"joint {involved.joint + 1}"]  # the index counts from 0, the text from 1
