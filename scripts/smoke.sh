#!/usr/bin/env bash
# The quickstart for CI: status 0 only if the job trained, the weights changed, and every needed feature was applied.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/with-python.sh" smoke "$@"
