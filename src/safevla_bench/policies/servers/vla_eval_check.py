"""What a model server of vla-evaluation-harness asks of its client, and whether a dialect gives it.

The harness sets its benchmark up by the `observation_params` of a server's greeting, and warns where its `action_spec`
is another than the benchmark's. A client that did neither would be wrong in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from safevla_bench.errors import PolicyError
from safevla_bench.policies.servers.dialect import Dialect

CLOSES = ("binary_close_positive", "raw")
"""How a server's gripper may be described for one that opens below 0 and closes else."""
_SHORTEST, _KEPT = "vla-eval-libero-shortest", "vla-eval-libero"
_ROTATION = "eef_axis_angle"


def granted(greeting: Mapping[str, object], dialect: Dialect, *, chosen: bool) -> None:
    """Refuse a server that asks for what the dialect does not do.

    Args:
        greeting: the payload of its `hello`.
        dialect: what is sent, and how replies are read.
        chosen: whether the user named the dialect, and so knows of its state's and gripper's conventions.

    Raises:
        PolicyError: names the wish, and the dialect that grants it where there is one.
    """
    asked, acts = _map(greeting, "observation_params"), _map(greeting, "action_spec")
    for problem, remedy in (*_never(asked, acts), *_lacking(asked, dialect)):
        raise PolicyError(problem, remedy=remedy)
    for problem, remedy in () if chosen else _conventions(asked, acts, dialect):
        raise PolicyError(problem, remedy=remedy)


def _never(asked: Mapping[str, object], acts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    if asked.get("absolute_action") or _map(acts, "position").get("format") == "absolute_xyz":
        yield (
            "the server gives absolute poses, and this host takes changes of pose",
            "Serve a checkpoint of the latter.",
        )


def _lacking(asked: Mapping[str, object], dialect: Dialect) -> Iterator[tuple[str, str]]:
    for wish, there in (
        ("send_state", any(field.state for field in dialect.fields)),
        ("send_wrist_image", len(dialect.wants.cameras) > 1),
    ):
        if asked.get(wish) and not there:
            remedy = f"Pass --policy-arg dialect={_SHORTEST} or dialect={_KEPT}: docs/servers.md says which."
            yield f"the server asks for {wish}, which the dialect {dialect.name!r} does not send", remedy


def _conventions(
    asked: Mapping[str, object], acts: Mapping[str, object], dialect: Dialect
) -> Iterator[tuple[str, str]]:
    kept = any(_ROTATION in field.state for field in dialect.fields)
    if asked.get("send_state") and kept and not asked.get("quat_no_antipodal"):
        problem = "the server asks for states without quat_no_antipodal: the harness would make their rotation shortest"
        where = f"dialect={_KEPT} where the evaluation it is compared with sets quat_no_antipodal"
        yield problem, f"Pass --policy-arg dialect={_SHORTEST}, as the harness does; or {where}."
    gripper = _map(acts, "gripper").get("format", CLOSES[0])
    if gripper not in CLOSES:
        problem = f"the server describes its gripper as {gripper}, and this client opens below 0 and closes else"
        yield problem, "Serve it with a gripper of that kind; or name the dialect, if you know its words to be wrong."


def _map(outer: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}
