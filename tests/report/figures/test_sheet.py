"""Text in figures is drawn with a font that has its letters."""

from __future__ import annotations

from dataclasses import replace

from safevla_bench.report.figures import sheet


def test_letters_that_the_font_lacks_are_drawn_with_a_font_of_the_system_or_listed(monkeypatch, caplog):
    """U+20DD is in fonts that come with matplotlib, but not in DejaVu Sans; only the font of boxes has 策."""
    with sheet.figure_style():
        assert sheet.drawable_text("plain é Ж") == "plain é Ж"
        assert sheet.rcParams["font.family"] == ["DejaVu Sans"]
        assert sheet.drawable_text("a\u20dd") == "a\u20dd"
        assert sheet.rcParams["font.family"][0] == "DejaVu Sans"
        assert len(sheet.rcParams["font.family"]) == 2
    with sheet.figure_style():
        assert sheet.rcParams["font.family"] == ["DejaVu Sans"]
    own = [entry for entry in sheet.font_manager.fontManager.ttflist if entry.name in ("DejaVu Sans", sheet._BOXES)]
    monkeypatch.setattr(sheet.font_manager.fontManager, "ttflist", own)
    sheet._find_family.cache_clear()
    sheet._warn_undrawable.cache_clear()
    assert sheet.drawable_text("策略 a") == "\ufffd\ufffd a"
    assert "'策略 a'" in caplog.text
    sheet._find_family.cache_clear()


def test_a_font_of_another_weight_draws_letters_that_no_font_of_normal_weight_has(monkeypatch):
    """Some fonts of Chinese come in one weight only, for example WenQuanYi Zen Hei in 500."""
    fonts = [entry for entry in sheet.font_manager.fontManager.ttflist if not entry.name.startswith(sheet._BOXES)]
    with sheet.figure_style():
        normal = sheet._find_family("\u20dd")
        others = [replace(entry, weight=500) if entry.name != "DejaVu Sans" else entry for entry in fonts]
        monkeypatch.setattr(sheet.font_manager.fontManager, "ttflist", others)
        sheet._find_family.cache_clear()
        assert sheet.drawable_text("a\u20dd") == "a\u20dd"
        decoy = replace(others[-1], name="A decoy", fname=next(e.fname for e in fonts if e.name == normal), weight=500)
        monkeypatch.setattr(sheet.font_manager.fontManager, "ttflist", [decoy, *fonts])
        sheet._find_family.cache_clear()
        assert sheet._find_family("\u20dd") == normal
    sheet._find_family.cache_clear()


def test_the_style_file_has_the_sizes_and_colors_that_figures_draw_with():
    with sheet.figure_style():
        style = {**sheet.rcParams}
    assert {style[key] for key in ("font.size", "axes.titlesize", "xtick.labelsize")} == {sheet.BODY}
    assert (style["legend.fontsize"], style["figure.titlesize"]) == (sheet.SMALL, sheet.TITLE)
    colors = [style[key].lstrip("#") for key in ("text.color", "axes.edgecolor", "grid.color")]
    assert colors == [color.lstrip("#") for color in (sheet.INK, sheet.MUTED, sheet.LINE)]
