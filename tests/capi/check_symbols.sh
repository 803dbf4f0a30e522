#!/usr/bin/env bash
# Compares the dynamic symbols and the SONAME of libflashoptim.so with what is kept here.
#
#   check_symbols.sh LIBRARY SYMBOLS_FILE SOVERSION
set -euo pipefail

readonly library="$1" wanted="$2" soversion="$3"
exported="$(nm -D --defined-only "$library" | awk '{ print $3 }' | LC_ALL=C sort)"
if ! diff -u "$wanted" - <<<"$exported"; then
  echo "the exported symbols are not those of $wanted: a removed one needs a new" \
    "FLASHOPTIM_ABI_VERSION, a new one a line there" >&2
  exit 1
fi
if ! readelf -d "$library" | grep -q "SONAME.*\[libflashoptim.so.$soversion\]"; then
  echo "the SONAME is not libflashoptim.so.$soversion" >&2
  exit 1
fi
