"""Recipe `my_corpus`: three generated recordings, to be replaced by your corpus."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asr.config import option
from asr.errors import UserError
from asr.preparation.options import OwnDataOptions
from asr.preparation.own_data import prepare_rows
from asr.preparation.rows import Row
from asr.preparation.run import Preparation

HERE = Path(__file__).parent


@dataclass
class Options(OwnDataOptions):
    """Options of `asr prepare`, in addition to the common ones: text, lexicon, splits, tokenizers."""

    # `affects` says what changes with the value: the result, or only cost or place.
    corpus: str = option(str(HERE / "recordings"), help="folder of the corpus", affects="result")
    # Characters need no lexicon; add "phone" for phone targets.
    tokenizers: list[str] = option(["character"], help="tokenizers to build", affects="result")


def prepare(options: Options, folder: Path) -> None:
    """Write manifests, tokenizers and data card below `folder`; the audio stays in place."""
    corpus = Path(options.corpus)
    table = corpus / "transcripts.tsv"
    if not table.is_file():
        raise UserError(f"corpus={corpus}: expected transcripts.tsv in it, found none")

    def read(preparation: Preparation) -> Iterator[Row]:
        with table.open(encoding="utf-8", newline="") as lines:
            for number, line in enumerate(csv.reader(lines, delimiter="\t"), start=1):
                yield from utterance(line, f"{table}:{number}", corpus, preparation)

    # Reads audio lengths in parallel, normalises and splits the texts, and writes everything at the end.
    # With unchanged sources and options, nothing is done again. For other needs: recipes/README.md.
    prepare_rows("my_corpus", options, folder, [corpus], read)


def utterance(line: list[str], where: str, corpus: Path, preparation: Preparation) -> Iterator[Row]:
    """Yield the utterance in a line: split, speaker, file, text.

    Nothing is skipped silently: broken input is a problem, which stops the preparation unless
    `allow_partial` accepts its kind; utterances dropped by a rule are listed in excluded.tsv.
    """
    if len(line) != 4:
        preparation.problem(f"{where}: expected split, speaker, file and text, found {len(line)} fields")
        return
    split, speaker, file, text = line
    if text == "[noise]":
        preparation.drop(file, "no speech", text)
        return
    # A row may also have start_s and duration_s of a segment, and a channel. Missing splits are chosen.
    yield Row(Path(file).stem, str(corpus / file), text, where, speaker=speaker, split=split)
