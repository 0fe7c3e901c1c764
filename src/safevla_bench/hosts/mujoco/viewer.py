"""A recorded MuJoCo episode to be looked at, set from the record's `sim_state`, and how its scene is begun again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts.mujoco.geometry import (
    WELL_SHOWN,
    azimuth_deg,
    choose_camera,
    close_ups,
    extract_geometry,
    find_touches,
    focus,
    shares,
)
from safevla_bench.hosts.mujoco.renderer import ROBOSUITE, Appearance, Renderer
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.stage import Camera, Picture, SceneGeometry, ScenePose
from safevla_bench.interface.task import EpisodeSeed, RecordedEpisode
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import (
    DRAWN,
    chosen_start,
    earlier_resets,
    mark_flags,
    replay_fields,
)
from safevla_recorder.episode import FIXTURES, Floats
from safevla_recorder.mujoco.scene import Scene, set_state, state_size

if TYPE_CHECKING:
    import mujoco

HAND_CAMERA = "robot0_eye_in_hand"
_SKETCH = (120, 160)


class MujocoStage:
    """One episode of a MuJoCo host, which owns the host's environment."""

    def __init__(
        self,
        model: mujoco.MjModel,
        scene: Scene,
        episode: Batch,
        camera: str,
        on_close: Callable[[], None],
        observe: Callable[[Floats, Floats], Observation] | None = None,
        appearance: Appearance = ROBOSUITE,
    ) -> None:
        """Keep the episode's states and a simulation of its model; no renderer is made yet.

        Args:
            model: the episode's model, as the host's reset made it.
            scene: its naming.
            episode: the record, a batch of one with `sim_state`.
            camera: the name of the default camera.
            on_close: what frees the host's environment.
            observe: what the host's environment observes at a pose, given as qpos and qvel; None = it cannot say.
            appearance: what the model shows.

        Raises:
            HostError: the record holds no states, or those of another model.
        """
        import mujoco

        self._model, self._data, self._scene = model, mujoco.MjData(model), scene
        self._states, self._camera, self._on_close = read_states(episode, state_size(model)), camera, on_close
        self._observe, self._appearance = observe, appearance
        tracked, positions = episode.body_pos_m.episode_poses(0)
        self._recorded = {episode.body_label(int(body)): positions[:, place] for place, body in enumerate(tracked)}
        self._eye: Renderer | None = None
        names = {str(model.camera(number).name) for number in range(model.ncam)}
        self.further_cameras = (HAND_CAMERA,) if HAND_CAMERA in names - {camera} else ()
        self.arm = tuple(scene.body_name[body] for body in model.dof_bodyid[list(scene.arm_dofs)])

    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> Camera:
        """Return the default camera if it shows every body well, or `bodies` is empty, else a close-up that shows them
        nearly best. Renders sketches to find out; `size` (height, width) is that of the picture to come.

        Raises `HostError` if the model has no such body or nothing can be rendered.
        """
        usual = Camera(self._camera)
        if not bodies:
            return usual
        self._set(record)
        self._open_renderer(size)  # at once as large as the picture will be
        if (shares(self._render_sketch(usual, bodies), len(bodies)) >= WELL_SHOWN).all():
            return usual
        owners = self._model.geom_bodyid
        groups = [np.flatnonzero(np.isin(owners, self._body_ids(name))) for name in bodies]
        where, radius = focus(self._model, self._data, groups)
        cameras = list(close_ups(where, radius, azimuth_deg(self._model, self._data, self._camera)))
        return choose_camera(cameras, [shares(self._render_sketch(camera, bodies), len(bodies)) for camera in cameras])

    def render(self, record: int, camera: Camera, size: tuple[int, int], bodies: Sequence[str] = ()) -> Picture:
        """Return the picture of one record from one camera; its `seen` has 1 and on for the places in `bodies`, else 0.

        Raises `HostError` if the model has no such body or nothing can be rendered, and `KeyError` if it has no camera
        of that name.
        """
        self._set(record)
        eye = self._open_renderer(size)
        eye.look(self._data, camera)
        seen = self._locate_bodies(eye, bodies, size) if bodies else np.zeros(size, dtype=np.uint8)
        return Picture(eye.image(size), seen, self._current_positions())

    def observe(self, record: int) -> Observation | None:
        """Return the host's own observation of a record, without images; None if the host cannot say."""
        if self._observe is None:
            return None
        self._set(record)
        return self._observe(self._data.qpos.copy(), self._data.qvel.copy())

    def geometry(self) -> SceneGeometry:
        """Return the model's visible shapes, and its default camera as at record 0."""
        self._set(0)
        shown = {name: tuple(self._visible_body_ids(name)) for name in sorted(set(self._scene.body_name))}
        stand_ins = {name: parts for name, parts in shown.items() if self._scene.body_name[parts[0]] != name}
        return extract_geometry(
            self._model, self._data, self._scene, self._camera, self._appearance, stand_ins=stand_ins
        )

    def pose(self, record: int) -> ScenePose:
        """Return where the model's bodies are in a record, and which of them touch in that state."""
        self._set(record)
        touches = find_touches(self._model, self._data, self._scene)
        return ScenePose(self._data.xpos.copy(), self._data.xquat.copy(), touches, self._current_positions())

    def close(self) -> None:
        """Free the renderers and the host's environment."""
        if self._eye is not None:
            self._eye.close()
        self._eye = None
        self._on_close()

    def _set(self, record: int) -> None:
        """Bring the model into the record's instant.

        A record's poses are those at the start of the last substep, where MuJoCo computed them, and its state is the
        one at the end (see `mujoco.Recorder`): positions are taken back by one substep, which is exact but for rounding
        because MuJoCo moved them by the new velocity. Without a substep before record 0 the state is already right: for
        this record, whichever of the two is nearer to the recorded positions.
        """
        self._pose(record, -self._model.opt.timestep)
        if record == 0:
            gap = self._position_error_m(0)
            self._pose(0, 0.0)
            if gap <= self._position_error_m(0):
                self._pose(0, -self._model.opt.timestep)

    def _pose(self, record: int, later_s: float) -> None:
        import mujoco

        model, data = self._model, self._data
        set_state(model, data, self._states[record])
        mujoco.mj_integratePos(model, data.qpos, data.qvel, later_s)
        mujoco.mj_forward(model, data)

    def _position_error_m(self, record: int) -> float:
        shown = self._current_positions()
        gaps = [np.linalg.norm(shown[name] - at[record]) for name, at in self._recorded.items() if name in shown]
        return float(sum(gaps))

    def _current_positions(self) -> Mapping[str, Floats]:
        objects = {name: self._data.xpos[body].copy() for name, body in self._scene.objects.items()}
        return objects | {name: self._data.xipos[body].copy() for name, body in self._scene.links.items()}

    def _open_renderer(self, size: tuple[int, int]) -> Renderer:
        """Return a renderer for pictures of that size; a larger one replaces the smaller, since each holds every
        texture again.
        """
        if self._eye is None or (np.array(self._eye.size) < size).any():
            least = self._eye.size if self._eye else _SKETCH
            if self._eye is not None:
                self._eye.close()
            largest = (max(least[0], size[0]), max(least[1], size[1]))
            self._eye = Renderer(self._model, largest, self._appearance)
        return self._eye

    def _render_sketch(self, camera: Camera, bodies: Sequence[str]) -> NDArray[np.uint8]:
        eye = self._open_renderer(_SKETCH)
        eye.look(self._data, camera)
        return self._locate_bodies(eye, bodies, _SKETCH)

    def _locate_bodies(self, eye: Renderer, bodies: Sequence[str], size: tuple[int, int]) -> NDArray[np.uint8]:
        place = np.zeros(self._model.nbody + 1, dtype=np.uint8)  # the last is for -1, nothing
        for number, name in enumerate(bodies, start=1):
            place[self._visible_body_ids(name)] = number
        return place[eye.bodies(size)]

    def _body_ids(self, name: str) -> list[int]:
        bodies = [body for body, other in enumerate(self._scene.body_name) if other == name]
        if not bodies:
            problem = f"the model has no body {name!r}"
            raise HostError(problem, remedy="Render with the versions that run.json names.")
        return bodies

    def _visible_body_ids(self, name: str) -> list[int]:
        bodies, owners = self._body_ids(name), self._model.geom_bodyid
        is_visual = np.isin(self._model.geom_group, list(self._appearance.groups))
        while not (np.isin(owners, bodies) & is_visual).any() and bodies != [0]:
            bodies = [int(self._model.body_parentid[bodies[0]])]
        return bodies


