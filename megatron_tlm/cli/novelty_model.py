"""What `novelty` measures: a checkpoint of ours on any layout, or a Hugging Face model on one process."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.cli.model_flags import text_key
from megatron_tlm.cli.options import note
from megatron_tlm.config.launch import Launch
from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.data.documents import read_texts
from megatron_tlm.data.gpt_dataset import check_vocabulary
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.inputs import expand_inputs
from megatron_tlm.evaluation.novelty import Novelty, joined, measure_novelty, windows
from megatron_tlm.evaluation.restore import load_model

Encode = Callable[[str], Sequence[int]]
HUGGING_FACE_LENGTH = 1024


def of_checkpoint(args: Namespace, parallel: ParallelConfig, launch: Launch) -> dict[str, Any]:
    """Collective over all ranks of the launch."""
    hashes = not args.no_check_hashes
    restored = load_model(args.load, args.ckpt_step, tell=note, hashes=hashes, parallel=parallel, launch=launch)
    length = args.seq_length or restored.plan.seq_length

    def open_stream() -> NDArray[Any]:
        restored.check_length("--seq-length", length)
        if args.data_path:
            return _pair(args, restored.plan.shape.vocab_size)
        tokenizer = restored.tokenizer_for(f"--text = {args.text}", "give --data-path")
        return _text(args, tokenizer.encode, tokenizer.eod_id)

    stream = restored.together(open_stream)
    batches = windows(stream, length, args.micro_batch_size, args.num_tokens)
    return _record(f"{restored.path}", args, batches[0].shape[1], measure_novelty(restored.model, batches))


def of_hugging_face(args: Namespace) -> dict[str, Any]:
    """On this process alone."""
    from megatron_tlm.evaluation.novelty_hugging_face import hugging_face_novelty, load_hugging_face, load_tokenizer

    model = load_hugging_face(args.hugging_face, trust_remote_code=args.trust_remote_code)
    positions = getattr(model.config, "max_position_embeddings", HUGGING_FACE_LENGTH)
    length = args.seq_length or min(HUGGING_FACE_LENGTH, positions)
    if args.data_path:
        stream = _pair(args, model.config.vocab_size)
    else:
        tokenizer = load_tokenizer(args.hugging_face, trust_remote_code=args.trust_remote_code)
        stream = _text(args, lambda text: tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id or 0)
    batches = windows(stream, length, args.micro_batch_size, args.num_tokens)
    return _record(args.hugging_face, args, batches[0].shape[1], hugging_face_novelty(model, batches))


def _pair(args: Namespace, vocab_size: int) -> NDArray[Any]:
    indexed = IndexedDataset(args.data_path)
    check_vocabulary(indexed, vocab_size)
    return indexed.tokens


def _text(args: Namespace, encode: Encode, eod_id: int) -> NDArray[np.int64]:
    texts = read_texts(expand_inputs([args.text]), [text_key(args)])
    return joined(map(encode, texts), eod_id, args.num_tokens)


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
