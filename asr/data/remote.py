"""Copies of Lhotse Shar folders on web servers, made at the first use: utterances are loaded in any order."""

import fcntl
import http.client
import itertools
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from asr.data.lines import shards
from asr.errors import UserError, in_words
from asr.files import atomic_binary

COPIES = Path("data", "copies")
ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|pipe:")
TIMEOUT_S = 60


def is_address(place: str) -> bool:
    """Return whether a place is an address or a command instead of a path."""
    return ADDRESS.match(place) is not None


def copy_of(address: str) -> Path:
    """Return the folder for the copy of an address, which need not exist: `data/copies/<host>/<path>`.

    Raises:
        UserError: the address is not that of a folder on a web server.
    """
    parts = urlsplit(address)
    names = [parts.netloc, *parts.path.strip("/").split("/")]
    if parts.scheme not in ("http", "https") or parts.query or parts.fragment or "@" in parts.netloc:
        raise UserError(
            f"{address}: expected a path or https://<host>/<folder>, found another address or a command: "
            "copy or mount the data first, because utterances are loaded in any order"
        )
    if not {"", ".", ".."}.isdisjoint(names):
        raise UserError(f"{address}: expected https://<host>/<folder>, found an empty name or dots in it")
    return COPIES.joinpath(*names)


def fetched(address: str) -> Path | None:
    """Return the copy of a folder in Lhotse Shar format, made unless it exists; None: no such folder.

    Shards are numbered from `cuts.000000.jsonl.gz` and `recording.000000.tar` on, as lhotse numbers them.

    Raises:
        UserError: the server or the network fails, or an archive is missing. The next call goes on after the
            files that were copied.
    """
    folder = copy_of(address)
    if shards(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}-lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another rank may be copying it
        return folder if shards(folder) or _copied(address, folder) else None


def _copied(address: str, folder: Path) -> bool:
    """Copy all shards, then give the copy its name; return whether there are any."""
    unfinished = folder.with_name(f".{folder.name}-unfinished")
    unfinished.mkdir(exist_ok=True)
    for number in itertools.count():
        if not _fetch(f"{address}/cuts.{number:06}.jsonl.gz", unfinished):
            break
        if number == 0:
            print(f"{address}: copying it to {folder}", flush=True)
        archive = f"{address}/recording.{number:06}.tar"
        if not _fetch(archive, unfinished):
            raise UserError(f"{archive}: expected the archive of a shard, found none")
    if number:
        unfinished.rename(folder)
    else:
        unfinished.rmdir()
    return number > 0


def _fetch(address: str, folder: Path) -> bool:
    """Copy a file into a folder unless it is there; return False if the server doesn't have it."""
    path = folder / address.rpartition("/")[2]
    if path.exists():
        return True
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer, atomic_binary(path) as file:
            shutil.copyfileobj(answer, file)
            expected, found = answer.headers["Content-Length"], file.tell()
            if expected is not None and found != int(expected):
                raise UserError(f"{address}: expected {expected} bytes, found {found}: run the command again")
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.NOT_FOUND:
            return False
        raise UserError(f"{address}: the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"{address}: it can't be copied ({in_words(error)}): run the command again") from None
    return True
