#!/usr/bin/env bash
# Runs stages of the tests and sums them up:
# scripts/test.sh lint cpp libtorch asan tsan fuzz python wheel
#
# A failing stage does not stop the following ones; the exit status says whether all passed.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly jobs="${JOBS:-2}" reports="$PWD/build/reports"

# ThreadSanitizer of GCC 12 refuses address layouts of kernels with more than 28 random bits.
fixed_layout() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    setarch "$(uname -m)" -R "$@"
  else
    "$@"
  fi
}

ctest_preset() {
  local preset="$1" run=()
  if [ "$preset" = tsan ]; then run=(fixed_layout); fi
  cmake --preset "$preset" >"$reports/$preset-configure.log" 2>&1 ||
    { cat "$reports/$preset-configure.log"; return 1; }
  "${run[@]}" cmake --build --preset "$preset" -j "$jobs" || return 1
  "${run[@]}" ctest --preset "$preset" -j "$jobs" --output-junit "$reports/$preset.xml"
}

stage() {
  case "$1" in
    lint)
      cmake --preset libtorch >"$reports/lint-configure.log" 2>&1 ||
        { cat "$reports/lint-configure.log"; return 1; }
      scripts/build_python.sh && scripts/lint.sh
      ;;
    cpp) ctest_preset dev ;;
    libtorch) scripts/build_python.sh && ctest_preset libtorch ;;
    install)
      cmake --preset dev >"$reports/install-configure.log" 2>&1 ||
        { cat "$reports/install-configure.log"; return 1; }
      cmake --build --preset dev -j "$jobs" --target flashoptim flashoptim_capi flashoptim_program ||
        return 1
      ctest --preset dev -R '^consumer$' --output-junit "$reports/install.xml"
      ;;
    asan | tsan | fuzz) ctest_preset "$1" ;;
    wheel) scripts/wheel.sh ;;
    python)
      scripts/build_python.sh || return 1
      .venv/bin/python -m pytest -n "$jobs" --dist loadgroup --junitxml "$reports/python.xml"
      ;;
    *)
      echo "unknown stage '$1'" >&2
      return 2
      ;;
  esac
}

scripts/setup.sh dev
mkdir -p "$reports"
status=0
verdicts=()
for name in "$@"; do
  rm -f "$reports"/*"$name"*.xml
  if [ "$name" = cpp ]; then rm -f "$reports/dev.xml"; fi
  printf '\n=== %s ===\n' "$name"
  start=$SECONDS
  # Not `if stage ...`: bash would switch off `set -e` inside the stage.
  set +e
  (set -e; stage "$name")
  result=$?
  set -e
  if [ "$result" -ne 0 ]; then status=1; fi
  verdicts+=("$name" "$result" "$((SECONDS - start))")
done
.venv/bin/python scripts/test_summary.py "$reports" "${verdicts[@]}" || status=1
exit "$status"
