"""The command lines of `workerlab live` and `workerlab demo`."""

import argparse

from workerlab import options as read
from workerlab.options import (
    Option,
    Options,
    ServesInTurn,
    ServesOne,
    StoredOptions,
    add_record,
    flag,
    option,
)

ALL_ADDRESSES, SHARE_PORT = "0.0.0.0", 8471
EXAMPLES = """\
examples:
  workerlab live
      open a page that shows requests in the accept queue, the workers and their slots
  workerlab live --no-browser --port 8800
      serve it on a fixed port, without opening a browser
  workerlab live --share
      share it: pupils on the local network watch, and guess on their own screens
  workerlab live --record lesson.html
      write the lesson as a single page that needs neither a server nor a network

Ctrl-C stops the lab and everything it started.
"""

DEMO_EXAMPLES = """\
examples:
  workerlab demo            ask before each step; any key continues
  workerlab demo --yes      run all steps, in about two minutes
  workerlab demo --web      use a browser, where you see real requests wait
  workerlab demo --web --share
                            let a class guess on its own screens
  workerlab demo --lesson my.toml
                            give another lesson; docs/extending.md describes the format
"""


ipv4_address = read.matching(r"\d{1,3}(\.\d{1,3}){3}", "an IPv4 address, such as 192.168.1.7")


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise read.BadArgument(f"{text!r} is not a port, from 1 to 65535")
    return int(text)


class ShareOptions(Options):
    """Share a lesson in a browser."""

    share = option(
        ipv4_address,
        "ADDRESS",
        "let pupils on the local network watch and guess, with a room code; ADDRESS: one of"
        " this machine's (all)",
        nargs="?",
        const=ALL_ADDRESSES,
    )
    share_port = option(_port, "N", f"port of the pupils' pages ({SHARE_PORT})", default=SHARE_PORT)


class LiveOptions(ShareOptions, ServesOne):
    """`begin`: start with the lesson."""

    begin: bool = False
    port = option(
        _port, "N", "the port of the page on 127.0.0.1 (a free one)", before="share", default=0
    )
    lesson = option(
        str, "FILE", "give the lesson in this file instead of the bundled one", before="share"
    )
    record = option(
        str, "FILE", "run the lesson once and write a page that replays it anywhere", before="share"
    )
    no_browser = flag("do not open a browser", before="share")


class DemoOptions(ShareOptions, StoredOptions, ServesInTurn):
    web = flag("give the lesson in a browser (see workerlab live)", before="share")
    yes = flag("run all steps without asking", before="out")
    lesson = option(read.existing_file, "FILE", "another lesson (TOML)", before="out")
    resume = Option[str | None](None)  # its runs are sweeps: `sweep --resume` resumes them


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Watch real requests wait in front of a real Gunicorn, in a browser: change the worker"
        " class, the workers and the load, and see the effect at once."
    )
    parser.epilog = EXAMPLES
    add_record(parser, LiveOptions, {"what serves it": ServesOne})


def add_demo_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "A lesson in the terminal: what happens when more requests arrive than a server can"
        " serve? Each step lets you guess, shows what the law predicts, runs the load live,"
        " compares all three, and explains the result."
    )
    to.epilog = DEMO_EXAMPLES
    add_record(to, DemoOptions)
