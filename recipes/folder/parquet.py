"""Reads parquet tables with embedded audio or paths, as in data sets on the Hugging Face Hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.errors import UserError
from asr.preparation.rows import text_field

from .tables import Entry, check_columns, known_columns

ROWS = 64  # rows in memory at a time, with their audio


def read_parquet(path: Path, columns: dict[str, str], output: Path, name: str) -> Iterator[Entry]:
    """Yield the entries of a table; embedded audio is written to files, because training reads in any order.

    Args:
        path: table with a column of {bytes, path}, a column of texts and perhaps one of speakers; or with a
            column of paths and the other columns of `read_table`. Beside embedded audio, only further columns
            that `columns` names are read.
        columns: unusual column names by canonical name.
        output: folder for the audio, `<output>/<name>/<row>.<suffix>`.
        name: name of the table, unique in the corpus; utterances are called `<name>-<row>`.

    Raises:
        UserError: pyarrow isn't installed, the table is damaged, or lacks columns or audio.
    """
    table = _open(path)
    schema = table.schema_arrow
    embedded = [field.name for field in schema if _holds_bytes(field.type)]
    positions = known_columns(schema.names, columns)
    check_columns(str(path), schema.names, positions, columns)
    wanted = columns.get("audio") or (embedded[0] if embedded else "")
    if not embedded and "text" in positions and "audio" in positions:
        yield from _paths(table, path, {name: schema.names[i] for name, i in positions.items()})
        return
    if wanted not in embedded or "text" not in positions:
        raise UserError(
            f"{path}: expected columns of audio (bytes and path, or file_name) and of text, found "
            f"{', '.join(schema.names)[:80]!r}; map other names with columns=audio:x,text:y"
        )
    wanted_keys = {"text", "speaker", *columns} - {"audio"}
    names: dict[str, str] = {key: schema.names[i] for key, i in positions.items() if key in wanted_keys}
    number = 0
    for rows in _batches(table, path, [wanted, *names.values()]):
        for row in rows:
            where = f"{path}: row {number}"
            fields: dict[str, str] = {
                "audio": _extracted(row[wanted], output / name / f"{number:06d}"),
                "id": f"{name}-{number:06d}",
            }
            for key, column in names.items():
                fields[key] = text_field(row[column], key, where)
            yield Entry(where, fields)
            number += 1


def _paths(table: Any, path: Path, names: dict[str, str]) -> Iterator[Entry]:
    """Yield the entries of a table with a column of paths, e.g. an audiofolder's metadata.parquet."""
    number = 0
    for rows in _batches(table, path, list(names.values())):
        for row in rows:
            where = f"{path}: row {number}"
            fields = {key: text_field(row[column], key, where) for key, column in names.items()}
            yield Entry(where, fields)
            number += 1


def _open(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: parquet needs pyarrow, which isn't installed: pip install 'clustered-asr[parquet]'"
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _batches(table: Any, path: Path, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
    import pyarrow

    batches = table.iter_batches(ROWS, columns=columns)
    while True:
        try:
            rows = next(batches).to_pylist()
        except StopIteration:
            return
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(path, error) from None
        yield rows


def _damaged(path: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:120]
    return UserError(f"{path}: expected a parquet table, found one that can't be read ({reason})")


def _holds_bytes(kind: Any) -> bool:
    fields = [kind.field(i).name for i in range(kind.num_fields)] if str(kind).startswith("struct") else []
    return "bytes" in fields


def _extracted(audio: dict[str, Any] | None, target: Path) -> str:
    """Write the audio of a row and return its path; without bytes, return the path in the table."""
    content, source = (audio or {}).get("bytes"), (audio or {}).get("path") or ""
    if not content:
        return source or str(target)  # the caller reports that there is no such file
    suffix = Path(source).suffix
    target = target.with_suffix(suffix if suffix[1:].isalnum() else ".audio").absolute()
    if not (target.is_file() and target.read_bytes() == content):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return str(target)
