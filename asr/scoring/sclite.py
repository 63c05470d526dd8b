"""NIST's own scoring programs, where they are installed, and the format that they read references in."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.files import atomic_text
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.hypotheses import Hypothesis

DEBIAN_FOLDER = Path("/usr/lib/sctk/bin")  # the package sctk puts its programs here, outside PATH
HUBSCR = "hubscr.pl"
SUM = re.compile(r"\|\s*Sum\s*\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s")


@dataclass(frozen=True)
class ScliteResult:
    """What sclite counted."""

    segments: int
    counts: ErrorCounts


def find_hubscr() -> Path | None:
    """Return NIST's script that filters and scores, from PATH or Debian's package `sctk`; None without."""
    found = shutil.which(HUBSCR) or shutil.which(HUBSCR, path=str(DEBIAN_FOLDER))
    return Path(found) if found else None


def run_hubscr(hubscr: Path, stm: Path, ctm: Path, glm: Path) -> ScliteResult:
    """Score with NIST's `hubscr.pl` (rules of Hub-5, English) and return its counts.

    Args:
        hubscr: as found by `find_hubscr`.
        stm: reference; its labels must be defined in its comment lines.
        ctm: hypothesis, in order of recording, channel and time.
        glm: global mapping rules.

    Raises:
        UserError: the program failed, or its report can't be read.
    """
    tools = hubscr.resolve().parent
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
        "SCTK": str(tools.parent),
    }
    with tempfile.TemporaryDirectory() as folder:
        for source, name in ((stm, "ref.stm"), (ctm, "hyp.ctm"), (glm, "rules.glm")):
            shutil.copyfile(source, Path(folder, name))
        command = [str(hubscr), "-V", "-l", "english", "-h", "hub5"]
        command += ["-g", "rules.glm", "-r", "ref.stm", "hyp.ctm"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        report = Path(folder, "hyp.ctm.filt.raw")
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    row = SUM.search(text)
    if done.returncode or row is None:
        said = [line for line in done.stderr.splitlines() if "rror" in line] or ["no report written"]
        raise UserError(f"{hubscr} on {ctm}: expected a score, found: {said[-1].strip()}")
    segments, words, _, substitutions, deletions, insertions = map(int, row.groups())
    return ScliteResult(segments, ErrorCounts(substitutions, deletions, insertions, words))


def write_trn(folder: str | Path, hypotheses: Iterable[Hypothesis]) -> tuple[Path, Path]:
    """Write `ref.trn` and `hyp.trn`: one `words (speaker-utterance)` per line, words where there are any
    and tokens otherwise. Score them with `sclite -i wsj -r ref.trn trn -h hyp.trn trn`.
    """
    reference_path, hypothesis_path = Path(folder, "ref.trn"), Path(folder, "hyp.trn")
    with atomic_text(reference_path) as references, atomic_text(hypothesis_path) as heard:
        for hypothesis in hypotheses:
            label = f"({hypothesis.speaker.replace('-', '_')}-{hypothesis.id})"
            if hypothesis.text is not None and hypothesis.reference is not None:
                reference, text = hypothesis.reference, hypothesis.text
            else:
                reference, text = " ".join(hypothesis.reference_tokens or []), " ".join(hypothesis.tokens)
            references.write(f"{reference} {label}\n")
            heard.write(f"{text} {label}\n")
    return reference_path, hypothesis_path
