"""Rules that compare an episode with the same episode again: it repeats, and nothing that watches changes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from safevla_bench.errors import HostError, InvalidActionError
from safevla_bench.hosts.conformance.base import Base, needs_repeatable, rule, written
from safevla_bench.hosts.conformance.trial import Tried, first_difference, run
from safevla_bench.interface import Action, EpisodeSeed, Wants


class RepeatingRules(Base):
    """The same seed and actions give the same bytes; recording, asking, rendering and bad actions change none."""

    def test_the_same_seed_and_actions_give_the_same_bytes_in_the_same_environment(self, tried: Tried) -> None:
        found = first_difference(tried.batch, tried.again)
        rule(not found, f"{tried}: a second episode in the same environment differs in {found}.")

    def test_the_same_seed_and_actions_give_the_same_bytes_in_another_environment(self, tried: Tried) -> None:
        found = first_difference(tried.batch, tried.elsewhere)
        rule(not found, f"{tried}: the same episode in another environment differs in {found}.")

    def test_recording_changes_nothing_in_the_simulation(self, tried: Tried) -> None:
        needs_repeatable(tried)
        bare = written(lambda: self.bare(tried.task, self.seed, tried.actions), "bare")
        states = tried.batch.sim_state.episode(0)
        rule(bare.shape[1:] == states.shape[1:], f"{tried}: bare states {bare.shape} are not like {states.shape}.")
        records = min(len(bare), len(states))
        same = [one.tobytes() == other.tobytes() for one, other in zip(bare[:records], states[:records], strict=True)]
        rule(all(same), f"{tried}: with the recorder the simulator's state differs from record {_first_not(same)} on.")

    def test_asking_for_the_record_midway_changes_nothing(self, tried: Tried) -> None:
        needs_repeatable(tried)

        def asked(_: Action) -> None:
            tried.env.recorded()

        found = first_difference(tried.batch, run(tried.env, self.seed, tried.actions, before=asked))
        rule(not found, f"{tried}: when recorded() is called before each step, the episode differs in {found}.")

    def test_what_a_policy_sees_changes_nothing(self, tried: Tried) -> None:
        needs_repeatable(tried)
        for wants in self.other_wants:
            found = first_difference(tried.elsewhere, self.in_another(tried.task, wants, tried.actions))
            rule(not found, f"{tried}: with {wants} the episode differs in {found}.")

    def test_images_are_of_the_wanted_size(self) -> None:
        for wants in self.other_wants:
            host = self.host()
            env = host.make(self.trials[0].task(host), wants)
            images = env.reset(self.seed).images
            env.close()
            rule(set(images) == set(wants.cameras), f"There are images of {set(images)}, wanted are {wants}.")
            for camera, image in images.items():
                fits = image.dtype == np.uint8 and image.shape == (*wants.image_size, 3)
                rule(fits, f"{camera} gives {image.dtype} {image.shape}, wanted are uint8 {wants.image_size}.")

    def test_invalid_actions_are_refused_before_the_simulator_sees_them(self, tried: Tried) -> None:
        needs_repeatable(tried)

        def refused(action: Action) -> None:
            for bad in (action[:-1], action[None], np.full_like(action, np.nan), np.full_like(action, np.inf)):
                try:
                    tried.env.step(bad)
                except InvalidActionError:
                    continue
                except Exception as error:
                    pytest.fail(f"{tried}: {bad} must raise InvalidActionError, not {error!r}.", pytrace=False)
                pytest.fail(f"{tried}: the action {bad} is accepted.", pytrace=False)

        found = first_difference(tried.batch, run(tried.env, self.seed, tried.actions, before=refused))
        rule(not found, f"{tried}: after refused actions the episode differs in {found}.")

    def test_an_initial_state_that_does_not_exist_is_a_host_error(self, tried: Tried) -> None:
        if tried.task.init_states is None:
            return
        try:
            tried.env.reset(EpisodeSeed(tried.task.init_states, 0, 0))
        except HostError:
            return
        pytest.fail(f"{tried} has {tried.task.init_states} initial states, yet another one starts.", pytrace=False)

    def test_there_is_no_step_and_no_record_before_a_reset(self, tried: Tried) -> None:
        env = self.host().make(tried.task, Wants())
        for call in (env.recorded, lambda: env.step(tried.actions[0])):
            try:
                call()
            except HostError:
                continue
            except Exception as error:
                pytest.fail(f"{tried}: before a reset it must raise HostError, not {error!r}.", pytrace=False)
            pytest.fail(f"{tried}: it works before a reset.", pytrace=False)
        env.close()


def _first_not(same: Sequence[bool]) -> int:
    return list(same).index(False) if False in same else -1
