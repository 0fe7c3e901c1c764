"""Forward dynamics that computes again only what may have changed since the last call; the results have the same bits.

robosuite computes the forward dynamics of one state up to three times in a substep: before the action, in the
controller and in `mj_step`. Kinematics, collisions and velocities depend on the state and the model alone, so that the
second and third call need not repeat them. Actuation and constraint forces are solved in every call: controls and
applied forces may be others, and each solution is where the solver starts the next time.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Tuple

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.mujoco.hook import undo_all, wrap_method

if TYPE_CHECKING:
    import mujoco

_Span = Tuple[int, int]
"""Address and size of some memory, in bytes."""
_INPUTS = ("TIME", "QPOS", "QVEL", "MOCAP_POS", "MOCAP_QUAT", "USERDATA", "PLUGIN", "EQ_ACTIVE")
"""The parts of MuJoCo's state (`mjtState`) that positions and velocities depend on."""
_OUTPUTS = (
    *("xpos", "xquat", "subtree_com", "ten_length", "actuator_length", "crb", "qM", "qLD"),
    *("actuator_velocity", "cvel", "qfrc_bias", "qfrc_passive"),
)
"""Of what these stages leave, the arrays that betray whoever computed another state in between, or reset the data."""
_LEFT_OUT = ("_", "bvh_", "mat_", "mesh_", "name", "skin_", "tex_")
"""Arrays of a model, megabytes of them, that nothing writes after compilation or that only pictures depend on, by how
they begin."""
_HALVES = ("step1", "step2")
"""A substep in two halves, as RoboCasa's resets make it."""
_CALLBACKS = ("passive", "contactfilter", "sensor")
"""Those that MuJoCo calls in the skipped stages."""
_ALIGNMENT = 64
_libc = ctypes.CDLL("msvcrt" if os.name == "nt" else None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def skip_repeated_stages(simulation: Any) -> ForwardDynamics | None:
    """Make robosuite's `MjSim` compute only what may have changed, in `forward` and `step`, until `undo`. None, and
    nothing is hooked, if somebody has replaced these methods, whose calls would be lost, or if MuJoCo is too old.
    """
    import mujoco

    if {"forward", "step", *_HALVES} & set(vars(simulation)) or not hasattr(mujoco, "mj_getState"):
        return None
    return ForwardDynamics(simulation)


class ForwardDynamics:
    """The forward dynamics of one simulation.

    Whether anything has changed is read off the memory itself, not off who was called: the state with mocap bodies and
    switches of constraints, the model but for meshes and materials, the options, and what the last call has left.
    Under other integrators than Euler's, with callbacks, plugins or flexible bodies, every call is MuJoCo's own.
    """

    def __init__(self, simulation: Any) -> None:
        """Hook `forward`, `step` and its halves; nothing is computed."""
        import mujoco

        self._mujoco, self._simulation = mujoco, simulation
        self._model, self._data = model, data = simulation.model._model, simulation.data._data
        self._spec = sum(int(getattr(mujoco.mjtState, f"mjSTATE_{name}", 0)) for name in _INPUTS)
        self._state = np.empty(mujoco.mj_stateSize(model, self._spec))
        self._skipped = int(mujoco.mjtStage.mjSTAGE_VEL)
        self._callbacks = [getattr(mujoco, f"get_mjcb_{name}") for name in _CALLBACKS]
        self._may_trust = self._is_trusted = False
        self._expects_trust = False  # whether the next full call is that of a substep like the last
        self._is_usable = self._is_kept = False  # whether there was a full call, and memory is kept to compare with
        self._time_s, self._inputs, self._counts = 0.0, b"", (0, 0)  # of that call
        outputs = [getattr(data, name) for name in _OUTPUTS if hasattr(data, name)]
        self._memory = _MemoryCopy([*_model_spans(model), *_join_spans(outputs)])
        wrappers: dict[str, Callable[..., object]] = {"forward": self._forward, "step": self._step}
        wrappers.update({name: self._step_half for name in _HALVES if hasattr(simulation, name)})
        self._hooks = [wrap_method(simulation, name, wrapper) for name, wrapper in wrappers.items()]
        self._own = {name: vars(simulation)[name] for name in wrappers}

    def undo(self) -> None:
        """Give the simulation its methods back."""
        undo_all(self._hooks)

    def trust(self, code_between: bool) -> None:
        """Compare nothing but the time until the substep ends if `code_between` its calls is known to write to controls
        alone, and no hook of others is called there.
        """
        is_outermost = all(map(self._is_outermost, self._own))
        self._may_trust = self._is_trusted = code_between and is_outermost and self._is_supported()

    def trust_again(self) -> None:
        """Do as the last `trust`, in another substep of the same control step."""
        self._is_trusted = self._may_trust

    def _is_outermost(self, name: str) -> bool:
        method: Any = vars(self._simulation).get(name)
        while name != "forward" and getattr(method, "is_only_after", False):
            method = method.__wrapped__
        return method is self._own[name]

    def _forward(self, full_forward: Callable[[], object]) -> None:
        if self._is_unchanged():
            self._mujoco.mj_forwardSkip(self._model, self._data, self._skipped, 0)
            return
        full_forward()
        self._time_s, self._is_usable = self._data.time, True
        self._is_kept = not self._expects_trust and self._is_supported()
        self._expects_trust = False
        if self._is_kept:
            self._inputs, self._counts = self._read_inputs(), (self._data.ncon, self._data.nefc)
            self._memory.take()

    def _step(self, full_step: Callable[..., object], *args: object, **kwargs: object) -> None:
        functions, model, data = self._mujoco, self._model, self._data
        functions.mj_checkPos(model, data)
        functions.mj_checkVel(model, data)
        if self._is_unchanged():
            functions.mj_forwardSkip(model, data, self._skipped, 0)
            functions.mj_checkAcc(model, data)
            functions.mj_Euler(model, data)
        else:
            full_step(*args, **kwargs)
        self._expects_trust, self._is_trusted, self._is_usable = self._is_trusted, False, False

    def _step_half(self, half: Callable[[], None]) -> None:
        self._is_trusted = self._is_usable = False
        half()

    def _is_supported(self) -> bool:
        kinds, options, model = self._mujoco.mjtEnableBit, self._model.opt, self._model
        is_euler = options.integrator == self._mujoco.mjtIntegrator.mjINT_EULER
        flags = int(options.enableflags) & ~int(getattr(kinds, "mjENBL_MULTICCD", 0))
        is_plain = not model.nplugin and not getattr(model, "nflex", 0) and not self._has_callbacks()
        return bool(is_euler and not flags and is_plain)

    def _has_callbacks(self) -> bool:
        return any(callback() for callback in self._callbacks)

    def _is_unchanged(self) -> bool:
        if not self._is_usable or self._data.time != self._time_s:
            return False
        has_time = self._time_s > 0  # it tells that MuJoCo has reset an unstable state
        return (self._is_trusted and has_time) or (
            self._is_kept
            and self._inputs == self._read_inputs()
            and self._counts == (self._data.ncon, self._data.nefc)
            and self._memory.is_current()
            and not self._has_callbacks()
        )

    def _read_inputs(self) -> bytes:
        self._mujoco.mj_getState(self._model, self._data, self._state, self._spec)
        return self._state.tobytes()


class _MemoryCopy:
    """A copy of some memory, to be compared with what is there now: a few microseconds for 100 kB."""

    def __init__(self, spans: Iterable[_Span]) -> None:
        """Copy nothing yet; the memory belongs to others, who must outlive this."""
        self._copies = [(address, ctypes.create_string_buffer(size), size) for address, size in spans]

    def take(self) -> None:
        for address, copy, size in self._copies:
            ctypes.memmove(copy, address, size)

    def is_current(self) -> bool:
        memcmp = _libc.memcmp
        return not any(memcmp(address, copy, size) for address, copy, size in self._copies)


def _model_spans(model: mujoco.MjModel) -> Iterator[_Span]:
    """Yield the memory of a model's arrays, and of its options with a few of their neighbours in the same structure."""
    values = (getattr(model, name) for name in dir(model) if not name.startswith(_LEFT_OUT))
    yield from _join_spans(value for value in values if isinstance(value, np.ndarray))
    first, last = _address(model.opt.gravity), _address(model.opt.o_solimp)
    yield first - 64, last + 160 - (first - 64)


def _join_spans(arrays: Iterable[NDArray[np.generic]]) -> list[_Span]:
    """Return the memory of some arrays, neighbours joined."""
    joined: list[_Span] = []
    for start, size in sorted((_address(array), array.nbytes) for array in arrays if array.size):
        if joined and start - sum(joined[-1]) < _ALIGNMENT:
            first = joined.pop()[0]
            start, size = first, start + size - first
        joined.append((start, size))
    return joined


def _address(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])
