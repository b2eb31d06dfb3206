"""Missing answers are inconclusive."""

from __future__ import annotations

import pytest

from workerlab.experiments.settings.site import AppReply


@pytest.mark.parametrize("answer", [AppReply(None, 1.0, error="TimeoutError"), AppReply(500, 0.1)])
def test_an_app_that_did_not_answer_is_inconclusive(answer: AppReply) -> None:
    with pytest.raises(ValueError, match=r"expected status 200, got (TimeoutError|500)"):
        _ = answer.about


def test_a_timeout_is_no_refusal() -> None:
    assert AppReply(431, 0.1).conclusive_status == 431
    assert AppReply(None, 0.1, error="ConnectionResetError").conclusive_status is None
    with pytest.raises(ValueError, match="no answer in time"):
        _ = AppReply(None, 15.0, error="TimeoutError").conclusive_status
