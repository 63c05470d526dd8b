"""Draws the tables of RESULTS.md again from the stored results of their recipes.

    python tools/results_tables.py                  # all recipes, in place
    python tools/results_tables.py recipes/stamps/RESULTS.md

A page marks where tables stand, and which: `<!-- tables: results/x.json.gz metric=cer outcome costs -->`, up
to `<!-- /tables -->`. Words name tables (without any: all of the results'), those of one split as
`differences-test`; `metric=` is the main measure. README.md has the verdict of the map between
`<!-- verdict -->` and `<!-- /verdict -->`.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

from asr.console import Table
from asr.experiment.paying import spots
from asr.experiment.results import Results, read_results
from asr.files import read_json, write_text
from asr.report.drawing import drawn
from asr.report.page import PAGE, markdown
from asr.report.tables import paying

MAP = "recipes/map/RESULTS.md"
ROOT = Path(__file__).resolve().parent.parent
SHOWN = re.compile(r"(<!-- tables: (\S+)((?: [\w=]+(?:-[\w+]+)?)*) -->\n)(.*?)(<!-- /tables -->)", flags=re.S)
VERDICT = re.compile(r"(<!-- verdict -->\n).*?(<!-- /verdict -->)", flags=re.S)


def pages() -> list[Path]:
    """Return the pages with results."""
    return sorted([*ROOT.glob("recipes/*/RESULTS.md"), *ROOT.glob("recipes/*/results/archive.md")])


def redrawn(text: str, folder: Path) -> str:
    """Return a page with its tables drawn again.

    Args:
        text: the page.
        folder: folder that the names of stored results are relative to.
    """

    def draw(match: re.Match[str]) -> str:
        start, stored, words, before, end = match.groups()
        if "format" not in read_json(folder / stored):  # a recipe's own program draws these
            return start + before + end
        return start + tables(read_results(folder / stored), words.split()) + end

    return SHOWN.sub(draw, text)


def verdict() -> str:
    """Return what pays at which length, from the rows of the map."""
    page = ROOT / MAP
    stored = dict.fromkeys(match[1] for match in SHOWN.findall(page.read_text(encoding="utf-8")))
    rows = [x for name in stored for x in spots(read_results(page.parent / name))]
    return paying.across(rows).markdown() + "\n"


def with_verdict(text: str) -> str:
    """Return README with the verdict of the map."""
    return VERDICT.sub(lambda match: f"{match[1]}{verdict()}{match[2]}", text)


def tables(results: Results, words: list[str]) -> str:
    """Return tables in Markdown: those that the words of a mark ask for, or all."""
    names = [x for x in words if "=" not in x]
    asked = dict(x.split("=", 1) for x in words if "=" in x)
    results = replace(results, protocol=results.protocol | asked)
    chosen = [x for x in drawn(results, PAGE) if isinstance(x, Table)]
    return markdown(x for x in chosen if not names or {x.key, x.key.partition("-")[0]} & set(names))


if __name__ == "__main__":
    for page in [Path(name).resolve() for name in sys.argv[1:]] or [ROOT / "README.md", *pages()]:
        text = page.read_text(encoding="utf-8")
        if (new := with_verdict(redrawn(text, page.parent))) != text:
            write_text(new, page)
            print(page.relative_to(ROOT))
