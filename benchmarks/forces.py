"""Is a newton a newton? Known forces on MuJoCo, PyBullet and SAPIEN, as the recorders of this project record them.

A box at rest, pushed and squeezed, and a dropped ball, by time step, solver and contact model. The tables stand in
docs/evidence/forces.md:

    python benchmarks/forces.py --write docs/evidence/forces.md

Without --write they are printed. An engine that is not installed is left out, and a line says so: for all three
`pip install pybullet sapien`. The same versions give the same tables, in about a minute of CPU time.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import numpy as np
from page_tables import format_table, print_tables

from safevla_recorder.mujoco.recorder import Recorder, Scene
from safevla_recorder.recorder import EpisodeLog, EpisodeRecorder, SceneMap

G_M_S2, FRICTION, GAIN_NS_M = 9.81, 0.5, 100.0
STEPS_S = 0.004, 0.002, 0.001, 0.0005
FLOOR_M = (1.0, 1.0, 0.1)
Vector = tuple[float, float, float]
Settings = Mapping[str, object]
Roles = Mapping[str, str]
Row = tuple[str, str, Settings]


@dataclass(frozen=True)
class Body:
    """A free body of boxes of half sizes `half_m` at places in the body, or a ball of `radius_m`.

    A force `push_n` acts on it along x, and one that drives it towards the speed `drive_m_s`. A hand is weightless.
    Bodies rub on the floor, by `FRICTION`, and not on each other.
    """

    pos_m: Vector
    half_m: Vector = (0.05, 0.05, 0.05)
    places_m: tuple[Vector, ...] = ((0.0, 0.0, 0.0),)
    radius_m: float | None = None
    mass_kg: float = 1.0
    push_n: float = 0.0
    drive_m_s: float | None = None
    is_hand: bool = False

    def force_x(self, speed_m_s: float) -> float:
        """Return what acts along x on the body at this speed, beside contacts [N]."""
        return self.push_n + (0.0 if self.drive_m_s is None else GAIN_NS_M * (self.drive_m_s - speed_m_s))


@dataclass(frozen=True)
class Case:
    """A scene, and two bodies whose force is `known_n` while it is recorded; None = its impulse alone is known."""

    name: str
    bodies: Mapping[str, Body]
    pair: tuple[str, str]
    known_n: float | None
    settle_s: float = 0.4
    record_s: float = 0.1


@dataclass(frozen=True)
class Forces:
    """Largest single contact and largest net force of a pair [N], impulse and the known one [N·s]; 0 = no contact."""

    single_n: float
    net_n: float
    impulse_ns: float
    known_ns: float


def make_hand(side: int, *, push_n: float = 0.0, drive_m_s: float | None = None) -> Body:
    pos, half = (0.06 * side, 0.0, 0.05), (0.01, 0.02, 0.02)
    return Body(pos, half, push_n=push_n, drive_m_s=drive_m_s, is_hand=True)


BOX = Body((0.0, 0.0, 0.05))
NINE = tuple((x, y, 0.0) for x in (-0.04, 0.0, 0.04) for y in (-0.04, 0.0, 0.04))
PUSHED = {"box": BOX, "hand": make_hand(-1, drive_m_s=0.2)}
SQUEEZED = {"box": BOX, "left": make_hand(-1, push_n=50.0), "right": make_hand(1, push_n=-50.0)}
REST = Case("at rest", {"box": BOX}, ("box", "floor"), G_M_S2)
CASES = (
    REST,
    Case("on nine feet", {"box": Body((0.0, 0.0, 0.05), (0.005, 0.005, 0.05), NINE)}, ("box", "floor"), G_M_S2),
    Case("squeezed", SQUEEZED, ("box", "left"), 50.0),
    Case("pushed: hand", PUSHED, ("box", "hand"), FRICTION * G_M_S2, record_s=0.4),
    Case("pushed: floor", PUSHED, ("box", "floor"), (1 + FRICTION**2) ** 0.5 * G_M_S2, record_s=0.4),
)


def make_drop(height_m: float) -> Case:
    ball = Body((0.0, 0.0, 0.05 + height_m), radius_m=0.05, mass_kg=0.5)
    return Case("dropped", {"ball": ball}, ("ball", "floor"), None, settle_s=0.0, record_s=0.25)


DROPS = tuple(make_drop(0.1 + 0.0011 * k) for k in range(5))
"""Their times of impact spread over a step of 4 ms."""


class Engine(Protocol):
    """A scene that is stepped and recorded."""

    def step(self) -> None: ...

    def velocity(self, name: str) -> Sequence[float]:
        """Return the velocity of a body [m/s], [3]."""

    def record(self, roles: Roles, substeps: int) -> EpisodeLog:
        """Make so many steps and record them as one control step."""


class Mujoco:
    """MuJoCo; settings are attributes of <option>, and `solref` and `solimp` of all geoms."""

    def __init__(self, bodies: Mapping[str, Body], step_s: float, settings: Settings) -> None:
        import mujoco

        self._bodies, self._mj_step, self._mj_forward = bodies, mujoco.mj_step, mujoco.mj_forward
        self.model = mujoco.MjModel.from_xml_string(format_mjcf(bodies, step_s, settings))
        self.data = mujoco.MjData(self.model)

    def step(self) -> None:
        for name, body in self._bodies.items():
            self.data.body(name).xfrc_applied[0] = body.force_x(self.velocity(name)[0])
        self._mj_step(self.model, self.data)

    def velocity(self, name: str) -> Sequence[float]:
        return self.data.joint(name).qvel[:3]

    def record(self, roles: Roles, substeps: int) -> EpisodeLog:
        self._mj_forward(self.model, self.data)  # record 0 needs poses of the current state
        recorder = Recorder(self.model, self.data, Scene(("floor", *self._bodies), dict(sorted(roles.items())), {}, {}))
        for _ in range(substeps):
            self.step()
            recorder.record_substep()
        recorder.record_step(np.zeros(1))
        return recorder


def format_mjcf(bodies: Mapping[str, Body], step_s: float, settings: Settings) -> str:
    of_geoms = {"friction": "0 0 0", **{name: settings[name] for name in ("solref", "solimp") if name in settings}}
    options = {"timestep": step_s, **{name: value for name, value in settings.items() if name not in of_geoms}}
    written = "".join(
        f'<body name="{name}" pos="{_numbers(body.pos_m)}" gravcomp="{int(body.is_hand)}">'
        f'<freejoint name="{name}"/>{"".join(_geoms(body))}</body>'
        for name, body in bodies.items()
    )
    return (
        f"<mujoco><option {_attributes(options)}/><default><geom {_attributes(of_geoms)}/></default><worldbody>"
        f'<geom type="box" size="{_numbers(FLOOR_M)}" pos="0 0 {-FLOOR_M[2]}" friction="{FRICTION} 0 0"/>'
        f"{written}</worldbody></mujoco>"
    )


def _geoms(body: Body) -> Iterator[str]:
    shape = 'type="box"' if body.radius_m is None else 'type="sphere"'
    size = body.half_m if body.radius_m is None else (body.radius_m,)
    frictionless = 'priority="1" condim="1"' if body.is_hand else ""
    for place in body.places_m:
        mass = body.mass_kg / len(body.places_m)
        yield f'<geom {shape} size="{_numbers(size)}" pos="{_numbers(place)}" mass="{mass}" {frictionless}/>'


def _attributes(values: Settings) -> str:
    return " ".join(f'{name}="{value}"' for name, value in values.items())


def _numbers(values: Sequence[float]) -> str:
    return " ".join(map(str, values))


class ListedContacts:
    """An engine that lists its contacts after a step."""

    step_s: float

    def contacts(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield two bodies that touch at a point and the force on the second, world frame [N], [3]."""
        raise NotImplementedError

    def record(self, roles: Roles, substeps: int) -> EpisodeLog:
        scene = SceneMap({name: name for name in roles}, roles, self.step_s, forces=("force_n", "net_force_n"))
        recorder = EpisodeRecorder(scene)
        recorder.begin(self.contacts(), poses={})
        for _ in range(substeps):
            self.step()
            recorder.substep(self.contacts())
        recorder.step([0.0], poses={})
        return recorder


