"""Where a figure comes from, in words: of a comparison, or of an `environment.json`."""

import shlex
from typing import Any

from asr.compare.results import Results
from asr.report.figure import Provenance

SPLITS_SHOWN = 6


def of_results(results: Results) -> Provenance:
    """Return command, commit, seeds, hardware and hashes of the manifests of a comparison."""
    seeds = sorted({seed for candidate in results.candidates for seed in candidate.seeds})
    hashes = [f"{name} {split.hash[:12]}" for name, split in results.data.items()]
    if len(hashes) > SPLITS_SHOWN:
        hashes = [*hashes[:SPLITS_SHOWN], f"and {len(hashes) - SPLITS_SHOWN} more"]
    command = shlex.join(results.command)
    return of_environment(
        {**results.environment, "command": command}, ", ".join(map(str, seeds)), ", ".join(hashes)
    )


def of_environment(environment: dict[str, Any], seeds: str, data: str) -> Provenance:
    """Return the provenance of what ran in an environment as `asr.environment` describes it."""
    command = environment.get("command") or ""
    words = command if isinstance(command, str) else shlex.join(map(str, command))
    commit = environment.get("commit") or "unknown"
    short = commit[:10] + (" (with changes)" if commit.endswith("+") else "")
    return Provenance(words, short, seeds, hardware(environment), data)


def hardware(environment: dict[str, Any]) -> str:
    """Return processor, cores, threads and GPUs in words."""
    parts = [str(environment.get("processor") or environment.get("machine") or "unknown")]
    cores, threads = environment.get("cores"), environment.get("threads")
    if cores:
        parts.append(f"{cores} cores" if cores != 1 else "1 core")
    if threads:
        parts.append(f"{threads} threads" if threads != 1 else "1 thread")
    gpus = environment.get("gpus") or []
    parts += [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    return ", ".join(parts)
