#!/usr/bin/env bash
# Runs a launch script that hands its job to `ray job submit`, and starts the job itself instead.
# Within `verl-npu launch` the script runs on that cluster already: what it submits with --no-wait would not be waited
# for, and would end with the cluster at once.
#   without-submit.sh SCRIPT.sh [ARGUMENT…]
set -euo pipefail

ray() {
    if [ "${1-} ${2-}" != "job submit" ]; then
        command ray "$@"
        return
    fi
    while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
    if [ $# -lt 2 ]; then
        echo "without-submit.sh: expected ray job submit … -- COMMAND, found no --" >&2
        return 2
    fi
    shift
    "$@"
}
export -f ray
exec bash "$@"
