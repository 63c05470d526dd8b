"""The plan of a comparison: candidates to cells of training, evaluation and timing."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr import checkpoint, config
from asr.compare.candidates import Planned, evaluated_with, flat, plan_candidates
from asr.compare.cells import Cell, discard, is_done, read_state
from asr.compare.decoding import Decoding, plan_decoding
from asr.compare.options import ORACLE, CompareConfig, Request
from asr.compare.reuse import IMMATERIAL, find_run
from asr.config import to_dict
from asr.data.module import manifest_path, split_beside
from asr.errors import UserError
from asr.files import file_digest
from asr.recognition import training_lexicon
from asr.train_config import TrainConfig


@dataclass(frozen=True)
class Plan:
    """All of a comparison before it is run.

    Attributes:
        request: options and shared words.
        folder: where everything goes.
        protocol: options of training that all candidates share.
        candidates: parents before those finetuned from them.
        manifests: by split; train and dev among them, but for a recipe without recordings.
        decoding: how all evaluations decode.
        trainings: by candidate and seed.
        evaluations: by candidate, seed, split and mechanism.
        reused: run folders of trainings that were there before, by the cell's name.
    """

    request: Request
    folder: Path
    protocol: TrainConfig
    candidates: list[Planned]
    manifests: dict[str, Path]
    decoding: Decoding
    trainings: dict[tuple[str, int], Cell]
    evaluations: dict[tuple[str, int, str, str], Cell]
    reused: dict[str, Path]

    @property
    def options(self) -> CompareConfig:
        """Return the comparison's own options."""
        return self.request.options

    def cells(self) -> Iterator[Cell]:
        """Yield the cells of training and evaluation, in the order in which they are worked on."""
        yield from self.trainings.values()
        yield from self.evaluations.values()

    def run_folder(self, label: str, seed: int) -> Path:
        """Return the run folder of a training: its own, or the one that was taken over."""
        cell = self.trainings[label, seed]
        state = read_state(self.folder, cell.name)
        if state.key == cell.key and "run" in state.result:
            return Path(os.path.relpath(self.folder / state.result["run"]))
        return self.reused.get(cell.name, self.folder / cell.name)


def make_plan(request: Request) -> Plan:
    """Plan a comparison.

    Raises:
        UserError: bad candidates, a manifest that isn't there.
    """
    options = request.options
    protocol = config.compose(TrainConfig, "train", request.words)
    candidates = plan_candidates(request)
    folder = Path(options.folder or Path("exp", "compare", protocol.recipe.name))
    decoding = plan_decoding(options)
    manifests = find_manifests(protocol, [*options.splits, *([options.tune] if options.tune else [])])
    hashes = {name: file_digest(path) for name, path in manifests.items()}
    trainings: dict[tuple[str, int], Cell] = {}
    for planned in candidates:
        for seed in planned.candidate.seeds:
            trainings[planned.candidate.label, seed] = _training(planned, seed, trainings, hashes)
    wanted = options.evaluate or list(dict.fromkeys([*(x.candidate.attention for x in candidates), ORACLE]))
    evaluations = {
        (planned.candidate.label, seed, split, attention): _evaluation(
            trainings[planned.candidate.label, seed], split, attention, decoding, manifests, hashes
        )
        for planned in candidates
        for seed in planned.candidate.seeds
        for split in (dict.fromkeys(map(split_name, options.splits)) if manifests else ())
        for attention in evaluated_with(planned.candidate, wanted)
    }
    place = Path(options.reuse or Path("exp", protocol.recipe.name))
    reused = {}
    for cell in trainings.values():
        ours = (folder / cell.name / "config.yaml").exists()
        found = None if ours or options.reuse == "none" or cell.needs else find_run(place, cell.settings)
        if found:
            reused[cell.name] = found
    return Plan(request, folder, protocol, candidates, manifests, decoding, trainings, evaluations, reused)


def find_manifests(protocol: TrainConfig, splits: list[str]) -> dict[str, Path]:
    """Return the manifests of train, dev and the splits to evaluate on; none where nothing is recorded.

    Raises:
        UserError: one isn't there.
    """
    if protocol.recipe.task != "speech":
        return {}
    if not protocol.data.train:
        raise UserError("data.train is empty: name a recipe (recipe=demo) or manifests (data.train=[path])")
    places = protocol.data.train
    names = ["train", *(f"train {i + 1}" for i in range(1, len(places)))]
    found = {name: manifest_path(place, "train") for name, place in zip(names, places, strict=True)}
    dev = protocol.data.dev
    found["dev"] = manifest_path(dev, "dev") if dev else split_beside(places[0], "dev")
    for split in splits:
        name = split_name(split)
        if not split.endswith(".jsonl.gz"):
            found.setdefault(name, split_beside(places[0], split))
        elif os.path.abspath(found.setdefault(name, Path(split))) != os.path.abspath(split):
            raise UserError(f"{split}: there is another manifest called {name}, {found[name]}: rename one")
    for name, path in found.items():
        if not path.is_file():
            there = sorted(split_name(str(file)) for file in path.parent.glob("*.jsonl.gz"))
            beside = f"there are: {', '.join(there)}" if there else "asr prepare makes it"
            raise UserError(f"{path}: expected the manifest of {name}, found no such file ({beside})")
    return found


