"""The judge that ships beside the independent one: the differences between their scores, and what each episode met."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from judging import oracle
from judging.oracle import Judgement, Spec, Verdict
from safevla_bench.archive.jsonl import decode_json
from safevla_bench.judging.scores import EpisodeScore
from safevla_bench.trajectory.batch import Batch

PACKAGE = Path(str(files("safevla_bench")))
LIBRARY = PACKAGE / "specs" / "library"
DEFAULT = tuple(
    LIBRARY / f"{name}.toml" for name in ("scene_interaction", "object_handling", "execution", "diagnostics")
)
REGISTRY = oracle.Registry(PACKAGE / "tasks" / "registry")


def read(tree: Any) -> Batch:
    return decode_json(msgspec.json.encode(tree))


def judge(trees: Iterable[Any], library: Sequence[Spec], capabilities: Sequence[str] = ()) -> list[Judgement]:
    return [
        oracle.judge(tree, library, REGISTRY.tags(tree["benchmark"], tree["task_id"], capabilities)) for tree in trees
    ]


ANGLES = ("held_object_tilt", "shared_grip_turn")


def slack(spec: Spec, value: float) -> float:
    """How far a robustness or an extreme may lie from the oracle's.

    A tilt is an arccos: near 0 and 180 degrees an error of e in the cosine is one of sqrt(2 e) in the angle, so that
    1e-14, some tens of roundings, is already 8e-6 degrees; in between it is e / sin(angle). The value is the angle, or
    its distance from one of the formula's numbers.
    """
    rounding = 1e-9 * max(1.0, abs(value))
    numbers = [atom[2] for atom in oracle.atoms(oracle.parse(spec)) if atom[1].startswith(ANGLES)]
    angles = [value, *(value + sign * number for number in numbers for sign in (-1, 1))] if numbers else []
    sines = [abs(math.sin(math.radians(angle))) for angle in angles]
    return rounding + 2 * math.degrees(1e-14 / max(min(sines), 1e-7)) if numbers else rounding


def depth_slack(spec: Spec, rho: float | None) -> float:
    return 1e-9 + (slack(spec, rho) / spec.severe if rho is not None and spec.severe else 0.0)


IDENTITY = (
    *("episode_id", "benchmark", "task_id", "policy", "success", "outcome"),
    *("standin_assets", "diverged_replay", "simulator"),
)


@dataclass
class Comparison:
    """Differences found, what each specification met, and how often a difference was excused.

    `flips`: another verdict where a margin is within 1e-9 of zero without being zero, where the order of rounding
    decides. `ties`: another worst specification where two are equally bad but for rounding.
    """

    library: Sequence[Spec]
    differences: list[str] = field(default_factory=list)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    flips: int = 0
    ties: int = 0

    def batch(self, expected: Sequence[Judgement], actual: Sequence[EpisodeScore]) -> None:
        assert len(expected) == len(actual)
        for judgement, episode in zip(expected, actual, strict=True):
            self.count(judgement)
            self.episode(judgement, episode)

    def count(self, expected: Judgement) -> None:
        for spec_id, v in expected.verdicts.items():
            state = v.state if v.state != "judged" else "violated" if v.violated else "satisfied"
            self.met[spec_id, "decided by a Boolean"] += v.violated and v.rho is None
            self.met[spec_id, state] += 1
            self.met[spec_id, "at the threshold"] += v.rho == 0
            self.met[spec_id, f"{state} on the rest"] += bool(v.unknown)

    def episode(self, expected: Judgement, actual: EpisodeScore) -> None:
        score = msgspec.to_builtins(actual)
        # Identities are tested in tests/tasks, phases in test_phases.
        optional = {"unknown_records", "task_identity", "phases", "subgoal_changes"}
        assert score.keys() - optional == expected.score.keys() - optional
        wrong = [*self.values(expected, score), *self.verdicts(expected, score)]
        self.differences += [f"{actual.episode_id}: {line}" for line in wrong]

    def values(self, expected: Judgement, actual: dict[str, Any]) -> Iterator[str]:
        """What does not hang on a sign: identity, activity, and numbers to their slack."""
        score = expected.score
        for name in IDENTITY:
            yield from unequal(name, score[name], actual[name])
        for name in ("progress", "progress_max"):
            yield from unlike(name, score.get(name), actual.get(name), 1e-12)
        for name in ("active_specs", "vacuous_specs"):
            yield from unequal(name, score[name], list(actual[name]))
        yield from unequal("inactive_specs", list(score["inactive_specs"]), list(actual["inactive_specs"]))
        for spec_id, reason in actual["inactive_specs"].items():
            yield from unreasonable(spec_id, expected.verdicts[spec_id], reason)
        yield from unequal("unknown_records", score.get("unknown_records"), actual.get("unknown_records"))
        yield from unequal("diagnostics", set(score["diagnostics"]), set(actual["diagnostics"]))
        by_id = {spec.spec_id: spec for spec in self.library}
        for name in ("robustness", "extreme", "depth"):
            yield from unequal(f"{name} of", list(score[name]), list(actual[name]))
            for spec_id, value in score[name].items():
                spec = by_id[spec_id]
                if not (spec.binary and name != "extreme"):
                    rho = score["robustness"][spec_id]
                    most = depth_slack(spec, rho) if name == "depth" else slack(spec, value or 0.0)
                    yield from unlike(f"{name} {spec_id}", value, actual[name][spec_id], most)
        for spec_id, row in score["diagnostics"].items():
            for name in ("robustness", "extreme") if not by_id[spec_id].binary else ("extreme",):
                value = actual["diagnostics"].get(spec_id, {}).get(name)
                most = slack(by_id[spec_id], row[name] or 0.0)
                yield from unlike(f"diagnostics {spec_id} {name}", row[name], value, most)

    def verdicts(self, expected: Judgement, actual: dict[str, Any]) -> Iterator[str]:
        """What hangs on a sign. One difference among them is excused where a margin is next to zero."""
        wrong = list(self.signs(expected, actual))
        if wrong and any(v.near for v in expected.verdicts.values()):
            self.flips += 1
        else:
            yield from wrong

    def signs(self, expected: Judgement, actual: dict[str, Any]) -> Iterator[str]:
        score = expected.score
        judged_fields = ("safe", "sbu", "stopped_on_violation")
        yield from unequal("no_verdict", kind(score["no_verdict"]), kind(actual["no_verdict"]))
        for name in (*judged_fields, "first_violation_step", "first_violation_spec"):
            yield from unequal(name, score[name], actual[name])
        yield from unequal("violated_specs", score["violated_specs"], list(actual["violated_specs"]))
        for spec in self.library:
            if spec.binary and spec.tier == "safe":
                for name in ("robustness", "depth"):
                    yield from unequal(f"{name} {spec.spec_id}", score[name][spec.spec_id], actual[name][spec.spec_id])
        for spec_id, row in score["diagnostics"].items():
            diagnosis = actual["diagnostics"].get(spec_id, {})
            names = ("violated", "robustness") if self.binary(spec_id) else ("violated",)
            for name in names:
                yield from unequal(f"diagnostics {spec_id} {name}", row[name], diagnosis.get(name))
        rated = {s: rho for s in self.library if (rho := score["robustness"].get(s.spec_id)) is not None}
        most = max((slack(s, rho) for s, rho in rated.items() if rho == score["rho_min"]), default=0.0)
        yield from unlike("rho_min", score["rho_min"], actual["rho_min"], most)
        yield from unlike(
            "vsi", score["vsi"], actual["vsi"], max((depth_slack(s, r) for s, r in rated.items()), default=0)
        )
        yield from self.worst(expected, actual)

    def binary(self, spec_id: str) -> bool:
        return next(spec.binary for spec in self.library if spec.spec_id == spec_id)

    def worst(self, expected: Judgement, actual: dict[str, Any]) -> Iterator[str]:
        """Another worst one is excused where it is as bad but for rounding, and worst by the judge's own numbers."""
        right, worst = expected.score["worst_spec"], actual["worst_spec"]
        margins = {k: -math.inf for k in actual["violated_specs"]}
        margins |= {k: rho for k, rho in actual["robustness"].items() if rho is not None}
        own = {s.spec_id: s.threshold for s in self.library if s.spec_id in margins}
        ratios = {k: (-actual["depth"][k], margins[k] / threshold) for k, threshold in own.items()}
        its_own = min(ratios, key=lambda k: ratios[k], default=None)
        if worst == right or worst != its_own or not {worst, right} <= ratios.keys() & expected.ratios.keys():
            yield from unequal("worst_spec", right, worst)
        elif as_bad((ratios[worst], ratios[right]), (expected.ratios[worst], expected.ratios[right])):
            self.ties += 1
        else:
            yield f"worst_spec: expected {right}, got {worst}: {expected.ratios}"


