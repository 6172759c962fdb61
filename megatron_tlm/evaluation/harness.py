"""A model of ours under EleutherAI's lm-evaluation-harness, in process: it asks, `Scorer` and `complete` answer.

Importing this imports lm_eval, which takes its time and is an extra (`pip install 'megatron_tlm[eval]'`).

What the harness leaves open is settled thus: an empty continuation is worth 0 nats and is greedy; of several likeliest
tokens the one with the smallest id is the greedy one; a context that yields no token is the end-of-document token.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

from megatron_tlm.config.nearest import nearest
from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.errors import ConfigError
from megatron_tlm.evaluation.complete import Prompt, complete
from megatron_tlm.evaluation.generate import Sampling
from megatron_tlm.evaluation.model import Model
from megatron_tlm.evaluation.passages import Passage, continuation, rolling
from megatron_tlm.evaluation.protocols import encode_pair
from megatron_tlm.evaluation.score import Scorer, Tell

VERSION = lm_eval.__version__
BOOTSTRAP_DRAWS = 1000
MAX_NEW_TOKENS = 256  # where a task does not say, as the harness has it


def load_tasks(
    names: Sequence[str], include_path: str | None, say: Callable[[str], None]
) -> tuple[TaskManager, list[Any]]:
    """What knows the tasks, and the tasks with their data; `say` hears of what takes long.

    ConfigError for a name that neither the folder nor the harness has, and for a task that cannot be loaded.
    """
    if include_path is not None and not Path(include_path).is_dir():
        raise ConfigError(f"--include-path = {include_path} is not a directory; give the one of the tasks' YAML files")
    # The harness's own some thousands of YAML files are read where a name is not found without them.
    manager = TaskManager(include_path=include_path, include_defaults=False)
    if not all(name in manager.all_tasks for name in names):
        say("looking through lm-evaluation-harness's own tasks: some thousands of files, which may take minutes")
        manager = TaskManager(include_path=include_path)
    for name in names:
        if name not in manager.all_tasks:
            close = nearest(name, manager.all_tasks)
            way_out = f"did you mean {close}?" if close else "give the folder of its YAML file as --include-path"
            raise ConfigError(f"--tasks = {name} is not among {len(manager.all_tasks)} tasks; {way_out}")
    return manager, [task for name in names for task in _load(manager, name)]


def _load(manager: TaskManager, name: str) -> list[Any]:
    """A task, a group, or the tasks of a tag."""
    try:
        loaded = manager.load([name])
    except Exception as error:  # whatever a task's own code, a data set's or the network may raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(
            f"--tasks = {name} cannot be loaded ({reason}); mend its YAML file, or fetch its data first"
        ) from error
    groups = loaded.get("groups", {})
    return [groups[name]] if name in groups else list(loaded["tasks"].values())


def run_tasks(
    model: "HarnessModel", tasks: Sequence[Any], manager: TaskManager, num_fewshot: int | None, limit: int | None
) -> Any:
    """The harness's own results, None on ranks that are not the first of their node. Collective."""
    # Standard errors by bootstrap: its pool of processes would be forked from ranks, and cost more than it saves.
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        return simple_evaluate(
            model,
            tasks=list(tasks),
            num_fewshot=num_fewshot,
            limit=limit,
            task_manager=manager,
            bootstrap_iters=BOOTSTRAP_DRAWS,
            batch_size=model.batch_size,
            log_samples=False,
        )
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before


def table(results: Any) -> str:
    """The harness's own, in Markdown."""
    return str(make_table(results)).rstrip()


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """`max_length` tokens are looked at in one go; more are cut off in front. All ranks have to ask for the same."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        max_length: int,
        batch: int = 8,
        tell: Callable[[str], Tell] = lambda name: lambda done, whole: None,
    ) -> None:
        super().__init__()
        self.max_length, self.batch_size = max_length, batch
        self._model, self._tokenizer, self._tell = model, tokenizer, tell

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eod_id

    @property
    def tokenizer_name(self) -> str:
        return self._tokenizer.type_name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Never with ids around it, whatever is asked for: our tokenizers add none."""
        return self._tokenizer.encode(string)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(nats, all greedy) of each continuation behind its context."""
        pairs = [(request.args, *self._pair_ids(*request.args)) for request in requests]
        return self._loglikelihood_tokens(pairs)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Nats of each whole text behind the end-of-document token, in windows that do not overlap."""
        passages: list[Passage] = []
        counts = []
        for request in requests:
            stream = np.array([self.eot_token_id, *self.tok_encode(*request.args)], np.int64)
            found = list(rolling(stream, self.max_length, self.max_length))
            passages += found
            counts.append(len(found))
        scores = iter(self._scorer("loglikelihood_rolling")(passages))
        nats = [-sum(next(scores).nats for _ in range(count)) for count in counts]
        for request, value in zip(requests, nats, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return nats

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text behind each context, up to a stop string, which is left out."""
        prompts = [self._prompt(*request.args) for request in requests]
        # A repeated request is to be drawn anew, not the same again.
        prompts = [
            prompt._replace(sampling=replace(prompt.sampling, seed=prompt.sampling.seed + number))
            for number, prompt in enumerate(prompts)
        ]
        texts = complete(self._model, self._tokenizer, prompts, self.batch_size, self._tell("generate_until"))
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def get_model_info(self) -> dict[str, Any]:
        """What the harness keeps beside its results."""
        return {"model_num_parameters": self._model.stage.plan.parameters, "max_length": self.max_length}

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        passages = [continuation(context, ids, self.max_length) for _, context, ids in requests]
        scores = self._scorer("loglikelihood")(passages)
        answers = [(-score.nats, score.greedy) for score in scores]
        for (pair, _, _), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, answer)
        return answers

    def _pair_ids(self, context: str, text: str) -> tuple[list[int], list[int]]:
        """The harness's rule: a text that begins with the prefix token itself needs no other in front."""
        front, ids = encode_pair(self._tokenizer, context, text)
        if front:
            return front, ids
        return (ids[:1], ids[1:]) if ids[:1] == [self.eot_token_id] else ([self.eot_token_id], ids)

    def _scorer(self, name: str) -> Scorer:
        return Scorer(self._model, self.batch_size, self._tell(name))

    def _prompt(self, context: str, wishes: Mapping[str, Any]) -> Prompt:
        """ConfigError where what is to be written leaves no room for what is to be read."""
        given = normalize_gen_kwargs(dict(wishes), MAX_NEW_TOKENS)
        wanted, room = given["max_gen_toks"], self.max_length - given["max_gen_toks"]
        if room < 1 or wanted < 1:
            raise ConfigError(
                f"max_gen_toks = {wanted} lies outside 1..{self.max_length - 1}, what a window of {self.max_length} "
                "tokens (--seq-length) can write; change the task's generation_kwargs"
            )
        ids = self.tok_encode(context) or [self.eot_token_id]
        sampling = Sampling(
            temperature=float(given.get("temperature", 1.0)) if given["do_sample"] else 0.0,
            top_k=int(given.get("top_k", 0)),
            top_p=float(given.get("top_p", 1.0)),
        )
        stops = tuple(stop for stop in given["until"] if stop)
        return Prompt(ids[-room:], wanted, stops, sampling)
