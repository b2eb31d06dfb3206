"""Whether ApacheBench's times per request are what they are defined by: a product and a quotient of
others of its figures, as far as it rounds them. It prints times in s or ms with three decimals."""

from collections.abc import Mapping

from workerlab.finding import Finding
from workerlab.model import AbReport, Label

TIME_ROUNDING_S, TIME_PER_REQUEST_ROUNDING_S = 0.0006, 6e-7


class IdentityHolds(Finding):
    """holds"""


class IdentityBroken(Finding):
    """does not hold"""


HOLDS: Mapping[bool, Finding] = {True: IdentityHolds(), False: IdentityBroken()}


class AbIdentities(Finding):
    """ab with {load}: time taken x concurrency = {time_taken_s:duration} x {concurrency} =
    {busy_s:duration}, time per request x requests = {time_per_request_s:duration} x {requests} =
    {requests_s:duration}: {mean}. Time taken / requests = {each_s:duration}, time per request
    across all = {time_per_request_across_s:duration}: {across}.[[ Its connection times (total) add
    up to {share:percent} of the first product.]]"""

    load: Label
    concurrency: int
    requests: int
    time_taken_s: float
    time_per_request_s: float
    time_per_request_across_s: float
    busy_s: float
    requests_s: float
    each_s: float
    mean: Finding  # whether the first identity holds
    across: Finding
    share: float | None  # of the first product


def identities(ab: AbReport, load: Label) -> AbIdentities | None:
    """Both, with the figures on either side, seconds; `share`: how close its connection times come
    to keeping all connections busy. None where ab printed no times per request."""
    mean_s, across_s, total_s = (
        ab.time_per_request_s, ab.time_per_request_across_s, ab.times["total"].mean
    )  # fmt: skip
    if not ab.time_taken_s or mean_s is None or across_s is None:
        return None
    busy_s, requests_s = ab.time_taken_s * ab.concurrency, mean_s * ab.requests
    each_s = ab.time_taken_s / ab.requests
    rounding_s = TIME_ROUNDING_S * ab.concurrency + TIME_PER_REQUEST_ROUNDING_S * ab.requests
    across_rounding_s = TIME_ROUNDING_S / ab.requests + TIME_PER_REQUEST_ROUNDING_S
    return AbIdentities(
        load=load,
        concurrency=ab.concurrency,
        requests=ab.requests,
        time_taken_s=ab.time_taken_s,
        time_per_request_s=mean_s,
        time_per_request_across_s=across_s,
        busy_s=busy_s,
        requests_s=requests_s,
        each_s=each_s,
        mean=HOLDS[abs(busy_s - requests_s) <= rounding_s],
        across=HOLDS[abs(each_s - across_s) <= across_rounding_s],
        share=None if total_s is None else total_s * ab.requests / busy_s,
    )
