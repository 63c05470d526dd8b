"""Copies of Lhotse Shar folders by address, made at the first use: utterances are loaded in any order."""

import http
import itertools
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec

from asr.data.lines import shards
from asr.errors import UserError, in_words
from asr.files import atomic_binary, lock_on

COPIES = Path("data", "copies")
WEB = ("http", "https")
STORES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}  # the packages with which fsspec reads them
ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|pipe:")
TIMEOUT_S = 60


def is_address(place: str) -> bool:
    """Return whether a place is an address or a command instead of a path."""
    return ADDRESS.match(place) is not None


def copy_of(address: str) -> Path:
    """Return the folder for the copy of an address, which need not exist.

    It is `data/copies/<host>/<path>`, or `data/copies/<scheme>:<bucket>/<path>` for a store of objects.

    Raises:
        UserError: the address is not that of a folder on a web server or in a store of objects.
    """
    parts = urlsplit(address)
    if parts.scheme not in (*WEB, *STORES) or parts.query or parts.fragment or "@" in parts.netloc:
        known = ", ".join((*WEB[1:], *STORES))
        raise UserError(
            f"{address}: expected a path or <scheme>://<host>/<folder> with one of {known}, found another "
            "address or a command: copy or mount the data first, because utterances are loaded in any order"
        )
    names = [parts.netloc, *parts.path.strip("/").split("/")]
    if not {"", ".", ".."}.isdisjoint(names):
        raise UserError(f"{address}: expected <host>/<folder>, found an empty name or dots in it")
    store = f"{parts.scheme}:" if parts.scheme in STORES else ""
    return COPIES.joinpath(store + names[0], *names[1:])


def fetched(address: str, companions: Sequence[str] = ()) -> Path | None:
    """Return the copy of a folder in Lhotse Shar format, made unless it exists; None: no such folder.

    Shards are numbered from `cuts.000000.jsonl.gz` and `recording.000000.tar` on, as lhotse numbers them.

    Args:
        address: address of the folder.
        companions: names of files beside the folder that are copied with it where they exist.

    Raises:
        UserError: the server or the network fails, a package for it or an archive is missing. The next call
            goes on after the files that were copied.
    """
    folder = copy_of(address)
    if shards(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_on(folder.with_name(f".{folder.name}-lock")):  # another rank may be copying it
        return folder if shards(folder) or _copied(address, folder, companions) else None


def _copied(address: str, folder: Path, companions: Sequence[str]) -> bool:
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
        for name in companions:
            _fetch(f"{address.rpartition('/')[0]}/{name}", folder.parent)
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
        source = _opened(address)
        if source is None:
            return False
        with source as content, atomic_binary(path) as file:
            shutil.copyfileobj(content, file)
            expected = content.size if hasattr(content, "size") else content.headers["Content-Length"]
            if expected is not None and file.tell() != int(expected):
                raise UserError(
                    f"{address}: expected {expected} bytes, found {file.tell()}: run the command again"
                )
    except urllib.error.HTTPError as error:
        raise UserError(f"{address}: the server answers {error.code} {error.reason}") from None
    except UserError:
        raise
    except Exception as error:  # the packages for stores of objects have kinds of their own
        raise UserError(f"{address}: it can't be copied ({in_words(error)}): run the command again") from None
    return True


def _opened(address: str) -> Any:
    """Return a file that is opened to read; None if the server doesn't have it.

    Raises:
        UserError: the package for the store of objects is missing.
    """
    parts = urlsplit(address)
    try:
        if parts.scheme in WEB:
            return urllib.request.urlopen(address, timeout=TIMEOUT_S)
        return fsspec.filesystem(parts.scheme).open(parts.netloc + parts.path)
    except ImportError:
        package = STORES[parts.scheme]
        raise UserError(
            f"{address}: expected the package {package}, found none: pip install {package}"
        ) from None
    except (urllib.error.HTTPError, FileNotFoundError) as error:
        if getattr(error, "code", http.HTTPStatus.NOT_FOUND) != http.HTTPStatus.NOT_FOUND:
            raise
        return None
