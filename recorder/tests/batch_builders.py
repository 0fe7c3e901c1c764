"""Many worlds stepped in one recorder and in recorders of one world each, and the comparison of their episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recorder_builders import header
from safevla_recorder.batch_recorder import BatchRecorder
from safevla_recorder.episode import encode_episode
from safevla_recorder.recorder import EpisodeRecorder

HEADER = header(dt=0.01, target_object="block")


class Recorders:
    """A recorder of many worlds, and one of each world that is told the same; the episodes of both as they end."""

    def __init__(self, scene, pairs, count, share=np.array):
        self.pairs, self.share = pairs, share
        self.batch = BatchRecorder(scene, pairs, num_envs=count)
        self.single = [EpisodeRecorder(scene) for _ in range(count)]
        self.episodes, self.expected = [], []

    def begin(self, worlds, forces, torques, readings):
        ids = self.share(np.array(worlds))
        readings_of_worlds = {"torques_nm": self.share(torques), **stack(readings, self.share)}
        self.batch.begin(self.share(forces), env_ids=ids, **readings_of_worlds)
        for k in worlds:
            self.single[k].begin(self._list_contacts(forces[k]), torques_nm=torques[k], **readings[k])

    def substep(self, forces, torques):
        buffers = self.share(forces), self.share(torques)
        self.batch.substep(*buffers)
        for buffer in buffers:  # simulators use their arrays again
            buffer[:] = -1.0
        for k, recorder in enumerate(self.single):
            recorder.substep(self._list_contacts(forces[k]), torques[k])

    def step(self, actions, readings, is_done):
        for k, recorder in enumerate(self.single):
            recorder.step(actions[k], **readings[k])
        ended = self.batch.step(self.share(actions), done=self.share(is_done), **stack(readings, self.share))
        self._end(is_done, ended)

    def end(self):
        self._end(np.full(len(self.single), True), self.batch.end())

    def _end(self, is_done, ended):
        self.episodes += ended
        single = [(k, self.single[k]) for k in np.flatnonzero(is_done)]
        self.expected += [(k, recorder.build_recording(HEADER), recorder.dropped_pairs()) for k, recorder in single]

    def _list_contacts(self, forces):
        """Return what a recorder of one world is told: vectors of pairs that touch, norms along one axis."""
        vectors = forces if forces.ndim == 2 else forces[:, None] * [1.0, 0.0, 0.0]
        return [(a, b, force) for (a, b), force in zip(self.pairs, vectors) if force.any()]

    def assert_same(self):
        assert [episode.world for episode in self.episodes] == [world for world, *_ in self.expected]
        for episode, (_, recording, dropped) in zip(self.episodes, self.expected):
            assert episode.dropped_pairs() == dropped
            built = episode.build_recording(HEADER)
            own = {name: value for name, value in built.extra.get("header", {}).items() if name != "declared_pairs"}
            built = replace(built, extra={"header": own} if own else {})
            assert encode_episode(built) == encode_episode(recording)


def stack(parts, share):
    """Return the readings of single worlds as those of a batch: tuples and mappings stay what they are."""
    if isinstance(parts[0], dict):
        return {name: stack([part[name] for part in parts], share) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(stack(list(each), share) for each in zip(*parts))
    return None if parts[0] is None else share(np.stack(parts))
