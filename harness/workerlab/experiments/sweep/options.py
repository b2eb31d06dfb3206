"""The command line of `workerlab sweep`."""

import argparse

from workerlab import options as read
from workerlab.experiments.sweep_options import AppOptions, Axes, SweepOptions
from workerlab.options import Serves, SloOptions, add_record

EXAMPLES = """\
examples:
  workerlab sweep sync,eventlet 4,8,16
      at which concurrency does throughput level off? (sleep(1) app, 4 workers, ApacheBench)
  workerlab sweep gthread 4,8,16,32 --threads 1,2,4
      threads as an axis
  workerlab sweep gthread 8,16,32 --workers 2 --threads 4 --tool wrk --keepalive off,on
      what does it cost when kept-alive connections stay with their workers?
  workerlab sweep gevent,eventlet,uvicorn 2,4,8,16,32 --workers 2 --sleep 0.1 \\
      --cpu 0.02,0.05 --server-cores 1,2 --rounds 5 --explain
      how many connections per worker does each class use, by CPU per request and cores?
  workerlab sweep sync,gevent 2,4,8,16,32 --trials 3 --sleep 0.2
      repeated on fresh servers in random order: capacity with a 95 % interval
  workerlab sweep sync,gthread 2,4,8,16 --tool fast --rate 50%,80%,90%
      response times at a rate, regardless of whether earlier requests have finished
  workerlab sweep sync 4,8 --sleep 0.05 --rate 80%,90% --trials 5 --arrivals even --seed 7
      evenly spaced arrivals, which cause less waiting than random ones, and a repeatable run
  workerlab sweep gthread 64 --sleep 0.1 --tool fast --keepalive on --ramp 3 --duration 12
      the phases of a load: ramp-up, drain, steady, churn
  workerlab sweep gthread,gevent 8,64 --app shop.wsgi:app --chdir ~/shop \\
      --config ~/shop/gunicorn.conf.py --path /cart
      your own app, served by its own environment (~/shop/.venv), with your own Gunicorn file
  workerlab sweep sync,gthread 8,16 --gunicorn 23.0.0,25.3.0,27.0.1
      versions of Gunicorn as an axis; or interpreters: --python python3.11,python3.13
  workerlab sweep gthread 8,32 --app shop.wsgi:app --access-log /var/log/nginx/access.log.1.gz
      ... under the requests of its users (or those in a file: --mix)
  workerlab sweep gthread 8,16,32 --rate 100 --slo 'p95<300ms,errors<0.1%' --fail-on-slo
      the highest load that meets a target; exit code 4 if none does
  workerlab sweep --resume results/20261120-101500-sync
      finish an interrupted run
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Launch the app under each worker class, load it at each concurrency, and show where the"
        " throughput of each class levels off."
    )
    parser.epilog = f"{EXAMPLES}\n{read.PROJECT}\n{read.EXIT_CODES}"
    groups = {
        "axes and amounts (LIST: comma-separated; each value is a point of the axis)": Axes,
        "your own app": AppOptions,
        "what serves it": Serves,
        "a target": SloOptions,
    }
    add_record(parser, SweepOptions, groups)
