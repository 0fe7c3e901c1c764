"""Specifications: formulas with thresholds and severe magnitudes, and tags that decide to which tasks they apply."""

from __future__ import annotations
