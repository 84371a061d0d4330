#!/usr/bin/env bash
# row: GRPO | Qwen2.5-VL-3B-Instruct | FSDP | vLLM
# pin: v0.6.1
# from: examples/grpo_trainer/run_qwen2_5_vl_3b_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-VL-3B-Instruct}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-8}
source "$(dirname "${BASH_SOURCE[0]}")/settings/vision.sh"

batches 512 16 2 4
engine 2 0.6
start_grpo "${vision[@]}" "$@"
