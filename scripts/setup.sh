#!/usr/bin/env bash
# Installs what is missing for the given purposes: build, test. Quick when nothing is.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A packages=(
  [build]="g++ cmake ninja-build ccache python3-venv libcli11-dev nlohmann-json3-dev libgtest-dev libbenchmark-dev
    libgloo-dev zlib1g-dev"
  [test]="clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev chromium fonts-dejavu-core iproute2"
)

missing=()
for purpose in "$@"; do
  for package in ${packages[$purpose]}; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
done
if ((${#missing[@]})); then
  if ((EUID != 0)); then
    echo "These Debian packages are missing; install them and call make again:" >&2
    echo "  sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# The virtual environment gives libtorch to the build and the reference implementation to the tests.
stamp=.venv/installed-requirements.txt
wanted=requirements.txt
if [[ -n "${CMAKE_PREFIX_PATH:-}" && " $* " != *" test "* ]]; then
  exit 0  # libtorch is given
fi
if ! cmp -s "$wanted" "$stamp"; then
  echo "Setting up .venv with $(tr '\n' ' ' <"$wanted")"
  python3 -m venv .venv
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  .venv/bin/pip install --disable-pip-version-check -r "$wanted" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  cp "$wanted" "$stamp"
fi
