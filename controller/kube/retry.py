"""How often one request is repeated before its caller hears of the failure.

Short blips are met here; what lasts longer is the work queue's business, which waits longer and forgets nothing.
"""

import random
from dataclasses import dataclass

from controller.kube.errors import RetryLater, TooManyRequests


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently one request is repeated before its caller hears of the failure.

    `ambiguous` allows a repetition when it is not known whether the first try was carried out.
    """

    attempts: int = 4
    first_delay_seconds: float = 0.2
    longest_delay_seconds: float = 5.0
    ambiguous: bool = True

    def delay_seconds(self, attempt: int, error: RetryLater) -> float:
        """Pause after the given failed attempt (1 = first): doubling, jittered, never under the server's wish."""
        pause = min(self.first_delay_seconds * 2.0 ** (attempt - 1), self.longest_delay_seconds)
        return max(pause * (0.5 + random.random() / 2), error.retry_after_seconds)  # noqa: S311 - spreads load, no secret

    def allows(self, attempt: int, error: RetryLater) -> bool:
        """Whether another attempt follows the given failed one."""
        if attempt >= self.attempts or error.retry_after_seconds > self.longest_delay_seconds:
            return False
        return self.ambiguous or isinstance(error, TooManyRequests)


REPEATABLE = Retry()
ONCE = Retry(attempts=1)
CREATE = Retry(ambiguous=False)
