"""What `novelty` measures: a checkpoint of ours on any layout, or a Hugging Face model on one process."""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.cli.layout_flags import number
from megatron_tlm.config.launch import Launch
from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.data.gpt_dataset import check_vocabulary
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.inputs import expand_inputs
from megatron_tlm.data.sentencepiece_tokenizer import read_texts
from megatron_tlm.errors import ConfigError
from megatron_tlm.evaluation.novelty import Novelty, joined, measure_novelty, windows
from megatron_tlm.evaluation.restore import load_model
from megatron_tlm.train.survival.agree import agree

Encode = Callable[[str], Sequence[int]]
HUGGING_FACE_LENGTH = 1024


def of_checkpoint(args: Namespace, parallel: ParallelConfig, launch: Launch) -> dict[str, Any]:
    """Collective over all ranks of the launch."""
    restored = load_model(args.load, number(args, "ckpt_step", 0), tell=_say, parallel=parallel, launch=launch)
    length = number(args, "seq_length", 1) or restored.plan.seq_length
    positions = restored.config.model.positions

    def open_stream() -> NDArray[Any]:
        if length > positions:
            raise ConfigError(
                f"--seq-length = {length} exceeds the model's max_position_embeddings = {positions}; give a shorter one"
            )
        if args.data_path:
            return _pair(args, restored.plan.shape.vocab_size)
        tokenizer = restored.tokenizer
        if tokenizer is None:
            raise ConfigError(
                f"--text = {args.text} cannot be read by {restored.path}, which was trained without a tokenizer; give "
                "--data-path"
            )
        return _text(args, tokenizer.encode, tokenizer.eod_id)

    stream = agree(open_stream) if launch.world_size > 1 else open_stream()
    batches = windows(stream, length, number(args, "micro_batch_size", 1) or 1, number(args, "num_tokens", 1) or 1)
    return _record(f"{restored.path}", args, batches[0].shape[1], measure_novelty(restored.model, batches))


def of_hugging_face(args: Namespace) -> dict[str, Any]:
    """On this process alone."""
    from megatron_tlm.evaluation.novelty_hugging_face import hugging_face_novelty, load_hugging_face

    model = load_hugging_face(args.hugging_face, trust_remote_code=args.trust_remote_code)
    positions = getattr(model.config, "max_position_embeddings", HUGGING_FACE_LENGTH)
    length = number(args, "seq_length", 1) or min(HUGGING_FACE_LENGTH, positions)
    if args.data_path:
        stream = _pair(args, model.config.vocab_size)
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(args.hugging_face, local_files_only=True)
        stream = _text(args, lambda text: tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id or 0)
    batches = windows(stream, length, number(args, "micro_batch_size", 1) or 1, number(args, "num_tokens", 1) or 1)
    return _record(args.hugging_face, args, batches[0].shape[1], hugging_face_novelty(model, batches))


def _pair(args: Namespace, vocab_size: int) -> NDArray[Any]:
    indexed = IndexedDataset(args.data_path)
    check_vocabulary(indexed, vocab_size)
    return indexed.tokens


def _text(args: Namespace, encode: Encode, eod_id: int) -> NDArray[np.int64]:
    texts = read_texts(expand_inputs([args.text]), [args.json_key])
    return joined(map(encode, texts), eod_id, number(args, "num_tokens", 1) or 1)


def _record(model: str, args: Namespace, length: int, novelty: Novelty) -> dict[str, Any]:
    return {
        "model": model,
        "data": args.data_path or args.text,
        "num_tokens": novelty.num_tokens,
        "seq_length": length,
        "rho_block": [layer.rho_block for layer in novelty.layers],
        "rho_mlp": [layer.rho_mlp for layer in novelty.layers],
        "pearson_block": novelty.pearson_block,
        "pearson_mlp": novelty.pearson_mlp,
    }


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
