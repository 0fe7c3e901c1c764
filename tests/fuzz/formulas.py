"""Formulas: read back as they are written, robustness as the literal definitions have it, or a column."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np

from safevla_bench.errors import FormulaError, SignalError
from safevla_bench.stl.formula import Formula, format_formula
from safevla_bench.stl.parser import parse
from safevla_bench.stl.robustness import robustness, trajectory_robustness
from safevla_bench.stl.trace import Trace
from stl.oracle import KNOWN, FormulaSource, literal_trajectory, random_trace

WORDS = re.compile(r"\s+|[A-Za-z_]\w*|\d+\.?\d*(?:[eE][-+]?\d+)?|->|<=|>=|.")
OPERATORS = "G F U G[0,T] [ ] ( ) (( ! not and or -> => < <= > >= == + - -- * / , :"
OPERANDS = "T threshold true false abs min max( 0 1e309 1e-320 1e18 00 .5 5. 1e x p unknown é"
ODD = (*OPERATORS.split(), *OPERANDS.split(), "\u202e", "\x00", "\n", "\\", '"', "0.1", "9" * 400, "")


def formula(rng: Random, folder: Path) -> str:
    """A formula's text with up to three words changed."""
    drawn = np.random.default_rng(rng.randrange(2**32))
    dt_s = float(drawn.choice([0.02, 0.05, 0.1, 1 / 3, 1.0]))
    text = change_words(rng, format_formula(FormulaSource(drawn, dt_s).formula(int(drawn.integers(0, 5)))))
    known = rng.choice([KNOWN, KNOWN, None])
    try:
        read = parse(text, known)
    except FormulaError as error:
        assert error.column is not None
        assert 1 <= error.column <= len(text) + 1
        assert len(str(error)) < 2000, "a message of absurd length"
        return "refused"
    assert parse(format_formula(read), known) == read, "what is written is read as something else"
    trace = random_trace(drawn, dt_s, drawn.choice([1, 2, 3, 5, 8], size=2).tolist())
    return compare(read, trace)


def change_words(rng: Random, text: str) -> str:
    words = WORDS.findall(text)
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        place = rng.randrange(len(words) + 1)
        match rng.randrange(7):
            case 0:
                words.insert(place, rng.choice(ODD))
            case 1:
                words[place : place + 1] = []
            case 2:
                words[place : place + 1] = [rng.choice(ODD)]
            case 3:
                words = words[:place] if rng.random() < 0.5 else words[place:]
            case 4:
                depth = rng.choice([1, 5, 150, 199, 201, 3000])
                words = ["(" * depth, *words, ")" * depth]
            case 5:
                words = [rng.choice(["not ", "!", "G", "-"]) * rng.choice([2, 150, 250, 2000]), "(", *words, ")"]
            case 6:
                words = [rng.choice([" and ", " or ", " -> ", " U "]).join(["".join(words)] * rng.choice([2, 3, 40]))]
    return "".join(words)


def compare(read: Formula, trace: Trace) -> str:
    try:
        rho = trajectory_robustness(read, trace)
    except (FormulaError, SignalError) as error:
        assert error.problem
        return "refused"
    assert not np.isnan(rho).any()
    assert np.array_equal(robustness(read, trace), rho[trace.starts[:-1]])
    assert np.array_equal(rho, literal_trajectory(read, trace)), format_formula(read)
    return "right"