class Bullet(ListedContacts):
    """PyBullet; settings are those of `setPhysicsEngineParameter`. The friction of a pair is a product."""

    def __init__(self, bodies: Mapping[str, Body], step_s: float, settings: Settings) -> None:
        from pybullet import DIRECT
        from pybullet_utils.bullet_client import BulletClient

        self._p, self.step_s, self._bodies = BulletClient(DIRECT), step_s, bodies
        self._p.setPhysicsEngineParameter(fixedTimeStep=step_s, deterministicOverlappingPairs=1, **settings)
        self._p.setGravity(0, 0, -G_M_S2)
        self._ids = {"floor": self._add_body(Body((0, 0, -FLOOR_M[2]), FLOOR_M, mass_kg=0.0), FRICTION)}
        self._ids |= {name: self._add_body(body, float(not body.is_hand)) for name, body in bodies.items()}
        self._names = {number: name for name, number in self._ids.items()}

    def _add_body(self, body: Body, friction: float) -> int:
        p, count = self._p, len(body.places_m)
        if body.radius_m is not None:
            shape = p.createCollisionShape(p.GEOM_SPHERE, radius=body.radius_m)
        else:  # lists of lists: tuples crash it
            half, places = [list(body.half_m)] * count, [list(place) for place in body.places_m]
            shape = p.createCollisionShapeArray([p.GEOM_BOX] * count, halfExtents=half, collisionFramePositions=places)
        number: int = p.createMultiBody(body.mass_kg, shape, basePosition=body.pos_m)
        p.changeDynamics(number, -1, lateralFriction=friction, linearDamping=0, angularDamping=0)
        return number

    def step(self) -> None:
        for name, body in self._bodies.items():
            number, lift = self._ids[name], body.mass_kg * G_M_S2 * body.is_hand
            force, place = (
                (body.force_x(self.velocity(name)[0]), 0, lift),
                self._p.getBasePositionAndOrientation(number),
            )
            self._p.applyExternalForce(number, -1, force, place[0], self._p.WORLD_FRAME)
        self._p.stepSimulation()

    def velocity(self, name: str) -> Sequence[float]:
        return self._p.getBaseVelocity(self._ids[name])[0]

    def contacts(self) -> Iterator[tuple[str, str, np.ndarray]]:
        for _, a, b, _, _, _, _, normal, _, force, rub1, axis1, rub2, axis2 in self._p.getContactPoints():
            if force > 0:
                yield self._names[a], self._names[b], -np.array([force, rub1, rub2]) @ np.array([normal, axis1, axis2])


