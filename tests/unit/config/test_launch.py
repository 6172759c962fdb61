"""What a launcher's variables may hold."""

import pytest

from megatron_tlm.config.launch import Launch, read_launch
from megatron_tlm.errors import ConfigError


def test_without_a_launcher_there_is_one_rank() -> None:
    assert read_launch({}) == Launch(0, 1, 0)


def test_torchruns_variables_are_read() -> None:
    told = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    assert read_launch(told) == Launch(3, 4, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"RANK": "abc"}, r"^RANK = 'abc' is not a rank; start with torchrun, or unset it"),
        ({"RANK": ""}, r"^RANK = '' is not a rank"),
        ({"RANK": "-1"}, r"^RANK = '-1' is not a rank"),
        ({"RANK": "5"}, r"^RANK = 5 is beyond the last of WORLD_SIZE = 1"),
        ({"WORLD_SIZE": "\u00b2"}, r"^WORLD_SIZE = '\u00b2' is not a number of ranks"),
        ({"WORLD_SIZE": "0"}, r"^WORLD_SIZE = '0' is not a number of ranks"),
        ({"WORLD_SIZE": "9" * 5000}, r"^WORLD_SIZE = '9+' is not a number of ranks"),
        ({"LOCAL_RANK": "x"}, r"^LOCAL_RANK = 'x' is not a rank"),
        ({"MASTER_PORT": "http"}, r"^MASTER_PORT = 'http' is not a port"),
        ({"MASTER_PORT": "70000"}, r"^MASTER_PORT = 70000 is above 65535, the last port"),
    ],
)
def test_garbage_is_told(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_launch(given)