def read_states(episode: Batch, width: int) -> Floats:
    """Return the states of a batch of one, [n, width]; raises `HostError` if it holds none, or those of another
    model.
    """
    states = episode.sim_state.episode_rows(0)
    if not len(states):
        remedy = "Only records with `sim_state` can be shown; those that `safevla eval` writes have it."
        raise HostError("the record holds no simulator states", remedy=remedy)
    if states.shape[1] != width:
        problem = f"the record's states hold {states.shape[1]} numbers, the model here {width}"
        raise HostError(problem, remedy="Render with the versions that run.json names.")
    return states


def episode_seed(episode: Batch) -> EpisodeSeed:
    """Return the seed that makes the episode's scene again; nothing settles, since states are set.

    A replay that began at a recorded state is begun there again; so is an episode of somebody's own loop that names no
    seed or initial state, with the fixtures if its record has them. Raises `HostError` if the record names neither kind
    of start, or its fixtures are not poses.
    """
    header = episode.headers[0]
    if header.env_seed is None or header.init_state_index is None:
        replayed = _read_recorded_start(episode)
        if replayed is not None:
            return EpisodeSeed(0, header.env_seed or 0, wait_steps=0, recorded=replayed)
    if header.env_seed is None or header.init_state_index is None:
        lacking = [name for name in ("env_seed", "init_state_index") if getattr(header, name) is None]
        remedy = "It places what `sim_state` does not hold, such as fixtures. In your own loop call env.seed(N) before "
        remedy += "each reset; `safevla eval` does."
        raise HostError(f"the record does not name {' and '.join(lacking)}", remedy=remedy)
    (resets,) = earlier_resets(episode)
    (drawn,) = mark_flags(episode, DRAWN)
    index, placed = chosen_start(episode)
    return EpisodeSeed(
        index or 0, header.env_seed, wait_steps=0, earlier_resets=resets, drawn=bool(drawn), placed=placed
    )


