from megatron_tlm.cli.plan_profile import UNMEASURED, measured_together, tell
from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.hardware import Profile, UnitSeconds, load_profile
from tests.ranks import run_ranks

CONFIG = Config(
    model=ModelConfig(num_layers=2, hidden_size=32, num_attention_heads=2, seq_length=16, ffn_hidden_size=64),
    parallel=ParallelConfig(pipeline_model_parallel_size=2),
    training=TrainingConfig(global_batch_size=4),
)


def profiled(rank):
    return measured_together(CONFIG, build_plan(CONFIG, 100, data=1), 2)


def test_ranks_that_were_started_together_measure_together():
    one, other = run_ranks(2, profiled)
    assert one == other
    assert "mean of 2 ranks at work at once; messages by gloo between ranks 0 and 1" in one.notes
    assert one.message_bandwidth > 0
    assert {unit.kind for unit in one.units} == {"embedding", "mixer", "mlp", "head"}


def test_what_could_not_be_measured_is_said(tmp_path, capsys):
    profile = Profile("gpu", 16, 1, 1, False, None, 32, (UnitSeconds("mlp", 64, 0.001, 0.002),))
    tell(profile, tmp_path / "profile.json")
    out = capsys.readouterr().out
    assert "mlp of 64        forward     1 ms  backward     2 ms" in out
    assert UNMEASURED in out
    assert "torchrun --nproc-per-node 2" in out
    assert load_profile(tmp_path / "profile.json") == profile
