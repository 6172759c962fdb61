"""What the first event says of a run."""

import json

from megatron_tlm import __version__
from megatron_tlm.train.logs.events import start_facts
from tests.tiny_model import tiny_plan


def test_a_start_tells_the_plan_the_places_and_the_versions() -> None:
    plan = tiny_plan(pipe=2)
    facts = json.loads(json.dumps(start_facts(plan, train_steps=9, samples_per_step=4, hosts=["a", "b"])))
    assert (facts["ranks"], facts["hosts"]) == (2, 2)
    assert facts["layout"] == {"tensor": 1, "pipe": 2, "data": 1}
    assert facts["tokens_per_step"] == 4 * plan.seq_length
    assert facts["plan"]["widths"] == list(plan.shape.widths)
    assert facts["plan"]["stages"][0]["first_unit"] == "embedding"
    assert facts["versions"]["megatron_tlm"] == __version__
    assert "torch" in facts["versions"]
