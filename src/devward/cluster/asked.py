"""What asking the API server came to, in the form in which a snapshot takes it. Pure."""

from devward.cluster.answers import Answer, Failure
from devward.cluster.api_result import ApiProblem, ApiResult
from devward.cluster.observations import Look, api_code, sentence


def answer_of(result: ApiResult | None, now: float) -> Answer:
    """Return it as a part of a snapshot; None: it was not asked for. `now` is in seconds of the monotonic clock."""
    if result is None:
        return Answer(now, now, failure=Failure(Look.NOT_LISTED.value, sentence(Look.NOT_LISTED)))
    if isinstance(result, ApiProblem):
        return Answer(result.at, result.at, failure=Failure(api_code(result.fault), result.text))
    # A server whose certificate is not verified is not asked at all (kubeconfig.py, transport.py).
    return Answer(result.asked_at, result.received_at, result.status, result.body, verified=True)


def unasked(failure: Failure, now: float) -> Answer:
    """Return the part that there is where the API server could not be asked, and why."""
    return Answer(now, now, failure=failure)
