"""Write the table of attention mechanisms into the README."""

import re
from pathlib import Path

from asr.attention import mechanism_table
from asr.files import write_text

readme = Path(__file__).resolve().parent.parent / "README.md"
start, end = "<!-- mechanisms: asr.attention.mechanism_table() -->\n", "<!-- /mechanisms -->"
table = start + mechanism_table().strip() + "\n" + end
write_text(re.sub(re.escape(start) + ".*?" + end, lambda _: table, readme.read_text(), flags=re.S), readme)
