"""File names for policies, whose names may hold any character."""

from __future__ import annotations

import hashlib
import re

PAGES, REPORTS = "policies", "reports"
PAGE_NAME = re.compile(r"(?:[a-z0-9-]+-)?[0-9a-f]{12}\.html")
"""Matches the names that `file_name` makes, and no others."""
_MAX_PLAIN_LENGTH = 40
_RUN_KIND, _PUBLISHED_KIND = "run", "published"
"""A policy of a user's run is not the published one of that name."""


def file_name(kind: str, policy: str) -> str:
    """Return a file name: the plain characters of the policy's name, and a digest of the whole name.

    It holds no separator and one dot. Two names never collide, even where case does not count. It does not depend on
    the other policies of the board.

    >>> file_name("run", "../pi0.5")
    'pi0-5-b16f5d9922c5.html'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", policy.lower()).strip("-")[:_MAX_PLAIN_LENGTH].strip("-")
    digest = hashlib.sha256(f"{kind}\0{policy}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{plain}-{digest}.html" if plain else f"{digest}.html"


def run_page_path(policy: str | None) -> str:
    """Return the path of the page of a policy of a user's runs; None stands for records without a policy's name."""
    return f"{PAGES}/{_run_file_name(policy)}"


def report_path(policy: str | None) -> str:
    """Return the path of the report of a policy of a user's runs."""
    return f"{REPORTS}/{_run_file_name(policy)}"


def published_page_path(policy: str) -> str:
    """Return the path of the page of a published policy."""
    return f"{PAGES}/{file_name(_PUBLISHED_KIND, policy)}"


def _run_file_name(policy: str | None) -> str:
    return file_name(_RUN_KIND, policy) if policy is not None else file_name("unnamed run", "")
