#!/usr/bin/env bash
# Runs the CUDA tests on this machine's GPU and compute-sanitizer over a part of them, and writes
# tests/results/cuda-GPU.json. Exit status: 0 all passed, 1 not, 2 there is no GPU to test on.
#
#   FLASHOPTIM_PREBUILT=1       build nothing: flashoptim_cpp is importable, or its extension module
#                               lies in bindings/python; PYTHON (python3) runs the tests
#   FLASHOPTIM_LIBTORCH_PARITY  with it: the program libtorch_parity, compiled against PYTHON's torch;
#                               without it the tests of the LibTorch adapter are skipped
#   COMMIT                      what is tested, where there is no git
#   SANITIZERS                  tools to run (memcheck racecheck initcheck synccheck); "" for none
#   FLASHOPTIM_TEST_DEVICE=cpu  try the tests with the CPU in the GPU's place; the result goes to
#                               build/reports/cuda
set -euo pipefail
cd "$(dirname "$0")/.."

readonly reports="$PWD/build/reports/cuda"
if [ "${FLASHOPTIM_TEST_DEVICE:-}" = cpu ]; then on_cpu=yes; else on_cpu=""; fi
readonly on_cpu
readonly tools="${SANITIZERS-memcheck racecheck initcheck synccheck}"
readonly test_limit=600 sanitizer_limit=240 # seconds

no_gpu() {
  printf 'test-cuda: %s\n' "$1" >&2
  exit 2
}

if [ -z "$on_cpu" ] && ! nvidia-smi -L >/dev/null 2>&1; then
  no_gpu "nvidia-smi finds no GPU; FLASHOPTIM_TEST_DEVICE=cpu tries the tests without one"
fi

if [ "${FLASHOPTIM_PREBUILT:-}" = 1 ]; then
  python="${PYTHON:-python3}"
  export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD/bindings/python"
else
  scripts/setup.sh dev
  if [ -z "$on_cpu" ]; then export FLASHOPTIM_CUDA=ON CUDAARCHS="${CUDAARCHS:-native}"; fi
  scripts/build_python.sh
  python=".venv/bin/python"
  libtorch="build/libtorch-cuda"
  cmake --preset libtorch -B "$libtorch" -DCMAKE_BUILD_TYPE=Release \
    -DFLASHOPTIM_CUDA="${FLASHOPTIM_CUDA:-OFF}" >/dev/null
  cmake --build "$libtorch" -j "${JOBS:-2}" --target libtorch_parity
  export FLASHOPTIM_LIBTORCH_PARITY="$PWD/$libtorch/tests/libtorch/libtorch_parity"
fi
readonly python

if [ -z "$on_cpu" ]; then
  reason="$("$python" - 2>&1 <<'PY'
import torch
from flashoptim_cpp import _C

if not torch.cuda.is_available():
    print(f"PyTorch {torch.__version__} finds no GPU")
elif not _C.cuda_available():
    print(f"flashoptim_cpp cannot step CUDA tensors: {_C.cuda_status()}")
PY
)"
  if [ -n "$reason" ]; then no_gpu "${reason##*$'\n'}"; fi
fi

rm -rf "$reports"
mkdir -p "$reports"
set +e
timeout --kill-after=10 "$test_limit" "$python" -m pytest tests/cuda -p no:cacheprovider \
  --continue-on-collection-errors -q -rfEs --durations=15 --junitxml "$reports/tests.xml" 2>&1 | tee "$reports/tests.log"
set -e

sanitizer="$(command -v compute-sanitizer ||
  PATH="${CUDA_HOME:-/usr/local/cuda}/bin" command -v compute-sanitizer || true)"
readonly sanitizer

# The tools run beside each other; each writes its log and its exit status.
sanitize() {
  local tool="$1" status=0
  timeout --kill-after=10 "$sanitizer_limit" \
    "$sanitizer" --tool "$tool" --error-exitcode 86 --print-limit 20 \
    "$python" tests/cuda/sanitized_steps.py >"$reports/$tool.log" 2>&1 || status=$?
  echo "$status" >"$reports/$tool.status"
}

for tool in $tools; do
  if [ -n "$on_cpu" ]; then
    echo "not run: no GPU" >"$reports/$tool.skipped"
  elif [ -z "$sanitizer" ]; then
    echo "not run: compute-sanitizer is not installed" >"$reports/$tool.skipped"
  else
    sanitize "$tool" &
  fi
done
wait

if [ -n "$on_cpu" ]; then results="$reports"; else results=tests/results; fi
"$python" tests/cuda/record.py "$reports" "$results"
