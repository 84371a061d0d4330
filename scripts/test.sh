#!/usr/bin/env bash
# Makes an environment and runs the tests in it. Arguments go to pytest: ./scripts/test.sh tests/registry
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/with-python.sh" test "$@"
