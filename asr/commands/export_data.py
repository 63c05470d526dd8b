"""`asr export-data`: export prepared manifests to lhotse or Lhotse Shar."""

from pathlib import Path

from asr.data.interchange import FORMATS
from asr.data.manifest import read_cuts
from asr.data.options import ExportDataOptions
from asr.data.places import companions
from asr.errors import UserError, did_you_mean
from asr.files import file_digest, write_bytes

SUFFIX = ".cuts.jsonl.gz"


def run(paths: list[str], options: ExportDataOptions) -> None:
    """Write every split of the given folders and manifests in another toolkit's format.

    Raises:
        UserError: the format is unknown; there is no manifest; or a split has several.
    """
    if options.to not in FORMATS:
        raise UserError(f"to={options.to}: expected a format{did_you_mean(options.to, list(FORMATS))}")
    if not options.out:
        raise UserError("out= is needed: the output folder")
    manifests: dict[str, Path] = {}
    for path in map(Path, paths):
        files = sorted(path.glob("*" + SUFFIX)) if path.is_dir() else [path]
        if not files:
            raise UserError(
                f"{path}: expected manifests (*{SUFFIX}), found none (create them with asr prepare)"
            )
        for file in files:
            other = manifests.setdefault(split := file.name.removesuffix(SUFFIX), file)
            if other is not file:
                raise UserError(f"{file}: expected each split once, found {split} also in {other}")
    if not manifests:
        raise UserError("asr export-data takes prepared folders or manifests, found none")
    beside = _beside(manifests, Path(options.out)) if options.to == "shar" else {}
    exports = []
    for split, path in manifests.items():
        cuts = list(read_cuts(path))
        try:
            exports.append((len(cuts), FORMATS[options.to](cuts, Path(options.out), split)))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    for count, write in exports:  # after all have been checked
        print(f"{count} utterances: {write()}")
    for target, source in beside.items():
        write_bytes(source.read_bytes(), target)
        print(f"copied: {target}")


def _beside(manifests: dict[str, Path], out: Path) -> dict[Path, Path]:
    """Return the files to copy from beside the manifests, which training and scoring read: target → source.

    Raises:
        UserError: a copy exists with other content, or two folders have different files.
    """
    copies: dict[Path, Path] = {}
    for split, manifest in manifests.items():
        for name in companions(split):
            source, target = manifest.with_name(name), out / name
            if not source.is_file():
                continue
            other = copies.setdefault(target, target if target.exists() else source)
            if file_digest(other) != file_digest(source):
                raise UserError(
                    f"{source}: expected what {other} holds, found another file; choose another out="
                )
    return {target: source for target, source in copies.items() if target != source}
