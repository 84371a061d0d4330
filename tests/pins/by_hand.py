"""Edits of upstream's source that a person might make: the same behavior in other words, and the words without it.

Each edit names the patches that it concerns, and the states that they may have then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_npu.registry.state import State

from .mutants import Kind, Mutant, Upstream

NEEDED = (State.PENDING, State.DRIFTED)
"""The patch is still needed: native and absent would be false."""
FITS = (State.PENDING,)
DRIFTED = (State.DRIFTED,)
NATIVE = (State.NATIVE,)


@dataclass(frozen=True)
class Edit:
    """One edit of one file at one pin; `{}` in `new` stands for the replaced text."""

    name: str
    pin: str
    path: str
    old: str
    new: str
    patches: Sequence[str]
    states: Sequence[State]
    more: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.pin}: {self.name}"

    def of(self, upstream: Upstream) -> Mutant:
        """Return the tree with the edit. Raises ValueError if the source lacks the text to be replaced."""
        text = upstream.text(self.path)
        for old, new in ((self.old, self.new), *self.more):
            if old not in text:
                raise ValueError(f"{self.path} at {self.pin} does not have {old!r}")
            text = text.replace(old, new.replace("{}", old))
        return Mutant(Kind.BY_HAND, str(self), {self.path: text.encode()})


_RAY = "verl/single_controller/ray/base.py"
_GROUPS = 'def get_placement_groups(self, strategy="STRICT_PACK", name=None, device_name="cuda"):'
_PLACES = ["device.request_npus_not_gpus"]
_ASKED = "current_platform.ray_resource_name()"
_NAMED = f"        device_name = {_ASKED}"
_KEY = "bundle[device_name] = 1"
_HCCL = "verl/checkpoint_engine/hccl_checkpoint_engine.py"
_THREAD = "        loop = asyncio.get_running_loop()\n        self._task = loop.run_in_executor(None, self._run)\n"
_CALLING = ["weight_sync.broadcast_bucket_in_calling_thread"]
_DESTROY = "self.pyhccl.destroyComm(self.pyhccl.comm)"
_DROPS = ["weight_sync.drop_communicator_without_destroy"]
_BALANCE = "verl/utils/seqlen_balancing.py"
_TOKENS = "    total_seqlen = seq_len_effective.sum().item()\n"
_BUDGET = ["micro_batches.keep_token_budget", "micro_batches.split_within_budget", "micro_batches.agree_on_a_number"]
_INITIALIZER = "verl/models/mcore/model_initializer.py"
_HEAD = "from verl.models.llama.megatron.layers.parallel_linear import LinearForLastLayer"
_VALUE_HEAD = ["megatron.load_the_value_head_without_flash_attn"]
_TORCH = "verl/utils/torch_functional.py"
_PADDING = "    from flash_attn.bert_padding import pad_input, unpad_input\n"
_RESPONSE = ["attention.avoid_flash_attn_in_response_log_probs"]
_SHAPES = "verl/utils/megatron/pipeline_parallel.py"
_UNPAD = "    from flash_attn.bert_padding import unpad_input  # flash 2 is a must for Megatron\n"
_PIPELINE = ["attention.avoid_flash_attn_in_pipeline_shapes"]
_PARALLEL = "verl/utils/megatron/tensor_parallel.py"
_VOCABULARY = ["attention.avoid_flash_attn_in_vocab_parallel_log_probs"]
_MODEL = "verl/utils/model.py"
_FLASH = 'attn_implementation="flash_attention_2",'
_HEADS_CHOICE = ["attention.use_configured_attention_for_value_head"]
_HF = "verl/workers/rollout/hf_rollout.py"
_N = '"num_return_sequences": self.config.n,'
_TWICE = ["rollout.prevent_double_repetition_in_hf_rollout"]
_PPO = "verl/trainer/main_ppo.py"
_RUN = "    # Check if Ray is not initialized\n    if not ray.is_initialized():\n"
_RUN_PPO = ["device.set_npu_in_run_ppo_config"]
_DEVICE = "verl/utils/device.py"
_GKD = "recipe/gkd/ray_trainer.py"
_GKD_GROUP = "        collective.create_collective_group(\n"
_GKD_MADE = ["weight_sync.make_gkd_group_over_hccl"]
_ONE_STEP = "recipe/one_step_off_policy/ray_trainer.py"
_SYNCHRONIZER = "recipe/fully_async_policy/param_sync.py"
_ASYNC = ["weight_sync.make_fully_async_group_over_hccl"]
_MEGATRON = "verl/workers/megatron_workers.py"
_REPATCHES = ["megatron.give_mindspeed_the_actors_or_refs_overrides"]
_ENGINE = "verl/workers/engine_workers.py"
_OFFLOAD = (
    '        self.actor.engine.to("cpu", model=True, optimizer=False, grad=False)\n        aggressive_empty_cache'
)
_STAYS = ["rollout.keep_weights_that_are_not_offloaded"]
_SAVE = "verl/utils/checkpoint/megatron_checkpoint_manager.py"
_SAVED = ["megatron.drop_save_options_unknown_to_mbridge"]
_CONVERTER = "verl/models/mcore/config_converter.py"
_FLAG = ["megatron.set_the_experimental_flag_of_an_older_megatron"]
_FIRST = "        # broadcast tensor meta via zeromq PUB/SUB\n"
_WAITS = ["weight_sync.limit_wait_for_bucket"]
_NPU_PATCH = "verl/models/transformers/npu_patch.py"
_BARRIER = "        signal = torch.tensor([1], dtype=torch.int8, device=torch.npu.current_device())\n"
_CONNECTIONS = ["weight_sync.verify_checkpoint_engine_connections"]

EDITS = [
    # Which value reaches the argument.
    Edit(
        "the default device is a constant of the module",
        "v0.8.0",
        _RAY,
        _GROUPS,
        _GROUPS.replace('"cuda"', "_DEVICE"),
        _PLACES,
        NEEDED,
        (("class RayResourcePool(", '_DEVICE = "cuda"\n\n\n{}'),),
    ),
    Edit(
        "the default device is a constant of the class",
        "v0.8.0",
        _RAY,
        _GROUPS,
        _GROUPS.replace('"cuda"', "None") + "\n        device_name = device_name or self.device",
        _PLACES,
        NEEDED,
        (("class RayResourcePool(ResourcePool):\n", '{}    device = "cuda"\n\n'),),
    ),
    Edit("the default device is none", "v0.9.1", _RAY, _GROUPS, _GROUPS.replace('"cuda"', "None"), _PLACES, NATIVE),
    Edit(
        "the resource has another name",
        "v0.9.1",
        _RAY,
        _KEY,
        "bundle[resource] = 1",
        _PLACES,
        NATIVE,
        ((_NAMED, f"        resource = {_ASKED}"),),
    ),
    Edit("what the platform names is not used", "v0.9.1", _RAY, _NAMED, f"        {_ASKED}", _PLACES, NEEDED),
    Edit(
        "what the platform names is used at times",
        "v0.9.1",
        _RAY,
        _NAMED,
        f"        if self.detached:\n    {_NAMED}",
        _PLACES,
        NEEDED,
    ),
    Edit("GPUs are asked for all the same", "v0.9.1", _RAY, _KEY, 'bundle["GPU"] = 1', _PLACES, NEEDED),
    Edit(
        "the constant is a constant of the module",
        "v0.9.1",
        _MODEL,
        _FLASH,
        "attn_implementation=_ATTENTION,",
        _HEADS_CHOICE,
        NEEDED,
        (("def load_valuehead_model(", '_ATTENTION = "flash_attention_2"\n\n\n{}'),),
    ),
    Edit(
        "the constant is in a dictionary of options",
        "v0.9.1",
        _MODEL,
        _FLASH,
        '**{"attn_implementation": "flash_attention_2"},',
        _HEADS_CHOICE,
        NEEDED,
    ),
    Edit(
        "one of two calls takes the setting",
        "v0.9.1",
        _MODEL,
        f"config=model_config,\n            {_FLASH}",
        "config=model_config,\n            attn_implementation=model_config.attn_implementation,",
        _HEADS_CHOICE,
        NEEDED,
    ),
    Edit(
        "the number is a local name",
        "796871d7",
        _HF,
        _N,
        '"num_return_sequences": repeats,',
        _TWICE,
        FITS,
        (("        if not do_sample:\n", "        repeats = self.config.n\n{}"),),
    ),
    Edit(
        "the number is kept by the constructor",
        "796871d7",
        _HF,
        _N,
        '"num_return_sequences": self.repeats,',
        _TWICE,
        NEEDED,
        (("        self.config = config\n", "{}        self.repeats = config.n\n"),),
    ),
    Edit(
        "the option is in a dictionary",
        "v0.7.0",
        _SAVE,
        "distributed_filesystem=True, memory_efficient=True",
        "**self.options()",
        _SAVED,
        NEEDED,
        (
            (
                "    def save_checkpoint(",
                "    def options(self):\n        return dict(distributed_filesystem=True)\n\n{}",
            ),
        ),
    ),
    # Which call happens, and where.
    Edit(
        "another way into a thread",
        "v0.9.0",
        _HCCL,
        _THREAD,
        "        self._task = asyncio.create_task(asyncio.to_thread(self._run))\n",
        _CALLING,
        DRIFTED,
    ),
    Edit(
        "a function of no name in a thread",
        "v0.9.0",
        _HCCL,
        _THREAD,
        "        self._task = asyncio.create_task(asyncio.to_thread(lambda: self._run()))\n",
        _CALLING,
        DRIFTED,
    ),
    Edit(
        "the thread is taken out, and nothing is called",
        "v0.9.0",
        _HCCL,
        _THREAD,
        "        self._task = None\n",
        _CALLING,
        DRIFTED,
    ),
    Edit("the call is direct", "v0.9.0", _HCCL, _THREAD, "        self._run()\n", _CALLING, NATIVE),
    Edit(
        "the communicator is destroyed in a method",
        "v0.9.1",
        _HCCL,
        _DESTROY,
        "self._drop()",
        _DROPS,
        FITS,
        (("    def finalize(self):", f"    def _drop(self):\n        {_DESTROY}\n\n    def finalize(self):"),),
    ),
    Edit(
        "the communicator is destroyed by name",
        "v0.9.1",
        _HCCL,
        _DESTROY,
        'getattr(self.pyhccl, "destroyComm")(self.pyhccl.comm)',
        _DROPS,
        FITS,
    ),
    Edit("what destroys it is in another module", "v0.9.1", _HCCL, _DESTROY, "destroy(self.pyhccl)", _DROPS, DRIFTED),
    Edit(
        "weights are moved if offloading is on",
        "v0.7.1",
        _ENGINE,
        _OFFLOAD,
        '        if self.actor.engine.is_param_offload_enabled:\n            self.actor.engine.to("cpu")\n'
        "        aggressive_empty_cache",
        _STAYS,
        NATIVE,
    ),
    # Words that do nothing.
    *(
        Edit(f"a line that {what}", pin, path, at, text + "{}", patches, states)
        for what, text in {
            "refuses npu": '        if self.device_name == "npu":\n            raise NotImplementedError("npu")\n',
            "logs npu": '        logger.info("npu")\n',
            "never makes the group": "        if False:\n            self.actor_wg.create_weight_sync_group(1)\n",
        }.items()
        for pin, path, at, patches, states in [
            ("v0.7.0", _GKD, _GKD_GROUP, _GKD_MADE, FITS),
            (
                "ccd7d934",
                _ONE_STEP,
                "        # Create Ray collective group for fallback communication\n",
                ["weight_sync.make_one_step_off_group_over_hccl"],
                DRIFTED,
            ),
            ("v0.7.0", _SYNCHRONIZER, "        collective.create_collective_group(\n", _ASYNC, FITS),
        ]
    ),
    *(
        Edit(f"{what} of a budget", "v0.9.0", _BALANCE, _TOKENS, text + "{}", _BUDGET, FITS)
        for what, text in {
            "an error that is none": "    if len(seq_len_effective) == 0:\n        raise ValueError('no sequence')\n",
            "only the error": "    if max_token_len < max_seq_len:\n        raise ValueError('too long')\n",
        }.items()
    ),
    *(
        Edit(f"{what} of a device", "v0.9.1", _PPO, _RUN, text + "{}", _RUN_PPO, FITS)
        for what, text in {
            "a dead branch": "    if False:\n        auto_set_device(config)\n",
            "a block for type checkers": "    if TYPE_CHECKING:\n        auto_set_device(config)\n",
            "a log line": "    logger.info('%s', auto_set_device)\n",
            "a function that nobody calls": "    def unused():\n        auto_set_device(config)\n",
        }.items()
    ),
    Edit("the device is set", "v0.9.1", _PPO, _RUN, "    auto_set_device(config)\n{}", _RUN_PPO, NATIVE),
    Edit(
        "the device is set in a function",
        "v0.9.1",
        _PPO,
        _RUN,
        "    _prepare(config)\n{}",
        _RUN_PPO,
        NATIVE,
        (("def run_ppo(", "def _prepare(config):\n    auto_set_device(config)\n\n\n{}"),),
    ),
    Edit(
        "a poll after the end",
        "v0.9.1",
        _HCCL,
        "        self.pyhccl.broadcast(self.bucket, src=0)\n",
        "{}        return\n        self.socket.poll(1)\n",
        _WAITS,
        FITS,
    ),
    Edit("a poll", "v0.9.1", _HCCL, _FIRST, "        self.socket.poll(1000)\n{}", _WAITS, NATIVE),
    Edit(
        "a claim of offloading",
        "v0.7.1",
        _ENGINE,
        _OFFLOAD,
        "        assert self.actor.engine.is_param_offload_enabled\n{}",
        _STAYS,
        FITS,
    ),
    Edit(
        "a disabled communicator is an error, and nobody waits",
        "v0.9.1",
        _HCCL,
        _BARRIER,
        "        if self.pyhccl.disabled:\n            raise RuntimeError('no HCCL')\n{}",
        _CONNECTIONS,
        FITS,
    ),
    Edit(
        "names reach every rollout, and a communicator is checked",
        "v0.9.1",
        _HCCL,
        _BARRIER,
        "        if self.pyhccl.disabled:\n            raise RuntimeError('no HCCL')\n{}",
        _CONNECTIONS,
        NATIVE,
        (("zmq.PUB", "zmq.XPUB"),),
    ),
    # The results of an import.
    *(
        Edit(f"{what} of the value head", "v0.7.0", _INITIALIZER, _HEAD, text, _VALUE_HEAD, FITS)
        for what, text in {
            "a relative import": "from ..llama.megatron.layers.parallel_linear import LinearForLastLayer",
            "an import by name": 'LinearForLastLayer = importlib.import_module("verl.models.llama.megatron.layers.'
            'parallel_linear").LinearForLastLayer',
        }.items()
    ),
    *(
        Edit(f"{what} of the padding", "v0.9.1", path, old, text, patches, states)
        for what, text, states in [
            ("an import of the module", "    from flash_attn import bert_padding\n", FITS),
            ("an import by name", '    padding = importlib.import_module("flash_attn.bert_padding")\n', FITS),
            ("a function elsewhere", "    from .padding import pad_input, unpad_input\n", DRIFTED),
            ("no import", "", DRIFTED),
            (
                "an import of upstream's own",
                "    from verl.utils.attention_utils import pad_input, unpad_input\n",
                NATIVE,
            ),
            (
                "an import of upstream's own that is never reached",
                "    if False:\n        from verl.utils.attention_utils "
                "import pad_input\n    from flash_attn import bert_padding\n",
                FITS,
            ),
        ]
        for path, old, patches in [
            (_TORCH, _PADDING, _RESPONSE),
            (_SHAPES, _UNPAD, _PIPELINE),
            (_PARALLEL, _PADDING, _VOCABULARY),
        ]
    ),
    Edit(
        "repatch under another name",
        "v0.7.0",
        _MEGATRON,
        "from verl.workers.engine.mindspeed.transformer_impl import repatch",
        "from verl.workers.engine.mindspeed.transformer_impl import repatch as _repatch",
        _REPATCHES,
        FITS,
        (
            ("        if repatch is not None:", "        if _repatch is not None:"),
            ("            repatch(", "            _repatch("),
        ),
    ),
    Edit(
        "the flag of a module",
        "v0.9.1",
        _CONVERTER,
        "    set_experimental_flag(True)\n",
        "    config.set_experimental_flag(True)\n",
        _FLAG,
        FITS,
        (("    from megatron.core.config import set_experimental_flag\n", "    from megatron.core import config\n"),),
    ),
    # Names that are gone and still used.
    Edit(
        "what main_ppo imports is gone",
        "v0.9.1",
        _DEVICE,
        "def auto_set_device(",
        "def _old_name(",
        ["device.keep_cpu_in_auto_set_device"],
        DRIFTED,
    ),
    Edit(
        "what main_ppo calls is gone",
        "v0.9.1",
        "verl/utils/config.py",
        "def validate_config(",
        "def _old_name(",
        ["rollout.check_and_complete_engine_settings"],
        DRIFTED,
    ),
    # Bodies that do nothing.
    *(
        Edit(
            f"a body that {what}",
            "v0.9.1",
            path,
            f"def {name}(",
            f"def {name}(*args, **kwargs):\n    {body}\n\n\ndef _old(",
            patches,
            NEEDED,
        )
        for what, body in {"raises": "raise NotImplementedError", "passes": "pass", "returns": "return None"}.items()
        for path, name, patches in [
            (_NPU_PATCH, "apply_npu_patches", ["fused_ops.keep_transformers_expert_blocks"]),
            (_TORCH, "log_probs_from_logits_all_rmpad", ["attention.avoid_flash_attn_in_all_log_probs"]),
        ]
    ),
]
