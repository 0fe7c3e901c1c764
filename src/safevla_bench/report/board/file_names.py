"""Names of files from names of policies, which may be anything."""

from __future__ import annotations

import hashlib
import re

PAGES, REPORTS = "policies", "reports"
OURS = re.compile(r"(?:[a-z0-9-]+-)?[0-9a-f]{12}\.html")
"""What `file_name` makes, and nothing else."""
_LONGEST = 40
_RUN, _PUBLISHED = "run", "published"
"""A policy of a user's run is not the published one of that name."""


def file_name(kind: str, policy: str) -> str:
    """A file's name: what of the policy's is plain, and a digest of all of it.

    It holds no separator and no dot but the last, cannot collide, also where case does not count, and stays the same
    whatever other policies are on the board.

    >>> file_name("run", "../pi0.5")
    'pi0-5-b16f5d9922c5.html'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", policy.lower()).strip("-")[:_LONGEST].strip("-")
    digest = hashlib.sha256(f"{kind}\0{policy}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{plain}-{digest}.html" if plain else f"{digest}.html"


def run_page(policy: str | None) -> str:
    """Where the page of a policy of a user's runs lies; None where its records name none."""
    return f"{PAGES}/{_of_run(policy)}"


def report_page(policy: str | None) -> str:
    """Where its report lies."""
    return f"{REPORTS}/{_of_run(policy)}"


def published_page(policy: str) -> str:
    """Where the page of a published policy lies."""
    return f"{PAGES}/{file_name(_PUBLISHED, policy)}"


def _of_run(policy: str | None) -> str:
    return file_name(_RUN, policy) if policy is not None else file_name("unnamed run", "")
