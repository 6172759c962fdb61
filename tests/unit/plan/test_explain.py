import re
from dataclasses import replace

from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.explain import explain, moved_borders, step_times

MODEL = ModelConfig(num_layers=6, hidden_size=64, num_attention_heads=4, seq_length=64, ffn_hidden_size=256)


def plan(stages, vocab_size=1000, micro_batches=8, **parallel):
    return build_plan(
        Config(
            model=MODEL,
            parallel=ParallelConfig(pipeline_model_parallel_size=stages, **parallel),
            training=TrainingConfig(global_batch_size=micro_batches),
        ),
        vocab_size,
    )


def test_no_move_of_one_border_is_faster_than_the_optimum():
    found = plan(4)
    moves = list(moved_borders(found))
    assert len(moves) >= 3
    times = step_times(found, [found.stages, *(stages for *_, stages in moves)])
    assert times[0] == found.timeline.step_time
    assert times[1:] == [found.with_stages(stages).timeline.step_time for *_, stages in moves]
    for (name, stage, stages), time in zip(moves, times[1:], strict=True):
        assert [i for own in stages for i in own] == list(range(len(found.units)))
        assert found.units[stages[stage].start].name in name or found.units[stages[stage].stop - 1].name in name
        assert time >= times[0]


def test_it_says_what_limits_and_that_it_is_proven():
    text = " ".join(explain(plan(3)))
    assert "sets the pace with 1." in text
    assert "would change nothing; of equals the one with less peak memory is taken" in text
    assert "The nearest other cut" in " ".join(explain(plan(4)))
    assert "The search is complete" in text
    assert "is the fullest" in text


def test_a_unit_larger_than_a_stage_is_named():
    assert "% of it head, which no cut can part; no cut has a smaller slowest" in " ".join(
        explain(plan(4, vocab_size=100_000))
    )


TINY = ModelConfig(num_layers=4, hidden_size=128, num_attention_heads=4, seq_length=256, ffn_hidden_size=384)


def tiny(micro_batches, **parallel):
    config = Config(
        model=TINY,
        parallel=ParallelConfig(pipeline_model_parallel_size=2, **parallel),
        training=TrainingConfig(global_batch_size=micro_batches),
    )
    return build_plan(config, 2048)


def every_cut(found):
    """Two stages, wherever the planner may cut."""
    count = len(found.units)
    return [found.with_stages((range(border), range(border, count))) for border in range(2, count)]


def test_a_more_even_cut_that_is_slower_is_told_with_its_price():
    found = tiny(2)
    even = min(every_cut(found), key=slowest)
    assert slowest(even) < slowest(found)
    mean = sum(stage.forward + stage.backward for stage in found.stage_times) / 2
    price = even.timeline.step_time / found.timeline.step_time - 1
    assert explain(found)[0].endswith(
        f"a more even cut exists, its slowest stage {slowest(even) / mean:.3f} of the mean, but its step is "
        f"{price:.2%} longer: with 2 micro-batches filling and draining the pipeline decide."
    )


def test_no_smaller_slowest_stage_only_where_there_is_none():
    found = tiny(32)
    assert slowest(found) == min(slowest(other) for other in every_cut(found))
    assert explain(found)[0].endswith("of the mean stage; no cut has a smaller slowest stage.")
    roomy = replace(found, setting=replace(found.setting, memory_limit=2**40))
    assert explain(roomy)[0].endswith("no cut that fits into memory has a smaller slowest stage.")
    by_hand = tiny(32, decoder_first_pipeline_num_layers=1)
    assert "a more even cut exists" in explain(by_hand)[0]
    assert re.search(r"and its step is [\d.]+% shorter\.$", explain(by_hand)[0])


def slowest(found):
    return max(stage.forward + stage.backward for stage in found.stage_times)


def test_few_micro_batches_are_the_bubble():
    text = " ".join(explain(plan(4, micro_batches=4)))
    assert "4 perfectly even ones would idle 42.9% with 4 micro-batches: more of them would help most" in text
    assert "would idle 75.0% with 1 micro-batch: more" in " ".join(explain(plan(4, micro_batches=1)))


def test_the_two_measures_of_a_stage_are_named():
    assert "By work really done (masked scores left out, recomputation counted), stage" in explain(plan(3))[0]
    assert "By predicted time, stage" in explain(plan(3, hardware="h100"))[0]


def test_a_peak_after_the_activations_are_gone_says_so():
    found = plan(3)
    assert all(use.activations > 0 for use in found.memory)
    text = explain(found)[-1]
    assert "most of it buffers that reduce gradients after the last backward" in text
    assert "its activations, " in text


def test_given_by_hand_or_alone():
    by_hand = plan(3, decoder_first_pipeline_num_layers=1, decoder_last_pipeline_num_layers=1)
    text = " ".join(explain(by_hand))
    assert "The stages were given by hand." in text
    assert "faster." in text
    assert len(explain(plan(1))) == 1


def test_a_search_cut_short_says_by_how_much():
    found = plan(4)
    short = replace(found, cut=replace(found.cut, proven=False, bound=found.cut.step_time * 9 // 10))
    assert "could save at most 10.00% of the step" in " ".join(explain(short))
