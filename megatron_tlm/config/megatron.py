"""What Megatron-LM and Megatron-DeepSpeed users type beyond our own fields, and what becomes of it.

Four tables. ALIASES are other names of a field. SETTLED flags ask for what is done here anyway: accepted in silence.
IDLE flags change speed or logging there and nothing here: accepted, and told in one line. REFUSED flags change the
result, the model or the safety of a run in a way that is not offered: an error that says what is.
"""

from dataclasses import dataclass

# flag -> (section, field, value or None to take the flag's own)
ALIASES: dict[str, tuple[str, str, str | bool | None]] = {
    "--layernorm-epsilon": ("model", "norm_epsilon", None),
    "--num-key-value-heads": ("model", "num_query_groups", None),
    "--encoder-num-layers": ("model", "num_layers", None),
    "--encoder-seq-length": ("model", "seq_length", None),
    "--rope-theta": ("model", "rotary_base", None),
    "--qk-layernorm": ("architecture", "qk_norm", True),
    "--model-parallel-size": ("parallel", "tensor_model_parallel_size", None),
    "--recompute-activations": ("parallel", "recompute_granularity", "selective"),
    "--checkpoint-activations": ("parallel", "recompute_granularity", "full"),
    "--kill-switch-file": ("resilience", "stop_file", None),
    "--check-for-spiky-loss": ("resilience", "on_spike", "tell"),
    "--check-for-large-grads": ("resilience", "on_spike", "tell"),
}

# Other names of a value, by field. None: as if the flag were not there.
VALUE_ALIASES: dict[str, dict[str, str | None]] = {
    "tokenizer_type": {
        "GPTSentencePieceTokenizer": "SentencePieceTokenizer",
        "Llama2Tokenizer": "SentencePieceTokenizer",
        "PretrainedFromHF": "HuggingFaceTokenizer",
        "HFTokenizer": "HuggingFaceTokenizer",
        "NullTokenizer": None,
    },
}

# Kinds of tokenizer that are not read here, with what reads the same vocabulary.
_ONE_FILE = "is not read here; give --tokenizer-type HuggingFaceTokenizer --tokenizer-model with its tokenizer.json"
REFUSED_VALUES: dict[str, dict[str, str]] = {
    "tokenizer_type": dict.fromkeys(("GPT2BPETokenizer", "TikTokenizer", "BertWordPieceLowerCase"), _ONE_FILE),
}

# flag -> (section, field, what it counts): Megatron's lengths in samples and tokens, turned into our steps or samples.
LENGTHS: dict[str, tuple[str, str, str]] = {
    "--lr-decay-samples": ("optimizer", "lr_decay_iters", "samples"),
    "--lr-warmup-samples": ("optimizer", "lr_warmup_iters", "samples"),
    "--lr-wsd-decay-samples": ("optimizer", "lr_wsd_decay_iters", "samples"),
    "--lr-decay-tokens": ("optimizer", "lr_decay_iters", "tokens"),
    "--lr-warmup-tokens": ("optimizer", "lr_warmup_iters", "tokens"),
    "--train-tokens": ("training", "train_samples", "tokens"),
}


@dataclass(frozen=True)
class Settled:
    """A flag that asks for what is done anyway: with no value (`accepts` empty), with one of these, or any ("*")."""

    accepts: tuple[str, ...]
    reason: str


