"""How long to wait after failures and kills: pure functions of the count and a random number in [0, 1)."""

from typing import Final

HOUR_MS: Final = 3_600_000


def after_failures(failures: int, base_ms: int, max_ms: int, random: float) -> int:
    """Milliseconds before the next push after *failures* ≥ 1 failed ones: full jitter below base * 2^(failures - 1).

    Never above *max_ms*, never below a tenth of the ceiling, so that a fleet neither hammers nor marches in step.
    """
    ceiling = min(max_ms, base_ms * 2 ** min(max(failures, 1) - 1, 40))
    return int(ceiling * (0.1 + 0.9 * random))


def after_copies(copies: int, first_ms: int, random: float) -> int:
    """Milliseconds until the last of *copies* ≥ 1 copies at a broker counts as lost: first_ms * 2^(copies - 1), ±10 %.

    An hour at most, before the jitter that keeps what was handed over together from coming back together.
    """
    ceiling = min(HOUR_MS, first_ms * 2 ** min(max(copies, 1) - 1, 40))
    return int(ceiling * (0.9 + 0.2 * random))


def after_kills(kills: int, base_ms: int, max_ms: int, random: float) -> int:
    """Milliseconds before the redelivery after *kills* ≥ 1 kills without progress: 0, base, 2 * base … *max_ms*.

    The first redelivery is immediate; later ones are jittered by ±10 %.
    """
    if kills <= 1:
        return 0
    ceiling = min(max_ms, base_ms * 2 ** min(kills - 2, 40))
    return int(ceiling * (0.9 + 0.2 * random))
