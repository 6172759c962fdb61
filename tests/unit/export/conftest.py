"""Remote code is copied into a cache of its own, which Python then imports from: one for all tests of this room."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _own_module_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", folder)
        yield
