#!/usr/bin/env bash
# Formatting of every C++ file, then clang-tidy over the sources. Nothing is changed.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.cpp' '*.h')
clang-format-19 --dry-run -Werror "${files[@]}"

scripts/build.sh tidy >/dev/null
# What is compiled; the targets on libtorch are one file each, first because they take longest.
mapfile -t sources < <(python3 -c 'import json
files = [entry["file"] for entry in json.load(open("build/tidy/compile_commands.json"))]
print(*sorted(files, key=lambda file: "unity" not in file), sep="\n")')
printf '%s\n' "${sources[@]}" |
  xargs -P "$(nproc)" -n 1 clang-tidy-19 -p build/tidy --quiet --warnings-as-errors='*' 2> >(grep -v 'warnings generated' >&2)
echo "lint: ${#files[@]} files formatted, ${#sources[@]} sources tidy"
