#!/usr/bin/env bash
# Installs what the project needs and nothing that is already there.
#
#   scripts/setup.sh run    build the Python package, run the demo and the benchmarks
#   scripts/setup.sh dev    the same, and tests and lint
#
# System packages come from apt (as root or through sudo), Python packages from pip into .venv.
# Choose the interpreter with PYTHON=/path/to/python3; pip's own settings are honoured.
# A second call with nothing to do takes a fraction of a second.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly level="${1:-dev}"
readonly venv=".venv"
readonly made_for="$venv/.made-for" # two lines: the folder of the checkout, the interpreter
readonly min_torch="2.5"
readonly examples="scripts/requirements-examples.txt"
readonly apt_build=(g++ clang cmake ninja-build ccache pkg-config libhwy-dev
  nlohmann-json3-dev libcli11-dev zlib1g-dev libzstd-dev)
readonly apt_python=(python3 python3-venv python3-dev)
readonly apt_dev=(libgtest-dev libbenchmark-dev clang-format clang-tidy libclang-rt-dev)

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf '\nsetup: %s\n' "$1" >&2
  shift
  if [ "$#" -gt 0 ]; then printf '       %s\n' "$@" >&2; fi
  exit 1
}

case "$level" in
  run) requirements=(scripts/requirements-run.txt) ;;
  dev) requirements=(scripts/requirements-run.txt scripts/requirements-dev.txt) ;;
  *) die "unknown level '$level'; use 'run' or 'dev'" ;;
esac

# Prints those of its arguments that dpkg does not have installed.
missing_packages() {
  local package
  for package in "$@"; do
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      printf '%s\n' "$package"
    fi
  done
}

# Without apt the user's own packages must do; name what is not there.
check_tools() {
  local tool absent=()
  for tool in g++ cmake ninja; do
    command -v "$tool" >/dev/null || absent+=("$tool")
  done
  if [ "${#absent[@]}" -gt 0 ]; then
    die "this system has no apt-get, and these programs are missing: ${absent[*]}" \
      "Install the equivalents of these Debian packages, then run this again:" "$*"
  fi
}

apt_install() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    check_tools "$@"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  if [ "${#missing[@]}" -eq 0 ]; then return; fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      die "these Debian packages are missing, and neither root nor sudo is available:" \
        "${missing[*]}" "Ask an administrator for: apt-get install ${missing[*]}"
    fi
    as_root=(sudo)
    if [ ! -t 0 ]; then as_root=(sudo -n); fi # no terminal: fail, do not wait for a password
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0)
  say "installing Debian packages: ${missing[*]}"
  # An outdated or empty package list is repaired by `update`; a failure of it alone (one broken
  # source among many) need not stop the installation.
  "${as_root[@]}" update >/dev/null || say "apt-get update failed; trying with the lists at hand"
  if ! "${as_root[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null; then
    die "apt-get could not install: ${missing[*]}" \
      "Is the Debian mirror reachable, and may this user install packages?" \
      "By hand: apt-get update && apt-get install ${missing[*]}"
  fi
}

# Can this interpreter make a virtual environment and compile an extension?
usable_python() {
  "$1" - <<'PY' >/dev/null 2>&1
import ensurepip, os, sys, sysconfig, venv
assert sys.version_info >= (3, 10)
assert os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
PY
}

# Does it import a torch that is new enough? Prints the folders that this torch and what it needs
# are found in.
torch_folders() {
  "$1" - "$min_torch" 2>/dev/null <<'PY'
import importlib.util, pathlib, sys
if importlib.util.find_spec("torch") is None:
    sys.exit(1)
import torch
def pair(version):
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])
if pair(torch.__version__) < pair(sys.argv[1]):
    sys.exit(1)
folders = [str(pathlib.Path(torch.__file__).resolve().parent.parent)]
folders += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
print("\n".join(dict.fromkeys(folders)))
PY
}

