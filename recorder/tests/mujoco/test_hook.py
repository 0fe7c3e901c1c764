"""Hooks on methods pass calls on, and stay with the object that they were put on."""

from __future__ import annotations

import copy

import pytest

from safevla_recorder.mujoco.hook import undo_all, wrap_method


class Counter:
    def __init__(self):
        self.count, self.seen = 0, 0

    def step(self):
        self.count += 1
        return self.count


@pytest.mark.parametrize("hooks", [1, 2])
def test_a_deep_copy_of_a_hooked_object_acts_on_itself_and_is_not_hooked(hooks):
    counter, seen = Counter(), []

    def note(original, *args):
        seen.append(original)
        return original(*args)

    undo = [wrap_method(counter, "step", note) for _ in range(hooks)]
    other = copy.deepcopy(counter)
    assert (other.step(), counter.count, len(seen)) == (1, 0, 0)
    assert (counter.step(), other.count, len(seen)) == (1, 1, hooks)
    undo_all(undo)
    assert (counter.step(), len(seen)) == (2, hooks)
    assert "step" not in vars(counter)


def test_a_hook_on_a_class_is_given_the_instance():
    undo = wrap_method(Counter, "step", lambda original, counter: -original(counter))
    assert Counter().step() == -1
    undo()
    assert Counter().step() == 1
