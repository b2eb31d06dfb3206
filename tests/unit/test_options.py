"""Options of a command as a typed record, and its command line."""

import argparse

import pytest

from workerlab.options import Option, Options, add_record, flag, option, options_of, record_of


class Base(Options):
    size = option(int, "N", "size (3)")
    absent = Option[str | None](None)


class Other(Options):
    name = option(str, "TEXT", "name")


class Both(Base, Other):
    first = flag("before the name", before="name")
    last = option(str, "FILE", "after all", default="here", flag="--end")
    size = option(int, "N", "another default (4)")


def parse(*argv: str) -> Both:
    parser = argparse.ArgumentParser()
    add_record(parser, Both, {"a group": Other})
    record = record_of(parser.parse_args(argv))
    assert isinstance(record, Both)
    return record


def test_the_options_of_base_records_come_first() -> None:
    options = options_of(Both)
    assert list(options) == ["size", "first", "name", "last"]
    assert options["size"].keywords["help"] == "another default (4)"
    assert [field.flag for field in options.values()] == ["--size", "--first", "--name", "--end"]


def test_a_record_has_the_given_options() -> None:
    record = parse("--size", "4", "--end", "x")
    assert vars(record) == {"size": 4, "last": "x"}
    assert (record.first, record.name, record.absent) == (False, None, None)
    assert (parse().last, vars(parse())) == ("here", {})
    with pytest.raises(AttributeError, match="size is read-only"):
        record.size = 5
    assert record.given_options(Both.first, Both.size) == [Both.size]
    assert record == Both(size=4, last="x", name=None)
    assert record.values_for(Base) == {"size": 4}
    assert record.replace(size=None, first=True) == Both(first=True, last="x")


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="Both has no colour"):
        Both(size=1, colour="red")


def test_the_help_lists_each_group_separately() -> None:
    parser = argparse.ArgumentParser()
    add_record(parser, Both, {"a group": Other})
    ungrouped, group = parser.format_help().split("a group:")
    flags = [line.split()[0] for line in ungrouped.splitlines() if line.startswith("  --")]
    assert flags == ["--size", "--first", "--end"]
    assert group.split()[:2] == ["--name", "TEXT"]
