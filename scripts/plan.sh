#!/usr/bin/env bash
# Makes the environment of a verl revision, and plans a launch script in it: `verl-npu plan`, with the same words.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/with-python.sh" plan "$@"
