#!/usr/bin/env bash
# Set up .venv if needed, then run ruff, mypy and pytest.
#
#   bash tools/test.sh [pytest arguments]
#
# Tests that need a GPU, a licensed corpus or a missing tool are skipped and say why.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ruff check .
ruff format --check --quiet .
mypy
processes=$(nproc)       # first, because nproc obeys OMP_NUM_THREADS
export OMP_NUM_THREADS=1 # one process per core, one thread per process
pytest --numprocesses="$processes" --dist=worksteal "$@"
