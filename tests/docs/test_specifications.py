"""The page of specifications is what the data say."""

from __future__ import annotations

from safevla_bench.specs.file_formats import built_in_tags
from safevla_bench.specs.loader import load_library
from safevla_bench.tasks import loader


def test_every_specification_tag_template_and_suite_is_on_it(load_tool):
    page = load_tool("generate").build_page()
    registry = loader.load_registry()
    for spec in load_library():
        assert f"`{spec.spec_id}`" in page
    for name in (*built_in_tags(), *registry.templates):
        assert f"`{name}`" in page
    for suite in registry.benchmarks.values():
        assert (f"`{suite.name}`" in page) == (suite.host != "fake")


def test_every_table_has_as_many_cells_as_heads(load_tool):
    heads = 0
    for line in load_tool("generate").build_page().splitlines():
        if not line.startswith("|"):
            heads = 0
            continue
        cells = line.replace("\\|", "").count("|")
        heads = heads or cells
        assert cells == heads, line
