"""Rules that compare an episode with the same episode again: it repeats, and observing it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from safevla_bench.errors import HostError, InvalidActionError
from safevla_bench.hosts.conformance.base import (
    HostRules,
    TrialRun,
    call_hook,
    first_difference,
    require,
    run_actions,
    skip_unless_repeatable,
)
from safevla_bench.interface import Action, EpisodeSeed, Wants


class RepeatRules(HostRules):
    """The same seed and actions give the same bytes; recording, asking, rendering and bad actions change none."""

    def test_the_same_seed_and_actions_give_the_same_bytes_in_the_same_environment(self, run: TrialRun) -> None:
        difference = first_difference(run.batch, run.again)
        require(not difference, f"{run}: a second episode in the same environment differs in {difference}.")

    def test_the_same_seed_and_actions_give_the_same_bytes_in_another_environment(self, run: TrialRun) -> None:
        difference = first_difference(run.batch, run.elsewhere)
        require(not difference, f"{run}: the same episode in another environment differs in {difference}.")

    def test_recording_changes_nothing_in_the_simulation(self, run: TrialRun) -> None:
        skip_unless_repeatable(run)
        bare = call_hook(lambda: self.bare(run.task, self.seed, run.actions), "bare")
        states = run.batch.sim_state.episode_rows(0)
        require(bare.shape[1:] == states.shape[1:], f"{run}: bare states {bare.shape} are not like {states.shape}.")
        records = min(len(bare), len(states))
        same = [
            bare_state.tobytes() == state.tobytes()
            for bare_state, state in zip(bare[:records], states[:records], strict=True)
        ]
        require(
            all(same),
            f"{run}: with the recorder the simulator's state differs from record {_first_false(same)} on.",
        )

    def test_asking_for_the_record_midway_changes_nothing(self, run: TrialRun) -> None:
        skip_unless_repeatable(run)

        def read_record(_: Action) -> None:
            run.env.recorded()

        difference = first_difference(run.batch, run_actions(run.env, self.seed, run.actions, before=read_record))
        require(
            not difference,
            f"{run}: when recorded() is called before each step, the episode differs in {difference}.",
        )

    def test_what_a_policy_sees_changes_nothing(self, run: TrialRun) -> None:
        skip_unless_repeatable(run)
        for wants in self.other_wants:
            difference = first_difference(run.elsewhere, self.run_elsewhere(run.task, wants, run.actions))
            require(not difference, f"{run}: with {wants} the episode differs in {difference}.")

    def test_images_are_of_the_wanted_size(self) -> None:
        for wants in self.other_wants:
            host = self.host()
            env = host.make(self.trials[0].find_task(host), wants)
            images = env.reset(self.seed).images
            env.close()
            require(set(images) == set(wants.cameras), f"There are images of {set(images)}, wanted are {wants}.")
            for camera, image in images.items():
                fits = image.dtype == np.uint8 and image.shape == (*wants.image_size, 3)
                require(fits, f"{camera} gives {image.dtype} {image.shape}, wanted are uint8 {wants.image_size}.")

    def test_invalid_actions_are_refused_before_the_simulator_sees_them(self, run: TrialRun) -> None:
        skip_unless_repeatable(run)

        def try_bad_actions(action: Action) -> None:
            for bad in (action[:-1], action[None], np.full_like(action, np.nan), np.full_like(action, np.inf)):
                try:
                    run.env.step(bad)
                except InvalidActionError:
                    continue
                except Exception as error:
                    pytest.fail(f"{run}: {bad} must raise InvalidActionError, not {error!r}.", pytrace=False)
                pytest.fail(f"{run}: the action {bad} is accepted.", pytrace=False)

        difference = first_difference(run.batch, run_actions(run.env, self.seed, run.actions, before=try_bad_actions))
        require(not difference, f"{run}: after refused actions the episode differs in {difference}.")

    def test_an_initial_state_that_does_not_exist_is_a_host_error(self, run: TrialRun) -> None:
        if run.task.init_states is None:
            return
        try:
            run.env.reset(EpisodeSeed(run.task.init_states, 0, 0))
        except HostError:
            return
        pytest.fail(f"{run} has {run.task.init_states} initial states, yet another one starts.", pytrace=False)

    def test_there_is_no_step_and_no_record_before_a_reset(self, run: TrialRun) -> None:
        env = self.host().make(run.task, Wants())
        for call in (env.recorded, lambda: env.step(run.actions[0])):
            try:
                call()
            except HostError:
                continue
            except Exception as error:
                pytest.fail(f"{run}: before a reset it must raise HostError, not {error!r}.", pytrace=False)
            pytest.fail(f"{run}: it works before a reset.", pytrace=False)
        env.close()


def _first_false(same: Sequence[bool]) -> int:
    return list(same).index(False) if False in same else -1
