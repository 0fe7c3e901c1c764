"""The kinds of policy servers, and their clients: policies that execute the action chunks of a server's model."""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import InvalidActionError, PolicyError, ReplyError, ServerRefusedError
from safevla_bench.files import read_shipped
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.plugins import install_command
from safevla_bench.policies.servers import dialects, transforms
from safevla_bench.policies.servers import endpoint as servers
from safevla_bench.policies.servers.endpoint import Endpoint, Greeting
from safevla_bench.sources.runs.folder import Repeats

_SHARED_ARGUMENTS = ("dialect", "cameras", "image_size", "connect_timeout_s", "timeout_s", "key_file")
REQUESTS = 5  # number of identical requests whose answers are compared; the first may compile the model
_READING_SIZES = {"agent_pos": 4, "joint_pos": 7, "joint_vel": 7, "gripper_qvel": 2}  # host-specific observations


class ClientKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of policy server, a row of `kinds.toml`. Its client is the policy `KIND:URL[,URL...]`."""

    name: str
    about: str
    wire: str
    dialect: str  # default dialect of the client
    schemes: tuple[str, ...] = ("ws", "wss")  # allowed schemes of an address; the first is the default
    port: int = 8000
    library: str = "websockets"
    extra: str = "openpi"
    replans: bool = True  # whether the client may execute only part of a chunk; if so, it takes the argument `replan`
    arguments: tuple[str, ...] = ()  # arguments of this kind's client, in addition to the arguments of all clients

    @property
    def example(self) -> str:
        """An example value for --policy, with the address of a server."""
        # For example `openpi:ws://HOST:8000`; `schemes[0]` is the default scheme.
        return f"{self.name}:{self.schemes[0]}://HOST:{self.port}"


_KINDS_FILE = read_shipped(__package__, "kinds.toml", dict[str, list[ClientKind]])
KINDS: Mapping[str, ClientKind] = {kind.name: kind for kinds in _KINDS_FILE.values() for kind in kinds}


class ChunkModel(ABC):
    """A model that is queried in a dialect. It is the attribute `model` of a `ChunkedPolicy`."""

    infer_s: float | None = None  # time that the model took for the last reply [s], if the server reports it
    has_answered = False  # whether any reply was usable; an unusable first reply stops the whole run

    def __init__(self, dialect: dialects.Dialect) -> None:
        # `dialect` converts observations to requests, and replies to actions; its `wants` lists needed observations.
        self.dialect, self.wants = dialect, dialect.wants
        self.greeting: Greeting = {}  # the server's sanitized description of itself
        self.env_seed: int | None = None  # the simulator's seed that the server requests, if any

    def connect(self, task: Task) -> None:
        """Begin an episode before an environment is made. This connects to the server and checks the dialect."""
        self.begin(task, 0)  # the seed has no effect here, because each episode begins again

    def ask_arguments(self) -> Mapping[str, str]:
        """Return the client arguments that the server requests; {} if it requests none. Then close the connection.
        Raises `ServerLostError` if no server answers.
        """
        # The default, {}, is for models without a server, or with a server that cannot be asked.
        return {}

    @abstractmethod
    def begin(self, task: Task, seed: int) -> None:
        """Connect to the server, begin an episode, and set `greeting`.

        Raises:
            ServerUnreachableError: no server answers.
            ServerLostError: a server answers, and then disappears or stops answering.
            ServerRefusedError: the server is of another kind, or requires another key or dialect.
        """
        # `seed` is the policy's seed for the episode.

    @abstractmethod
    def query(self, observation: Observation) -> dialects.Reply:
        """Return the model's raw reply to an observation. Raises `ServerLostError` if the server disappears or is
        silent; `PolicyError` if the server fails, the reply is unreadable, or the observation does not fit the dialect.
        """

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return the model's actions, [H, A]; raise the errors of `query`, and `ReplyError` for unreadable actions."""
        return self.dialect.read_actions(self.query(observation))  # `query` returns the raw reply

    def close(self) -> None:  # noqa: B027  (not every model has a connection)
        """Close the connection, if there is one."""
        # By default, nothing is closed, because some models use no connection.


