#!/usr/bin/env bash
# Makes the environment of a verl revision, and runs `verl-npu rehearse` in it with the same arguments.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/with-python.sh" rehearse "$@"
