"""Comparison of policies: on paired episodes if the policies ran the same ones, else on the tasks that both ran."""

from __future__ import annotations
