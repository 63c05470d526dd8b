"""A report that its tests share: written once, with a trained model, audio, a benchmark and a sweep."""

import json
from pathlib import Path

import pytest
from comparison import Written, make_comparison, poison

from asr.report.page import ReportOptions, write_report


def write_bench(path: Path) -> Path:
    """Write figures as `asr bench` does."""
    timings = [
        {
            "name": name,
            "length": length,
            "passes": passes,
            "clock": "cpu",
            "median_s": 1e-5 * length * factor,
            "quartiles_s": [0.9e-5 * length * factor, 1.1e-5 * length * factor],
            "per_element_us": 10.0 * factor,
            "ratio": None,
        }
        for passes in ("forward", "forward+backward")
        for length in (512, 1024)
        for name, factor in (("full", length / 512), ("i-clustered-100@reference", 1.5))
    ]
    record = {
        "options": {"batch": 1, "heads": 6, "head_dim": 64, "dtype": "float32", "device": "cpu", "seed": 7},
        "environment": {"command": ["asr", "bench"], "commit": "feedbeef" * 5, "processor": "Bench CPU"},
        "timings": timings,
        "memory_bytes": {"full": {"512": 2**21, "1024": 2**23}},
    }
    path.write_text(json.dumps(record))
    return path


def write_sweep(folder: Path) -> Path:
    """Write finished runs of masked copy."""
    for length, attention, error in ((31, "full", 0.0), (63, "full", 0.02), (31, "clustered-15", 0.6)):
        run = folder / str(length) / attention
        run.mkdir(parents=True)
        (run / "training.json").write_text(json.dumps({"dev_error_rate": error, "steps": 750}))
    return folder


@pytest.fixture(scope="session")
def written(trained: Path, tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The report of a small comparison with everything in it, in which text is hostile."""
    folder = tmp_path_factory.mktemp("compare")
    manifest = poison(tone_corpus / "test.cuts.jsonl.gz", folder)
    models = ["full", "clustered-25", "i-clustered-25", "cast-8"]
    results = make_comparison(folder, manifest, models)
    (folder / "runs/full").mkdir(parents=True)
    (folder / "runs/full/0").symlink_to(trained, target_is_directory=True)
    write_bench(folder / "bench.json")
    write_sweep(folder / "copy")
    return Written(write_report(results, folder, ReportOptions(audio=2)), results)
