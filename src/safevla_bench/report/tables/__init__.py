"""Builders of tables: each turns results into a `Table`, which `report.render` and the report page print."""

from __future__ import annotations
