#!/usr/bin/env bash
# Starts a Python script of this folder, named without .py, with a supported Python.
set -euo pipefail
name="$1"
shift
scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
for python in python3 python3.11 python3.10 python3.12; do
  if "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
    exec "$python" "$scripts/$name.py" "$@"
  fi
done
echo "$name.sh: expected Python 3.10, 3.11 or 3.12; found $(python3 --version 2>&1 || true). Put one of them on PATH as python3" >&2
exit 2
