"""Episodes for tests: a plain one to alter, and a hypothesis strategy for any."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from safevla_bench.signals import derive_signals
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.trajectory.batch import Batch, concatenate_batches
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.channels import POSES, ROWS, recorded_forces
from safevla_recorder.episode import ContactList, EpisodeArrays
from safevla_recorder.identity import official_suites

ROLES = {"link7": "robot", "hand": "robot", "bowl": "target", "plate": "bystander", "drawer": "furniture"}
LINK, HAND, BOWL, PLATE, DRAWER = range(5)


def header(**changes: Any) -> Header:
    fields: dict[str, Any] = {
        "episode_id": "libero-goal/task_8/ep_000",
        "benchmark": "libero-goal",
        "task_id": "task_8",
        "success": True,
        "dt": 0.05,
        "target_object": "bowl",
        "policy": "test",
        "embodiment": "Panda",
    }
    return Header(**{**fields, **changes})


def official_fields(benchmark: str, task_id: str) -> dict[str, Any]:
    """The fields that prove an official task; {} for any other."""
    suite = official_suites().get(benchmark)
    if suite is None or task_id not in suite.tasks:
        return {}
    task, ((distribution, version), sources) = suite.tasks[task_id], next(iter(suite.sources.items()))
    return {
        "instruction": task.instruction,
        "task_sha256": task.task_sha256,
        "init_states_sha256": task.init_states_sha256,
        "task_source": {"distribution": distribution, "version": version, "sources_sha256": sources},
    }


def header_fields(**changes: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(header(**changes))


def contacts(*rows: tuple[int, int, int, float]) -> ContactList:
    """Contacts from (record, a, b, force) rows, sorted by record."""
    ordered = sorted(rows, key=lambda row: row[0])
    record, a, b, force = zip(*ordered, strict=True) if ordered else ((), (), (), ())
    return ContactList(
        record=np.array(record, dtype=np.int64),
        a=np.array(a, dtype=np.int64),
        b=np.array(b, dtype=np.int64),
        force_n=np.array(force, dtype=np.float64),
        impulse_ns=np.full(len(ordered), np.nan),
        net_force_n=np.full(len(ordered), np.nan),
    )


def rest_positions(n: int) -> np.ndarray[Any, Any]:
    """Bowl, plate and drawer where they stand, [n, 3, 3]."""
    return np.tile([[0.5, 0.0, 0.8], [0.6, 0.1, 0.8], [0.9, 0.0, 0.7]], (n, 1, 1))


def recording(n: int = 12, **changes: Any) -> EpisodeArrays:
    """A still scene with every family, n records: bowl, plate and drawer at rest, no contact, no grip."""
    header_changes = {name: changes.pop(name) for name in list(changes) if name in Header.__struct_fields__}
    fields: dict[str, Any] = {
        "header": header_fields(**header_changes),
        "roles": ROLES,
        "records": n,
        "eef_pos_m": np.tile([0.4, 0.0, 1.0], (n, 1)),
        "eef_quat_wxyz": np.tile([1.0, 0.0, 0.0, 0.0], (n, 1)),
        "pos_bodies": (BOWL, PLATE, DRAWER),
        "body_pos_m": rest_positions(n),
        "quat_bodies": (BOWL, PLATE),
        "body_quat_wxyz": np.tile([1.0, 0.0, 0.0, 0.0], (n, 2, 1)),
        "contacts": contacts(),
        "joint_torque_nm": np.ones((n, 7)),
        "gripper_contact": np.zeros(n, dtype=np.bool_),
        "gripped_body": None,
        "action": np.zeros((n - 1, 7)) if n > 1 else None,
        "sim_state": None,
    }
    return EpisodeArrays(**{**fields, **changes})


def episode(n: int = 12, **changes: Any) -> Batch:
    return from_recording(recording(n, **changes))


def bodies_of_role(batch: Batch, role: str) -> set[str]:
    return {name for name, recorded in batch.body_roles(0).items() if recorded == role}


def posed_bodies(batch: Batch, name: str = "body_pos_m") -> list[str]:
    """Return the bodies whose positions (or `body_quat_wxyz`) the first episode holds, in their order."""
    return [batch.body_label(int(body)) for body in batch.poses(name).episode_poses(0)[0]]


def touching_bodies(batch: Batch) -> set[str]:
    return {batch.body_label(int(body)) for body in (*batch.contacts.a, *batch.contacts.b)}


def crash(**changes: Any) -> AbsentEpisode:
    """An episode of policy a that crashed, with no reason."""
    fields = {"episode_id": "x", "benchmark": "libero-goal", "task_id": "task_0", "policy": "a", "outcome": "crashed"}
    return AbsentEpisode(**{**fields, **changes})


def same_bits(first: Batch, second: Batch) -> bool:
    """Whether two batches hold the same episodes, bit for bit, however their body vocabularies are ordered."""
    if first.headers != second.headers or first.extra != second.extra:
        return False
    if any(list(first.body_roles(e).items()) != list(second.body_roles(e).items()) for e in range(len(first))):
        return False
    return all(
        x.tobytes() == y.tobytes() and x.dtype == y.dtype for x, y in zip(_arrays(first), _arrays(second), strict=True)
    )


def _arrays(batch: Batch) -> Sequence[np.ndarray[Any, Any]]:
    poses = [batch.poses(spec.name) for spec in POSES]
    channels = [*(batch.channel(spec.name) for spec in ROWS), *(pose.channel for pose in poses)]
    touching = batch.contacts
    return [
        *(array for channel in channels for array in (channel.values, channel.starts, channel.width)),
        *(array for pose in poses for array in (pose.body, pose.body_starts)),
        *(batch.starts, batch.body_starts, batch.body_role, batch.target),
        *(touching.present, touching.starts, touching.a, touching.b),
        *(touching.force_n, touching.impulse_ns, touching.net_force_n, touching.net_impulse_ns),
    ]


_FINITE = st.floats(-1e100, 1e100)
_NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)


def _floats(draw: st.DrawFn, *shape: int) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape))
    return np.array(draw(st.lists(_FINITE, min_size=size, max_size=size)), dtype=np.float64).reshape(shape)


def _quats(draw: st.DrawFn, *shape: int) -> np.ndarray[Any, Any]:
    quats = _floats(draw, *shape, 4)
    quats[~quats.any(axis=-1)] = [1.0, 0.0, 0.0, 0.0]
    return quats


@st.composite
def recordings(draw: st.DrawFn, episode_id: str = "e") -> EpisodeArrays:
    """Any valid episode of up to five records: families come and go, numbers are any finite float64."""
    n = draw(st.integers(1, 5))
    names = draw(st.lists(_NAMES, min_size=1, max_size=5, unique=True))
    kinds = draw(
        st.lists(st.sampled_from(["robot", "bystander", "furniture"]), min_size=len(names), max_size=len(names))
    )
    roles = {**dict(zip(names, kinds, strict=True)), names[0]: "target"}
    posed = draw(st.lists(st.integers(0, len(names) - 1), unique=True))
    oriented = draw(st.lists(st.integers(0, len(names) - 1), unique=True))
    arms = draw(st.sampled_from([1, 1, 2, 3]))
    joints = draw(st.sampled_from([None, 2, 7]))
    width = draw(st.integers(1, 3))
    forces = draw(st.sampled_from([None, ("force_n",), ("force_n", "net_force_n"), ("net_force_n",)]))

    def maybe(make: Any) -> Any:
        return make() if draw(st.booleans()) else None

    positions = maybe(lambda: _floats(draw, n, len(posed), 3))
    tracked = draw(st.lists(st.sampled_from(posed), unique=True)) if posed and positions is not None else []
    stamps = np.cumsum(draw(st.lists(st.floats(1e-3, 5.0), min_size=n, max_size=n)))
    return EpisodeArrays(
        header=header_fields(
            episode_id=episode_id,
            target_object=draw(st.sampled_from([None, names[0]])),
            dt=draw(st.floats(1e-3, 1.0)),
            success=draw(st.booleans()),
            joint_torque_limit_nm=(5.0, 6.0) * arms if joints == 2 else None,
            instruction=draw(st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=8)),
            seed=draw(st.none() | st.integers(-5, 2**40)),
            dropped_pairs=draw(st.sampled_from([None, (), ((names[0], names[-1]),)])),
            forces=forces,
            **(_arm_fields(arms, joints, roles) if arms > 1 else {}),
        ),
        roles=roles,
        records=n,
        eef_pos_m=maybe(lambda: _floats(draw, n, 3 * arms)),
        eef_quat_wxyz=maybe(lambda: _quats(draw, n * arms).reshape(n, -1)),
        pos_bodies=posed,
        body_pos_m=positions,
        quat_bodies=oriented,
        body_quat_wxyz=maybe(lambda: _quats(draw, n, len(oriented))),
        contacts=maybe(lambda: _contacts(draw, n, len(names), recorded_forces(forces))),
        joint_torque_nm=None if joints is None else _floats(draw, n, joints * arms),
        gripper_contact=maybe(lambda: _truths(draw, *([n, arms] if arms > 1 else [n]))),
        gripped_body=maybe(lambda: _places(draw, len(names), *([n, arms] if arms > 1 else [n]))),
        action=maybe(lambda: _floats(draw, n - 1, width)) if n > 1 else None,
        sim_state=maybe(lambda: _floats(draw, n, width)),
        extra=draw(
            st.sampled_from([{}, {"header": {"note": "é", "big": 10**30}}, {"steps": {"0": {"rgb": [1, 2.5]}}}])
        ),
        further=draw(st.sampled_from([{}, {"time_s": stamps}])),
        valid_bodies=tracked,
        pose_valid=_truths(draw, n, len(tracked)) if tracked else None,
        **draw(_handling(n, len(names))),
    )


@st.composite
def _handling(draw: st.DrawFn, n: int, bodies: int) -> dict[str, Any]:
    """Any of the channels of support, opening and entry, of any bodies."""
    makers = {"supported": _truths, "opening": _floats, "entered": _truths}
    chosen = draw(st.lists(st.sampled_from([*makers]), unique=True))
    listed = {name: draw(st.lists(st.integers(0, bodies - 1), unique=True)) for name in chosen}
    rows = {name: makers[name](draw, n, len(listed[name])) for name in chosen}
    return {**rows, **{f"{name}_bodies": places for name, places in listed.items()}}


def _arm_fields(arms: int, joints: int | None, roles: dict[str, str]) -> dict[str, Any]:
    names = tuple(f"arm {k}" for k in range(arms))
    bodies = {body: names[k % arms] for k, body in enumerate(roles) if roles[body] == "robot"}
    return {
        "schema_version": 2,
        "arms": names,
        "arm_bodies": bodies or None,
        "arm_joints": None if joints is None else (joints,) * arms,
    }


def _places(draw: st.DrawFn, bodies: int, *shape: int) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape))
    places = draw(st.lists(st.integers(-1, bodies - 1), min_size=size, max_size=size))
    return np.array(places, dtype=np.int64).reshape(shape)


def _truths(draw: st.DrawFn, *shape: int) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape))
    return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=np.bool_).reshape(shape)


def _contacts(draw: st.DrawFn, n: int, bodies: int, forces: Sequence[str]) -> ContactList:
    if bodies < 2:
        return contacts()
    body = st.integers(0, bodies - 1)
    pairs = st.tuples(body, body).filter(lambda pair: pair[0] != pair[1])
    force = st.floats(0, 1e100)
    rows = draw(st.lists(st.tuples(st.integers(0, n - 1), pairs, force, st.none() | force), max_size=6))
    ordered = sorted(rows, key=lambda row: row[0])
    impulse = [np.nan if row[3] is None else row[3] for row in ordered]
    force_n = np.array([row[2] for row in ordered], dtype=np.float64)
    net_force_n = force_n if forces == ("net_force_n",) else draw(st.floats(0, 2)) * np.minimum(force_n, 1e99)
    return ContactList(
        record=np.array([row[0] for row in ordered], dtype=np.int64),
        a=np.array([row[1][0] for row in ordered], dtype=np.int64),
        b=np.array([row[1][1] for row in ordered], dtype=np.int64),
        force_n=force_n,
        impulse_ns=np.array(impulse, dtype=np.float64),
        net_force_n=net_force_n if "net_force_n" in forces else np.full(len(ordered), np.nan),
        net_impulse_ns=np.array(impulse, dtype=np.float64) * draw(st.sampled_from([0.5, np.nan])),
    )


def numbers_in(text: str) -> list[float]:
    """Return the numbers in a text, in order, without those in names such as `task_0`."""
    found = re.findall(r"(?<![\w.])[-\N{MINUS SIGN}]?\d+(?:\.\d+)?", text)
    return [float(number.replace("\N{MINUS SIGN}", "-")) for number in found]


def derive(batch: Batch | Sequence[Batch], name: str) -> np.ndarray:
    """Return one signal, [N], of a batch, or of several that are joined."""
    joined = batch if isinstance(batch, Batch) else concatenate_batches(batch)
    return derive_signals(joined, [name])[name]
