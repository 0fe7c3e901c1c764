"""Specifications: formulas with thresholds and severities, and the tags that decide where they apply."""

from __future__ import annotations
