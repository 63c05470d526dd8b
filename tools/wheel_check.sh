#!/usr/bin/env bash
# Checks that one binary works with every torch from 2.11 on: builds a wheel with the tested torch, installs it next to
# another torch, and runs the kernels' tests there.
#
#   bash tools/wheel_check.sh ['torch==2.13.0+cpu']
#
# Downloads the other torch: several GB unless it is a CPU build.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" test

other=${1:-torch>2.11}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git clone --quiet . "$work/source" # a clean clone of the last commit
(cd "$work/source" && python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheels" .)
python -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "$other" numpy pytest hypothesis pytest-timeout
"$work/venv/bin/pip" install --quiet --no-deps "$work"/wheels/*.whl

# Outside the checkout, whose attention_ext would otherwise be imported.
mkdir "$work/tests"
cp tests/attention_ext/{conftest,kernel_cases,attention_calls,test_improved_topk}.py "$work/tests"
cp tests/attention_ext/test_{attention,clustered,grouping,lsh}_kernels.py "$work/tests"
cd "$work/tests"
export OMP_NUM_THREADS=1
"$work/venv/bin/python" -c "
import attention_ext, torch
print('torch', torch.__version__, 'with', attention_ext.__file__)
reason = attention_ext.why_unavailable('cpu')
if reason:
    raise SystemExit(f'the CPU kernels do not load: {reason}')"
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider .
