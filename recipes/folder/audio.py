"""Finds the recordings below a folder by path or name, with or without suffix."""

import os
import re
import unicodedata
from collections import defaultdict
from pathlib import Path

from asr.data.audio_file import READ_BY_LIBSNDFILE
from asr.data.facts import recordings_among
from asr.errors import UserError

VARIABLE = re.compile(r"^(\$\w+|\{\w+\})/")  # `$data_root/` in SpeechBrain's tables


class AudioFiles:
    """The recordings below a folder.

    Args:
        root: folder with the recordings.
        output: output folder; if it lies below `root`, its audio is ignored.

    Attributes:
        paths: recordings, sorted.
        copies: ignored recordings that only FFmpeg reads, each with the recording that is used instead: the
            same path, but with the suffix of a format in which seeking is faster.
    """

    def __init__(self, root: Path, output: Path) -> None:
        self.root = root
        ours = os.path.abspath(output)
        files = []
        for folder, folders, names in os.walk(root, followlinks=True):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".")  # e.g. a trash
                and os.path.abspath(os.path.join(folder, name)) != ours
            ]
            files += [os.path.join(folder, name) for name in names if not name.startswith(".")]
        recordings = set(recordings_among(sorted(files)))
        fast = {path for path in recordings if path.lower().endswith(READ_BY_LIBSNDFILE)}
        read = {stem(path): path for path in fast}
        self.copies = {path: read[stem(path)] for path in sorted(recordings - fast) if stem(path) in read}
        self.paths = sorted(recordings - self.copies.keys())
        self._known = recordings
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            inside = self.inside(path)
            called = {inside, stem(inside), os.path.basename(inside), stem(os.path.basename(inside))}
            # macOS writes `é` as two characters in file names, and as one in texts.
            for name in called | {_composed(name) for name in called}:
                self._by_name[name].append(path)

    def inside(self, path: str | Path) -> str:
        """Return a path relative to the folder, with forward slashes."""
        return os.path.relpath(path, self.root).replace(os.sep, "/")

    def find(self, name: str, where: str, beside: str = "") -> str:
        """Return the recording called `name` in a transcript.

        Args:
            name: absolute path; path relative to the transcript's folder; or path or name below the folder.
            where: file and line, for the error message.
            beside: folder of the transcript, as returned by `inside`.

        Raises:
            UserError: there is no such recording, or more than one.
        """
        name = os.path.expanduser(name)
        if os.path.isabs(name) and os.path.isfile(name):
            return self._as_found(name)
        written = VARIABLE.sub("", name.replace("\\", "/")).removeprefix("./")
        relative = os.path.normpath(os.path.join(beside, written)).replace(os.sep, "/")
        for candidate in (relative, written, os.path.basename(written)):
            paths = self._by_name.get(candidate) or self._by_name.get(_composed(candidate), [])
            if len(paths) == 1:
                return paths[0]
            if paths:
                raise UserError(
                    f"{where}: {name!r} could be {self.inside(paths[0])} or {self.inside(paths[1])}: "
                    "expected the path of exactly one recording"
                )
        if os.path.join(self.root, written) in self.copies:  # the table names talk.mp4, talk.wav is read
            return self.copies[os.path.join(self.root, written)]
        for path in (os.path.join(self.root, beside, written), os.path.join(self.root, written)):
            if os.path.isfile(path):  # with an unusual suffix, or damaged
                return path
        raise UserError(
            f"{where}: expected the recording {name!r} below {self.root}, found none", "missing_audio"
        )

    def _as_found(self, path: str) -> str:
        """Return the path of the recording below the folder that an absolute path refers to, if any."""
        for form in (os.path.abspath, os.path.realpath):
            known = os.path.join(self.root, os.path.relpath(form(path), form(self.root)))
            if known in self._known:
                return self.copies.get(known, known)
        return path


def stem(path: str) -> str:
    """Return a path without its suffix."""
    return os.path.splitext(path)[0]


def identifier(inside: str) -> str:
    """Return an utterance id made from a path, without slashes and spaces."""
    return re.sub(r"\s+", "_", inside.replace("/", "-"))


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)
