#!/usr/bin/env bash
# Formatting, static analysis and types of the whole tree; changes nothing.
#
#   scripts/lint.sh            check everything
#   scripts/lint.sh --fix      format C++ and Python in place instead
#
# clang-tidy reads build/dev (library, tests, LibTorch) and build/python (bindings/python), which must
# be configured; `make lint` sees to it. A file is checked again only when it, a header, or the
# configuration changed.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly python=".venv/bin/python" jobs="${JOBS:-2}" cache="build/lint"

# Files that clang-tidy skips, with the reason.
readonly tidy_skip=()

files() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r f; do
  if [ -f "$f" ]; then printf '%s\n' "$f"; fi
done; }

mapfile -t cxx < <(files '*.h' '*.c' '*.cc' '*.cpp' '*.cu' '*.cuh')
if [ "${1:-}" = --fix ]; then
  clang-format -i "${cxx[@]}"
  "$python" -m ruff check --fix .
  "$python" -m ruff format .
  exit 0
fi

failed=()
check() {
  local name="$1"
  shift
  local start=$SECONDS
  if "$@"; then
    printf 'lint: %-13s ok (%d s)\n' "$name" "$((SECONDS - start))"
  else
    printf 'lint: %-13s FAILED\n' "$name"
    failed+=("$name")
  fi
}

# Hash of everything that the verdict on any file depends on, apart from the file.
common_hash() {
  clang-tidy --version
  files '*.h' '*.cuh' '.clang-tidy' '*/.clang-tidy' '*CMakeLists.txt' '*.cmake' CMakePresets.json |
    LC_ALL=C sort | xargs sha256sum
}

# The build that compiles a file.
build_of() { if [[ "$1" == bindings/python/* ]]; then echo build/python; else echo build/dev; fi; }

# Is it compiled there at all? What only the CUDA presets build is judged by nvcc's warnings.
compiled() { grep -qF "\"$PWD/$1\"" "$(build_of "$1")/compile_commands.json"; }

# GCC's flags of the dev build may name warnings that Clang does not have.
tidy_one() {
  local file="$1" common="$2" build stamp output
  build="$(build_of "$file")"
  stamp="$cache/$(printf '%s' "$common" | cat - "$file" | sha256sum | cut -c1-32)"
  if [ -e "$stamp" ]; then return 0; fi
  if output="$(clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option "$file" 2>&1)"; then
    touch "$stamp"
  else
    printf '%s\n%s\n' "--- $file" "$output"
    return 1
  fi
}

tidy() {
  local common file sources=()
  mkdir -p "$cache"
  common="$(common_hash | sha256sum)"
  while read -r file; do
    if [[ " ${tidy_skip[*]-} " != *" $file "* ]] && compiled "$file"; then sources+=("$file"); fi
  done < <(files 'src/*.cc' 'src/*.cpp' 'bindings/*.cc' 'tools/*.cc' 'tests/*.cc' 'examples/*.cc')
  export -f build_of tidy_one
  export cache
  printf '%s\n' "${sources[@]}" |
    xargs -P "$jobs" -I{} bash -c 'tidy_one "$1" "$2"' _ {} "$common"
}

check clang-format clang-format --dry-run -Werror "${cxx[@]}"
check clang-tidy tidy
check "ruff check" "$python" -m ruff check --quiet .
check "ruff format" "$python" -m ruff format --check --quiet .
check mypy "$python" -m mypy --no-error-summary

if [ "${#failed[@]}" -gt 0 ]; then
  printf 'lint: failed: %s\n' "$(IFS=,; echo "${failed[*]}")"
  exit 1
fi
