"""What a rank sets before the rendezvous."""

from __future__ import annotations

import pytest
import torch

from holdfast.trainer.mesh.mesh import only_deterministic


@pytest.mark.parametrize("given", ["", ":16:8"])
def test_deterministic_is_meant(given: str) -> None:
    """A warning would not do: torch's attention then is what it is without."""
    environ = {"CUBLAS_WORKSPACE_CONFIG": given} if given else {}
    try:
        only_deterministic(environ)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert environ == {"CUBLAS_WORKSPACE_CONFIG": given or ":4096:8"}
