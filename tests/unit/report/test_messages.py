"""How sentences are written down: nothing is lost, and every template can be filled."""

from __future__ import annotations

import re
import string
from collections import Counter

from workerlab.analysis.verdict import FailedRequests
from workerlab.model import Column
from workerlab.notes import FlagIgnored
from workerlab.report.messages import TEMPLATES, TEXTS, heading


def test_every_line_is_a_code_and_its_template_or_goes_on() -> None:
    lines = [line for line in TEXTS.splitlines() if line and not line.startswith("# ")]
    codes = Counter[str]()
    for line in lines:
        if not line.startswith("    "):
            match = re.match(r"([\w.:-]+(?:, [\w.:-]+)*) = \S", line)
            assert match, line
            codes.update(match[1].split(", "))
    assert lines[0][0] != " "
    assert codes.most_common(1)[0][1] == 1  # no code twice
    assert codes.keys() == TEMPLATES.keys()


def test_every_template_names_values() -> None:
    assert not [code for code, one in TEMPLATES.items() if one.count("[[") != one.count("]]")]
    fields = [field for one in TEMPLATES.values() for field in string.Formatter().parse(one)]
    assert all(name.isidentifier() for _, name, _, _ in fields if name is not None)


def test_causes_of_failures_are_words() -> None:
    known = {"non_2xx": 48, "reset": 2, "of_a_new_tool": 1}
    said = str(FailedRequests(51, known))
    assert said == "51 failed (48 x status other than 2xx, 1 x of_a_new_tool, 2 x connection reset)"


def test_what_a_flag_has_no_effect_with() -> None:
    alone, both = (FlagIgnored("--backlog", names) for names in (("asgi",), ("asgi", "uvicorn")))
    assert str(alone) == "--backlog has no effect with asgi"
    assert str(both).endswith("with asgi and uvicorn")


def test_a_column_is_called_by_its_heading_or_its_name() -> None:
    assert heading(Column("memory_bytes", "bytes")) == "memory"
    assert heading(Column("response_mean_s")) == "response mean s"
    assert heading(Column("tool", heading="load tool")) == "load tool"
    assert heading(Column("asked_rps")) == "asked req/s"
    assert heading(Column("host_memory_bytes")) == "host memory"