class RemoteModel(ChunkModel):
    """A model on a policy server, the first of the endpoint's servers that answers. `kind` is a key of `KINDS`."""

    kind: str

    def __init__(self, endpoint: Endpoint, dialect: dialects.Dialect, arguments: Mapping[str, str]) -> None:
        # No connection is made yet. `address` is the first server to try. Subclasses use the policy's `arguments`.
        super().__init__(dialect)
        self.address, self.key, self._endpoint = endpoint.addresses[0], endpoint.key, endpoint
        # The requests for which the environment was made, see `_requested`; None before `connect`.
        self._agreed: object = None

    @property
    def _requested(self) -> object:
        # What the server requests for an environment: observations (`wants`), clipping, and the simulator's seed.
        return self.wants, self.dialect.inference.clip, self.env_seed

    def connect(self, task: Task) -> None:
        # Connect before an environment is made. Later connections must request the same.
        self._agreed = None
        self._connect()
        self._agreed = self._requested

    def begin(self, task: Task, seed: int) -> None:
        """Begin an episode on a new connection: the server may have restarted. Raises `ChunkModel.begin`'s errors."""
        self._connect()

    def _connect(self) -> None:
        # Connect to the first server that answers. If an environment was made before, it must fit this server, too.
        with servers.guard_handshake(self.close):
            self.close()  # end the last connection, if there was one
            self.address = servers.find_server(self._endpoint, self._try_connect)
            self._greet()  # may change `wants` and the dialect
            if self._agreed not in (None, self._requested):
                problem = f"the server {self.address} requests other observations, actions or another seed than before"
                raise PolicyError(problem, remedy="The server was restarted with another model. Resume the run.")

    @abstractmethod
    def _try_connect(self, address: str, until: float) -> str | None:
        """Try to connect until the monotonic time `until`. Return None on success, else the reason for the failure."""

    @abstractmethod
    def _greet(self) -> None:
        """Exchange greetings over a new connection, and set `greeting`."""

    def server_error(self, reason: object) -> PolicyError:
        """Return the error for a server's failure; `reason` is a text, or a map with a `message`."""
        message = reason.get("message", reason) if isinstance(reason, Mapping) else reason
        return servers.server_error(self.address, str(message), self.key)

    def kind_error(self, event: str) -> PolicyError:
        """Return the error for a server that may be of another kind. `event` is the server's mistake: `sent no map`."""
        remedy = f"The address must belong to {KINDS[self.kind].about}."
        return ReplyError(f"the server {self.address} {event}", remedy=remedy)


class ChunkQueue:
    """A queue of a chunk's remaining actions, for policies that compute several actions at a time."""

    def __init__(self) -> None:
        # A chunk is the list of actions in one answer of a model. The actions are executed one by one.
        self.remaining: deque[Action] = deque()  # the chunk's remaining actions
        # The number of the episode's chunks, and the number of actions that were taken from the last chunk.
        self._chunk_count = self._taken_count = 0
        self.chunk_step: tuple[int, int] | None = None
        """Index of the last action's chunk, and the action's index in it. None if no single chunk has the action."""

    def begin_chunks(self) -> None:
        """Discard the actions of the last episode, and count chunks from 0."""
        # Call this at the start of each episode.
        self.remaining.clear()
        self._chunk_count = 0

    def add_chunk(self, actions: Iterable[Action]) -> None:
        """Append a new chunk; the queue must be empty."""
        # `_taken_count` is the number of actions that were taken from the newest chunk.
        self.remaining.extend(actions)
        self._chunk_count, self._taken_count = self._chunk_count + 1, 0

    def take_next(self) -> Action:
        """Remove and return the next action."""
        # Record where the action comes from: the index of its chunk, and its index in the chunk, both from 0.
        self.chunk_step = self._chunk_count - 1, self._taken_count
        self._taken_count += 1
        return self.remaining.popleft()

    @property
    def looks_next(self) -> bool:
        # Whether the next action needs images. Only the computation of a new chunk reads images.
        return not self.remaining

    def take_rest(self) -> list[Action]:
        # Return and discard the remaining actions of the chunk; [] if there are none.
        rest, self.remaining = list(self.remaining), deque()
        return rest


