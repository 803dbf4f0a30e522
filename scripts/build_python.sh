#!/usr/bin/env bash
# Puts flashoptim_cpp into .venv as an editable install: Python sources are used in place, the
# extension module is compiled in build/python and copied to site-packages. After the first time,
# only what changed is compiled again.
#
# FLASHOPTIM_CUDA=ON builds the CUDA backend in (needs nvcc).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly python=".venv/bin/python" build="build/python" stamp=".venv/.package"
export CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-2}"

# Clang's code for the SIMD loops is faster than GCC's (docs/performance.md). CXX overrides. With CUDA,
# nvcc's host compiler stays what it is.
if [ -z "${CXX:-}" ] && command -v clang++ >/dev/null; then export CXX=clang++; fi

# What decides about the configuration rather than about one object file. The list of module
# names is part of it: an editable install knows the files that existed when it was made.
key() {
  printf '%s\n' "$PWD" "${FLASHOPTIM_CUDA:-OFF}" "${CXX:-}"
  "$python" - <<'PY'
import sys
from importlib.metadata import version
print(sys.version, sys.prefix, version("nanobind"), version("scikit-build-core"))
PY
  find bindings/python/flashoptim_cpp -name '*.py' | LC_ALL=C sort
  cat pyproject.toml VERSION
  find . -path ./build -prune -o -path ./.venv -prune -o \
    \( -name CMakeLists.txt -o -name '*.cmake' \) -print0 | LC_ALL=C sort -z | xargs -0 cat
}

wanted="$(key | sha256sum)"
if [ -f "$build/build.ninja" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
  cmake --build "$build" --target _C flashoptim_program flashoptim_capi | { grep -Ev 'no work to do|Re-checking globbed' || true; }
  site="$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')"
  cmake --install "$build" --component python --prefix "$build/staged" >/dev/null
  # Beside the old file and then renamed: a process that has the old one mapped keeps it, whole.
  (cd "$build/staged" && find . -type f -print0) | while IFS= read -r -d '' file; do
    if cmp -s "$build/staged/$file" "$site/$file"; then continue; fi
    mkdir -p "$(dirname "$site/$file")"
    cp -p "$build/staged/$file" "$site/$file.new"
    mv -f "$site/$file.new" "$site/$file"
  done
  # The component of the program has the path of a wheel that is long gone.
  if ! cmp -s "$build/tools/flashoptim" .venv/bin/flashoptim; then
    cp -p "$build/tools/flashoptim" .venv/bin/flashoptim.new
    mv -f .venv/bin/flashoptim.new .venv/bin/flashoptim
  fi
else
  echo "build: compiling flashoptim_cpp (the first time takes a few minutes)"
  rm -rf "$build"
  "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
    --editable .
  # Python tests read and write files beside the C interface, which is no part of a wheel.
  cmake --build "$build" --target flashoptim_capi >/dev/null
  printf '%s' "$wanted" >"$stamp"
fi
