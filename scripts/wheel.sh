#!/usr/bin/env bash
# Builds dist/: the source distribution, and from it, not from this folder, the wheel. Then checks
# the wheel as a machine without compiler, torch and GPU sees it, and prints its size and what an
# import takes.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly python="$PWD/.venv/bin/python"
# The oldest C library that what is built here runs with: that of RHEL 9 and Ubuntu 22.04.
platform="manylinux_2_34_$(uname -m)"
readonly platform
export CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-2}"
# The source distribution is unpacked to a new folder each time; objects are the same.
export CCACHE_BASEDIR="${TMPDIR:-/tmp}" CCACHE_NOHASHDIR=1
# As scripts/build_python.sh.
if [ -z "${CXX:-}" ] && command -v clang++ >/dev/null; then export CXX=clang++; fi

rm -rf dist build/wheel
mkdir -p build/wheel
if ! "$python" -m build --no-isolation --outdir dist . >build/wheel/build.log 2>&1; then
  tail -n 40 build/wheel/build.log
  exit 1
fi
wheel="$(echo dist/*.whl)"
"$python" -m auditwheel show "$wheel" >build/wheel/audit.txt 2>&1
if ! tr -s '\n ' '  ' <build/wheel/audit.txt | grep -qF "with the following platform tag: \"$platform\""; then
  cat build/wheel/audit.txt
  echo "wheel: it should be consistent with $platform" >&2
  exit 1
fi
# Nothing has to be copied into it: a name is all that makes it one of these.
"$python" -m wheel tags --remove --platform-tag "$platform" "$wheel" >/dev/null

# Without pip and PATH: what the wheel does not bring is not there.
"$python" -m venv --without-pip build/wheel/venv
"$python" -m pip --python build/wheel/venv/bin/python install --quiet --no-index --no-deps \
  --disable-pip-version-check dist/*.whl
"$python" scripts/check_wheel.py dist build/wheel/venv
