"""What a user can ask for: one frozen dataclass per component, one field per flag.

Every field is a key of the YAML (under its section) and a flag of the command line (Megatron's spelling: underscores
become hyphens). `None` means "derive it", and the text says from what. Rules that need more than one section live in
`config.check`; rules that need the model's units live in `plan`.
"""

from dataclasses import Field, dataclass, fields
from typing import Any, Literal

from megatron_tlm.config.architecture import ArchitectureConfig, shown
from megatron_tlm.config.field import above_zero, at_least, at_most, below_one, option, required
from megatron_tlm.config.logs import LoggingConfig as LoggingConfig
from megatron_tlm.config.named import named_sets
from megatron_tlm.config.parallel import ParallelConfig as ParallelConfig
from megatron_tlm.config.parallel import Recompute as Recompute
from megatron_tlm.config.resilience import ResilienceConfig
from megatron_tlm.errors import ConfigError

TaperSchedule = Literal["uniform", "cosine", "linear", "sigmoid", "wider-early", "wider-middle", "wider-late"]
DecayStyle = Literal["cosine", "linear", "constant", "WSD", "inverse-square-root"]
TokenizerType = Literal["SentencePieceTokenizer", "HuggingFaceTokenizer", "ByteTokenizer"]

MAX_SEED = 2**32 - 1  # of numpy's RandomState, which orders the samples


@dataclass(frozen=True)
class ModelConfig:
    """The decoder's sizes; its MLP widths come from `ffn_hidden_size` through the taper."""

    num_layers: int = required("decoder layers L; each is a mixer and an MLP")
    hidden_size: int = required("width D of the residual stream")
    num_attention_heads: int = required("query heads N")
    seq_length: int = required("tokens per sample S")
    ffn_hidden_size: int | None = option(
        None, "baseline MLP width F, the mean of all layers (default: 8/3 D, cut to a multiple of 64)"
    )
    num_query_groups: int | None = option(
        None, "key/value heads K of grouped-query attention (default: as many as query heads)"
    )
    kv_channels: int | None = option(None, "width H of one head (default: D / N)")
    max_position_embeddings: int | None = option(None, "longest sequence the model will meet (default: seq_length)")
    vocab_size: int | None = option(None, "ids the model knows (default: the tokenizer's)")
    make_vocab_size_divisible_by: int = option(128, "pad the vocabulary to a multiple of this times the tensor degree")
    untie_embeddings_and_output_weights: bool = option(False, "give the output layer a weight of its own")
    rotary_base: float = option(10000.0, "base of the rotary position angles")
    norm_epsilon: float = option(1e-5, "epsilon of RMSNorm")
    attention_dropout: float = option(0.0, "dropout on attention probabilities")
    hidden_dropout: float = option(0.0, "dropout on what a mixer or MLP adds to the residual stream")
    init_method_std: float = option(
        0.02, "standard deviation of initial weights; output projections get it over sqrt(2 L)"
    )

    def __post_init__(self) -> None:
        positive = {"num_layers": 1, "hidden_size": 1, "num_attention_heads": 1, "seq_length": 1, "ffn_hidden_size": 1}
        positive |= {"num_query_groups": 1, "kv_channels": 1, "vocab_size": 1, "make_vocab_size_divisible_by": 1}
        at_least("model", self, positive | {"max_position_embeddings": 1})
        above_zero("model", self, ("rotary_base", "norm_epsilon", "init_method_std"))
        below_one("model", self, ("attention_dropout", "hidden_dropout"))
        # Beyond any model, and within what int64 holds and a plan takes seconds for.
        at_most("model", self, {"num_layers": 10_000, "hidden_size": 2**20, "seq_length": 2**30, "kv_channels": 2**16})
        at_most("model", self, {"num_attention_heads": 2**16, "ffn_hidden_size": 2**24, "vocab_size": 2**31 - 1})
        at_most("model", self, {"make_vocab_size_divisible_by": 2**24, "init_method_std": 1})
        if self.kv_channels is None and self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"model.hidden_size = {self.hidden_size} is not a multiple of num_attention_heads = "
                f"{self.num_attention_heads}; change one of them or give kv_channels"
            )
        if self.head_width % 2:
            raise ConfigError(
                f"model.kv_channels = {self.head_width} is odd, rotary positions turn pairs; give an even one"
            )
        if self.num_attention_heads % self.query_groups:
            raise ConfigError(
                f"model.num_query_groups = {self.query_groups} does not divide num_attention_heads = "
                f"{self.num_attention_heads}; give a divisor of it"
            )
        if self.seq_length > self.positions:
            raise ConfigError(
                f"model.seq_length = {self.seq_length} exceeds max_position_embeddings = {self.positions}; "
                "raise the latter"
            )

    @property
    def baseline_width(self) -> int:
        """The mean MLP width; by default that of a SwiGLU with the parameters of a plain 4 D one (Megatron's rule)."""
        return self.ffn_hidden_size or max(64, int(4 * self.hidden_size * 2 / 3 / 64) * 64)

    @property
    def query_groups(self) -> int:
        return self.num_query_groups or self.num_attention_heads

    @property
    def head_width(self) -> int:
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def positions(self) -> int:
        return self.max_position_embeddings or self.seq_length


