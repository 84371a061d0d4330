#!/usr/bin/env bash
# row: GRPO | Qwen2.5-VL-32B-Instruct | FSDP | vLLM
# pin: v0.6.1
# from: examples/grpo_trainer/run_qwen2_5_vl_32b_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-VL-32B-Instruct}
NODES=${NODES:-2}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/vision.sh"

batches 512 32 1 1
engine 8 0.3
start_grpo "${vision[@]}" "$@"
