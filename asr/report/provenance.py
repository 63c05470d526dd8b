"""Provenance of figures: from a comparison, from run folders, or from an `environment.json`."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from asr.experiment.results import Results
from asr.report.figure import Provenance
from asr.report.words import hardware_words

SPLITS_SHOWN = 6


def of_results(results: Results) -> Provenance:
    """Return command, commit, seeds, hardware and manifest hashes of a comparison."""
    seeds = sorted({seed for candidate in results.candidates for seed in candidate.seeds})
    digests: dict[str, Any] = results.environment.get("data") or {}
    digests = {name: split.hash for name, split in results.data.items()} or digests
    hashes = [f"{name} {str(value)[:12]}" for name, value in digests.items()]
    if len(hashes) > SPLITS_SHOWN:
        hashes = [*hashes[:SPLITS_SHOWN], f"and {len(hashes) - SPLITS_SHOWN} more"]
    source = of_environment(
        {**results.environment, "command": shlex.join(results.command)}, _listed(seeds), _listed(hashes)
    )
    # Models may have been trained at other commits, or on other machines of a cluster.
    done = [training for training in results.trainings if training.status == "done"]
    commits = _commits(training.commit for training in done)
    machines = "; ".join(dict.fromkeys(training.hardware for training in done if training.hardware))
    if commits not in ("", source.commit):
        source = replace(source, commit=f"{source.commit}, trained at {commits}")
    if machines not in ("", source.hardware):
        source = replace(source, hardware=f"{source.hardware}, trained on {machines}")
    return source


def of_environment(environment: dict[str, Any], seeds: str, data: str) -> Provenance:
    """Return the provenance for an environment in the form of `asr.environment`."""
    command = environment.get("command") or ""
    words = command if isinstance(command, str) else shlex.join(map(str, command))
    return Provenance(
        words, _commits([environment.get("commit")]) or "unknown", seeds, hardware_words(environment), data
    )


def _commits(commits: Iterable[str | None]) -> str:
    """Return the distinct commits, abbreviated."""
    known = dict.fromkeys(commit for commit in commits if commit)
    return _listed(x[:10] + (" (with changes)" if x.endswith("+") else "") for x in known)


def _listed(entries: Iterable[Any]) -> str:
    return ", ".join(map(str, entries))
