"""A synthetic comparison on disk with failures, gaps and markup in text."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis_files import write_hypotheses
from lhotse import CutSet
from tone_corpora import save_cuts

from asr.data.manifest import read_cuts
from asr.experiment.bench import row_of
from asr.experiment.differences import differences
from asr.experiment.options import BenchOptions
from asr.experiment.random_input import Problem
from asr.experiment.records import (
    Candidate,
    Conditions,
    CurvePoint,
    Evaluation,
    Failure,
    ItemErrors,
    SplitData,
    Training,
)
from asr.experiment.results import Results
from asr.experiment.speech import item_errors
from asr.measure import Seconds
from asr.report import theme
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.options import ScoreOptions
from asr.scoring.score import score

INJECTION = "<script>alert(1)</script>"
NASTY = ["</script><!--", INJECTION, "<img/src=x>", "&amp;", "~full", "${x}", "{{x}}"]
SPOKEN = "go on <b>"
PHONES = [*"BDFGKLMNPRSTVWZ", "AA", "AE", "AH", "EH", "IH", "IY", "OW", "UW"]
MODELS = {  # PER in %, forward seconds, seconds per epoch
    "full": (8.1, 9.2, 61.0),
    "shared-full": (9.4, 9.0, 60.0),
    "lsh-1": (13.9, 4.1, 33.0),
    "lsh-4": (11.2, 7.7, 52.0),
    "clustered-25": (12.6, 3.4, 29.0),
    "clustered-100": (10.9, 5.0, 38.0),
    "i-clustered-25": (8.6, 4.4, 36.0),
    "i-clustered-100": (8.3, 6.1, 45.0),
    "cast-8": (16.2, 5.5, 40.0),
    "agglomerative-8": (21.3, 3.1, 27.0),
}
LABELS = {"clustered-25": "clustered-25 <img src=x onerror=alert(1)>"}
SEEDS = {"full": [0, 1, 2], "i-clustered-25": [0, 1, 2]}


def make_comparison(
    folder: Path, manifest: Path | None = None, models: list[str] | None = None, utterances: int = 24
) -> Results:
    """Write hypotheses into a folder and return their results.

    Args:
        folder: folder of the comparison.
        manifest: manifest of the test split; None: utterances without audio.
        models: keys of `MODELS`; a failed candidate is added.
        utterances: number of utterances without a manifest.
    """
    random = np.random.default_rng(0)
    models = models or list(MODELS)
    references = _references(random, manifest, utterances)
    evaluate = [name for name in models if theme.family(name) not in ("cast", "agglomerative")]
    candidates, trainings, evaluations, measured = [], [], [], []
    for name in models:
        seeds = SEEDS.get(name, [0])
        candidates.append(_candidate(name, seeds))
        for seed in seeds:
            trainings.append(_training(random, name, seed))
            for other in dict.fromkeys([name, *evaluate]):
                if other == name or _exchangeable(name, other):
                    measured.append(_evaluation(random, folder, name, seed, other, references))
                    evaluations.append(measured[-1][0])
    candidates.append(_candidate("clustered-400", [0]))
    trainings.append(Training("clustered-400", 0, "runs/clustered-400/0", "failed", "out of memory <b>"))
    hours = sum(hypothesis.duration_s for hypothesis in references) / 3600
    quantiles = {"0.05": 110, "0.5": 331, "0.95": 702, "1.0": 911}
    results = Results(
        command=["asr", "compare", "recipe=demo", f"attentions=[{','.join(models)}]", f"note={INJECTION}"],
        recipe="demo",
        created="2026-11-21T07:00:00+00:00",
        protocol={
            "training": {
                "recipe": "demo",
                "data": {"frames_per_batch": 20000},
                "trainer": {"max_steps": 900},
            },
            "budget": "10min",
            "seeds": [0, 1, 2],
            "evaluate": evaluate,
            "clock": "wall",
        },
        environment={
            "commit": "0123456789abcdef0123456789abcdef01234567+",
            "processor": "Intel(R) Xeon(R) Processor",
            "cores": 2,
            "threads": 1,
            "gpus": [],
            "packages": {"torch": "2.11.0"},
        },
        data={
            "train": SplitData("data/demo/train.cuts.jsonl.gz", "5b2f0c1d9a77", 2000, 2.1, quantiles),
            "dev": SplitData("data/demo/dev.cuts.jsonl.gz", "0a1b2c3d4e5f", 100, 0.1, quantiles),
            "test": SplitData(
                str(manifest or "data/none.jsonl"), "9f8e7d6c5b4a", len(references), hours, quantiles
            ),
        },
        candidates=candidates,
        trainings=trainings,
        evaluations=evaluations,
        failures=[
            Failure("train clustered-400 seed 0", "clustered-400", 0, "out of memory <b>", "logs/1.log")
        ],
        conditions={"test": Conditions("cpu", 1, wall_s=60.0, cpu_s=59.8, other_cpus=0.02)},
    )
    return replace(results, differences=differences(results, measured))


def forward_times(seconds: float) -> dict[str, Any]:
    """Return the timing fields of an evaluation: three repeats between −1 % and +2 %."""
    repeats = [seconds, 0.99 * seconds, 1.02 * seconds]
    return {
        "forward_s": seconds,
        "forward_cpu_s": seconds,
        "forward_repeats_s": repeats,
        "forward_cpu_repeats_s": repeats,
    }


def poison(manifest: Path, folder: Path) -> Path:
    """Copy a manifest, with markup in the speaker name of the first utterance."""
    cuts = list(read_cuts(manifest))
    cuts[0].supervisions[0].speaker = INJECTION
    path = folder / "poisoned.cuts.jsonl.gz"
    save_cuts(CutSet.from_cuts(cuts), path)
    return path


def write_bench(path: Path) -> Path:
    """Write results in the format of `asr bench`."""
    rows = []
    for passes in ("forward", "forward+backward"):
        for length in (512, 1024):
            problem = Problem(6, 64, "fp32", "cpu", 7, batch=1, length=length)
            for name, factor in (("full", length / 512), ("i-clustered-100@reference", 1.5)):
                taken = [Seconds(0.0, share * 1e-5 * length * factor) for share in (0.8, 0.9, 1.0, 1.1, 1.2)]
                rows.append(row_of(name, problem, passes, taken))
    for row in rows:
        if (row.variant, row.passes) == ("full", "forward+backward"):
            row.peak_mib = 2.0 if row.length == 512 else 8.0
    bench = asdict(BenchOptions(lengths=[512, 1024]))
    results = Results(
        command=["asr", "bench"],
        recipe="",
        created="2024-01-01T00:00:00+00:00",
        protocol={"clock": "cpu", "baseline": "full", "bench": bench, "kernels": ""},
        environment={"commit": "feedbeef" * 5, "processor": "Bench CPU"},
        data={},
        candidates=[Candidate("mechanism", "full", "full", None, 1, 1, {}, None, [7])],
        trainings=[],
        evaluations=rows,
        failures=[],
    )
    path.write_text(json.dumps(asdict(results)))
    return path


def _references(random: np.random.Generator, manifest: Path | None, utterances: int) -> list[Hypothesis]:
    if manifest:
        given = [(cut.id, cut.supervisions[0].speaker, cut.duration) for cut in read_cuts(manifest)]
    else:
        given = [(f"test-{i}", f"s{i % 3}", 3.3) for i in range(utterances)]
    references = []
    for i, (ident, speaker, duration_s) in enumerate(given):
        phones = [str(phone) for phone in random.choice(PHONES, int(random.integers(15, 60)))]
        if i == 0:
            phones[:7], speaker = NASTY, INJECTION
        references.append(Hypothesis(ident, speaker, duration_s, SPOKEN, phones, [], [], None, "phone"))
    return references


def _candidate(name: str, seeds: list[int]) -> Candidate:
    number = name.rpartition("-")[2]
    return Candidate(
        label=LABELS.get(name, name),
        attention=name,
        mechanism=theme.family(name),
        size=int(number) if number.isdigit() else None,
        layers=9,
        subsampling=1,
        overrides={"attention": name},
        finetuned_from=None,
        seeds=seeds,
    )


def _exchangeable(trained: str, other: str) -> bool:
    shared = ("lsh", "shared-full")
    if theme.family(trained) in ("cast", "agglomerative"):
        return False
    return theme.family(other) not in shared or theme.family(trained) in shared


def _training(random: np.random.Generator, name: str, seed: int) -> Training:
    rate, _, epoch_s = MODELS[name]
    curve = []
    for i in range(1, 16):
        fall = math.exp(-i / 3)
        error = rate / 100 + 0.7 * fall + random.normal(0, 0.006)
        loss = 0.2 + 3 * fall
        curve.append(CurvePoint(60 * i, 2.0 * i, 2 * i * epoch_s, 2 * i * epoch_s, loss, loss * 1.1, error))
    return Training(
        candidate=LABELS.get(name, name),
        seed=seed,
        run=f"runs/{name}/{seed}",
        status="done",
        parameters=3_300_000,
        steps=900,
        epochs=30.0,
        train_s=30 * epoch_s,
        train_cpu_s=30 * epoch_s,
        seconds_per_epoch=epoch_s,
        time_to_best_s=26 * epoch_s,
        time_to_best_cpu_s=26 * epoch_s,
        best_step=780,
        dev_error=rate / 100,
        dev_error_name="dev_per",
        peak_memory_mib=1100.0 + rate,
        backend="native",
        curve=curve,
        command=f"asr train recipe=demo attention={name} seed={seed}",
    )


def _evaluation(
    random: np.random.Generator, folder: Path, name: str, seed: int, other: str, references: list[Hypothesis]
) -> tuple[Evaluation, ItemErrors]:
    rate = MODELS[name][0] / 100 * (1.0 if name == other else 1.5) * (1 + 0.04 * seed)
    hypotheses = [_heard(random, reference, rate) for reference in references]
    place = f"evaluations/{name}/{seed}/test/{other}-greedy"
    write_hypotheses(folder / place / "hyp.jsonl", hypotheses)
    found = score(hypotheses, ScoreOptions(samples=100))
    rates = {metric: rate.as_dict() for metric, rate in found.rates.items()}
    evaluation = Evaluation(
        candidate=LABELS.get(name, name),
        seed=seed,
        split="test",
        variant=other,
        decoder="greedy",
        folder=place,
        status="done",
        rates=rates,
        **(forward_times(MODELS[other][1]) if seed == 0 else {}),
        audio_s=sum(reference.duration_s for reference in references),
        utterances=len(references),
        backend="native",
        command=f"asr decode runs/{name}/{seed} split=test variant={other}",
    )
    return evaluation, item_errors(found)


def _heard(random: np.random.Generator, reference: Hypothesis, rate: float) -> Hypothesis:
    tokens = []
    for phone in reference.reference_tokens or []:
        chance = random.random()
        if chance < rate * 0.3:
            continue
        tokens.append(str(random.choice(PHONES)) if chance < rate * 0.8 else phone)
        if chance > 1 - rate * 0.2:
            tokens.append(INJECTION)
    fields = {**vars(reference), "tokens": tokens, "times_s": [0.0] * len(tokens)}
    return Hypothesis(**fields)
