"""Makes the generated parts of a wheel: shell completions, the man page, and a README for an index.

Completions and man page are made from the parser of the command line, which imports only msgspec.
"""

import argparse
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

COMPLETIONS = {
    "bash": "share/bash-completion/completions/workerlab",
    "zsh": "share/zsh/site-functions/_workerlab",
    "fish": "share/fish/vendor_completions.d/workerlab.fish",
}
MAN_PAGE = "share/man/man1/workerlab.1"
LOCAL_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


class Metadata(MetadataHookInterface):
    """Makes links in the README absolute: a package index does not have the linked files."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = metadata["urls"]["Repository"]

        def absolute(link: re.Match[str]) -> str:
            picture, text, target = link.groups()
            kind = "raw" if picture else "blob"
            return f"{picture}[{text}]({repository}/{kind}/v{metadata['version']}/{target})"

        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": LOCAL_LINK.sub(absolute, text),
        }


class SharedData(BuildHookInterface):
    """Skipped for an editable install, whose command line may change after the files are made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._directory = TemporaryDirectory()
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "harness")))
        for destination, text in shared_files(self.metadata.core.description).items():
            source = Path(self._directory.name, destination)
            source.parent.mkdir(parents=True)
            source.write_text(text, encoding="utf-8")
            build_data["shared_data"][str(source)] = destination

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._directory.cleanup()


def shared_files(description: str) -> dict[str, str]:
    """The text of each file, by its path below the prefix."""
    import shtab

    from workerlab.cli import command_line
    from workerlab.experiments import COMMANDS

    parser = command_line(COMMANDS)
    files = {MAN_PAGE: man_page(parser, description)}
    kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "RUN": shtab.DIRECTORY}
    for name, command in subcommands(parser).items():
        command.description = COMMANDS[name]  # which a shell shows
        for action in command._actions:
            if action.metavar in kinds:
                action.complete = kinds[action.metavar]
    for shell, path in COMPLETIONS.items():
        files[path] = shtab.complete(parser, shell=shell)
    return files


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next(
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )


def man_page(parser: argparse.ArgumentParser, description: str) -> str:
    """The man page, without a date, so that the same sources make the same wheel."""
    from argparse_manpage.manpage import Manpage

    from workerlab import __version__

    commands = {"": parser, **subcommands(parser)}
    epilogs = {
        name: (command.epilog or "").removeprefix("examples:\n")
        for name, command in commands.items()
    }
    parser.epilog = None
    page = Manpage(parser)
    page.source, page.manual = f"workerlab {__version__}", "User commands"
    page.date, page.description = "", description
    for name, epilog in epilogs.items():
        text = epilog.replace("\\", r"\e").replace("-", r"\-").replace("\n'", "\n\\&'")
        heading = f"examples of {name}" if name else "examples"
        page.add_section(heading, "=", f".nf\n{text}.fi")
    return str(page)
