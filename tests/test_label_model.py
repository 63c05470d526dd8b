"""The model of label sequences: its table is the n-gram model that `asr lm` would estimate, spelled out."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from asr import label_model
from asr.label_model import estimate_label_model, label_log_probs
from asr.lm.arpa import write_arpa
from asr.lm.kneser_ney import estimate

SIZE = 8


def sequences(count: int = 300) -> list[list[int]]:
    """Labels that mostly go up by one; 7 never occurs."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(count):
        labels = [int(random.integers(1, 7))]
        for _ in range(int(random.integers(0, 9))):
            labels.append(labels[-1] % 6 + 1 if random.random() < 0.8 else int(random.integers(1, 7)))
        found.append(labels)
    return found


def backed_off(path: Path) -> dict[tuple[str, ...], tuple[float, float]]:
    """Read log10 probability and back-off weight of every n-gram of an ARPA file."""
    found = {}
    for line in path.read_text().splitlines():
        fields = line.split("\t")
        if len(fields) > 1:
            weight = float(fields[2]) if len(fields) > 2 else 0.0
            found[tuple(fields[1].split())] = float(fields[0]), weight
    return found


@pytest.mark.parametrize(("cells", "order"), [(10, 1), (100, 2), (1000, 3)])
def test_the_table_is_the_model_of_the_arpa_file(
    cells: int, order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle backs off in the file, step by step (Katz, as ARPA defines it)."""
    monkeypatch.setattr(label_model, "CELLS", cells)
    table = estimate_label_model(sequences(), SIZE)
    assert table.shape == (SIZE,) * order
    text = [[str(label) for label in labels] for labels in sequences()]
    write_arpa(estimate(text, max(2, order), map(str, range(1, SIZE))), tmp_path / "labels.arpa")
    ngrams = backed_off(tmp_path / "labels.arpa")

    def oracle(context: tuple[str, ...], label: str) -> float:
        if (*context, label) in ngrams:
            return ngrams[(*context, label)][0]
        return ngrams.get(context, (0.0, 0.0))[1] + oracle(context[1:], label)

    contexts = {1: [()], 2: [(0,), (3,), (7,)], 3: [(0, 0), (0, 2), (1, 2), (5, 3), (7, 7)]}[order]
    for context in contexts:
        names = tuple("<s>" if label == 0 else str(label) for label in context)
        names = names[1:] if names[:2] == ("<s>", "<s>") else names
        for label in range(1, SIZE):
            assert float(table[(*context, label)]) == pytest.approx(
                oracle(names, str(label)) * math.log(10), abs=1e-4
            )


def test_labels_are_scored_after_those_before_them_and_anew_after_a_pause() -> None:
    table = estimate_label_model(sequences(), SIZE)
    ids = torch.tensor([1, 2, 3, 1, 2])
    pauses = torch.tensor([False, False, False, True, False])
    found = label_log_probs(table, ids, pauses)
    expected = [table[0, 0, 1], table[0, 1, 2], table[1, 2, 3], table[0, 0, 1], table[0, 1, 2]]
    assert torch.equal(found, torch.stack(expected))
    whole = label_log_probs(table, ids, torch.zeros(5, dtype=torch.bool))
    assert whole[3] == table[2, 3, 1]
    assert label_log_probs(table, ids[:0], pauses[:0]).shape == (0,)


def test_without_transcripts_all_labels_are_alike() -> None:
    assert torch.allclose(estimate_label_model([[], []], 5).exp(), torch.full((5,), 0.25))
