#!/usr/bin/env bash
# Run linters, type checks and tests; works from a fresh clone.
#
#   bash tools/test.sh [pytest arguments]
#
# Tests that need a GPU, a licensed corpus or a missing tool are skipped with a reason.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" test

ruff check .
ruff format --check --quiet .
mypy
find attention_ext tests/attention_ext -name '*.h' -o -name '*.cpp' -o -name '*.cu' | xargs clang-format --dry-run --Werror
unset PYTHONDONTWRITEBYTECODE # images set it; without caches, each process spends 7 s on compiling and rewriting
processes=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) # before the next line, because nproc returns OMP_NUM_THREADS if it is set
export OMP_NUM_THREADS=1 # one process per core, one thread each
pytest --numprocesses="$processes" --dist=worksteal "$@"
