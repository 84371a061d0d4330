#!/usr/bin/env bash
# Makes the environment of a verl revision, and rehearses a launch script in it: `verl-npu rehearse`, with the same words.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/with-python.sh" rehearse "$@"
