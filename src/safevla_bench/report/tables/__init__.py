"""Builders of tables: each turns results into a `Table`, a value that `report.render` and the page print."""

from __future__ import annotations
