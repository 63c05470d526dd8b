#!/usr/bin/env bash
# Linters, types and tests, from a fresh clone or any time later.
#
#   bash tools/test.sh [pytest's arguments]
#
# What needs a GPU, a licensed corpus or an absent tool is skipped with its reason.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ruff check .
ruff format --check --quiet .
mypy
find attention_ext tests/attention_ext -name '*.h' -o -name '*.cpp' -o -name '*.cu' | xargs clang-format --dry-run --Werror
processes=$(nproc) # before the next line: nproc answers with OMP_NUM_THREADS where it is set
export OMP_NUM_THREADS=1 # one process a core, one thread each
pytest --numprocesses="$processes" --dist=worksteal "$@"
