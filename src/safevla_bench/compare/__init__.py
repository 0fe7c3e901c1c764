"""Comparison of policies: on paired episodes if the policies ran the same episodes, else on common tasks."""

from __future__ import annotations
