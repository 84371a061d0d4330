"""Settings of the job that cannot work, on any device."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["SETTINGS"]

SETTINGS = (
    rule(
        "unknown-setting",
        Precision.EXACT,
        r"(?:Could not override|Key) '(?P<key>[^']+)'(?:\.|\s+is not in struct|\n)",
        means="verl has no setting {key}",
        fix="correct its name for your verl, or put + in front of it if you mean to add it",
        seen=("Hydra 1.3: hydra/_internal/config_loader_impl.py",),
        anywhere=True,
    ),
    rule(
        "batch-not-divisible",
        Precision.EXACT,
        r"real_train_batch_size \((?P<has>\d+)\) must be divisible by minimal possible batch size \((?P<wants>\d+)\)",
        means="a step has {has} answers (data.train_batch_size times rollout.n), which cannot be shared among {wants}",
        fix="make data.train_batch_size times actor_rollout_ref.rollout.n a multiple of {wants}",
        seen=("verl v0.6.1: verl/utils/config.py",),
    ),
    rule(
        "rollout-mode",
        Precision.EXACT,
        r"Rollout mode '(?P<mode>\w+)' has been removed",
        means="this verl has no rollout in mode {mode}: the synchronous one is gone from ccd7d934 and v0.7.0 on",
        fix="leave actor_rollout_ref.rollout.mode out, or set it to async",
        seen=("verl v0.7.0: verl/workers/config/rollout.py",),
    ),
    rule(
        "port-taken",
        Precision.EXACT,
        r"EADDRINUSE|[Aa]ddress already in use"
        r"|failed to listen on any local network address[^\n]*?port: (?P<port>\d+)",
        means="a port of this host is taken, by another job or by a process that an earlier one left behind",
        fix="`ray stop --force` and end what `ss -ltnp` shows on the port, or choose another one (MASTER_PORT, "
        "`ray start --port`)",
        seen=("verl-project/verl#3521",),
    ),
)
