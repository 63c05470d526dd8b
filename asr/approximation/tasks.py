"""A task as the evaluation sees it: windows for the model, what to keep of its output, and scores."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr.approximation import glue, squad
from asr.approximation.metrics import METRICS, Metric, Values
from asr.approximation.options import SQUAD, Options
from asr.approximation.spans import Span, Window, best_spans, merged_spans, question_windows
from asr.errors import UserError

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Scored:
    """Predictions of a system, and its scores on any set of examples.

    Attributes:
        metrics: functions of the indices of examples, by name; the main score is first.
        files: predictions by file name, as JSON data.
    """

    metrics: dict[str, Callable[[Indices], float]]
    files: dict[str, Any]


class GlueTask:
    """A task of GLUE: one text or two, a class or a number.

    Args:
        name: key of `glue.TASKS`.
        path: file with the examples.
        options: options of the command.

    Attributes:
        model_class: class of transformers that loads the model.
        longest: tokens of the longest input; longer ones are cut, as usual for GLUE.
        groups: examples that are resampled together.
    """

    model_class = "AutoModelForSequenceClassification"

    def __init__(self, name: str, path: Path, options: Options) -> None:
        self.name, self.path, self.format = name, path, glue.TASKS[name]
        self.examples = glue.read_glue(name, path)[: options.examples or None]
        self.labels = options.labels
        self.longest = options.max_length or 128  # as in the published fine-tuning of BERT
        self.groups: list[Indices] = [np.array([index]) for index in range(len(self.examples))]
        self._outputs: list[int] = []

    def prepare(self, config: Any, source: Path) -> None:
        """Match the model's outputs with the classes; raise UserError if they are others."""
        count, classes = config.num_labels, self.format.classes
        if not classes:
            if count != 1:
                raise UserError(f"{source}: expected one output for {self.name}, found {count}")
            return
        names = self.labels or [str(config.id2label[index]) for index in range(count)]
        where = "labels" if self.labels else f"{source / 'config.json'}"
        self._outputs = glue.output_of_classes(classes, names, where)

    def windows(self, tokenizer: Any) -> list[Window]:
        """Return one window per example."""
        pairs = self.format.second
        encoded = tokenizer(
            [x.first for x in self.examples],
            [x.second for x in self.examples] if pairs else None,
            truncation=True,
            max_length=self.longest,
        )
        names = [name for name in tokenizer.model_input_names if name in encoded]
        return [
            Window(index, {name: encoded[name][index] for name in names}, [])
            for index in range(len(self.examples))
        ]

    def keep(self, output: Any, windows: list[Window]) -> list[list[float]]:
        """Return the logits of each window."""
        logits: list[list[float]] = output.logits.float().tolist()
        return logits

    def score(self, kept: list[list[float]]) -> Scored:
        """Return predictions and scores; `kept` is in the order of `windows`."""
        true = np.array([x.label for x in self.examples])
        logits = np.array(kept)
        if self.format.classes:
            predicted = logits[:, self._outputs].argmax(-1).astype(float)
            named = [self.format.classes[int(index)] for index in predicted]
        else:
            predicted = logits[:, 0]
            named = predicted.tolist()
        metrics = {name: _score_of(METRICS[name], predicted, true) for name in self.format.metrics}
        return Scored(metrics, {"predictions": named})


class SquadTask:
    """SQuAD 1.1: a span of the context answers the question. Arguments and attributes as in `GlueTask`."""

    model_class = "AutoModelForQuestionAnswering"

    def __init__(self, name: str, path: Path, options: Options) -> None:
        self.name, self.path, self.options = name, path, options
        self.examples = squad.read_squad(path)[: options.examples or None]
        self.longest = options.max_length or 384  # as in BERT's program
        # Questions of a paragraph are resampled together: their answers depend on the same text.
        paragraphs: dict[int, list[int]] = {}
        for index, question in enumerate(self.examples):
            paragraphs.setdefault(question.paragraph, []).append(index)
        self.groups: list[Indices] = [np.array(indices) for indices in paragraphs.values()]
        self._window_examples: list[int] = []

    def prepare(self, config: Any, source: Path) -> None:
        """Every model for question answering has two outputs, start and end."""

    def windows(self, tokenizer: Any) -> list[Window]:
        """Return the windows of all questions."""
        found = [
            window
            for index, question in enumerate(self.examples)
            for window in question_windows(tokenizer, question, index, self.longest, self.options.stride)
        ]
        self._window_examples = [window.example for window in found]
        return found

    def keep(self, output: Any, windows: list[Window]) -> list[list[Span]]:
        """Return the best spans of each window."""
        starts_BN, ends_BN = output.start_logits.cpu(), output.end_logits.cpu()
        return [
            best_spans(
                starts_BN[row, : window.length],
                ends_BN[row, : window.length],
                window.offsets,
                self.options.max_answer,
                self.options.nbest,
            )
            for row, window in enumerate(windows)
        ]

    def score(self, kept: list[list[Span]]) -> Scored:
        """Return predictions and scores; `kept` is in the order of `windows`."""
        by_example: list[list[list[Span]]] = [[] for _ in self.examples]
        for example, spans in zip(self._window_examples, kept, strict=True):
            by_example[example].append(spans)
        predictions, nbest = {}, {}
        scores: dict[str, list[float]] = {"F1": [], "EM": []}
        for question, windows in zip(self.examples, by_example, strict=True):
            spans = merged_spans(windows, self.options.nbest)
            texts = [question.context[start:end].strip() for start, end, _ in spans]
            predictions[question.id] = text = texts[0] if texts else ""
            nbest[question.id] = [
                {"text": text, "start": start, "score": round(score, 4)}
                for text, (start, _, score) in zip(texts, spans, strict=True)
            ]
            scores["F1"].append(squad.best(squad.token_f1, text, question.answers))
            scores["EM"].append(squad.best(squad.exact_match, text, question.answers))
        metrics = {name: _mean_of(np.array(values)) for name, values in scores.items()}
        return Scored(metrics, {"predictions": predictions, "nbest": nbest})


Task = GlueTask | SquadTask


def _score_of(metric: Metric, predicted: Values, true: Values) -> Callable[[Indices], float]:
    return lambda drawn: metric(predicted[drawn], true[drawn])


def _mean_of(values: Values) -> Callable[[Indices], float]:
    return lambda drawn: float(values[drawn].mean())


def open_task(name: str, options: Options) -> Task:
    """Read a task's examples.

    Raises:
        UserError: a missing or broken file.
    """
    data = options.data_of(name)
    if name == SQUAD:
        return SquadTask(name, squad.find_squad(data), options)
    return GlueTask(name, glue.find_glue(name, data), options)