# What is always done -> the flags that ask for it, and after `=` the values that do.
_SETTLED = {
    "every MLP is SwiGLU": "--swiglu",
    "no layer has a bias": "--disable-bias-linear",
    "every norm is RMSNorm": "--normalization=RMSNorm",
    "positions are rotary": """
        --position-embedding-type=rope --use-rotary-position-embeddings --no-position-embedding
    """,
    "whole heads are rotated": "--rotary-percent=1|1.0",
    "attention uses torch's fused kernels": """
        --use-flash-attn --use-flash-attn-v2 --attention-backend=auto|flash|fused
    """,
    "layers are this package's own": "--use-mcore-models",
    "softmax is computed in float32": "--attention-softmax-in-fp32",
    "queries are scaled once": "--no-query-key-layer-scaling",
    "num_query_groups says how many heads share keys and values": "--group-query-attention",
    "gradients are summed in float32": """
        --accumulate-allreduce-grads-in-fp32 --no-gradient-accumulation-fusion
    """,
    "the optimizer is AdamW": "--optimizer=adam|adamw",
    "weight decay is constant": "--weight-decay-incr-style=constant",
    "samples come in one fixed order": "--dataloader-type=single",
    "corpora are mapped into memory": "--data-impl=mmap|infer",
    "the causal mask is never stored": "--no-create-attention-mask-in-dataloader",
    "the vocabulary is the tokenizer's": "--vocab-extra-ids=0",
    "DeepSpeed is the engine": "--deepspeed",
    "recomputation is this package's own": "--deepspeed-activation-checkpointing",
    "optimizer state is sharded from ZeRO stage 1 on": "--use-distributed-optimizer",
    "one pipeline stage is no pipeline": "--no-pipeline-parallel",
    "embedding and head count at their cost when stages are cut": """
        --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split
    """,
    "the sequence is not cut over ranks": "--context-parallel-size=1 --ds-sequence-parallel-size=1",
    "there are no experts": "--expert-model-parallel-size=1 --expert-tensor-parallel-size=1",
    "full recomputation is of each unit": "--recompute-method=uniform --recompute-num-layers=1",
    "a resumed run follows the schedule that its own flags give": """
        --override-opt-param-scheduler --override-lr-scheduler
    """,
    "random state follows from seed and step, none is stored": "--no-save-rng --no-load-rng",
    "every checkpoint loads in any layout": "--universal-checkpoint --auto-detect-ckpt-format",
    "a `load` without checkpoint ends the run": "--exit-on-missing-checkpoint",
    "SIGTERM, SIGINT and SIGUSR1 save and stop": "--exit-signal-handler --exit-signal=SIGTERM|SIGINT|SIGUSR1",
    "every loss is the mean over its tokens": "--calculate-per-token-loss",
    "throughput, memory, stragglers, perplexity and learning rate are always logged": """
        --log-memory-to-tensorboard --log-straggler --log-throughput --log-progress
        --log-validation-ppl-to-tensorboard --log-learning-rate-to-tensorboard
        --log-world-size-to-tensorboard --log-batch-size-to-tensorboard
    """,
    "ranks find each other through torchrun": "--local-rank=*",
    "runs are not repeated to blame hardware": "--rerun-mode=disabled",
    "loss and gradients are checked at every step": "--check-for-nan-in-loss-and-grad",
}

# Why nothing follows -> the flags that it is true of.
_IDLE = {
    "DeepSpeed schedules communication, see --deepspeed-config": "--overlap-grad-reduce --overlap-param-gather",
    "tensor-parallel communication is not overlapped": """
        --tp-comm-overlap --no-async-tensor-model-parallel-allreduce
    """,
    "batches are read ahead by a thread of the training process": "--num-workers --no-mmap-bin-files",
    "checkpoints have one format, loadable in any layout": "--ckpt-format --use-dist-ckpt",
    "every rank always writes its own part": "--ckpt-fully-parallel-save --ckpt-assume-constant-structure",
    "kernels are torch's": """
        --cross-entropy-loss-fusion --cross-entropy-fusion-impl --no-masked-softmax-fusion --no-bias-gelu-fusion
        --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-rope-fusion --apply-rope-fusion --no-persist-layer-norm
    """,
    "memory is collected by Python and torch": "--manual-gc --manual-gc-interval --empty-unused-memory-level",
    "TensorBoard's files are written by a thread of their own": "--tensorboard-queue-size",
    "times of steps, forward passes and stages are always logged": """
        --log-timers-to-tensorboard --timing-log-level --timing-log-option
    """,
    "ranks are compared at every log interval, and no port is opened": """
        --disable-straggler-on-startup --straggler-ctrlr-port
    """,
    "memory is logged at every log interval": "--log-memory-interval",
    "layers are this package's own, on torch's kernels": "--transformer-impl",
    "metrics are written at every step": "--tensorboard-log-interval",
    "this is not logged": """
        --log-params-norm --log-num-zeros-in-grad --log-energy
    """,
    "no profiler is started": """
        --profile --profile-step-start --profile-step-end --profile-ranks --use-pytorch-profiler
    """,
    "loss and gradients are always checked": "--no-check-for-nan-in-loss-and-grad",
}