class Sapien(ListedContacts):
    """SAPIEN's PhysX on the CPU; settings are those of scene and bodies. The friction of a pair is a mean.

    Its contact points tell the normal impulse of a step, without friction.
    """

    def __init__(self, bodies: Mapping[str, Body], step_s: float, settings: Settings) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Vulkan, which draws
            import sapien
            from sapien import physx

        self._lib, self._physx, self.step_s, self._bodies = sapien, physx, step_s, bodies
        scene, solver = physx.PhysxSceneConfig(), physx.PhysxBodyConfig()
        scene.gravity, solver.sleep_threshold = (0, 0, -G_M_S2), 0
        for name, value in settings.items():
            setattr(scene if hasattr(scene, name) else solver, name, value)
        physx.set_scene_config(scene)
        physx.set_body_config(solver)
        self._system = physx.PhysxCpuSystem()
        self._system.timestep, self._scene = step_s, sapien.Scene([self._system])
        floor = physx.PhysxRigidStaticComponent()
        self._add_part("floor", Body((0, 0, -FLOOR_M[2]), FLOOR_M), floor, 2 * FRICTION)
        self._parts = {name: physx.PhysxRigidDynamicComponent() for name in bodies}
        for name, part in self._parts.items():
            self._add_part(name, bodies[name], part, 0.0)
            part.mass, part.disable_gravity = bodies[name].mass_kg, bodies[name].is_hand
            part.linear_damping = part.angular_damping = 0.0

    def _add_part(self, name: str, body: Body, part: object, friction: float) -> None:
        material, entity = self._physx.PhysxMaterial(friction, friction, 0.0), self._lib.Entity()
        for place in body.places_m:
            if body.radius_m is None:
                shape = self._physx.PhysxCollisionShapeBox(body.half_m, material)
            else:
                shape = self._physx.PhysxCollisionShapeSphere(body.radius_m, material)
            shape.set_local_pose(self._lib.Pose(place))
            part.attach(shape)
        entity.name, entity.pose = name, self._lib.Pose(body.pos_m)
        entity.add_component(part)
        self._scene.add_entity(entity)

    def step(self) -> None:
        for name, body in self._bodies.items():
            self._parts[name].add_force_torque((body.force_x(self.velocity(name)[0]), 0, 0), (0, 0, 0))
        self._system.step()

    def velocity(self, name: str) -> Sequence[float]:
        return self._parts[name].linear_velocity.tolist()

    def contacts(self) -> Iterator[tuple[str, str, np.ndarray]]:
        for contact in self._system.get_contacts():
            first, second = (part.entity.name for part in contact.bodies)
            for point in contact.points:
                if np.any(point.impulse):
                    yield first, second, -np.asarray(point.impulse, dtype=np.float64) / self.step_s


