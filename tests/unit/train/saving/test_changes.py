"""What a resumed run is told of its configuration and that of its checkpoint."""

from dataclasses import replace

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.config.dump import as_mapping
from megatron_tlm.config.schema import Config, DataConfig, ModelConfig, OptimizerConfig, TrainingConfig
from megatron_tlm.plan.build import build_plan
from megatron_tlm.train.engines.schedule import build_schedule
from megatron_tlm.train.saving.changes import changes_since, layout_changes

CONFIG = Config(
    ModelConfig(num_layers=2, hidden_size=32, num_attention_heads=2, seq_length=8, vocab_size=300),
    training=TrainingConfig(global_batch_size=4, train_iters=20),
    optimizer=OptimizerConfig(lr=2e-3),
    data=DataConfig(mock_data=True),
)


def facts_of(config: Config, step: int = 10) -> Facts:
    plan = build_plan(config, 300)
    return Facts(step, 4 * step, 32 * step, step, plan.shape, as_mapping(config), plan.grid, 1, plan.stages)


def told(config: Config, facts: Facts | None = None) -> tuple[str, ...]:
    steps = config.training.train_iters or (config.training.train_samples or 0) // 4
    schedule = build_schedule(config.optimizer, steps)
    return changes_since(facts or facts_of(CONFIG), config, schedule, config.training.global_batch_size or 4)


def changed(section: str, **values: object) -> Config:
    return replace(CONFIG, **{section: replace(getattr(CONFIG, section), **values)})  # type: ignore[arg-type]


def test_the_same_run_is_told_nothing() -> None:
    assert told(CONFIG) == ()
    assert told(changed("checkpoint", save="elsewhere")) == ()


def test_a_longer_run_has_another_schedule() -> None:
    assert told(changed("training", train_iters=30)) == (
        "the learning rate schedule changed: cosine 0.002 to 0 over 20 steps -> cosine 0.002 to 0 over 30 steps; "
        "step 11 has 1.500e-03, would have had 1.000e-03",
    )


def test_the_same_length_in_samples_is_the_same_schedule() -> None:
    assert told(changed("training", train_iters=None, train_samples=80)) == ()


def test_styles_and_warm_up_are_told() -> None:
    config = changed("optimizer", lr_decay_style="WSD", min_lr=1e-4, lr_warmup_iters=3, lr_wsd_decay_iters=5)
    (line,) = told(config)
    assert "-> WSD 0.002 to 0.0001 over 20 steps, the last 5 falling, warm-up from 0 over 3; step 11 has 2.0" in line
    assert "constant 0.002; step 11" in told(changed("optimizer", lr_decay_style="constant"))[0]


def test_every_other_field_has_a_line() -> None:
    optimizer = {"weight_decay": 0.2, "adam_beta1": 0.8, "adam_beta2": 0.99, "clip_grad": 0.5}
    config = replace(
        CONFIG,
        model=replace(CONFIG.model, hidden_dropout=0.1, attention_dropout=0.2),
        training=replace(CONFIG.training, global_batch_size=8, seed=7, bf16=True),
        optimizer=replace(CONFIG.optimizer, **optimizer),
    )
    assert told(config) == (
        "training.global_batch_size changed: 4 -> 8",
        "optimizer.weight_decay changed: 0.1 -> 0.2",
        "optimizer.adam_beta1 changed: 0.9 -> 0.8",
        "optimizer.adam_beta2 changed: 0.95 -> 0.99",
        "optimizer.clip_grad changed: 1 -> 0.5",
        "training.seed changed: 1234 -> 7",
        "training.bf16 changed: False -> True",
        "model.attention_dropout changed: 0 -> 0.2",
        "model.hidden_dropout changed: 0 -> 0.1",
    )


def test_an_imported_model_had_no_schedule() -> None:
    assert told(CONFIG, facts_of(changed("training", train_iters=None), step=0)) == ()


def test_a_configuration_of_another_version_is_no_obstacle() -> None:
    facts = replace(facts_of(CONFIG), config={"model": {"number_of_layers": 3}})
    (line,) = told(CONFIG, facts)
    assert line.startswith("what changed since the checkpoint cannot be told, its configuration is of another version")


def test_another_layout_and_another_cut_are_told() -> None:
    facts = facts_of(CONFIG)
    assert layout_changes(facts, build_plan(CONFIG, 300)) == ()
    two = changed("parallel", pipeline_model_parallel_size=2)
    assert layout_changes(facts, build_plan(two, 300)) == (
        "layout changed: tensor 1 x pipe 1 x data 1 -> tensor 1 x pipe 2 x data 1",
        "stages recut: 1 stage -> 2 stages cut at layers.1.mlp",
    )
    by_hand = changed("parallel", pipeline_model_parallel_size=2, pipeline_cuts=("layers.0.mlp",))
    assert layout_changes(facts_of(two), build_plan(by_hand, 300)) == (
        "stages recut: 2 stages cut at layers.1.mlp -> 2 stages cut at layers.0.mlp",
    )
    data = build_plan(CONFIG, 300, data=2)
    assert layout_changes(facts, data) == ("layout changed: tensor 1 x pipe 1 x data 1 -> tensor 1 x pipe 1 x data 2",)