class ChunkedPolicy(ChunkQueue):
    """A policy that executes the first `replan` actions of each chunk (None = all), then queries the model again.
    `calls_s` holds the duration of each inference since the last reset [s]. `waits_s` holds the part of each duration
    that is spent outside the model. `dialect` is stored in the run's description. `clip`: actions outside the host's
    range are clipped, as in the model's project.
    """

    def __init__(self, model: ChunkModel, replan: int | None) -> None:
        """Wrap a model, without connecting. If `replan` is None, all actions of each chunk are executed."""
        # A dialect with an `ensemble` of N averages the predictions of the last N replies.
        super().__init__()
        self.calls_s: list[float] = []
        self.waits_s: list[float] = []
        self.model, self._replan = model, replan
        self._follow_model()
        # The arrays of the last replies, oldest first, for dialects that average replies.
        self._replies = deque[list[NDArray[np.float64]]](maxlen=model.dialect.file.ensemble or 1)

    @property
    def greeting(self) -> Greeting:
        """The self-description of the model's server; {} before the connection, or without a server."""
        return self.model.greeting

    @property
    def env_seed(self) -> int | None:
        """The simulator's seed that the model's server requests, if any."""
        # None = the server requests no seed.
        return self.model.env_seed

    def connect(self, task: Task) -> None:
        """Connect to the model's server, if it has one, and update `wants` and `clip`; raise the model's errors."""
        self.model.connect(task)
        self._follow_model()

    def reset(self, task: Task, seed: int) -> None:
        # Begin an episode, which may connect again to the model's server.
        self.begin_chunks()
        self.calls_s, self.waits_s = [], []
        self._replies.clear()
        self.model.begin(task, seed)
        self._follow_model()

    def _follow_model(self) -> None:
        # Copy the model's `wants`, clipping and dialect, which a server's greeting may have changed.
        # Only `replan`, the number of executed actions per chunk (None = all), stays as the user chose it.
        self.wants, self.clip = self.model.wants, self.model.dialect.inference.clip
        self.dialect = replace(self.model.dialect, replan=self._replan)

    def act(self, observation: Observation) -> Action:
        """Return the next action of the current chunk, [A]. If the chunk has ended, query the model for a new one.

        Raises:
            InvalidActionError: a later reply is not an array [H, A] of real numbers.
            ServerRefusedError: the server's first reply cannot be read, has no real numbers, or has too few actions.
            PolicyError: a later reply cannot be read or has too few actions; also the errors of `ChunkModel.query`.
        """
        if not self.remaining:
            self.add_chunk(self._infer_chunk(observation))
        action = self.take_next()
        if self.dialect.file.ensemble:  # the action is a mean over several chunks, so no single chunk has it
            self.chunk_step = None
        return action

    def close(self) -> None:
        # Close the connection to the model's server, if there is one.
        self.model.close()

    def _infer_chunk(self, observation: Observation) -> NDArray[np.float64]:
        # Query the model, and return the actions to execute before the next query, [H, A]. Raises the errors of `act`.
        start_s = time.perf_counter()
        try:
            chunk = self._average_replies(observation) if self.dialect.file.ensemble else self.model.infer(observation)
            if chunk.ndim != 2 or not len(chunk):
                remedy = "The model must return an array [H, A] of H actions."
                raise InvalidActionError(f"the model gave an array of shape {chunk.shape}", remedy=remedy)
        except (ReplyError, InvalidActionError) as error:
            if self.model.has_answered:  # an earlier reply was usable, so only the current episode fails
                raise
            # A first reply that is unusable stops the whole run: all episodes would fail.
            raise ServerRefusedError(error.problem, remedy=error.remedy, place=error.place) from None
        self.calls_s.append(time.perf_counter() - start_s)
        if self.model.infer_s is not None:  # the model's time for the reply [s], as the server reports it
            self.waits_s.append(max(0.0, self.calls_s[-1] - self.model.infer_s))
        if self._replan is not None and len(chunk) < self._replan:
            problem = f"the model gives {len(chunk)} actions at a time, but replan requests {self._replan}"
            error_type = PolicyError if self.model.has_answered else ServerRefusedError
            raise error_type(problem, remedy=f"Pass --policy-arg replan={len(chunk)} or less.")
        self.model.has_answered = True
        return chunk[: self._replan]

    def _average_replies(self, observation: Observation) -> NDArray[np.float64]:
        """Return the next action, [1, A]: the average of what the last replies predict for this step."""
        # The model is queried in each step. A reply predicts this step and later steps.
        self._replies.append(self.model.dialect.read_rows(self.model.query(observation)))
        # A reply may consist of several arrays. `arrays` contains one array per reply, oldest first.
        means = [transforms.average_predictions(arrays) for arrays in zip(*self._replies, strict=True)]
        return self.model.dialect.convert_rows(means)


