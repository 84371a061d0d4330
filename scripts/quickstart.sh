#!/usr/bin/env bash
# Trains real verl with GRPO on Ascend NPUs, or on virtual NPUs if there are none. --help lists the options.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/with-python.sh" quickstart "$@"
