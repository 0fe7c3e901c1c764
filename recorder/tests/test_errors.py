"""Which line of an error a user is shown."""

from __future__ import annotations

import traceback

import pytest

from safevla_recorder.errors import HostError, SafevlaError, find_exception


class MultilineError(Exception):
    """An error whose message has several lines, as those of pybind11 and PyTorch do."""


def _format(error: BaseException) -> str:
    try:
        raise error
    except BaseException:
        return traceback.format_exc()


def test_the_line_with_the_exceptions_name_is_shown_and_not_the_last_line_of_its_message() -> None:
    message = (
        "mj_fullM(): incompatible function arguments.\nHint: cast it\nInvoked with: array([0.]),\n   shape=(43, 43)"
    )
    line, remedy = find_exception(_format(MultilineError(message)))
    assert line.endswith("incompatible function arguments.")
    assert remedy == ""


def test_an_error_of_ours_gives_its_problem_and_its_remedy_without_our_modules_name() -> None:
    assert find_exception(_format(HostError("no picture", remedy="Unset MUJOCO_GL."))) == (
        "no picture",
        "Unset MUJOCO_GL.",
    )


def test_of_chained_tracebacks_the_last_counts() -> None:
    try:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise KeyError("second") from error
    except KeyError:
        assert find_exception(traceback.format_exc())[0] == "KeyError: 'second'"


def test_an_exception_that_python_ignored_does_not_hide_the_one_that_ended_the_process() -> None:
    ignored = "Exception ignored in: <function EGLGLContext.__del__>\n" + _format(AttributeError("no display"))
    assert find_exception(_format(ImportError("no EGL")) + ignored)[0] == "ImportError: no EGL"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "  File 'a.py'\nRuntimeError: CUDA error\nFor debugging: set it\nCompile with DSA",
            "RuntimeError: CUDA error",
        ),
        ("torch.OutOfMemoryError: full\nHint: smaller", "torch.OutOfMemoryError: full"),
        ("assertion: x\n  indented", "assertion: x"),
        ("it failed\nfor a reason\n", "for a reason"),
        ("the simulation diverged\n  Look for overlapping bodies.", "the simulation diverged"),
        ("    Traceback (most recent call last):\n      File\n    ValueError: deep\n", "ValueError: deep"),
        (
            "  + Exception Group Traceback (most recent call last):\n  |   File\n  | ExceptionGroup: two (2 sub)",
            "ExceptionGroup: two (2 sub)",
        ),
        ("Traceback (most recent call last):\n  File 'a.py', line 1\n    x\nKeyboardInterrupt", "KeyboardInterrupt"),
        ("", ""),
    ],
)
def test_texts_without_a_whole_traceback_give_the_line_that_names_the_error(text: str, line: str) -> None:
    assert find_exception(text)[0] == line


@pytest.mark.parametrize(("length", "shown"), [(2000, "a" * 2000), (2001, "a" * 1000 + "…" + "a" * 1000)])
def test_a_line_of_over_2000_characters_loses_its_middle(length: int, shown: str) -> None:
    assert str(SafevlaError("a" * length)) == shown
