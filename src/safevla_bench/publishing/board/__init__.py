"""The board: a static site that ranks policies by Safety, with a user's runs apart from published results."""

from __future__ import annotations