def parse_replan(text: str | None, default: int | None) -> int | None:
    """Return the number of executed actions per chunk; None = all. `text` is a number, `all`, or None for the
    `default`. Raises `PolicyError` for any other text, such as 0.
    """
    # `replan` is an argument of policies. A chunk is the series of actions that a model predicts in one reply.
    if text is None:
        return default
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise PolicyError(f"replan={text} is not a number of steps", remedy="Write `replan=5`, or `replan=all`.")
    return int(text)


def client_factory(
    name: str, make_model: Callable[[Endpoint, dialects.Dialect, Mapping[str, str]], ChunkModel]
) -> Callable[..., ChunkedPolicy]:
    """Return the factory of clients for servers of the kind `name`. The factory's keyword parameters are the policy's
    arguments, all as text. `make_model` receives the endpoint, the dialect, and all given arguments. The factory does
    not connect. It raises `PolicyError` if an argument is invalid or the kind's library is not installed.
    """
    # A dialect determines a request's content and how a reply is read.
    kind = KINDS[name]

    def make(arg: str | None, **arguments: str | None) -> ChunkedPolicy:
        # Return a client of the servers at `arg`: one address, or several with commas. The endpoint contains all.
        # None means an argument's default. `kind.replans` says whether a client may replace a reply before its end.
        given = {key: value for key, value in arguments.items() if value is not None}
        require_library(kind.library, kind.extra)
        endpoint = servers.parse_endpoint(arg, kind.name, kind.schemes, kind.port, given)
        dialect_name = given.get("dialect", kind.dialect)
        dialect = dialects.choose_dialect(dialect_name, kind.name, given.get("cameras"), given.get("image_size"))
        # The number of executed actions per reply; None = all. Without `replans`, the number must be None.
        replan = parse_replan(given.get("replan"), dialect.replan if kind.replans else None)
        if replan is not None and not kind.replans:
            raise PolicyError(f"{kind.name} plays whole replies", remedy="Leave replan out, or write `replan=all`.")
        return ChunkedPolicy(make_model(endpoint, dialect, given), replan)

    argument_names = ["replan", *_SHARED_ARGUMENTS, *kind.arguments]
    parameters = (inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in argument_names)
    signature = inspect.Signature([inspect.Parameter("arg", inspect.Parameter.POSITIONAL_ONLY), *parameters])
    make.__signature__ = signature  # type: ignore[attr-defined]  # callers read the policy's arguments here
    return make


def require_library(library: str, extra: str) -> None:
    """Raise `PolicyError` if the library that a client requires is not installed."""
    # `extra` is the optional part of this package that includes the library, for the remedy.
    if find_spec(library) is None:
        remedy = f"Install it: {install_command(extra)}"
        raise PolicyError(f"this policy needs the package {library}, which is not installed", remedy=remedy)


def ask_repeatedly(policy: ChunkedPolicy, task: Task) -> Repeats:
    """Send the same request several times, and count the answers that differ from the first one. Each request begins an
    episode, because a server may split chunks or have a memory. Raises the errors of `connect` and `infer`.
    """
    # The result's `asked` is the number of repetitions. `other` is the number of differing answers.
    policy.connect(task)
    replies = []
    for _ in range(REQUESTS):
        policy.model.begin(task, 0)  # connecting may change `policy.model.wants`
        replies.append(policy.model.infer(make_observation(policy.model.wants, task.instruction)))
    return Repeats(asked=len(replies) - 1, other=len(find_others(replies)))


def find_others(replies: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Return the replies, each [H, A], that differ from the first reply."""
    # NaN equals NaN here.
    return [reply for reply in replies if not np.array_equal(reply, replies[0], equal_nan=True)]


def make_observation(wants: Wants, instruction: str) -> Observation:
    """Return a fixed artificial observation: gray noise as images, and a hand above a table."""
    # An artificial observation tests a server without a simulator.
    # `wants` lists the cameras and extra observations to fill.
    pixels = np.random.default_rng(0).integers(120, 160, (*wants.image_size, 3), dtype=np.uint8)
    return Observation(
        instruction=instruction,
        eef_pos_m=np.array([-0.2, 0.0, 1.17]),
        eef_quat_wxyz=np.array([0.0, 1.0, 0.0, 0.0]),
        gripper_qpos=np.array([0.039, -0.039]),
        images=dict.fromkeys(wants.cameras, pixels),  # the same image for each camera
        base_pos_m=np.array([-0.8, 0.0, 0.7]),
        base_quat_wxyz=np.array([1.0, 0.0, 0.0, 0.0]),
        extra={name: np.zeros(_READING_SIZES[name]) for name in wants.extra if name in _READING_SIZES},
    )
