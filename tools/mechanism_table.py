"""Write tables of mechanisms and an example into docs, and names for completion."""

import re
from pathlib import Path

from asr.attention.table import default_names, mechanism_table, option_table
from asr.files import write_text

ROOT = Path(__file__).resolve().parent.parent


def insert(table: str, name: str, path: Path) -> None:
    """Replace the table between the marks `<!-- name: … -->` and `<!-- /name -->` of a file."""
    marks = rf"(<!-- {name}: .*? -->\n).*?(<!-- /{name} -->)"
    text = re.sub(marks, lambda found: f"{found[1]}{table}\n{found[2]}", path.read_text(), flags=re.S)
    write_text(text, path)


insert(mechanism_table(), "mechanisms", ROOT / "docs" / "attention.md")
insert(option_table(), "options", ROOT / "docs" / "attention.md")
example = (ROOT / "docs" / "examples" / "nystrom.py").read_text()
insert(f"```python\n{example}```", "example", ROOT / "docs" / "attention.md")
NAMES = ROOT / "asr" / "config" / "names.py"
quoted = "".join(f'    "{name}",\n' for name in default_names())
write_text(re.sub(r"(?<=MECHANISMS = \(\n).*?(?=\)\n)", quoted, NAMES.read_text(), flags=re.S), NAMES)
