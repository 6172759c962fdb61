"""Forcing bytes to the disk is slow on a busy machine, and no test here cuts the power: it is counted, not done."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
