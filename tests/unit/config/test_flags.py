"""Flags: made from the schema, in Megatron's spelling, and its habits with them."""

import shlex

import pytest

from megatron_tlm.config.flags import Flags, add_config_flags, flag_name, read_flags
from megatron_tlm.config.load import load
from megatron_tlm.config.megatron import ALIASES, IDLE, LENGTHS, REFUSED, SETTLED
from megatron_tlm.config.parser import Parser
from megatron_tlm.config.schema import Config, fields_of, sections
from megatron_tlm.errors import ConfigError

# What Megatron's and Megatron-DeepSpeed's own example scripts pass, joined, for a Llama of 8B.
MEGATRON = """
    --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0
    --hidden-dropout 0.0 --swiglu --init-method-std 0.0134 --attention-backend flash --normalization RMSNorm
    --untie-embeddings-and-output-weights --disable-bias-linear --norm-epsilon 1e-5 --use-flash-attn
    --micro-batch-size 1 --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748
    --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001 --lr-decay-style cosine --clip-grad 1.0
    --weight-decay 0.1 --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --bf16 --cross-entropy-loss-fusion
    --calculate-per-token-loss --manual-gc --empty-unused-memory-level 1 --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 2 --context-parallel-size 1 --sequence-parallel --use-distributed-optimizer
    --overlap-grad-reduce --overlap-param-gather --recompute-activations --accumulate-allreduce-grads-in-fp32
    --no-gradient-accumulation-fusion --attention-softmax-in-fp32
    --transformer-impl transformer_engine --check-for-nan-in-loss-and-grad
    --data-path 0.7 web_text_document 0.3 books_text_document --split 99,1,0 --dataloader-type single --num-workers 1
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model tokenizer.json --vocab-size 128256
    --data-cache-path cache --no-create-attention-mask-in-dataloader --no-mmap-bin-files
    --log-interval 1 --eval-iters 32 --eval-interval 100 --save-interval 1000 --log-throughput --log-params-norm
    --ckpt-format torch_dist --distributed-timeout-minutes 60 --distributed-backend nccl --save ckpt --load ckpt
    --tensorboard-dir tb --tensorboard-log-interval 1 --wandb-project llama --local-rank 0 --seed 1234
    --override-opt_param-scheduler --no-load-rng --exit-interval 5000 --exit-signal-handler
"""
MEGATRON_DEEPSPEED = """
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 24 --hidden-size 2048
    --ffn-hidden-size 5504 --num-attention-heads 16 --micro-batch-size 4 --global-batch-size 32 --seq-length 2048
    --max-position-embeddings 2048 --train-iters 250000 --save tmp --load tmp --data-path 1 bookcorpus
    --data-impl mmap --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model tokenizer.model --split 949,50,1
    --distributed-backend nccl --lr 3e-4 --lr-decay-style cosine --min-lr 3e-5 --weight-decay 0.1 --clip-grad 1
    --lr-warmup-iters 2000 --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --log-interval 1 --save-interval 10000
    --eval-interval 1000 --eval-iters 10 --bf16 --no-query-key-layer-scaling --attention-dropout 0 --hidden-dropout 0
    --use-rotary-position-embeddings --untie-embeddings-and-output-weights --swiglu --normalization rmsnorm
    --disable-bias-linear --num-key-value-heads 4 --layernorm-epsilon 1e-6 --deepspeed
    --deepspeed_config=tmp/deepspeed.json --zero-stage=1 --deepspeed-activation-checkpointing
    --recompute-granularity full --recompute-method uniform
"""


def parse(line: str) -> Flags:
    parser = Parser(prog="megatron-tlm train")
    add_config_flags(parser)
    return read_flags(parser.parse(shlex.split(line)))


def configure(line: str) -> Config:
    return load(parse(line))


