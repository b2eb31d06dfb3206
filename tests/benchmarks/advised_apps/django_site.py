"""A Django page: a query of SQLite, a wait of 10 ms, and a template."""

import tempfile
import time
from pathlib import Path

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import path

DATABASE = str(Path(tempfile.gettempdir()) / "workerlab-django.sqlite3")
settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE}},
    ROOT_URLCONF=__name__,
    SECRET_KEY="of a benchmark",
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
)
django.setup()
PAGE = engines["django"].from_string(
    "<ul>{% for row in rows %}<li>{{ row.0 }}</li>{% endfor %}</ul>"
)


def page(request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)"
            " SELECT i FROM n"
        )
        rows = cursor.fetchall()
    time.sleep(0.01)
    return HttpResponse(PAGE.render({"rows": rows}))


urlpatterns = [path("", page)]
app = get_wsgi_application()