def as_bad(*judges: tuple[tuple[float, float], tuple[float, float]]) -> bool:
    """Whether rounding decides which of two is worse: by depth, or by margin where both judges see one depth."""
    same_depth = all(a[0] == b[0] for a, b in judges)
    return all(abs(a[0] - b[0]) <= 1e-5 and (not same_depth or abs(a[1] - b[1]) <= 1e-5) for a, b in judges)


def unequal(name: str, expected: Any, actual: Any) -> Iterator[str]:
    if expected != actual or type(expected) is not type(actual):
        yield f"{name}: expected {expected!r}, got {actual!r}"


def unlike(name: str, expected: float | None, actual: float | None, most: float) -> Iterator[str]:
    if expected is None or actual is None:
        yield from unequal(name, expected, actual)
    elif not abs(expected - actual) <= most:
        yield f"{name}: expected {expected!r}, got {actual!r}"


def kind(reason: str | None) -> str | None:
    """A reason without the fields that it names: which of them is to blame is told otherwise."""
    return "unknown" if reason in ("cut_off", "no_value", "pose_unknown") else reason and reason.partition(":")[0]


def unreasonable(spec_id: str, v: Verdict, reason: str) -> Iterator[str]:
    """A reason names a tag or a field that is to blame."""
    if v.state in ("no verdict", "unknown"):
        if reason not in ("past_the_end", "cut_off", "no_value", "pose_unknown"):
            yield f"{spec_id} has no verdict, but is said to be inactive for: {reason}"
    elif not any(word in reason for word in v.why):
        yield f"{spec_id} is inactive for one of {sorted(v.why)}, not: {reason}"
