#!/usr/bin/env bash
# Checks and times kernels and training on a machine with a CUDA GPU, in at most 10 minutes.
#
#   bash tools/gpu_check.sh [--built | --dry]
#
# Builds the kernels for this GPU, runs their GPU tests, runs compute-sanitizer (if installed) on a small case, and
# times the kernels against PyTorch's flash attention and FlexAttention. Needs torch, nvcc and pytest; downloads nothing. If the
# packages of asr are installed, training, decoding, transcribing and comparing are tested against the CPU, and
# training steps of the WSJ and Switchboard models are timed with the kernels.
# Writes gpu_check.json, gpu_check.txt (the table) and logs to $OUT (default: gpu_check/). $PYTHON defaults to that of
# .venv, if no other environment is active, else to python3.
# --built takes the kernels that are there, e.g. from `FORCE_CUDA=1 python setup.py build_ext --inplace`.
# --dry runs tests and benchmarks on the CPU, with the CPU kernels and short sequences.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} && -x .venv/bin/python ]] && PYTHON=${PYTHON:-.venv/bin/python}
PYTHON=${PYTHON:-python3}
OUT=${OUT:-gpu_check}
mkdir -p "$OUT"
DRY=()
[[ "${1:-}" == --dry ]] && DRY=(--dry)

LIMIT=585

# step <name> <timeout in seconds> <command …>: runs a step; a failure is recorded, and the next step runs.
step() {
  local name=$1 seconds=$2 start=$SECONDS status
  shift 2
  ((seconds = seconds < LIMIT - SECONDS ? seconds : LIMIT - SECONDS))
  echo "== $name"
  if ((seconds > 0)); then
    timeout "$seconds" "$@" >"$OUT/$name.log" 2>&1
  else
    echo "not run: no time was left" >"$OUT/$name.log"
    false
  fi
  status=$?
  tail -n 12 "$OUT/$name.log"
  echo "$status $((SECONDS - start))" >"$OUT/$name.status"
}

rm -f "$OUT"/*.status "$OUT"/*.log "$OUT"/{benchmark,flex,gpu_check,wsj,switchboard}.*
if [[ ${#DRY[@]} -eq 0 ]]; then
  TORCH_CUDA_ARCH_LIST=$("$PYTHON" -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())' 2>/dev/null) ||
    { echo "$PYTHON: torch is missing or finds no CUDA GPU; use --dry to run on the CPU"; exit 1; }
  export TORCH_CUDA_ARCH_LIST
  export FORCE_CUDA=1
  [[ "${1:-}" == --built ]] || step build 200 env PYTHONPATH=. "$PYTHON" tools/gpu_check.py build
  TESTS=tests/attention_ext/test_cuda_gpu.py
else
  TESTS=tests/attention_ext/test_grouping_kernels.py
fi
PARALLEL=()
# In parallel where pytest-xdist is installed: tests wait for oracles, which run on the CPU.
"$PYTHON" -c 'import xdist' 2>/dev/null && PARALLEL=(-n $(($(nproc) < 8 ? $(nproc) : 8)))
# Without tests/conftest.py, which needs the whole framework and would put tests/ on the path.
step tests 200 env PYTHONPATH=.:tests "$PYTHON" -m pytest "${PARALLEL[@]}" \
  --confcutdir tests/attention_ext -p no:cacheprovider "$TESTS"
if [[ ${#DRY[@]} -eq 0 ]] && command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    step "$tool" 60 env PYTHONPATH=. compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$PYTHON" tools/gpu_check.py small
  done
fi
step benchmark 180 env PYTHONPATH=. "$PYTHON" tools/gpu_check.py benchmark "${DRY[@]}" --out "$OUT"
if ! "$PYTHON" -c 'import altair, jiwer, lhotse, lightning, sentencepiece, vl_convert' 2>/dev/null; then
  echo "== training: skipped, because packages of asr are missing (README.md, install)"
elif [[ ${#DRY[@]} -eq 0 ]]; then
  step training 200 "$PYTHON" -m pytest "${PARALLEL[@]}" -p no:cacheprovider -m gpu tests/training tests/attention
  for model in wsj:780 switchboard:2000; do
    step "${model%:*}" 60 "$PYTHON" -m asr bench unit=model device=cuda precision=bf16 \
      batch=8 "model=${model%:*}" "lengths=${model#*:}" attentions=[full,lsh-4,clustered-100,i-clustered-100,near-25,local-64] \
      passes=forward+backward rounds=7 "out=$OUT/${model%:*}.json"
  done
else
  step training 200 "$PYTHON" -m pytest -p no:cacheprovider --gpu-on-cpu tests/training/test_gpu.py -k "not compared"
  step wsj 60 "$PYTHON" -m asr bench unit=model attentions=[full,clustered-8] \
    lengths=50 passes=forward+backward rounds=2 peak_memory=false "out=$OUT/wsj.json"
fi
[[ ${#DRY[@]} -eq 0 ]] && step flex 100 env PYTHONPATH=. "$PYTHON" tools/gpu_check.py flex --out "$OUT"
env PYTHONPATH=. "$PYTHON" tools/gpu_check.py report --out "$OUT"