def test_a_megatron_command_line_is_taken_whole() -> None:
    flags = parse(MEGATRON)
    config = load(flags)
    assert (config.model.num_layers, config.model.query_groups, config.model.head_width) == (32, 8, 128)
    assert config.parallel.recompute_granularity == "selective"
    assert config.data.data_path == ("0.7", "web_text_document", "0.3", "books_text_document")
    assert (config.optimizer.lr_decay_iters, config.optimizer.lr_warmup_iters) == (1949218748 // 128, 3906252 // 128)
    assert config.training.train_samples == 1953125000
    told = " ".join(flags.notes)
    assert all(
        flag in told for flag in ("--log-params-norm", "--num-workers", "--ckpt-format", "--overlap-grad-reduce")
    )
    assert "--swiglu" not in told
    assert (config.logging.wandb_project, config.logging.wandb_folder) == ("llama", "tb")


def test_a_megatron_deepspeed_command_line_is_taken_whole() -> None:
    config = configure(MEGATRON_DEEPSPEED)
    assert config.parallel.deepspeed_config == "tmp/deepspeed.json"
    assert (config.parallel.zero_stage, config.parallel.recompute_granularity) == (1, "full")
    assert (config.model.num_query_groups, config.model.norm_epsilon) == (4, 1e-6)
    assert config.data.tokenizer_type == "SentencePieceTokenizer"


def test_every_field_is_a_flag_and_no_flag_is_two() -> None:
    parser = Parser(prog="megatron-tlm train")
    add_config_flags(parser)  # argparse raises on a flag that is added twice
    names = [name for section in sections() for name in fields_of(section)]
    assert len(names) == len(set(names)), "a field name must be unique over sections, as its flag is"
    assert {flag_name(name) for name in names} <= set(parser.visible_flags())


def test_help_shows_every_field_with_its_default_and_no_habit() -> None:
    parser = Parser(prog="megatron-tlm train")
    add_config_flags(parser)
    text = parser.format_help()
    assert "--lr X" in text
    assert "(default: 0.0003)" in text
    assert "8/3 D" in text
    assert not any(f"{flag} " in text for flag in (*REFUSED, *IDLE, "--swiglu", "--layernorm-epsilon"))


def test_the_tables_of_habits_are_disjoint_and_name_no_field() -> None:
    fields = {flag_name(name) for section in sections() for name in fields_of(section)}
    tables = [set(ALIASES), set(SETTLED), set(IDLE), set(REFUSED), set(LENGTHS), fields]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert all(name in fields_of(section) for section, name, _ in (*ALIASES.values(), *LENGTHS.values()))


def test_both_spellings_and_both_forms_of_a_flag_are_one() -> None:
    for line in ("--num_layers 4", "--num-layers=4", "--num_layers=4"):
        assert parse(line).layer["model", "num_layers"].value == 4


def test_the_last_of_two_flags_counts() -> None:
    assert parse("--lr 1 --lr 2").layer["optimizer", "lr"].value == 2.0
    assert parse("--norm-epsilon 1 --layernorm-epsilon 2").layer["model", "norm_epsilon"].value == 2.0


def test_a_switch_can_be_taken_back() -> None:
    assert configure("--preset 440m --no-bf16").training.bf16 is False
    assert parse("--no-save-optim").layer["checkpoint", "no_save_optim"].value is True
    assert parse("--no-save-optim --save-optim").layer["checkpoint", "no_save_optim"].value is False


def test_none_takes_back_what_a_preset_gave() -> None:
    assert configure("--preset tiny --vocab-size none").model.vocab_size is None


def test_a_null_tokenizer_is_none() -> None:
    assert configure("--preset tiny --tokenizer-type NullTokenizer --mock-data").data.tokenizer_type is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--num-layer 4", r"--num-layer is not a flag of `megatron-tlm train`; did you mean --num-layers\?"),
        ("--taper-shedule cosine", r"did you mean --taper-schedule\?"),
        ("--micro_batchsize 4", r"--micro-batchsize is not a flag .*; did you mean --micro-batch-size\?"),
        ("--xyzzy", r"--xyzzy is not a flag of .*; see `megatron-tlm train --help`"),
        ("--tensor-model 2", r"did you mean --tensor-model-parallel-size\?"),  # no abbreviations
        ("--tp 2", r"--tp is not a flag of .*; give --tensor-model-parallel-size$"),
        ("--dp 2", r"--dp is not a flag of .*; the data degree is the number of ranks over tensor x pipeline"),
        ("--no-tapering", r"; give --taper-schedule uniform$"),
        ("--gradient_clipping 1", r"--gradient-clipping is not a flag of .*; give --clip-grad$"),
        ("--save-retain-interval 5", r"; give --keep-every$"),
        (
            "--tp 2 --zzz --lr 1 --log-inteval 2 --fp16",
            r"4 mistakes in the flags of `megatron-tlm train`: \(1\) --tp: give --tensor-model-parallel-size "
            r"\(2\) --zzz: see .* \(3\) --log-inteval: did you mean --log-interval\? \(4\) --fp16 is not offered",
        ),
        ("run.yaml", r"run.yaml stands without a flag; write --config run.yaml"),
        ("--bf16 yes", r"yes stands without a flag"),
        ("--lr", r"--lr: expected one argument; see"),
        ("--num-layers four", r"--num-layers = 'four' is not an integer; write one such as 4"),
        ("--num-layers 4.5", r"--num-layers = '4.5' is not an integer; write 4 without"),
        ("--lr nan", r"--lr = 'nan' is not a finite number"),
        ("--lr inf", r"--lr = 'inf' is not a finite number"),
        ("--lr-decay-style cosin", r"--lr-decay-style = 'cosin' is not one of cosine, .*; did you mean cosine\?"),
        ("--preset small", r"--preset = small is not shipped; there are tiny, 440m, 760m, 1.3b, 3b"),
        ("--preset tiny --config nowhere.yaml", r"--config = nowhere.yaml cannot be read \(No such file"),
    ],
)
def test_a_wrong_flag_is_told(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(line)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--normalization LayerNorm",
            r"--normalization = LayerNorm is not offered: every norm is RMSNorm; leave",
        ),
        ("--fp16", r"--fp16 is not offered: half precision is bfloat16 here; give --bf16"),
        ("--context-parallel-size 2", r"--context-parallel-size = 2 is not offered: the sequence is not cut"),
        ("--num-layers-per-virtual-pipeline-stage 2", r"2 is not offered: each rank runs one stage"),
        ("--position-embedding-type learned_absolute", r"learned_absolute is not offered: positions are rotary"),
        ("--optimizer sgd", r"--optimizer = sgd is not offered: the optimizer is AdamW"),
        ("--dataloader-type cyclic", r"cyclic is not offered: samples come in one fixed order"),
        ("--virtual-pipeline-model-parallel-size 2", r"2 is not offered: each rank runs one stage"),
        ("--rampup-batch-size 16 16 5859375", r"--rampup-batch-size 16 16 5859375 is not offered: the batch size is"),
        ("--heterogeneous-layers-config-path a.json", r"one MLP width per layer|give --layer-widths"),
        (
            "--vocab-file a --merge-file b",
            r"--vocab-file a is not offered: tokenizers are one file.* \(2\) --merge-file b",
        ),
        (
            "--tokenizer-type GPT2BPETokenizer",
            r"GPT2BPETokenizer is not read here; give --tokenizer-type HuggingFaceTokenizer",
        ),
        ("--tokenizer-type TikTokenizer", r"TikTokenizer is not read here; give"),
        ("--use-checkpoint-opt_param-scheduler", r"the schedule is that of this run's flags"),
        ("--use-distributed-optimizer --zero-stage 0", r"asks for ZeRO stage 1 and parallel.zero_stage = 0 shards"),
        (
            "--no-pipeline-parallel --pipeline-model-parallel-size 2",
            r"asks for 1 stage and parallel.pipeline_model_parallel_size = 2",
        ),
        ("--group-query-attention", r"leaves model.num_query_groups open; give --num-query-groups, .* = 4"),
        (
            "--lr-decay-samples 100 --global-batch-size none",
            r"= 100 needs training.global_batch_size to become",
        ),
    ],
)
def test_a_megatron_flag_that_asks_for_something_else_is_refused(flags: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(f"--preset tiny {flags}")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_distributed_optimizer_is_zero_one_or_more(stage: int) -> None:
    assert configure("--preset tiny --use-distributed-optimizer").parallel.zero_stage == 1
    line = f"--preset tiny --use-distributed-optimizer --zero-stage {stage}"
    assert configure(line).parallel.zero_stage == stage


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--lr-decay-samples 320 --lr-decay-iters 20", r"--lr-decay-samples = 320 and --lr-decay-iters = 20 both set"),
        ("--train-tokens 40960 --train-iters 20", r"--train-tokens = 40960 and --train-iters = 20 both set training"),
        ("--train-tokens 40960 --train-samples 80", r"--train-tokens = 40960 and --train-samples = 80 both set"),
    ],
)
def test_a_length_is_given_once(flags: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(f"--preset tiny {flags}")


def test_lengths_in_samples_and_tokens_become_steps() -> None:
    config = configure("--preset tiny --train-tokens 40960 --lr-decay-samples 320 --lr-warmup-tokens 8192")
    assert config.training.train_samples == 40960 // 256
    assert config.training.train_iters is None
    assert config.optimizer.lr_decay_iters == 320 // 16
    assert config.optimizer.lr_warmup_iters == 8192 // 256 // 16
