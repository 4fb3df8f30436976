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
# One check takes almost as long as all others together where libtorch's headers are included: not there.
tidy() {
  local checks=
  case $1 in
    *pipewright_runtime.dir* | *pipewright_frontend.dir* | *pipewright-torch.dir* | *gpt_example.dir*)
      checks=-performance-unnecessary-value-param ;;
  esac
  clang-tidy-19 -p build/tidy --quiet --warnings-as-errors='*' --checks="$checks" "$1"
}
export -f tidy
printf '%s\n' "${sources[@]}" | xargs -d '\n' -P "$(nproc)" -n 1 bash -c 'tidy "$1"' tidy 2> >(grep -v 'warnings generated' >&2)
echo "lint: ${#files[@]} files formatted, ${#sources[@]} sources tidy"
