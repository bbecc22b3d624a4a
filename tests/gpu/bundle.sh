#!/usr/bin/env bash
# Makes the parts that tests/gpu/run.sh takes on a machine with a GPU and nothing else: tests/gpu/README.md.
#
#   tests/gpu/bundle.sh FOLDER            builds what is missing, and writes the parts into FOLDER
#
#   --limit MB        no file is larger (48; at most 60): larger parts are cut into pieces
#   --llama FILE      adds llama.cpp's sources, out of the source package of llama-cpp-python
#   --build BUILD     programs of that build folder, as they are; nothing is installed or built
#   --small           few cases, and a small model of random weights: to test the scripts themselves
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# shellcheck source=tests/tools/setup.sh
. "$root/tests/tools/setup.sh"

build= small=
previous=
for argument in "$@"; do
        [ "$previous" != --build ] || build="$argument"
        [ "$argument" != --small ] || small=yes
        previous="$argument"
done
arguments=("$@")
if [ -z "$build" ]; then
        ensure_packages build client
        ensure_venv models,test
        ensure_build "$root/build"
        arguments+=(--build "$root/build")
fi
if [ -z "$small" ]; then
        python="${python:-$root/.venv/bin/python}"
        ensure_model
        arguments+=(--model "$model" --golden "$root/../shared/golden/ops")
fi
exec "${python:-$root/.venv/bin/python}" "$root/tests/gpu/bundle.py" "${arguments[@]}"
