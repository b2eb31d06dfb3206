"""Each form of each mistake as a load tool. `run_form` in `__main__.py` documents the `details` of
the Measurement."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from workerlab.errors import ParseError
from workerlab.load.tool import Tool
from workerlab.model.evidence import Command, Measurement, Output, Summary
from workerlab.model.plan import Load

PROGRAMS = str(Path(__file__).parent)
DETAIL_FIELDS = ("mistake", "form", "code", "returned", "complaints", "time_wait")


@dataclass(frozen=True)
class Mistake(Tool):
    NAME: str
    mistake: str
    form: str
    NEEDS = ("aiohttp",)

    def command(self, load: Load, url: str, workdir: str) -> Command:
        argv = (sys.executable, PROGRAMS, self.mistake, url, "--only", self.form)
        return Command(argv=(*argv, "--requests", str(load.requests), "--json"))

    def parse(self, output: Output) -> Measurement:
        """Raises ParseError if the document is missing, incomplete, or of another form."""
        self.check_exit_code(output)
        try:
            document = json.loads(output.stdout)
            details = {name: document[name] for name in DETAIL_FIELDS}
            details["peak_bytes"] = document.get("peak_bytes")  # older runs lack it
            responses, seconds = int(document["answers"]), float(document["seconds"])
            connections = int(document["connections"])
        except (ValueError, KeyError, TypeError):
            raise ParseError(f"{self.NAME} did not print its document", output.stdout) from None
        if (details["mistake"], details["form"]) != (self.mistake, self.form):
            raise ParseError(f"not a document of {self.NAME}", output.stdout)
        return Measurement(
            requests=responses,
            failed=0,
            errors={},
            duration_s=seconds,
            rps=responses / seconds if seconds else None,
            response=Summary(),
            connections=connections,
            details=details,
        )


FORMS = {"missing_await": ("mistake", "abandoned", "cure"),
         "session_per_request": ("mistake", "cure"),
         "everything_at_once": ("tasks", "bodies")}  # fmt: skip
MISTAKES = {
    f"{name}-{form}": Mistake(f"{name}-{form}", mistake=name, form=form)
    for name, forms in FORMS.items()
    for form in forms
}
