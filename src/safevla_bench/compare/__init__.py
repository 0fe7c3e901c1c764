"""Comparison of policies: on paired episodes if both ran the same ones, else on the tasks that both ran."""

from __future__ import annotations
