"""The page of specifications is what the data say, and a changed datum changes it."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from safevla_bench.specs.file_formats import built_in_tags
from safevla_bench.specs.loader import library
from safevla_bench.tasks import loader


@pytest.fixture(scope="module")
def generate(request) -> ModuleType:
    module_spec = importlib.util.spec_from_file_location(
        "generate", request.config.rootpath / "docs" / "tools" / "generate.py"
    )
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generate):
    assert generate.PAGE.read_text(encoding="utf-8") == generate.build_page(), "run python docs/tools/generate.py"


def test_the_check_tells_an_outdated_page(generate, tmp_path, monkeypatch, capsys):
    assert generate.main(["--check"]) == 0
    monkeypatch.setattr(generate, "PAGE", tmp_path / "specifications.md")
    assert generate.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    generate.PAGE.write_text("# Something else\n", encoding="utf-8")
    assert generate.main(["--check"]) == 1
    assert generate.main(["nonsense"]) == 2


def test_every_specification_tag_template_and_suite_is_on_it(generate):
    page = generate.build_page()
    registry = loader.registry()
    for spec in library():
        assert f"`{spec.spec_id}`" in page
    for name in (*built_in_tags(), *registry.templates):
        assert f"`{name}`" in page
    for suite in registry.benchmarks.values():
        assert (f"`{suite.name}`" in page) == (suite.host != "fake")


def test_every_table_has_as_many_cells_as_heads(generate):
    heads = 0
    for line in generate.build_page().splitlines():
        if not line.startswith("|"):
            heads = 0
            continue
        cells = line.replace("\\|", "").count("|")
        heads = heads or cells
        assert cells == heads, line