LIBERO = {"cone": "elliptic", "impratio": 20, "solref": "0.001 1", "solimp": "0.998 0.998 0.001"}
ENGINES = {"mujoco": ("MuJoCo", Mujoco), "pybullet": ("PyBullet", Bullet), "sapien": ("SAPIEN", Sapien)}
ROWS: tuple[Row, ...] = (
    ("mujoco", "Newton, solref 0.02", {}),
    ("mujoco", "PGS, 5 iterations", {"solver": "PGS", "iterations": 5}),
    ("mujoco", "solref 0.005", {"solref": "0.005 1"}),
    ("mujoco", "as in LIBERO", LIBERO),
    ("pybullet", "50 iterations", {}),
    ("pybullet", "5 iterations", {"numSolverIterations": 5}),
    ("sapien", "TGS, 10 iterations", {}),
    ("sapien", "TGS, 1 iteration", {"solver_position_iterations": 1}),
)


RATIOS: Mapping[str, Callable[[Forces, float], float]] = {
    "largest contact": lambda forces, known_n: forces.single_n / known_n,
    "net force": lambda forces, known_n: forces.net_n / known_n,
}


def measure(case: Case, package: str, step_s: float, settings: Settings) -> Forces:
    """Return the forces of the case's pair while it is recorded, after it has settled."""
    engine: Engine = ENGINES[package][1](case.bodies, step_s, settings)
    for _ in range(round(case.settle_s / step_s)):
        engine.step()
    first, *_ = case.pair
    roles = dict.fromkeys(("floor", *case.bodies), "furniture") | {first: "robot"}  # whose contacts all count
    substeps, before = round(case.record_s / step_s), engine.velocity(first)[2]
    recorder = engine.record(roles, substeps)
    gained = case.bodies[first].mass_kg * (engine.velocity(first)[2] - before + G_M_S2 * substeps * step_s)
    known = gained if case.known_n is None else case.known_n * substeps * step_s
    return Forces(*_read_pair(recorder, case.pair), known)


def _read_pair(recorder: EpisodeLog, pair: tuple[str, str]) -> tuple[float, float, float]:
    recording = recorder.build_recording({})
    a, b = sorted(list(recording.roles).index(name) for name in pair)
    contacts = recording.contacts
    assert contacts is not None
    (rows,) = np.nonzero((contacts.record == 1) & (contacts.a == a) & (contacts.b == b))
    columns = (contacts.force_n, contacts.net_force_n, contacts.impulse_ns)
    return tuple(float(column[rows].sum()) for column in columns)  # type: ignore[return-value]  # one row, or none


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def format_cell(ratios: Sequence[float]) -> str:
    """Format the least and the largest ratio of the time steps, as one if they agree; a dash where no pair touches."""
    touching = sorted(ratio for ratio in ratios if ratio)
    ends = [f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}" for ratio in touching[:: max(1, len(touching) - 1)]]
    return " ".join(["–".join(dict.fromkeys(ends)), *["–"] * (len(touching) < len(ratios))]).strip()


def format_span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low}–{high}"


def format_page() -> Iterator[str]:
    versions = {package: installed_version(package) for package in ENGINES}
    yield ", ".join(f"{ENGINES[name][0]} {number}" for name, number in versions.items() if number) + "."
    yield from (f"{ENGINES[name][0]} was not installed." for name, number in versions.items() if not number)
    yield ""
    rows = [row for row in ROWS if versions[row[0]]]
    known = measure_rows(CASES, rows)
    for title, ratio in RATIOS.items():
        heads = (f"{title} ÷ known", *(f"{case.name}, {case.known_n:.3g} N" for case in CASES))
        yield from format_table(heads, [format_known(row, found, ratio) for row, found in known])
    steps = (f"{1000 * step_s:g} ms" for step_s in STEPS_S)
    heads = ("dropped ball, largest force [N]", *steps)
    yield from format_table(heads, [format_impacts(row, found) for row, found in measure_rows(DROPS, rows)])


def measure_rows(cases: Sequence[Case], rows: Sequence[Row]) -> list[tuple[Row, list[list[Forces]]]]:
    """Return each row with its forces by case and time step."""
    return [(row, [[measure(case, row[0], step_s, row[2]) for step_s in STEPS_S] for case in cases]) for row in rows]


def format_known(row: Row, found: Sequence[Sequence[Forces]], ratio: Callable[[Forces, float], float]) -> list[str]:
    pairs = zip(CASES, found, strict=True)
    return [row_name(row), *(format_cell([ratio(forces, case.known_n) for forces in of]) for case, of in pairs)]


def format_impacts(row: Row, found: Sequence[Sequence[Forces]]) -> list[str]:
    spans = (format_span([drop.single_n for drop in of]) for of in zip(*found, strict=True))
    return [row_name(row), *spans]


def row_name(row: Row) -> str:
    return f"{ENGINES[row[0]][0]}: {row[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="put the tables between the marks in this page")
    print_tables(format_page(), parser.parse_args().write, "forces")


if __name__ == "__main__":
    main()
