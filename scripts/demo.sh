#!/usr/bin/env bash
# Draws and compares every schedule: scripts/demo.sh PROGRAM DIRECTORY
set -euo pipefail
program=$1
gallery=$2
sizes=(--ranks 4 --microbatches 8)
mapfile -t names < <("$program" list | tail -n +2 | awk '{print $1}')

mkdir -p "$gallery"
for name in "${names[@]}"; do
  "$program" show "$name" "${sizes[@]}" --format svg -o "$gallery/${name,,}.svg" 2>/dev/null
done
"$program" compare "${names[@]}" "${sizes[@]}" --format html -o "$gallery/index.html" 2>/dev/null

"$program" compare "${names[@]}" "${sizes[@]}"
echo
color=never
[[ -t 1 && -z "${NO_COLOR:-}" ]] && color=always
"$program" show ZBVZeroBubble "${sizes[@]}" --color "$color"
echo
echo "All ${#names[@]} schedules, drawn and compared: $gallery/index.html (open it in a browser)"