def split_name(split: str) -> str:
    """Return what a split is called: its name, or the one of its manifest's file."""
    return Path(split).name.removesuffix(".jsonl.gz").removesuffix(".cuts")


def settle_changes(plan: Plan) -> list[str]:
    """Refuse cells of other settings, or discard them where that is asked for; return what to say of it.

    Raises:
        UserError: a cell was made with other settings and `changed` is `refuse`.
    """
    said = []
    for cell in plan.cells():
        state = read_state(plan.folder, cell.name)
        if state.result.get("reused") and cell.name not in plan.reused:
            said.append(f"{cell.name}: {state.result['run']} isn't what it was, it is trained here")
            discard(plan.folder, cell)
            continue
        if state.status == "missing" or state.key == cell.key:
            continue
        difference = ", ".join(_differences(state.settings, cell.settings)) or "another kind of cell"
        if plan.options.changed == "refuse":
            raise UserError(
                f"{plan.folder / cell.name}: was made with other settings ({difference}); "
                "folder=<another> keeps it, changed=rerun makes it again"
            )
        said.append(f"{cell.name}: made again ({difference})")
        discard(plan.folder, cell)
    return said


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old, new = flat(before), flat(now)
    return [
        f"{key.removeprefix('options.')}: {old.get(key)} → {new.get(key)}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key) and key != "run"
    ]


def slug(label: str) -> str:
    """Return a label as part of a path.

    Example:
        >>> slug("6 layers, i-clustered-200:topk=16")
        '6-layers,i-clustered-200:topk=16'
    """
    return re.sub(r"[^\w.,:=+-]+", "-", label.replace(", ", ",").replace(" → ", "+to+")).strip("-")


def _training(
    planned: Planned, seed: int, trainings: dict[tuple[str, int], Cell], hashes: dict[str, str]
) -> Cell:
    options = flat(to_dict(planned.training)) | {"seed": seed}
    settings = {key: value for key, value in options.items() if key not in IMMATERIAL}
    free = {key: options[key] for key in ("trainer.checkpoint_every", "data.prefetch")}
    needs = ""
    start = ""
    if planned.parent:
        siblings = {other: cell for (label, other), cell in trainings.items() if label == planned.parent}
        parent = siblings.get(seed) or next(iter(siblings.values()))
        needs, start = parent.name, parent.key
    elif planned.training.init_from:
        start = file_digest(checkpoint.find(Path(planned.training.init_from)))
    data = {name: value for name, value in hashes.items() if name.split()[0] in ("train", "dev")}
    lexicon = training_lexicon(planned.training) if data else None
    data["lexicon"] = lexicon.digest if lexicon else ""
    name = f"trainings/{slug(planned.candidate.label)}/seed{seed}"
    return Cell(name, "training", {"options": settings, "data": data, "start": start}, needs, free)


def _evaluation(
    training: Cell,
    split: str,
    attention: str,
    decoding: Decoding,
    manifests: dict[str, Path],
    hashes: dict[str, str],
) -> Cell:
    settings = decoding.settings()
    settings["options"] |= {"split": split, "data": str(manifests[split]), "attention": attention}
    settings |= {"training": training.key, "data": hashes[split]}
    settings |= {"threads": training.settings["options"]["trainer.threads"]}
    if decoding.options.tune:
        tune = split_name(decoding.options.tune)
        settings["options"]["tune"] = str(manifests[tune])
        settings["tune"] = hashes[tune]
    name = training.name.replace("trainings/", "evaluations/")
    path = f"{name}/{split}/{decoding.system(attention)}"
    return Cell(path, "evaluation", settings, training.name, decoding.free())


def timing_cells(plan: Plan) -> list[Cell]:
    """Return a cell for each split: every candidate by its first seed, with all mechanisms it ran with."""
    first = {planned.candidate.label: planned.candidate.seeds[0] for planned in plan.candidates}
    cells = []
    for split in dict.fromkeys(split for _, _, split, _ in plan.evaluations):
        models = [
            # Not the evaluation's key: what decodes has no part in the encoder's time.
            {
                "label": label,
                "attention": attention,
                "training": cell.needs,
                "key": cell.settings["training"],
            }
            for (label, seed, of, attention), cell in plan.evaluations.items()
            if of == split and seed == first[label] and is_done(plan.folder, cell)
        ]
        settings = {
            "models": models,
            "manifest": str(plan.manifests[split]),
            "data": next(x.settings["data"] for key, x in plan.evaluations.items() if key[2] == split),
            "repeats": plan.options.timing_repeats,
            "frames_per_batch": plan.protocol.data.frames_per_batch,
            "device": plan.options.device,
            "threads": plan.protocol.trainer.threads,
        }
        if models:
            cells.append(Cell(f"timings/{split}", "timing", settings))
    return cells
