"""What is done to a blog from outside: its settings are read from the environment.

python -m apps.blog seed --posts 1000     something to read; adds what is missing
python -m apps.blog page 1                a post's page, straight from the storage
python -m apps.blog answers               which database answers, and its version
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from apps.blog import pages, seeds
from apps.blog.blocking import finish
from apps.blog.posts import Unreachable
from apps.blog.settings import BadSetting, read
from apps.blog.storage import Storage, storage_of

BATCH = 100


async def seed(storage: Storage, options: argparse.Namespace) -> None:
    await storage.prepare()
    there = (await storage.page(1)).posts
    for first in range(there + 1, options.posts + 1, BATCH):
        last = min(first + BATCH - 1, options.posts)
        await storage.add([seeds.draft(number) for number in range(first, last + 1)])
    print(f"{max(there, options.posts)} posts")


async def page(storage: Storage, options: argparse.Namespace) -> None:
    post = await storage.post(options.number)
    if post is None:
        raise SystemExit(f"there is no post {options.number}")
    sys.stdout.buffer.write(pages.post_page(post).get_data())


async def answers(storage: Storage, options: argparse.Namespace) -> None:
    print(await storage.answers())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m apps.blog")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("seed").add_argument("--posts", type=int, default=1000)
    commands.add_parser("page").add_argument("number", type=int)
    commands.add_parser("answers")
    options = parser.parse_args(argv)
    does: dict[str, Callable[..., object]] = {"seed": seed, "page": page, "answers": answers}
    try:
        storage = storage_of(read(), waiting=False)
        finish(does[options.command](storage, options))  # type: ignore[arg-type]
    except (BadSetting, Unreachable) as problem:
        print(f"blog: {problem}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
