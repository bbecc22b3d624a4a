#!/usr/bin/env bash
# Takes parts of a bundle on a machine with a GPU and runs every stage that they suffice for, the most
# telling first: tests/gpu/README.md.
#
#   tests/gpu/run.sh PART...              parts of any number of calls add up
#   tests/gpu/run.sh --list               the stages
#
# Nothing is installed and nothing is fetched: python3 (3.11 or later) with numpy is all that is needed.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "${PYTHON:-python3}" "$here/run.py" "$@"
