"""Tasks of a fine-tuned text encoder; see `asr.experiment.workload.Exchanged`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from asr_recipes.questions import glue, squad
from asr_recipes.questions.files import examples_digest
from asr_recipes.questions.metrics import METRICS, Metric
from asr_recipes.questions.model import TextModel, require_model
from asr_recipes.questions.options import PLACE, SQUAD, WorkloadOptions
from asr_recipes.questions.spans import Span, Window, best_spans, merged_spans, question_windows
from torch import Tensor

from asr.errors import UserError
from asr.experiment.options import CompareConfig
from asr.experiment.records import SplitData
from asr.experiment.variant import Variant, attention_only
from asr.experiment.workload import Exchanged, Scored
from asr.scoring.statistics import Draws, Statistic, Values, pooled


def workloads(options: CompareConfig, own: WorkloadOptions) -> list[Exchanged]:
    """Return the tasks that the options name, each with its model.

    Raises:
        UserError: a missing or unsuitable model or file, or several tasks with one model.
    """
    tasks = list(dict.fromkeys(own.task))
    if len({_plain(task) for task in tasks}) > 1 and PLACE not in options.model:
        raise UserError(
            f"model={options.model}: a model is fine-tuned for one task; with several, write {PLACE} for its "
            "name"
        )
    for name, value in (("language", options.language), ("join_s", options.join_s), ("sweep", options.sweep)):
        if value:
            raise UserError(f"{name}={value}: has an effect on recordings only")
    return [
        SquadTask(task, options, own) if task == SQUAD else GlueTask(task, options, own) for task in tasks
    ]


def _plain(task: str) -> str:
    """Return the name of a task for paths; both sets of MNLI share a model and a folder."""
    return task.partition("-")[0]


class TextTask:
    """A task of a text encoder.

    Args:
        name: name of the task.
        options: options of the comparison.
        own: options of the recipe.

    Attributes:
        model_class: class of transformers that loads the model.
        path: file with the examples.
        longest: tokens of the longest input.
        model: model of the task.

    Raises:
        UserError: a missing or unsuitable model or file.
    """

    model_class: str
    timed, decoder, frames = "model", "", "1"
    items: Sequence[Window]
    examples: int
    units: int

    def __init__(
        self, name: str, path: Path, longest: int, options: CompareConfig, own: WorkloadOptions
    ) -> None:
        self.name, self.path, self.longest, self.options, self.own = name, path, longest, options, own
        self.source = options.model.replace(PLACE, _plain(name))
        self.model = TextModel(Path(self.source), self.model_class, options.device)
        self.model.check_length(longest)
        self.data: dict[str, SplitData] = {}  # of recordings
        self.device, self.layers = options.device, int(self.model.model.config.num_hidden_layers)

    def settings(self) -> dict[str, Any]:
        """See `Exchanged`."""
        names = ("max_length", "stride", "max_answer", "nbest")
        given = {name: getattr(self.own, name) for name in names} | {"examples": self.options.examples}
        return {"options": given, "model": self.model.digest(), "data": examples_digest(self.path)}

    def use(self, variant: Variant) -> None:
        """See `Exchanged`; raise UserError if more than the mechanism is exchanged."""
        self.model.use(attention_only(str(variant)), self.options.backend)

    def batch(self, items: list[Window]) -> dict[str, Tensor]:
        """See `Exchanged`."""
        return self.model.batch(items)

    def run(self, inputs: dict[str, Tensor]) -> Any:
        """See `Exchanged`."""
        return self.model.run(inputs)

    def reference(self, output: Any, items: list[Window]) -> None:
        """Return None, because no measure compares with full attention."""


def _path(find: Any, options: CompareConfig, name: str) -> Path:
    """Return the file of a task; a missing model is reported first."""
    require_model(Path(options.model.replace(PLACE, _plain(name))))
    found: Path = find(Path(options.data.replace(PLACE, _plain(name))))
    return found


class GlueTask(TextTask):
    """A task of GLUE: one text or two, a class or a number. Inputs that are too long are cut.

    Arguments and errors as in `TextTask`; the name is a key of `glue.TASKS`.
    """

    model_class = "AutoModelForSequenceClassification"

    def __init__(self, name: str, options: CompareConfig, own: WorkloadOptions) -> None:
        path = _path(lambda data: glue.find_glue(name, data), options, name)
        read = glue.read_glue(name, path)[: options.examples or None]
        super().__init__(name, path, own.max_length or 128, options, own)  # as in the published fine-tuning
        self.format, self.read = glue.TASKS[name], read
        self._outputs = self._classes()
        self.items = self._windows()
        self.examples = self.units = len(read)

    def _classes(self) -> list[int]:
        """Return the model's output of each class; raise UserError if they aren't those of the task."""
        config, classes = self.model.model.config, self.format.classes
        if not classes:
            if config.num_labels != 1:
                raise UserError(
                    f"{self.source}: expected one output for {self.name}, found {config.num_labels}"
                )
            return []
        names = self.own.labels or [str(config.id2label[index]) for index in range(config.num_labels)]
        where = "recipe.labels" if self.own.labels else f"{Path(self.source, 'config.json')}"
        return glue.output_of_classes(classes, names, where)

    def _windows(self) -> list[Window]:
        """Return one window per example; raise UserError if a window has no room for its texts."""
        tokenizer, pairs = self.model.tokenizer, bool(self.format.second)
        if self.longest < (least := tokenizer.num_special_tokens_to_add(pair=pairs) + 1 + pairs):
            raise UserError(
                f"recipe.max_length={self.longest}: expected at least {least} tokens, the special ones and "
                "one of each text"
            )
        encoded = tokenizer(
            [x.first for x in self.read],
            [x.second for x in self.read] if pairs else None,
            truncation=True,
            max_length=self.longest,
        )
        names = [name for name in tokenizer.model_input_names if name in encoded]
        return [
            Window(index, {name: encoded[name][index] for name in names}, [])
            for index in range(len(self.read))
        ]

    def keep(self, output: Any, items: list[Window], reference: Any) -> list[list[float]]:
        """Return the logits of each window."""
        logits: list[list[float]] = output.logits.float().tolist()
        return logits

    def score(self, kept: list[list[float]]) -> Scored:
        """Return predictions and scores; `kept` is in the order of `items`."""
        true = np.array([x.label for x in self.read])
        logits = np.array(kept)
        if self.format.classes:
            predicted = logits[:, self._outputs].argmax(-1)
            named = [self.format.classes[int(index)] for index in predicted]
        else:
            predicted = logits[:, 0]
            named = predicted.tolist()
        measures = {name: drawn_score(METRICS[name], predicted, true) for name in self.format.metrics}
        return Scored(measures, {"predictions": named})


class SquadTask(TextTask):
    """SQuAD 1.1: a span of the context answers the question; arguments and errors as in `TextTask`."""

    model_class = "AutoModelForQuestionAnswering"

    def __init__(self, name: str, options: CompareConfig, own: WorkloadOptions) -> None:
        path = _path(squad.find_squad, options, name)
        questions = squad.read_squad(path)[: options.examples or None]
        super().__init__(name, path, own.max_length or 384, options, own)  # as in BERT's program
        self.questions = questions
        self.items = [
            window
            for index, question in enumerate(questions)
            for window in question_windows(self.model.tokenizer, question, index, self.longest, own.stride)
        ]
        # Questions of a paragraph are resampled together: their answers depend on the same text.
        paragraphs = [question.paragraph for question in questions]
        self.paragraphs = np.unique(paragraphs, return_inverse=True)[1]
        self.examples, self.units = len(questions), len(set(paragraphs))

    def keep(self, output: Any, items: list[Window], reference: Any) -> list[list[Span]]:
        """Return the best spans of each window."""
        starts_BN, ends_BN = output.start_logits.cpu(), output.end_logits.cpu()
        return [
            best_spans(
                starts_BN[row, : window.length],
                ends_BN[row, : window.length],
                window.offsets,
                self.own.max_answer,
                self.own.nbest,
            )
            for row, window in enumerate(items)
        ]

    def score(self, kept: list[list[Span]]) -> Scored:
        """Return predictions and scores; `kept` is in the order of `items`."""
        by_example: list[list[list[Span]]] = [[] for _ in self.questions]
        for window, spans in zip(self.items, kept, strict=True):
            by_example[window.example].append(spans)
        predictions, nbest = {}, {}
        scores: dict[str, list[float]] = {"f1": [], "em": []}
        for question, windows in zip(self.questions, by_example, strict=True):
            spans = merged_spans(windows, self.own.nbest)
            texts = [question.context[start:end].strip() for start, end, _ in spans]
            predictions[question.id] = text = texts[0] if texts else ""
            nbest[question.id] = [
                {"text": text, "start": start, "score": round(score, 4)}
                for text, (start, _, score) in zip(texts, spans, strict=True)
            ]
            scores["f1"].append(squad.best(squad.token_f1, text, question.answers))
            scores["em"].append(squad.best(squad.exact_match, text, question.answers))
        sizes = np.bincount(self.paragraphs)
        sums = {name: np.bincount(self.paragraphs, weights=values) for name, values in scores.items()}
        measures = {name: pooled(amounts, sizes) for name, amounts in sums.items()}
        return Scored(measures, {"predictions": predictions, "nbest": nbest})


def drawn_score(metric: Metric, predicted: Values, true: Values) -> Statistic:
    """Return the statistic that computes a metric for each draw of examples."""

    def scores(drawn: Draws) -> Values:
        return np.array([metric(predicted[row], true[row]) for row in drawn])

    return scores
