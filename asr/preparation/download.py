"""Downloads archives and Debian packages: resumes, verifies the checksum, unpacks atomically."""

import shutil
import subprocess
import tarfile
import urllib.error
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from asr.errors import UserError
from asr.files import file_digest


def download(url: str, path: Path, checksum: str) -> None:
    """Download a file unless it is already there; resume an interrupted download.

    Args:
        url: address of the file.
        path: destination; a file with the right checksum is kept.
        checksum: MD5 (32 hex digits) or SHA-256 (64).

    Raises:
        UserError: the network or the server fails, or the checksum of the file differs (the file is removed).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    digits = len(checksum)
    algorithm = "md5" if digits == 32 else "sha256"
    if path.exists() and file_digest(path, digits, algorithm) == checksum:
        return
    size = -1
    # A broken connection truncates the file without an error, so retry as long as the file grows.
    while size < (size := _fetch(url, path)):
        if (found := file_digest(path, digits, algorithm)) == checksum:
            return
    path.unlink()
    raise UserError(
        f"{url}: expected the checksum {checksum}, found {found}; removed the file, run the command again"
    )


def unpack(archive: Path, member: str, target: Path) -> None:
    """Unpack the folder `member` of a tar archive to `target` atomically.

    Raises:
        UserError: the archive is broken or lacks the folder.
    """
    from lhotse.utils import safe_extract  # lhotse loads PyTorch, which takes seconds

    staging = target.with_name(f".unpacking-{target.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            safe_extract(tar, staging)
        (staging / member).rename(target)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(
            f"{archive}: expected a tar archive with {member}, but unpacking failed ({error})"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def debian_packages(
    packages: Sequence[str], folder: Path, console: Console, size: str, hint: str = ""
) -> Path:
    """Download Debian packages with apt-get, without root, and unpack each to `folder/<package>`.

    Args:
        packages: names of the packages; unpacked ones are kept.
        folder: folder for the packages.
        console: console for messages.
        size: total size, for the messages, e.g. `18 MB`.
        hint: advice for users of other systems; ends an error message.

    Returns:
        `folder`.

    Raises:
        UserError: the system has no apt-get, or apt-get fails.
    """
    missing = [package for package in packages if not (folder / package).is_dir()]
    if not missing:
        console.print(f"using the packages in {folder}", markup=False)
        return folder
    for program in ["apt-get", "dpkg-deb"]:
        if shutil.which(program) is None:
            raise UserError(f"{program} is not installed: use Debian or Ubuntu{hint and ', '}{hint}")
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"downloading {', '.join(missing)} ({size})")
    download = subprocess.run(["apt-get", "download", *missing], cwd=folder, capture_output=True, text=True)
    if download.returncode != 0:
        reason = (download.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(
            f"apt-get download failed ({reason}): run `apt-get update` as root first{hint and ', '}{hint}"
        )
    for package in missing:
        archive = sorted(folder.glob(f"{package}_*.deb"))[-1]
        partial = folder / f"{package}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        unpacked = subprocess.run(["dpkg-deb", "-x", archive, partial], capture_output=True, text=True)
        if unpacked.returncode != 0:
            found = unpacked.stderr.strip()
            raise UserError(f"{archive}: expected a Debian package, dpkg-deb found: {found}")
        partial.rename(folder / package)
        archive.unlink()
    return folder


def _fetch(url: str, path: Path) -> int:
    """Start or resume a download; return the file's size in bytes."""
    from lhotse.utils import resumable_download

    try:
        resumable_download(url, path)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"{url}: the download failed ({reason}); run the same command again to resume it"
        ) from None
    return path.stat().st_size
