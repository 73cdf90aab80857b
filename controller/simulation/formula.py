"""What share of its time a job will train, by formula: to plan with, and to hold measurements to. Pure."""


def expected(faults_per_s: float, pause_s: float, interval_s: float) -> float:
    """Expected share of wall time that goes into steps which are kept (ETTR), 0 to 1.

    Faults come at random, `faults_per_s` of them in a second of training; `pause_s` is the mean time from a fault to
    the next step, `interval_s` the time between two states that outlive a fault. A fault finds the newest of those
    half an interval old. So between two faults 1/f seconds are trained, of which i/2 are done again, and p are lost:

        (1/f - i/2) / (1/f + p) = (1 - f i/2) / (1 + f p)
    """
    return max(0.0, 1.0 - faults_per_s * interval_s / 2) / (1.0 + faults_per_s * pause_s)
