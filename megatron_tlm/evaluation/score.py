"""How likely a model finds passages: batched by length, shared out over data ranks, known to every rank in the end.

Shapes: B batch, S sequence, v this rank's share of the padded vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from megatron_tlm.comm.groups import gather_object
from megatron_tlm.evaluation.model import Model, likeliest
from megatron_tlm.evaluation.passages import Passage, stack
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy

Tell = Callable[[int, int], None]
"""Hears how many batches are done, and of how many."""


class Score(NamedTuple):
    """Of one passage: nats over its scored tokens, how many those are, whether each is the likeliest of its place."""

    nats: float
    num_tokens: int
    greedy: bool


NOTHING = Score(0.0, 0, True)


@dataclass(frozen=True)
class Scorer:
    """Passages by a model, `batch` at a time. Collective: every rank asks for the same passages."""

    model: Model
    batch: int = 8
    tell: Tell = lambda done, whole: None

    def __call__(self, passages: Sequence[Passage]) -> list[Score]:
        """A score for each passage, in their order; one that scores no token is worth 0 nats, and greedy."""
        mesh, stage = self.model.mesh, self.model.stage
        # The longest first: a batch that does not fit into memory is then the first.
        asked = [index for index, passage in enumerate(passages) if passage.scored]
        order = sorted(asked, key=lambda index: -len(passages[index].ids))
        batches = [order[start : start + self.batch] for start in range(0, len(order), self.batch)]
        mine, was_training = batches[mesh.data.rank :: mesh.data.size], stage.training
        found: list[tuple[int, Score]] = []
        stage.eval()
        with torch.inference_mode():
            for done, indices in enumerate(mine, start=1):
                found += zip(indices, self._scores([passages[index] for index in indices]), strict=False)
                self.tell(done, len(mine))
        stage.train(was_training)
        speaks = self.model.is_last and mesh.tensor.rank == 0
        scores = dict(pair for pairs in gather_object(found if speaks else []) for pair in pairs)
        return [scores[index] if passage.scored else NOTHING for index, passage in enumerate(passages)]

    def _scores(self, passages: Sequence[Passage]) -> Iterable[Score]:
        """Of a batch, on the last stage; nothing on the others."""
        ids, counted = stack(passages)
        tokens = torch.from_numpy(ids)
        logits_BSv = self.model.logits(tokens[:, :-1])
        if logits_BSv is None:
            return []
        tensor, labels_BS = self.model.mesh.tensor, tokens[:, 1:].to(self.model.device)
        wrong_BS = likeliest(logits_BSv, tensor, self.model.vocab_size) != labels_BS
        loss_BS = vocab_parallel_cross_entropy(logits_BSv, labels_BS, tensor, self.model.vocab_size)
        counted_BS = torch.from_numpy(counted).to(self.model.device)
        nats = (loss_BS.double() * counted_BS).sum(dim=1).tolist()
        missed = (wrong_BS & counted_BS).sum(dim=1).tolist()
        return [
            Score(nats_, passage.scored, miss == 0) for passage, nats_, miss in zip(passages, nats, missed, strict=True)
        ]
