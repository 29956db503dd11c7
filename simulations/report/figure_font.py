"""The font of a report's figures: the part of DejaVu Sans, matplotlib's own font, that figures mostly use.

A PDF embeds the letters that it uses. To find them fontTools reads the rules of the whole font, for 6 253
glyphs of all scripts, which takes longer than drawing the figure; with this font it takes a fifth of that.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
from functools import cache
from pathlib import Path

FAMILY = "DejaVu Sans Report"
"""The font's own name: with the same one, matplotlib might take either of them."""

_WHOLE = "DejaVu Sans"
# Latin, Greek, punctuation to letter-like symbols, arrows and operators; the rest is in the whole font.
_UNICODE_BLOCKS = ((0x20, 0x180), (0x370, 0x400), (0x2000, 0x2150), (0x2190, 0x2300))
# A date, and rules for other scripts and for formulas; figures have neither.
_LEFT_OUT = ["FFTM", "GDEF", "GPOS", "GSUB", "MATH"]
_NAMES = {1: FAMILY, 4: FAMILY, 6: FAMILY.replace(" ", "")}


@cache
def font_families() -> list[str]:
    """What ``font.family`` of matplotlib shall be: this font, and the whole one for letters that it lacks.

    The first call of a process makes the font, in a temporary file that matplotlib reads until the end.
    """
    # It logs every table of every font that it reads, and jobs of Hydra print what is logged.
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    from fontTools import subset
    from matplotlib import font_manager

    options = subset.Options(glyph_names=True, legacy_kern=True)
    options.drop_tables += _LEFT_OUT
    whole = font_manager.findfont(font_manager.FontProperties(family=_WHOLE))
    with subset.load_font(whole, options) as font:
        letters = subset.Subsetter(options)
        letters.populate(unicodes=[code for block in _UNICODE_BLOCKS for code in range(*block)])
        letters.subset(font)
        for record in list(font["name"].names):
            if record.nameID in _NAMES:
                record.string = _NAMES[record.nameID]
        folder = Path(tempfile.mkdtemp(prefix="fl_privquant-font-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = folder / "figures.ttf"
        font.save(path)
    font_manager.fontManager.addfont(path)
    return [FAMILY, "sans-serif"]
