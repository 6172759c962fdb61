"""Rules between sections, and between a configuration and the ranks it was started on: run before any process group."""

from megatron_tlm.config.schema import Config
from megatron_tlm.errors import ConfigError

PIPELINE_ZERO_STAGES = (0, 1)


def check(config: Config, world_size: int) -> int:
    """The data degree of a run on `world_size` ranks. ConfigError for the first rule that the configuration breaks.

    What depends on the model's units (heads, widths, vocabulary, stages) is checked by `plan.build.build_plan`.
    """
    degree = data_degree(config, world_size)
    _check_batch(config, degree)
    _check_parallel(config)
    _check_architecture(config)
    return degree


def check_training(config: Config, world_size: int) -> int:
    """`check`, and what a training run needs besides: a length, data, a folder for what it is told to save."""
    degree = check(config, world_size)
    _check_length(config, degree)
    _check_data(config)
    _check_checkpoint(config)
    _check_rollback(config)
    return degree


def data_degree(config: Config, world_size: int) -> int:
    """World size / (tensor x pipeline). ConfigError where that is no whole number."""
    tensor, pipe = config.parallel.tensor_model_parallel_size, config.parallel.pipeline_model_parallel_size
    ranks = tensor * pipe
    if world_size % ranks:
        below = world_size // ranks * ranks
        works = f"{below} or {below + ranks}" if below else f"{ranks}"
        how = f" under torchrun (--nproc-per-node {ranks} on one node)" if world_size == 1 else ""
        raise ConfigError(
            f"world size = {world_size} is not a multiple of tensor x pipeline = {tensor} x {pipe} = {ranks}; "
            f"start {works} ranks{how}, or change --tensor-model-parallel-size or --pipeline-model-parallel-size"
        )
    return world_size // ranks


def global_batch_size(config: Config, degree: int) -> int:
    """Samples per optimizer step over `degree` data ranks."""
    return config.training.global_batch_size or config.training.micro_batch_size * degree


def _check_batch(config: Config, degree: int) -> None:
    micro, batch = config.training.micro_batch_size, global_batch_size(config, degree)
    unit = micro * degree
    if batch % unit:
        below = batch // unit * unit
        works = f"{below} or {below + unit}" if below else f"{unit}"
        raise ConfigError(
            f"training.global_batch_size = {batch} is not a multiple of micro_batch_size x data degree = "
            f"{micro} x {degree} = {unit}; give {works}, or another --micro-batch-size"
        )


def _check_parallel(config: Config) -> None:
    parallel, length = config.parallel, config.model.seq_length
    tensor, pipe = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    if pipe > 1 and parallel.zero_stage not in PIPELINE_ZERO_STAGES:
        raise ConfigError(
            f"parallel.zero_stage = {parallel.zero_stage} cannot be combined with pipeline_model_parallel_size = "
            f"{pipe}: DeepSpeed's pipeline has ZeRO stages 0 and 1; give --zero-stage 1, or "
            "--pipeline-model-parallel-size 1 and a larger tensor degree"
        )
    if parallel.sequence_parallel and length % tensor:
        below = length // tensor * tensor
        works = f"{below} or {below + tensor}" if below else f"{tensor}"
        raise ConfigError(
            f"model.seq_length = {length} is not a multiple of tensor_model_parallel_size = {tensor}, which "
            f"sequence_parallel splits it over; give {works}, or leave --sequence-parallel out"
        )


def _check_architecture(config: Config) -> None:
    dropout = config.model.attention_dropout
    if config.architecture.mixer == "titans_lmm" and dropout:
        raise ConfigError(
            f"model.attention_dropout = {dropout:g} finds no attention in architecture.mixer = titans_lmm; "
            "give 0, or use --hidden-dropout"
        )


def _check_length(config: Config, degree: int) -> None:
    training, batch = config.training, global_batch_size(config, degree)
    if training.train_iters is None and training.train_samples is None:
        raise ConfigError("training.train_iters is not given and a run needs a length; give --train-iters")
    if training.train_samples is not None and training.train_samples < batch:
        raise ConfigError(
            f"training.train_samples = {training.train_samples} is below one step of global_batch_size = {batch}; "
            "give more samples or a smaller batch"
        )


def _check_data(config: Config) -> None:
    data = config.data
    split = {
        "train_data_path": data.train_data_path,
        "valid_data_path": data.valid_data_path,
        "test_data_path": data.test_data_path,
    }
    given = [name for name, paths in split.items() if paths]
    if data.mock_data and (data.data_path or given):
        raise ConfigError(
            f"data.mock_data = true makes its tokens up and {given[0] if given else 'data_path'} names a corpus; "
            "drop one of them"
        )
    if data.data_path and given:
        raise ConfigError(
            f"data.data_path = {' '.join(data.data_path)} is split by `split` and {given[0]} = "
            f"{' '.join(split[given[0]])} is not; give either data_path or one path per split"
        )
    if not data.mock_data and not data.data_path and not data.train_data_path:
        raise ConfigError("data.data_path is not given; give --data-path PREFIX of a .bin/.idx pair, or --mock-data")
    if config.model.vocab_size is None and data.tokenizer_model is None and data.tokenizer_type != "ByteTokenizer":
        raise ConfigError(
            "model.vocab_size is not given and no tokenizer is there to ask; give --tokenizer-model or --vocab-size"
        )


def _check_checkpoint(config: Config) -> None:
    checkpoint = config.checkpoint
    for name in ("save_interval", "keep_last", "keep_every"):
        value = getattr(checkpoint, name)
        if value is not None and checkpoint.save is None:
            raise ConfigError(f"checkpoint.{name} = {value} and nothing is saved; give --save DIR or drop it")
    for name in ("ckpt_step", "finetune", "no_load_optim"):
        value = getattr(checkpoint, name)
        if value is not None and value is not False and checkpoint.load is None:
            shown = str(value).lower()
            raise ConfigError(f"checkpoint.{name} = {shown} and nothing is loaded; give --load DIR or drop it")


def _check_rollback(config: Config) -> None:
    checkpoint, resilience = config.checkpoint, config.resilience
    for name in ("on_nonfinite", "on_spike"):
        if getattr(resilience, name) != "rollback":
            continue
        if checkpoint.save is None or checkpoint.save_interval is None:
            missing = "save" if checkpoint.save is None else "save_interval"
            raise ConfigError(
                f"resilience.{name} = rollback needs checkpoints to go back to and checkpoint.{missing} is not given; "
                "give --save DIR and --save-interval N, or skip instead"
            )
        if checkpoint.no_save_optim:
            raise ConfigError(
                f"resilience.{name} = rollback needs whole checkpoints and checkpoint.no_save_optim = true keeps 0 of "
                "their moments; drop one of them, or skip instead"
            )
