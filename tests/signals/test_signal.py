"""Rules of every derived signal."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from builders import recordings
from safevla_bench.signals import derive_signals
from safevla_bench.signals import signal as signals
from safevla_bench.signals.signal import SIGNALS, RecordFields, signal
from safevla_bench.trajectory.single_episode import from_recording


@given(st.builds(from_recording, recordings()))
def test_no_signal_is_ever_a_negative_zero(batch):
    """Values reach outputs as they are, and -0.0 there reads like a violation."""
    for fields in RecordFields(batch).views(SIGNALS):
        for name, values in derive_signals(fields, SIGNALS).items():
            assert values.dtype == np.bool_ or not (np.signbit(values) & (values == 0)).any(), name


@given(st.builds(from_recording, recordings()))
def test_a_signal_that_returns_negative_zeros_is_given_without_them(batch):
    registered = dict(SIGNALS)
    try:

        @signal(unit="1", reads=())
        def negated_nothing(fields):
            """Minus zero."""
            return -np.zeros(int(fields.batch.starts[-1]))

        assert not np.signbit(derive_signals(batch, ["negated_nothing"])["negated_nothing"]).any()
    finally:
        signals._REGISTERED.pop("negated_nothing", None)
    assert dict(SIGNALS) == registered
