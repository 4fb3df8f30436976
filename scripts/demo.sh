#!/usr/bin/env bash
# Draws and compares every schedule, then trains by one of them: scripts/demo.sh PROGRAM DIRECTORY
set -euo pipefail
program=$1
gallery=$2
sizes=(--ranks 4 --microbatches 8)
mapfile -t names < <("$program" list | tail -n +2 | awk '{print $1}')

mkdir -p "$gallery"
echo "== ${#names[@]} schedules on 4 ranks, 8 microbatches, simulated"
for name in "${names[@]}"; do
  "$program" show "$name" "${sizes[@]}" --format svg -o "$gallery/${name,,}.svg" 2>/dev/null
done
"$program" compare "${names[@]}" "${sizes[@]}" --format html -o "$gallery/index.html" 2>/dev/null
"$program" compare "${names[@]}" "${sizes[@]}"
echo
color=never
[[ -t 1 && -z "${NO_COLOR:-}" ]] && color=always
"$program" show ZBVZeroBubble "${sizes[@]}" --color "$color"

pages=("$gallery/index.html     all schedules, drawn and compared")
echo
if [[ -x "$(dirname "$program")/pipewright-torch" ]]; then
  echo "== A small GPT learns to write, character by character, by one of them"
  "$program" train --schedule ZBVZeroBubble "${sizes[@]}" --context 32 --steps 500 --clip 1 \
    --timeline "$gallery/training.html"
  pages+=("$gallery/training.html  a step of that training: measured beside predicted")
else
  echo "Built without libtorch: there is no training to show."
fi
echo
echo "Open in a browser:"
printf '  %s\n' "${pages[@]}"
