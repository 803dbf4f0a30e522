#!/usr/bin/env bash
# Installs a build to a prefix and uses it as a stranger would: find_package from C++ and C, from C
# alone, and pkg-config; with PYTHON, from LibTorch alone, that of this interpreter. The prefix is moved
# before it is used: nothing installed may hold its path.
#
#   tests/consumer/run.sh BUILD_FOLDER [CMAKE [PYTHON]]
set -euo pipefail

readonly source="$(cd "$(dirname "$0")" && pwd)"
readonly build="$(cd "$1" && pwd)" cmake="${2:-cmake}"
readonly python="${3:-}"
readonly work="$build/consumer${python:+-torch}"
rm -rf "$work"
mkdir -p "$work"

"$cmake" --install "$build" --component cpp --prefix "$work/staged" >"$work/install.log"
mv "$work/staged" "$work/prefix"
if grep -rIlF -e "$work/staged" -e "$build/src" "$work/prefix"; then
  echo "these installed files hold a path of the build" >&2
  exit 1
fi

use() {
  local name="$1"
  shift
  "$cmake" -S "$source" -B "$work/$name" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$work/prefix;$torch" "$@" >"$work/$name.log" 2>&1 ||
    { cat "$work/$name.log"; return 1; }
  "$cmake" --build "$work/$name" >>"$work/$name.log" 2>&1 || { cat "$work/$name.log"; return 1; }
}

torch=""
if [ -n "$python" ]; then
  torch="$("$python" -c 'import torch; print(torch.utils.cmake_prefix_path)')"
  use torch -DCONSUMER_TORCH=ON -DCMAKE_BUILD_TYPE=Debug
  "$work/torch/consumer_torch"
  exit
fi

use both
"$work/both/consumer_cpp"
"$work/both/consumer_both"
"$work/both/consumer_c"

use c_alone -DCONSUMER_CXX=OFF
"$work/c_alone/consumer_c"

if command -v pkg-config >/dev/null; then
  pc="$(dirname "$(find "$work/prefix" -name flashoptim.pc)")"
  read -ra flags <<<"$(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs flashoptim)"
  cc -std=c11 "$source/../../examples/c/quadratic.c" -o "$work/by_pkg_config" "${flags[@]}"
  LD_LIBRARY_PATH="$(dirname "$pc")" "$work/by_pkg_config"
fi
