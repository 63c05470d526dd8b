"""The new reader stands beside the four old ones: they return the same bits for four recipes' miniatures."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from asr_recipes.demo import prepare as demo
from asr_recipes.folder import prepare as folder_recipe
from asr_recipes.switchboard import prepare as switchboard
from asr_recipes.wsj import prepare as wsj
from lhotse.cut import MonoCut

from asr.data.audio import use_our_readers
from asr.data.audio_file import open_audio
from asr.data.facts import header_facts, read_blocks
from asr.data.manifest import read_cuts
from asr.data.recording import _open, _readable
from asr.data.sphere import is_sphere, read_sphere
from asr.preparation.problems import KINDS
from tests.recipes import switchboard_miniature, wsj_miniature
from tests.recipes.test_demo_recipe import tiny

TOLERATED = {"allow_partial": list(KINDS), "workers": 1}


def prepare_demo(folder: Path) -> None:
    demo.prepare(tiny(), folder / "data")


def prepare_folder(folder: Path) -> None:
    random = np.random.default_rng(0)
    for number, kind in enumerate([*["wav", "flac", "ogg", "mp3"] * 5, "aiff", "au"]):
        path = folder / "audio" / f"u{number}.{kind}"
        path.parent.mkdir(exist_ok=True)
        rate = [8000, 16000, 44100, 48000][number // 4 % 4]
        soundfile.write(path, 0.1 * random.standard_normal(rate + 17 * number), rate)
        path.with_suffix(".txt").write_text(f"sentence {number}")
    folder_recipe.prepare(
        folder_recipe.Options(audio=str(folder / "audio"), tokenizers=["character"], workers=1),
        folder / "data",
    )


def prepare_wsj(folder: Path) -> None:
    made = wsj_miniature.fabricate(folder / "corpus", merged=False)
    wsj.prepare(wsj.Options(corpus=str(made.root), g2p=False, **TOLERATED), folder / "data")


def prepare_switchboard(folder: Path) -> None:
    made = switchboard_miniature.build(folder)
    options = {"corpus": str(made.corpus), "eval2000": str(made.evaluation), "dev_utterances": 12}
    switchboard.prepare(switchboard.Options(**options, **TOLERATED), folder / "data")


CORPORA = [prepare_demo, prepare_folder, prepare_wsj, prepare_switchboard]


@pytest.fixture(scope="module", params=CORPORA)
def cuts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[MonoCut]:
    folder = tmp_path_factory.mktemp("corpus")
    request.param(folder)
    found = [cut for path in (folder / "data").glob("*.cuts.jsonl.gz") for cut in read_cuts(path)]
    assert len(found) > 4
    return found


def test_utterances(cuts: list[MonoCut]) -> None:
    use_our_readers()
    for cut in cuts:
        [expected] = cut.load_audio()
        with open_audio(cut.recording.sources[0].source) as file:
            if cut.start:
                file.seek(round(cut.start * file.rate))
            whole = cut.duration == cut.recording.duration
            # What libsndfile decodes of MP3 depends by 3e-8 on the size of the blocks, and on a seek to 0.
            found = file.read(None if whole else round(cut.duration * file.rate))[:, cut.channel]
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_files(cuts: list[MonoCut]) -> None:
    for path in sorted({cut.recording.sources[0].source for cut in cuts}):
        rate, blocks = _open(Path(path), path)
        expected = np.concatenate(list(_readable(blocks, rate, path)))
        with open_audio(path) as file:
            assert (file.samples, file.rate, file.channels) == header_facts(path)
            found = file.read()
        np.testing.assert_array_equal(found, expected)
        with open_audio(path) as file:
            np.testing.assert_array_equal(np.concatenate(list(file.blocks(30 * rate))), expected)
        if is_sphere(path):
            np.testing.assert_array_equal(found.T, read_sphere(path))
        else:
            with soundfile.SoundFile(path) as opened:
                np.testing.assert_array_equal(found, np.concatenate(list(read_blocks(opened, 1 << 19))))
