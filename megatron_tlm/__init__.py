"""Megatron-style distributed training of Tapered Language Models (arXiv:2606.23670)."""

__version__ = "0.1.0"
