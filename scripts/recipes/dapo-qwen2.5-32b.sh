#!/usr/bin/env bash
# row: DAPO | Qwen2.5-32B | FSDP | vLLM
# pin: v0.6.1
# from: recipe/dapo/run_dapo_qwen2.5_32b_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-32B}
NODES=${NODES:-2}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/dapo.sh"

lengths 2048 20480 8
batches 128 384 32
engine 4 0.9 0.7
filter True
over_fsdp 8
start_dapo "${dense[@]}" trainer.val_before_train=True trainer.test_freq=5 "$@"