@dataclass(frozen=True)
class TaperConfig:
    """How the MLP width falls with depth (arXiv:2606.23670, schedules)."""

    taper_schedule: TaperSchedule = option("cosine", "shape of the width over depth; uniform switches the taper off")
    taper_start: float = option(1.5, "first layer's width over the baseline")
    taper_end: float = option(0.5, "last layer's width over the baseline")
    width_multiple: int | None = option(None, "every width is a multiple of this (default: lcm(16, tensor degree))")
    layer_widths: tuple[int, ...] = option(
        (), "one MLP width per layer, in place of a schedule (what conversions and imports need)"
    )

    def __post_init__(self) -> None:
        at_least("taper", self, {"width_multiple": 1})
        if any(width < 1 for width in self.layer_widths):
            raise ConfigError(f"taper.layer_widths = {shown(self.layer_widths)} holds a width below 1; give 1 or more")
        for name in ("taper_start", "taper_end"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"taper.{name} = {getattr(self, name)} is not positive; the paper uses 1.5 and 0.5")


@dataclass(frozen=True)
class TrainingConfig:
    """Batches, length and precision of a run."""

    micro_batch_size: int = option(1, "samples per forward on one data rank")
    global_batch_size: int | None = option(
        None, "samples per optimizer step over all ranks (default: micro x data degree)"
    )
    train_iters: int | None = option(None, "optimizer steps of the whole run")
    train_samples: int | None = option(None, "length of the run in samples instead of steps")
    eval_interval: int = option(1000, "steps between evaluations")
    eval_iters: int = option(10, "global batches per evaluation; 0 switches it off")
    full_validation: bool = option(False, "evaluate on all the full batches that a set has, in place of eval_iters")
    exit_interval: int | None = option(None, "save and stop at every multiple of this step")
    bf16: bool = option(False, "bfloat16 weights with float32 masters and float32 gradient accumulation")
    seed: int = option(1234, "of initial weights, sample order and dropout")

    def __post_init__(self) -> None:
        bounds = {
            "micro_batch_size": 1,
            "global_batch_size": 1,
            "train_iters": 1,
            "train_samples": 1,
            "exit_interval": 1,
        }
        at_least("training", self, bounds | {"eval_interval": 1, "eval_iters": 0, "seed": 0})
        at_most("training", self, {"micro_batch_size": 2**20, "global_batch_size": 2**30, "train_iters": 2**40})
        at_most("training", self, {"train_samples": 2**48})
        if self.seed > MAX_SEED:
            raise ConfigError(f"training.seed = {self.seed} is above {MAX_SEED}, numpy's last; give one from 0 on")
        if self.train_iters is not None and self.train_samples is not None:
            raise ConfigError(
                f"training.train_iters = {self.train_iters} and train_samples = {self.train_samples} both set the "
                "length; give one"
            )


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning rate; norms and biases are not decayed."""

    lr: float = option(3e-4, "peak learning rate")
    min_lr: float = option(0.0, "learning rate at the end of the decay")
    lr_decay_style: DecayStyle = option("cosine", "shape of the decay")
    lr_decay_iters: int | None = option(None, "steps until min_lr (default: the run's)")
    lr_wsd_decay_iters: int | None = option(
        None, "steps of the final decay of WSD (default: a tenth of lr_decay_iters)"
    )
    lr_warmup_iters: int = option(0, "steps of linear warm-up from lr_warmup_init")
    lr_warmup_fraction: float | None = option(
        None, "warm-up as a fraction of lr_decay_iters, instead of lr_warmup_iters"
    )
    lr_warmup_init: float = option(0.0, "learning rate at the start of the warm-up")
    weight_decay: float = option(0.1, "decoupled weight decay")
    clip_grad: float = option(1.0, "largest global gradient norm; 0 switches clipping off")
    adam_beta1: float = option(0.9, "decay of the first moment")
    adam_beta2: float = option(0.95, "decay of the second moment")
    adam_eps: float = option(1e-8, "added to the root of the second moment")

    def __post_init__(self) -> None:
        bounds = {
            "lr": 0,
            "min_lr": 0,
            "lr_decay_iters": 1,
            "lr_wsd_decay_iters": 1,
            "lr_warmup_iters": 0,
            "lr_warmup_init": 0,
        }
        at_least("optimizer", self, bounds | {"weight_decay": 0, "clip_grad": 0, "adam_eps": 0})
        below_one("optimizer", self, ("adam_beta1", "adam_beta2"))
        if self.min_lr > self.lr:
            raise ConfigError(f"optimizer.min_lr = {self.min_lr:g} exceeds lr = {self.lr:g}; lower it")
        if self.lr_warmup_fraction is not None and not 0 <= self.lr_warmup_fraction <= 1:
            raise ConfigError(
                f"optimizer.lr_warmup_fraction = {self.lr_warmup_fraction:g} lies outside [0, 1]; give a fraction"
            )
        if self.lr_warmup_fraction is not None and self.lr_warmup_iters:
            raise ConfigError(
                f"optimizer.lr_warmup_fraction = {self.lr_warmup_fraction:g} and lr_warmup_iters = "
                f"{self.lr_warmup_iters} both set the warm-up; give one"
            )


@dataclass(frozen=True)
class DataConfig:
    """Indexed corpora and the tokenizer that made them."""

    data_path: tuple[str, ...] = option(
        (), "prefix of a .bin/.idx pair, or `weight prefix weight prefix ...`", metavar="PREFIX"
    )
    split: str = option("969,30,1", "shares of train, valid and test documents")
    train_data_path: tuple[str, ...] = option((), "as data_path, for training alone", metavar="PREFIX")
    valid_data_path: tuple[str, ...] = option((), "as data_path, for validation alone", metavar="PREFIX")
    test_data_path: tuple[str, ...] = option((), "as data_path, for test alone", metavar="PREFIX")
    eval_data: tuple[str, ...] = option(
        (), "further corpora to validate on, each whole and by itself, logged by name", metavar="NAME=PREFIX"
    )
    data_cache_path: str | None = option(
        None,
        "folder for sample orders, shared by processes and runs (default: none, each builds its own)",
        metavar="DIR",
    )
    mock_data: bool = option(False, "train on made-up tokens, to try a layout without a corpus")
    reset_position_ids: bool = option(False, "count positions anew after every end-of-document id")
    reset_attention_mask: bool = option(False, "let no token see past the end-of-document id before it")
    eod_mask_loss: bool = option(False, "leave out the loss of the token after an end-of-document id")
    tokenizer_type: TokenizerType | None = option(None, "kind of the tokenizer's file (default: by its name)")
    tokenizer_model: str | None = option(None, "the tokenizer's file", metavar="FILE")

    def __post_init__(self) -> None:
        named_sets(self.eval_data, "data.eval_data")


@dataclass(frozen=True)
class CheckpointConfig:
    """Where a run is saved and continued from."""

    save: str | None = option(None, "folder to save checkpoints in", metavar="DIR")
    load: str | None = option(None, "folder to continue from", metavar="DIR")
    save_interval: int | None = option(None, "steps between checkpoints (default: at the end only)")
    keep_last: int | None = option(None, "checkpoints to keep; older ones are deleted (default: all)")
    keep_every: int | None = option(None, "with keep_last: checkpoints of every multiple of this step stay for good")
    async_save: bool = option(
        True, "train on while a checkpoint is written from a copy in host memory; --no-async-save waits instead"
    )
    ckpt_step: int | None = option(None, "step to load (default: the newest complete one)")
    no_save_optim: bool = option(False, "save weights only")
    no_load_optim: bool = option(False, "load weights and how far the run was, with new optimizer state")
    finetune: bool = option(False, "load weights only, and start the data and the schedule anew")
    allow_data_change: bool = option(False, "continue on other data, weights, split, seed or sequence length")
    allow_fresh_start: bool = option(False, "start from scratch where `load` holds no checkpoint")

    def __post_init__(self) -> None:
        at_least("checkpoint", self, {"save_interval": 1, "keep_last": 1, "keep_every": 1, "ckpt_step": 0})
        if self.keep_every is not None and self.keep_last is None:
            raise ConfigError(
                f"checkpoint.keep_every = {self.keep_every} has no effect where keep_last = none keeps all; "
                "give --keep-last too"
            )


@dataclass(frozen=True)
class Config:
    """A whole run."""

    model: ModelConfig
    architecture: ArchitectureConfig = ArchitectureConfig()
    taper: TaperConfig = TaperConfig()
    parallel: ParallelConfig = ParallelConfig()
    training: TrainingConfig = TrainingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    resilience: ResilienceConfig = ResilienceConfig()
    logging: LoggingConfig = LoggingConfig()


def sections() -> dict[str, type]:
    """Section name -> its dataclass, in the order in which they are shown."""
    return {item.name: item.type for item in fields(Config) if isinstance(item.type, type)}


def fields_of(section: str) -> dict[str, Field[Any]]:
    """Field name -> field of one section."""
    return {item.name: item for item in fields(sections()[section])}
