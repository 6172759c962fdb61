"""Names that other trainers, or haste, give to a flag: too far from ours for spelling to tell, so they are listed."""

from collections.abc import Container

# Ours -> what else it is called (Megatron-LM's parallel_state, GPT-NeoX, DeepSpeed, torchtitan, Hugging Face).
_ALSO_CALLED = {
    "--tensor-model-parallel-size": """
        --tp --tp-size --tensor-parallel-size --tensor-parallel-degree --tensor-model-parallel --tp-degree
    """,
    "--pipeline-model-parallel-size": """
        --pp --pp-size --pipe-parallel-size --pipeline-parallel-size --pipeline-parallel-degree --pp-degree --num-stages
    """,
    "--micro-batch-size": """
        --mbs --train-micro-batch-size-per-gpu --per-device-train-batch-size --local-batch-size --batch-size
    """,
    "--global-batch-size": "--gbs --train-batch-size",
    "--global-batch-size, the micro-batch size times data degree times accumulation steps": """
        --gradient-accumulation-steps --gas --grad-accum --num-micro-batches
    """,
    "--seq-length": "--seq-len --sequence-length --max-seq-len --max-seq-length --context-length",
    "--train-iters": "--steps --max-steps --num-steps --training-steps --iterations --train-steps --max-iters",
    "--lr": "--learning-rate",
    "--min-lr": "--lr-min --learning-rate-min",
    "--lr-decay-style": "--lr-scheduler --lr-scheduler-type --lr-schedule --scheduler --decay-style",
    "--lr-decay-iters": "--decay-steps --lr-decay-steps",
    "--lr-warmup-iters": "--warmup --warmup-steps --warmup-iters --lr-warmup-steps --num-warmup-steps",
    "--lr-warmup-fraction": "--warmup-ratio --warmup-fraction",
    "--clip-grad": "--gradient-clipping --grad-clip --max-grad-norm --grad-norm-clip --max-norm",
    "--weight-decay": "--wd",
    "--adam-beta1": "--beta1",
    "--adam-beta2": "--beta2",
    "--adam-eps": "--eps --adam-epsilon",
    "--zero-stage": "--zero --zero-optimization --zero-optimization-stage",
    "--recompute-granularity": """
        --gradient-checkpointing --activation-checkpointing --activation-checkpoint-mode --recompute
    """,
    "--hidden-size": "--dim --d-model --n-embd --model-dim --embed-dim",
    "--num-layers": "--n-layers --n-layer --layers --num-hidden-layers --depth",
    "--num-attention-heads": "--n-heads --n-head --heads --num-heads",
    "--num-query-groups": "--n-kv-heads --num-kv-heads",
    "--kv-channels": "--head-dim",
    "--ffn-hidden-size": "--intermediate-size --ffn-dim --d-ff --mlp-width",
    "--norm-epsilon": "--rms-norm-eps --norm-eps",
    "--taper-schedule uniform": "--no-tapering --no-taper --uniform --disable-taper",
    "--taper-schedule": "--taper --tapering",
    "--taper-start": "--start-ratio --alpha-start",
    "--taper-end": "--end-ratio --alpha-end",
    "--attention-window with --mixer titans_mag": "--sliding-window --window-size --window --sliding-window-size",
    "--keep-every": "--save-retain-interval",
    "--keep-last": "--keep-last-n-checkpoints --save-total-limit --keep-latest-k --max-checkpoints",
    "--save": "--checkpoint-dir --ckpt-dir --save-dir --output-dir --checkpoint-folder --out",
    "--load": "--resume --resume-from --resume-from-checkpoint --load-dir --ckpt --checkpoint",
    "--save-interval": "--save-steps --checkpoint-interval --checkpoint-factor --save-every",
    "--eval-interval": "--eval-steps --eval-every --validation-interval",
    "--log-interval": "--logging-steps --log-every --log-freq",
    "--log-dir": "--logging-dir --logdir",
    "--data-path": "--data --dataset --dataset-path --data-prefix --train-data",
    "--tokenizer-model": "--tokenizer --tokenizer-path --tokenizer-name --tokenizer-name-or-path --model-path",
    "--deepspeed-config": "--ds-config --deepspeed-json",
    "--distributed-backend": "--backend",
    "--bf16": "--mixed-precision --precision --dtype",
    "--input": "--input-file --input-files --input-path",
    "--output-prefix": "--output --out-prefix",
    "--workers": "--num-workers --num-proc --processes",
    "--append-eod": "--append-eos --add-eod",
    "--prompt": "--text --input-text",
    "--max-new-tokens": "--max-tokens --max-length --num-tokens --length",
    "--target-tensor-parallel-size": "--target-tensor-model-parallel-size --target-tp --tp --tp-size",
    "--target-pipeline-parallel-size": "--target-pipeline-model-parallel-size --target-pp --pp --pp-size",
}

# What has no flag of ours, and how it is had.
_NO_FLAG = {
    "the data degree is the number of ranks over tensor x pipeline; start more ranks": """
        --dp --dp-size --data-parallel-size --data-parallel-degree --data-parallel-replicate-degree
        --data-parallel-shard-degree
    """,
    "the sequence is not cut over ranks; use --sequence-parallel beside a tensor degree": "--cp --sp --cp-size",
    "embeddings are tied unless --untie-embeddings-and-output-weights is given; leave it out": """
        --tie-word-embeddings --tie-embeddings
    """,
    "there are no experts; leave it out": "--ep --expert-parallel-size --moe --num-local-experts",
    "precision is float32, or bfloat16 with --bf16; leave it out": "--fp32 --half",
    "ranks are started by torchrun; give it --nproc-per-node": "--num-gpus --ngpus --nproc-per-node",
    "there is one process per rank; start torchrun with --nnodes": "--nnodes --num-nodes",
}


def _by_name(table: dict[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for meaning, names in table.items():
        for name in names.split():
            found[name] = (*found.get(name, ()), meaning)
    return found


ALSO_CALLED = _by_name(_ALSO_CALLED)
NO_FLAG = {name: reasons[0] for name, reasons in _by_name(_NO_FLAG).items()}


def other_name(flag: str, known: Container[str]) -> str | None:
    """What of ours a foreign name stands for, with its value where that is settled; None where `known` has no such."""
    return next((ours for ours in ALSO_CALLED.get(flag, ()) if ours.replace(",", " ").split()[0] in known), None)
