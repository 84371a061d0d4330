#!/usr/bin/env bash
# Runs a launch script that submits its job with `ray job submit`, and starts the job directly instead.
# Within `verl-npu launch` the script already runs on the cluster. A job submitted with --no-wait would end at once,
# together with the cluster, because nobody waits for it.
#   without-submit.sh SCRIPT.sh [ARGUMENT…]
set -euo pipefail

ray() {
    if [ "${1-} ${2-}" != "job submit" ]; then
        command ray "$@"
        return
    fi
    while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
    if [ $# -lt 2 ]; then
        echo "without-submit.sh: expected ray job submit … -- COMMAND; found no --" >&2
        return 2
    fi
    shift
    "$@"
}
export -f ray
exec bash "$@"
