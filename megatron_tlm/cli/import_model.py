"""`megatron-tlm import`: a Llama-shaped Hugging Face model as a checkpoint to train on."""

from collections.abc import Sequence
from pathlib import Path

from megatron_tlm.cli.inspect import runs
from megatron_tlm.cli.meter import Meter
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.report.scale import size_text

EXAMPLES = """\
examples:
  megatron-tlm import --from my-model --save-dir imported
  megatron-tlm train --config imported/config.yaml --load imported --finetune --save run \\
      --data-path corpus_text_document --train-iters 1000

  megatron-tlm import --from ds-universal --hf-config my-model/config.json --save-dir imported

Llama, Mistral without a window, Qwen3, DeciLM and every export of this program's own, from safetensors alone: no code
of the directory runs and no pickle is opened. Weights are kept bit for bit; there is no optimizer state to bring.
A DeepSpeed universal checkpoint of such a model is read as well, its weights alone and only under the same names: fused
or numbered parameters (Megatron-DeepSpeed, its pipelines) are refused, moments, step and schedule are left behind.
"""


def build_parser() -> Parser:
    parser = Parser(prog=program("import"), description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--from", required=True, dest="source", metavar="DIR", help="the model's directory")
    parser.add_argument(
        "--hf-config", metavar="FILE", help="the model's config.json, where it does not lie in that directory"
    )
    parser.add_argument("--save-dir", required=True, metavar="DIR", help="folder to write the checkpoint in")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Import, and say how to train on."""
    args = build_parser().parse(arguments)
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.export.incoming import import_hugging_face

    with Meter("importing") as meter:
        imported = import_hugging_face(
            Path(args.source),
            Path(args.save_dir),
            config_file=Path(args.hf_config) if args.hf_config else None,
            progress=meter,
        )
    shape = imported.shape
    print(f"source  {args.source}")
    print(f"target  {imported.path}: {size_text(imported.weight_bytes)} of weights")
    print(f"        {shape.num_layers} layers x {shape.hidden_size}, widths {runs(shape.widths)}")
    print(f"train   megatron-tlm train --config {imported.config_file} --load {args.save_dir} --finetune ...")
    return 0