def _read_recorded_start(episode: Batch) -> RecordedEpisode | None:
    (replay,) = replay_fields(episode)
    poses, states = recorded_fixtures(episode), episode.sim_state.episode_rows(0)
    if not len(states) or (not replay and not poses):
        return None
    fixtures = tuple((name, tuple(pose.tolist())) for name, pose in poses.items())
    name, source = str(replay.get("episode")), str(replay.get("source"))
    return RecordedEpisode(name, source, len(states) - 1, tuple(states[0].tolist()), fixtures=fixtures)


def recorded_fixtures(episode: Batch) -> dict[str, Floats]:
    """Return where the record says that fixtures stand: root body -> position [3] in m, quaternion [4] wxyz, in
    the world frame; {} if it says nothing of them. Raises `HostError` if what it says is not poses.
    """
    (replay,), (extra,) = replay_fields(episode), episode.extra
    header_extra = extra.get("header")
    placed = replay.get(FIXTURES) if replay else isinstance(header_extra, Mapping) and header_extra.get(FIXTURES)
    if not placed:
        return {}
    try:
        poses = msgspec.convert(placed, dict[str, Annotated[list[float], msgspec.Meta(min_length=7, max_length=7)]])
    except msgspec.ValidationError:
        remedy = "Seven numbers each: position and quaternion, w first."
        raise HostError("the record's `fixtures` are no poses", remedy=remedy) from None
    return {name: np.array(pose) for name, pose in poses.items()}
