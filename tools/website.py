"""Pages of the site, for mkdocs.yml: the repository's documents, the reference, pictures of mechanisms."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PLACES = (
    "*.md",
    "docs/*.md",
    "docs/examples/*",
    "docs/figures/**/*.png",
    "recipes/**/*.md",
    "recipes/**/*.png",
)
PLACES += ("asr/**/*.md", "attention_ext/**/*.md")
REFERENCE = {
    "asr": [
        "asr.recognizer.Recognizer",
        *(f"asr.library.{name}" for name in ("prepare", "train", "decode", "score", "compare")),
        *(f"asr.library.outcomes.{name}" for name in ("Run", "Scores", "Comparison")),
        "asr.transcription.transcript.Transcript",
        "asr.errors.UserError",
    ],
    "attention": [
        "asr.attention.table.build_mechanism",
        "asr.attention.multihead.build_self_attention",
        "asr.attention.softmax.SoftmaxMechanism",
        "asr.attention.multihead.SelfAttention",
        "asr.attention.layer.OwnParameterLayer",
        "asr.config.option",
    ],
}
STYLE = """
.md-typeset table:not([class]) { font-size: .6rem; display: block; overflow-x: auto; }
.md-typeset pre > code { white-space: pre-wrap; }
.md-typeset h2.doc-heading code { overflow-wrap: anywhere; }
.md-typeset img.map { image-rendering: pixelated; width: 256px; max-width: 100%; border: 1px solid #8884; }
"""
MAPS = (
    ROOT / "docs" / "figures" / "mechanisms"
)  # written by tools/mechanism_pages.py, so that the site needs no PyTorch


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the addresses from GitHub's workflow; a copy of the repository builds a site of its own."""
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        owner, _, name = repository.partition("/")
        config.repo_url = f"https://github.com/{repository}"
        config.site_url = f"https://{owner}.github.io/{name}/"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the folder docs by the repository's documents under their paths, and add what is generated."""
    kept = Files([x for x in files if x.abs_src_path is None or not is_in_docs(Path(x.abs_src_path))])
    for path in sorted({path for pattern in PLACES for path in ROOT.glob(pattern) if path.is_file()}):
        kept.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    kept.append(File.generated(config, "docs/tutorial.md", content=notebook(ROOT / "docs/tutorial.ipynb")))
    kept.append(File.generated(config, "site.css", content=STYLE))
    for name, objects in REFERENCE.items():
        kept.append(File.generated(config, f"reference/{name}.md", content=reference(name, objects)))
    kept.append(File.generated(config, "mechanisms.md", content="\n".join(mechanisms())))
    return kept


def is_in_docs(path: Path) -> bool:
    """Return whether a file lies in the folder docs."""
    return path.is_relative_to(ROOT / "docs")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to the notebook lead to its page, and links to the program to the repository, if known."""
    folder = Path(page.file.src_uri).parent

    def code(match: re.Match[str]) -> str:
        path = os.path.normpath(folder / match[2])
        return f"[{match[1]}]({config.repo_url}/blob/HEAD/{path})" if config.repo_url else match[1]

    markdown = re.sub(r"\[([^][]+)\]\(([\w./]+\.py)\)", code, markdown)
    return re.sub(r"\]\(([\w./]*tutorial)\.ipynb\)", r"](\1.md)", markdown)


def notebook(path: Path) -> str:
    """Return a notebook as Markdown: texts, code and outputs, pictures included."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                png = "".join(data["image/png"]).strip()
                parts.append(f"![Output of the cell above](data:image/png;base64,{png})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))).strip():
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def reference(name: str, objects: list[str]) -> str:
    """Return a page of mkdocstrings' directives."""
    title = "`asr`" if name == "asr" else f"`asr.{name}`"
    return f"# {title}\n\n" + "\n\n".join(f"::: {x}" for x in objects) + "\n"


def mechanisms() -> Iterator[str]:
    """Yield the page of mechanisms: the table, then a picture and the description of each."""
    stored = json.loads((MAPS / "mechanisms.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
    table = text.split("<!-- mechanisms: ")[1].split("<!-- /mechanisms -->")[0].partition("-->")[2]
    yield "# Mechanisms\n"
    yield (
        f"Each picture shows what attends to what among {stored['positions']} positions of one head: queries "
        "downwards, keys to the right, dark where the weight is large. Neighbours are alike, as in speech. "
        "The pictures of mechanisms without such weights show the size of the derivative of each output "
        "with respect to each input, for random parameters.\n"
    )
    yield table.replace("](../", "](") + "\n"
    for key, (name, described) in stored["mechanisms"].items():
        place = f"{MAPS.relative_to(ROOT).as_posix()}/{key}.png"
        yield f"## {key}\n\n![What attends to what with {name}]({place}){{ .map loading=lazy }}"
        yield f"\n`{name}`\n\n::: {described}\n    options:"
        yield "      heading_level: 3\n      members: false\n"
