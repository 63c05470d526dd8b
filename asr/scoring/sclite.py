"""NIST's own Hub-5 scoring script, if it is installed."""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from asr.errors import UserError
from asr.scoring.error_rates import ErrorCounts

DEBIAN_FOLDER = Path("/usr/lib/sctk/bin")  # where Debian's package sctk puts its programs, outside PATH
HUBSCR = "hubscr.pl"
SUM = re.compile(r"\|\s*Sum\s*\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s")


@dataclass(frozen=True)
class ScliteResult:
    """The totals of sclite's report."""

    segments: int
    counts: ErrorCounts


def find_hubscr() -> Path | None:
    """Return the path of `hubscr.pl`, from PATH or Debian's package `sctk`; None if not installed."""
    found = shutil.which(HUBSCR) or shutil.which(HUBSCR, path=str(DEBIAN_FOLDER))
    return Path(found) if found else None


def run_hubscr(hubscr: Path, stm: Path, ctm: Path, glm: Path) -> ScliteResult:
    """Score with NIST's `hubscr.pl` (Hub-5 rules, English) and return its counts.

    Args:
        hubscr: path of the script.
        stm: reference; its comment lines must define its labels.
        ctm: hypothesis, sorted by recording, channel and time.
        glm: global mapping rules.

    Raises:
        UserError: the script failed, or its report can't be parsed.
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