# What is done instead, and the way out -> the flags that ask for something else.
_REFUSED = {
    "half precision is bfloat16 here; give --bf16": """
        --fp16 --loss-scale --initial-loss-scale --min-loss-scale --loss-scale-window --hysteresis
    """,
    "8-bit training is not there; give --bf16": """
        --fp8-format --fp8-recipe --fp8-param-gather --fp8-margin --fp8-amax-history-len --fp8-amax-compute-algo
    """,
    "gradients are reduced in float32; leave it out": "--grad-reduce-in-bf16",
    "each rank runs one stage; leave it out": """
        --num-layers-per-virtual-pipeline-stage --num-virtual-stages-per-pipeline-rank
        --virtual-pipeline-model-parallel-size
    """,
    "widths stand on the command line or in the YAML; give --layer-widths with one MLP width per layer": """
        --heterogeneous-layers-config-path --heterogeneous-layers-config-encoded-json
    """,
    "the batch size is fixed; give --global-batch-size": "--rampup-batch-size --step-batch-size-schedule",
    "a run trains; evaluate with `megatron-tlm evaluate --load DIR --data-path PREFIX`": "--skip-train",
    "each set has a name; give --eval-data NAME=PREFIX NAME=PREFIX ...": "--multiple-validation-sets",
    "a blend stands on the command line or in the YAML; give --data-path": "--data-args-path",
    "tokenizers are one file; give --tokenizer-model with a sentencepiece .model or a tokenizer.json": """
        --vocab-file --merge-file
    """,
    "weights are loaded by --load; give --load DIR --finetune": "--pretrained-checkpoint",
    "the model comes from --config, --preset and flags; give the run's config.yaml": "--use-checkpoint-args",
    "the schedule is that of this run's flags; repeat the old ones": "--use-checkpoint-opt-param-scheduler",
    "checkpoints are named by step; give --ckpt-step": "--load-tag",
    "every MLP is SwiGLU; leave it out": "--squared-relu --openai-gelu --quick-geglu",
    "norms are plain RMSNorm; leave it out": "--apply-layernorm-1p",
    "no layer has a bias; leave it out": "--add-qkv-bias",
    "scores are divided by the root of the head width alone; leave it out": "--apply-query-key-layer-scaling",
    "positions are not stretched; give --rotary-base": """
        --use-rope-scaling --rotary-seq-len-interpolation-factor
    """,
    "MLPs are dense; leave it out": "--num-experts --moe-router-topk",
    "attention has plain heads; give --num-query-groups": "--multi-latent-attention",
    "one learning rate serves all weights; leave it out": "--decoupled-lr --decoupled-min-lr",
    "weight decay is constant; give --weight-decay": "--start-weight-decay --end-weight-decay",
    "weights are sharded by DeepSpeed; give --zero-stage 3": """
        --use-torch-fsdp2 --use-megatron-fsdp --use-custom-fsdp
    """,
}


def _by_flag(table: dict[str, str]) -> dict[str, str]:
    return {flag: reason for reason, flags in table.items() for flag in flags.split()}


def _settled(word: str, reason: str) -> tuple[str, Settled]:
    flag, _, values = word.partition("=")
    return flag, Settled(tuple(values.split("|")) if values else (), reason)


SETTLED: dict[str, Settled] = dict(_settled(word, reason) for word, reason in _by_flag(_SETTLED).items())
IDLE: dict[str, str] = _by_flag(_IDLE)
REFUSED: dict[str, str] = _by_flag(_REFUSED)
