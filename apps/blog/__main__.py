"""Commands to manage a blog, with its settings from the environment.

python -m apps.blog seed --posts 1000     add the sample posts that are missing
python -m apps.blog count                 print the number of posts
python -m apps.blog page 1                print a post's page, straight from the storage
python -m apps.blog answers               print the database server's name and version
python -m apps.blog drop                  remove its tables, posts included
"""

import argparse
import sys
from collections.abc import Sequence

from apps.blog import seeds
from apps.blog.blocking import finish
from apps.blog.posts import Unreachable
from apps.blog.settings import BadSetting, read
from apps.blog.storage import Storage, storage_of

BATCH = 100


async def carry_out(storage: Storage, options: argparse.Namespace) -> None:
    match options.command:
        case "seed":
            await storage.prepare()
            existing = (await storage.page(1)).posts
            for first in range(existing + 1, options.posts + 1, BATCH):
                last = min(first + BATCH - 1, options.posts)
                drafts = [seeds.draft(number) for number in range(first, last + 1)]
                await storage.add(drafts, at=seeds.AT)
            print(f"{max(existing, options.posts)} posts")
        case "count":
            await storage.prepare()
            print((await storage.page(1)).posts)
        case "page":
            from apps.blog import pages  # slow to import, and only needed here

            post = await storage.post(options.number)
            if post is None:
                raise SystemExit(f"there is no post {options.number}")
            sys.stdout.buffer.write(pages.post_page(post).get_data())
        case "answers":
            print(await storage.server_version())
        case "drop":
            await storage.drop()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m apps.blog")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("seed").add_argument("--posts", type=int, default=1000)
    commands.add_parser("page").add_argument("number", type=int)
    for name in ("count", "answers", "drop"):
        commands.add_parser(name)
    options = parser.parse_args(argv)
    try:
        finish(carry_out(storage_of(read(), async_mode=False), options))
    except (BadSetting, Unreachable, ImportError) as problem:  # ImportError: no driver
        print(f"blog: {problem}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
