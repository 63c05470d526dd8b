"""The report that most tests read, with a trained model, audio and a benchmark."""

from pathlib import Path

import pytest
from comparison import make_comparison, poison, write_bench

from asr.report.page import ReportOptions, write_report


@pytest.fixture(scope="session")
def written(trained: Path, tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a small comparison with all sections and hostile text."""
    folder = tmp_path_factory.mktemp("compare")
    manifest = poison(tone_corpus / "test.cuts.jsonl.gz", folder)
    models = ["full", "clustered-25", "i-clustered-25", "cast-8"]
    results = make_comparison(folder, manifest, models)
    (folder / "runs/full").mkdir(parents=True)
    (folder / "runs/full/0").symlink_to(trained, target_is_directory=True)
    write_bench(folder / "bench.json")
    return write_report(results, folder, ReportOptions(audio=2))
