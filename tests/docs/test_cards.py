"""Cards of specifications and the gallery: what they are made from is complete, and stand-ins are called so."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import safevla_bench as sb
from safevla_bench.trajectory.marks import standin_benchmarks

DOCS = Path(__file__).parents[2] / "docs"
SPECS = [spec for spec in sb.load_library() if spec.tier != "alternate"]
SCORED = [spec for spec in SPECS if spec.tier == "safe"]


def test_every_scored_specification_has_notes_on_what_does_not_count_and_no_note_is_lost():
    notes = tomllib.loads((DOCS / "tools" / "cards.toml").read_text(encoding="utf-8"))
    assert {spec.canonical_family for spec in SCORED} <= set(notes) <= {spec.canonical_family for spec in SPECS}


def test_every_scored_specification_is_counted_for_each_policy_that_was_run():
    measured = json.loads((DOCS / "tools" / "card_episodes.json").read_text(encoding="utf-8"))
    assert {spec.spec_id for spec in SCORED} <= set(measured["counts"]) <= {spec.spec_id for spec in SPECS}
    assert {"noop", "random", "scripted:careful", "scripted:hasty"} == set(measured["policies"])
    for counts in measured["counts"].values():
        for policy, (broken, judged) in counts["policies"].items():
            assert 0 <= broken <= judged <= measured["policies"][policy]


def test_every_picture_of_the_cards_is_of_a_specification_and_in_the_index():
    index = json.loads((DOCS / "images" / "cards" / "index.json").read_text(encoding="utf-8"))
    assert {path.stem for path in (DOCS / "images" / "cards").glob("*.webp")} == set(index)
    pictured = {name.rpartition("-")[0] for name in index}
    assert {spec.spec_id for spec in SCORED} <= pictured <= {spec.spec_id for spec in SPECS}


def test_a_diagnostic_specification_has_a_card_without_notes_counts_and_pictures(load_tool, monkeypatch):
    cards, library = load_tool("site_cards"), sb.load_library()
    spec = next(spec for spec in library if spec.tier == "diagnostic")
    measured = {**cards.read_measured(), "counts": {}}
    monkeypatch.setattr(cards, "NOTES", {})
    monkeypatch.setattr(cards, "read_measured", lambda: measured)
    monkeypatch.setattr(cards, "_picture_index", dict)
    card = cards.build_card(library, spec)
    assert spec.stl in card
    assert "not count" not in card
    assert "How often" not in card
    assert "```{image}" not in card


def test_an_episode_on_stand_in_assets_is_called_so_and_has_no_picture(load_tool):
    gallery = load_tool("site_gallery")
    page = gallery.build_gallery()
    for row in gallery.read_rows():
        entry = page.partition(f"### {row['title']}\n")[2].partition("\n### ")[0]
        standin = bool(standin_benchmarks(sb.open_archive(DOCS / "gallery" / f"{row['name']}.parquet")))
        assert standin == ("**Stand-in assets.**" in entry) == (row.get("host") == "robocasa")
        assert standin == ("```{image}" not in entry)
