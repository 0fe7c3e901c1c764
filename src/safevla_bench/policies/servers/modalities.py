"""The modalities that a GR00T server describes: its wire, the keys and frames that its model takes, and its actions.

`get_modality_config` answers before the first action. The mark of its values tells the two wires apart. Its keys are
those of the model, `image` or (N1.5) `video.image`, whether the server takes flat or nested requests: the two differ by
`--use-sim-policy-wrapper` alone, which the description does not show (gr00t/policy/gr00t_policy.py at 626af89).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from safevla_bench.errors import PolicyError
from safevla_bench.policies.servers import dialects
from safevla_bench.policies.servers.codecs import GR00T, GR00T_MAIN, Codec
from safevla_bench.policies.servers.dialect import Dialect, Reply, Request

VIDEO, STATE, LANGUAGE, ACTION = "video", "state", "language", "action"
_MARK_MAIN, _MARK_TAGS = "__ModalityConfig__", "__ModalityConfig_class__"
_WANTS_NESTED = ("must contain a 'video' key", "failed: 'video'")
"""In the error of a server without the wrapper on a flat request: a strict one, or one that is not (a `KeyError`)."""
_WANTS_FLAT = ("Video key 'video.", "failed: 'video.")


@dataclass(frozen=True, slots=True)
class Modality:
    """One modality of a model: its keys as flat requests and replies have them, and its number of frames."""

    keys: tuple[str, ...]
    frames: int


def choose_codec(config: object) -> Codec:
    """Return a server's codec: `GR00T_MAIN` where a value of its description has main's mark, else `GR00T`."""
    values = config.values() if isinstance(config, Mapping) else ()
    is_main = any(isinstance(value, Mapping) and _MARK_MAIN in value for value in values)
    return GR00T_MAIN if is_main else GR00T


def parse_modalities(config: object) -> dict[str, Modality]:
    """Return the modalities in a GR00T server's get_modality_config reply, by name; skip unreadable ones."""
    described = config.items() if isinstance(config, Mapping) else ()
    parsed = ((str(name), _parse_modality(str(name), value)) for name, value in described)
    return {name: modality for name, modality in parsed if modality is not None}


def _parse_modality(name: str, value: object) -> Modality | None:
    """Return one modality of a server's description.

    None where it has not the form of one, or its JSON cannot be read.
    """
    content = value.get("as_json") if isinstance(value, Mapping) and {_MARK_MAIN, _MARK_TAGS} & set(value) else None
    if isinstance(content, str):  # N1.5 writes JSON into the message
        try:
            content = msgspec.json.decode(content)
        except msgspec.DecodeError:
            return None
    if not isinstance(content, Mapping):
        return None
    keys, deltas = content.get("modality_keys"), content.get("delta_indices")
    if not isinstance(keys, list) or not isinstance(deltas, list):
        return None
    return Modality(tuple(_flat_key(name, str(key)) for key in keys), len(deltas))


def _flat_key(modality: str, key: str) -> str:
    return key if modality == LANGUAGE or key.startswith(f"{modality}.") else f"{modality}.{key}"


def check_modalities(modalities: Mapping[str, Modality], dialect: Dialect) -> None:
    """Raise `PolicyError` for a server whose model takes or gives other keys than the dialect, or more than one frame.

    The error names the keys, and a dialect that fits. Modalities that the server does not describe are not checked.
    """
    problem = next(_mismatches(modalities, dialect), None)
    if problem is None:
        return
    fitting = [name for name in dialects.dialect_names() if _fits(modalities, name)]
    remedy = (
        f"Pass --policy-arg dialect={fitting[0]}." if fitting else "No dialect here fits: serve another checkpoint."
    )
    raise PolicyError(problem, remedy=remedy)


def _fits(modalities: Mapping[str, Modality], name: str) -> bool:
    if dialects.load_dialect_file(name).transport != "gr00t":
        return False
    return next(_mismatches(modalities, dialects.load_dialect(name)), None) is None


def _mismatches(modalities: Mapping[str, Modality], dialect: Dialect) -> Iterator[str]:
    """Yield a sentence for each way in which a model's modalities differ from what the dialect sends and reads.

    Keys that the dialect sends and the model does not take are no mismatch.
    """
    sent = {".".join(field.path) for field in dialect.fields}
    for name in (VIDEO, STATE, LANGUAGE):
        modality = modalities.get(name, Modality((), 1))
        wanted = modality.keys[:1] if name == LANGUAGE else modality.keys  # of several instructions the first is read
        if missing := [key for key in wanted if key not in sent]:
            yield f"the server's model takes {', '.join(missing)}, which the dialect {dialect.name!r} does not send"
        if modality.frames > 1:
            yield f"the server's model takes {modality.frames} frames of {name}, and one is sent"
    action = modalities.get(ACTION)
    wanted_actions = [".".join(part.path) for part in dialect.parts]
    if action and (missing := [key for key in wanted_actions if key not in action.keys]):
        yield f"the server's model gives {', '.join(action.keys)}, and the dialect {dialect.name!r} reads {missing[0]}"


def wants_other_form(problem: str, *, nested: bool) -> bool:
    """Return whether a server's error says that it takes requests of the other form.

    `nested` is the form that was sent.
    """
    return any(text in problem for text in (_WANTS_FLAT if nested else _WANTS_NESTED))


def nest_request(request: Request) -> Request:
    """Return a flat request as a server without --use-sim-policy-wrapper takes it: maps of video, state and language.

    Lists of texts get a time axis too; the request itself is not changed.
    """
    nested: dict[str, dict[str, object]] = {VIDEO: {}, STATE: {}, LANGUAGE: {}}
    for key, value in request.items():
        modality, _, name = key.partition(".")
        if modality in (VIDEO, STATE):
            nested[modality][name] = value
        else:
            nested[LANGUAGE][key] = [[text] for text in value] if isinstance(value, list) else value
    return {**nested}


def flatten_reply(reply: Reply) -> Reply:
    """Return the action of a server without --use-sim-policy-wrapper, its keys with `action.` before them."""
    return {_flat_key(ACTION, key): value for key, value in reply.items()}
