"""LIBERO's initial states, as far as they need no LIBERO; tests/hosts/libero and tests/recording run the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_recorder import libero


@pytest.mark.parametrize(("state", "index"), [([0, 1], 0), ([2, 3], 1), ([2, 1], None), ([2, 3, 4], None)])
def test_a_state_is_an_initial_one_only_if_all_its_numbers_agree(state, index):
    env = object.__new__(libero.RecordableLibero)
    env._init_states = np.array([[0.0, 1], [2, 3], [2, 3]])
    assert env._find_state_index(state) == index
    env._init_states = None
    assert env._find_state_index(state) is None


def test_the_initial_states_of_an_own_task_are_read_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(libero, "find_suite_task", lambda _: None)
    monkeypatch.setattr(libero, "read_own_states", lambda path: np.ones((1, 3)) if path.stem == "mine" else None)
    assert libero.find_init_states(tmp_path / "mine.bddl").shape == (1, 3)
    assert libero.find_init_states(tmp_path / "other.bddl") is None
