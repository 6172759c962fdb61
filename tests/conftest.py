"""What holds for every test: one thread a process, `gpu` tests skipped with a reason where there is no GPU."""

import hypothesis
import pytest
import torch

# Before any tensor work: ranks are forked, and a fork of a process whose thread pool has started hangs.
torch.set_num_threads(1)

# Two busy cores make single examples slow now and then; that says nothing about the code.
hypothesis.settings.register_profile("house", deadline=None, print_blob=True)
hypothesis.settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, torch.cuda.is_available() is False"))
