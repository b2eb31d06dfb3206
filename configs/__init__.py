"""One real Gunicorn config file per worker class, each usable on its own: `gunicorn -c FILE`."""
