#!/usr/bin/env bash
# Formatting of every C++ file, then clang-tidy over the sources. Nothing is changed.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.cpp' '*.h')
clang-format-19 --dry-run -Werror "${files[@]}"

scripts/build.sh tidy >/dev/null
mapfile -t sources < <(git ls-files 'src/*.cpp' 'cli/*.cpp')
printf '%s\n' "${sources[@]}" |
  xargs -P "$(nproc)" -n 4 clang-tidy-19 -p build/tidy --quiet --warnings-as-errors='*' 2> >(grep -v 'warnings generated' >&2)
echo "lint: ${#files[@]} files formatted, ${#sources[@]} sources tidy"
