"""How sentences are written down: nothing is lost, and every template can be filled."""

from __future__ import annotations

import re
import string
from collections import Counter

from harness.model import Column
from harness.report.messages import SENTENCES, TEMPLATES, TEXTS, heading, meaning


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
    assert codes.keys() == TEMPLATES.keys() < SENTENCES.keys()


def test_every_template_names_values() -> None:
    assert not [code for code, one in TEMPLATES.items() if one.count("[[") != one.count("]]")]
    fields = [field for one in TEMPLATES.values() for field in string.Formatter().parse(one)]
    assert all(name.isidentifier() for _, name, _, _ in fields if name is not None)


def test_columns_by_table_by_kind_of_table_and_by_name() -> None:
    assert heading(Column("tool"), "bottleneck.users") == "generator"
    assert heading(Column("tool"), "limits.clients") == "load tool"
    assert heading(Column("asked_rps")) == "asked req/s"
    assert heading(Column("host_memory_bytes")) == "host memory"
    assert meaning(Column("connect_s"), "table.breakdown") == "until the client was connected"
    assert meaning(Column("connect_s"), "table.cells") == ""
