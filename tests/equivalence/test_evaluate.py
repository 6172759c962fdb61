"""One number for a model whoever measures it: the training loss, one process, ranks of any layout, Hugging Face."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_tlm.config.launch import Launch
from megatron_tlm.config.schema import DataConfig, ParallelConfig
from megatron_tlm.data.gpt_dataset import GPTDataset
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.data.tokenizers import ByteTokenizer
from megatron_tlm.errors import TlmError
from megatron_tlm.evaluation.complete import Prompt, complete
from megatron_tlm.evaluation.generate import Sampling, generate
from megatron_tlm.evaluation.passages import Passage
from megatron_tlm.evaluation.perplexity import total
from megatron_tlm.evaluation.restore import load_model
from megatron_tlm.evaluation.score import Score, Scorer
from megatron_tlm.export.hugging_face import export_hugging_face
from tests.equivalence.launching import launch, losses_of, metrics_of, run_config
from tests.equivalence.training import GLOBAL_BATCH, VOCAB
from tests.equivalence.windows import training_passages
from tests.ranks import run_ranks
from tests.unit.cli.conftest import save_tiny, tiny_config


@dataclass(frozen=True)
class Answers:
    """What a layout says of the same questions."""

    scores: list[Score]
    texts: list[str]
    told: int


def questions() -> list[Passage]:
    """Thirteen passages of several lengths, of bytes."""
    ids = np.random.default_rng(5).integers(0, 257, 400)
    return [Passage(ids[17 * n : 17 * n + 5 + 2 * n], 1 + n) for n in range(13)]


def greedy_questions(root: Path) -> list[Passage]:
    """Starts that go on as the model would have it; their tokens lie on different tensor ranks."""
    stage, starts = load_model(root, dtype=torch.float64).stage, [ids[:4].tolist() for ids, _ in questions()[:4]]
    ends = [list(generate(stage, start, max_new_tokens=2, eod_id=None)) for start in starts]
    return [Passage(np.array(start + end), 2) for start, end in zip(starts, ends, strict=True)]


def prompts() -> list[Prompt]:
    texts = ("wide below", "narrow!", "a much longer prompt", "between", "also ten b")
    drawn = Sampling(temperature=0.7, top_k=40, seed=3)
    return [
        Prompt([*text.encode()], 6 + n % 2, ("e",), drawn if n % 2 else Sampling(0.0)) for n, text in enumerate(texts)
    ]


def answer(rank: int, root: Path, tensor: int, pipe: int, world_size: int, passages: list[Passage]) -> Answers:
    parallel = ParallelConfig(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipe)
    restored = load_model(root, dtype=torch.float64, parallel=parallel, launch=Launch(rank, world_size, rank))
    told: list[int] = []
    scores = Scorer(restored.model, 3, lambda done, whole: told.append(whole))(passages)
    return Answers(scores, complete(restored.model, ByteTokenizer(), prompts(), batch=2), len(told))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    save_tiny(folder, tiny_config(tokenizer_type="ByteTokenizer"))
    return folder


@pytest.mark.parametrize(("tensor", "pipe", "data"), [(2, 2, 1), (4, 1, 1), (1, 2, 2), (1, 4, 1)])
def test_every_rank_of_every_layout_answers_as_one_process(root: Path, tensor: int, pipe: int, data: int) -> None:
    world_size = tensor * pipe * data
    passages = questions() + greedy_questions(root)
    alone = answer(0, root, 1, 1, 1, passages)
    assert len(set(alone.texts)) == 5
    assert [score.greedy for score in alone.scores] == [False] * 13 + [True] * 4
    for found in run_ranks(world_size, answer, root, tensor, pipe, world_size, passages):
        assert found.texts == alone.texts
        for ours, theirs in zip(found.scores, alone.scores, strict=True):
            assert ours.nats == pytest.approx(theirs.nats, rel=1e-11)
            assert ours[1:] == theirs[1:]
        assert found.told == 6 // data


def fail_to_load(rank: int, root: Path) -> str:
    try:
        load_model(root, 11, parallel=ParallelConfig(tensor_model_parallel_size=2), launch=Launch(rank, 2, rank))
    except TlmError as error:
        return str(error)
    return "loaded"


def test_a_fault_of_one_rank_is_every_ranks(root: Path) -> None:
    first, second = run_ranks(2, fail_to_load, root)
    assert first == second
    assert "ckpt_step = 11 is not in" in first


def test_the_perplexity_is_e_to_the_training_loss(tmp_path: Path) -> None:
    """Saved by two tensor ranks after step 4; step 5 began with that, and told its loss on samples that we measure."""
    config = run_config(tmp_path, save_interval=4, exit_interval=5, tensor_model_parallel_size=2)
    assert launch(config, 2).codes == [0, 0]
    assert config.checkpoint.save is not None
    restored = load_model(config.checkpoint.save, 4)
    result = total(Scorer(restored.model, batch=3)(training_passages(config, 5)))
    assert result.perplexity == pytest.approx(math.exp(losses_of(config)[4]), rel=1e-6)
    other = total(Scorer(restored.model, batch=3)(training_passages(config, 6)))
    assert abs(other.loss - losses_of(config)[4]) > 1e-4


def write_pair(prefix: Path, documents: int, seed: int) -> str:
    """Ids of the tiny model, in documents of 5 to 40."""
    numbers = np.random.default_rng(seed)
    with IndexedDatasetWriter(prefix, np.dtype(np.uint16)) as writer:
        for _ in range(documents):
            writer.add_document(numbers.integers(0, VOCAB, numbers.integers(5, 40)))
    return str(prefix)


def test_a_run_measures_each_named_set_as_evaluation_does_afterwards(tmp_path: Path) -> None:
    """Two stages; whole sets, whose number of samples no batch divides."""
    train, valid = write_pair(tmp_path / "train", 200, 0), write_pair(tmp_path / "valid", 9, 1)
    sets = {"books": write_pair(tmp_path / "a", 12, 2), "wiki.2": write_pair(tmp_path / "b", 13, 3)}
    config = run_config(tmp_path / "run", pipeline_model_parallel_size=2, exit_interval=5)
    config = replace(
        config,
        data=DataConfig(
            train_data_path=(train,),
            valid_data_path=(valid,),
            eval_data=tuple(f"{name}={prefix}" for name, prefix in sets.items()),
        ),
        training=replace(config.training, full_validation=True),
    )
    ended = launch(config, 2)
    assert ended.codes == [0, 0], ended.complained
    records = [record for record in metrics_of(config) if "loss" not in record]
    told = {key: value for record in records for key, value in record.items() if key.startswith("valid_loss")}
    assert list(told) == ["valid_loss", "valid_loss/books", "valid_loss/wiki.2"]
    assert config.checkpoint.save is not None
    scorer = Scorer(load_model(config.checkpoint.save, 5).model)
    for key, prefix in zip(told, (valid, *sets.values()), strict=True):
        pair, length = IndexedDataset(prefix), config.model.seq_length
        samples = GPTDataset(pair, range(len(pair)), None, length, config.training.seed)
        whole = len(samples) // GLOBAL_BATCH * GLOBAL_BATCH
        assert 0 < whole < len(samples), len(samples)
        result = total(scorer([Passage(samples[sample], length) for sample in range(whole)]))
        assert result.loss == pytest.approx(told[key], rel=1e-6)


def test_a_set_too_small_for_a_full_batch_is_told(tmp_path: Path) -> None:
    config = run_config(tmp_path / "run")
    config = replace(
        config,
        data=replace(config.data, eval_data=(f"tiny={write_pair(tmp_path / 'a', 2, 1)}",)),
        training=replace(config.training, full_validation=True),
    )
    ended = launch(config, 1)
    assert ended.codes == [2]
    assert "training.full_validation = True takes full batches of 4 samples, and the tiny set has " in ended.complained


@pytest.mark.parametrize("flavour", ["tapered", "padded"])
def test_the_hugging_face_export_has_the_same_perplexity(tmp_path: Path, root: Path, flavour: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import AutoModelForCausalLM

    export_hugging_face(root / "step-00000010", tmp_path / "hf", flavour=flavour)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True, dtype=torch.float32).eval()
    ours = total(Scorer(load_model(root).model)(questions()))
    nats = 0.0
    for passage in questions():
        ids = torch.from_numpy(passage.ids)
        with torch.no_grad():
            logits = theirs(ids[None, :-1]).logits[0, -passage.scored :].double()
        nats += float(torch.nn.functional.cross_entropy(logits, ids[-passage.scored :], reduction="sum"))
    assert ours.perplexity == pytest.approx(math.exp(nats / ours.num_tokens), rel=1e-5)