# Sets `python` to the first usable interpreter, one that has torch before one that has not.
find_python() {
  local candidate first=""
  for candidate in "${PYTHON:-}" python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
    if [ -z "$candidate" ] || ! command -v "$candidate" >/dev/null; then continue; fi
    usable_python "$candidate" || continue
    first="${first:-$candidate}"
    if [ "$candidate" = "${PYTHON:-}" ] || torch_folders "$candidate" >/dev/null; then
      python="$candidate"
      return
    fi
  done
  python="$first"
  [ -n "$python" ]
}

make_venv() {
  local python=""
  if ! find_python; then
    apt_install "${apt_python[@]}"
    if ! find_python; then
      die "no usable Python: 3.10 or newer with venv and the C headers (Python.h) is needed" \
        "Debian packages: ${apt_python[*]}; or choose one with PYTHON=/path/to/python3"
    fi
  fi
  say "creating $venv with $("$python" --version) ($(command -v "$python"))"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  printf '%s\n' "$PWD" "$(command -v "$python")" >"$made_for"
}

# pip_install NAMES ARGUMENT...: NAMES is what a message calls them.
pip_install() {
  local names="$1"
  shift
  if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; then
    die "pip could not install: $names" \
      "Is the Python package index reachable from here? pip's own message is above."
  fi
}

# Names of the packages in requirement files.
names_in() { sed -En 's/^([a-zA-Z][a-zA-Z0-9-]*).*/\1/p' "$@" | paste -sd ' '; }

# A torch that the user has is reached by a path file: `--system-site-packages` would not see that
# of an active virtual environment, and would hide which tools .venv lacks.
get_torch() {
  local interpreter folders path_file
  interpreter="$(sed -n 2p "$made_for")"
  if folders="$(torch_folders "$interpreter")"; then
    path_file="$(venv_site)/reused_torch.pth"
    printf '%s\n' "$folders" >"$path_file"
    if torch_folders "$venv/bin/python" >/dev/null; then
      say "reusing the torch in ${folders%%$'\n'*}"
      return
    fi
    rm "$path_file"
  fi
  if torch_folders "$venv/bin/python" >/dev/null; then return; fi
  local free_gb
  free_gb="$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')"
  if [ "$free_gb" -lt 8 ]; then
    die "installing torch needs about 8 GB of disk and $free_gb GB are free here" \
      "Free some, or point PYTHON= at a Python that has torch."
  fi
  say "installing torch (a few gigabytes; minutes)"
  pip_install torch "torch>=$min_torch"
}

venv_site() {
  "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'
}

# What an installation is made for: another folder, interpreter or list is another one.
key() {
  cat "$made_for" scripts/setup.sh scripts/requirements-run.txt
  if [ "$1" = dev ]; then cat scripts/requirements-dev.txt "$examples"; fi
}

# A virtual environment works only at the path that it was made at, which its scripts hold.
venv_fits() {
  local folder="" interpreter=""
  { read -r folder && read -r interpreter; } 2>/dev/null <"$made_for" || return 1
  [ "$folder" = "$PWD" ] && "$venv/bin/python" -c '' 2>/dev/null &&
    { [ -z "${PYTHON:-}" ] || [ "$(command -v "$PYTHON")" = "$interpreter" ]; }
}

apt_packages=("${apt_build[@]}")
if [ "$level" = dev ]; then apt_packages+=("${apt_dev[@]}"); fi
apt_install "${apt_packages[@]}"

if ! venv_fits; then
  make_venv
elif [ "$(cat "$venv/.setup-$level" 2>/dev/null)" = "$(key "$level" | sha256sum)" ]; then
  exit 0
fi
say "installing Python packages ($level)"
rm -f "$(venv_site)/reused_torch.pth" # pip must not count that torch's neighbours as ours
pip_install "$(names_in "${requirements[@]}")" "${requirements[@]/#/--requirement=}"
get_torch
if [ "$level" = dev ]; then
  # The torch that is there is one of their requirements, and stays.
  found="$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("torch"))')"
  pip_install "$(names_in "$examples")" --requirement="$examples" "torch==$found"
fi
key "$level" | sha256sum >"$venv/.setup-$level"
if [ "$level" = dev ]; then key run | sha256sum >"$venv/.setup-run"; fi
say "ready ($level)"
