#!/usr/bin/env bash
# Configures and builds a preset: scripts/build.sh PRESET
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
options=()
if [[ -z "${CMAKE_PREFIX_PATH:-}" && -x .venv/bin/python && ! $preset = core ]]; then
  torch=$(.venv/bin/python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
  options+=("-DCMAKE_PREFIX_PATH=$torch/share/cmake")
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" "${options[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
cmake --build --preset "$preset"
