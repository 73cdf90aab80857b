"""The laws, by the numbers of their papers."""

import numpy as np
import pytest

from holdfast.planner.network.congestion import MTU, Dcqcn, Hybrid, Swift

NOW = np.array([True])
NOT = np.array([False])
LINE, BASE = 25e9, 8e-6


def test_dcqcn_halves_at_the_first_notification_and_comes_back_half_way_in_each_stage() -> None:
    sender = Dcqcn(1, LINE, g=0.25)
    sender.step(0.0, 1e-6, NOW, np.array([BASE]))
    assert sender.rate == pytest.approx(LINE / 2)
    assert sender.alpha == pytest.approx(1.0)  # (1 - g) 1 + g
    for expected in (0.75, 0.875, 0.9375):
        sender.step(0.0, 55e-6, NOT, np.array([BASE]))
        assert sender.rate == pytest.approx(LINE * expected)
    assert sender.alpha == pytest.approx(0.75**3)
    before = sender.rate.copy()
    sender.step(0.0, 1e-6, NOW, np.array([BASE]))
    assert sender.rate == pytest.approx(before * (1 - 0.75**3 / 2))
    assert sender.target == pytest.approx(before)


def test_dcqcn_raises_its_target_after_five_stages_and_faster_after_ten() -> None:
    sender = Dcqcn(1, LINE, additive=1e6, hyper=10e6)
    sender.step(0.0, 1e-6, NOW, np.array([BASE]))
    sender.step(0.0, 1e-6, NOW, np.array([BASE]))
    start = sender.target.copy()
    raised = []
    for _ in range(12):
        sender.step(0.0, 55e-6, NOT, np.array([BASE]))
        raised.append(float((sender.target - start)[0]))
    assert raised == pytest.approx([0.0] * 5 + [1e6, 2e6, 3e6, 4e6, 5e6, 15e6, 25e6])


def test_swift_cuts_by_how_far_it_is_above_its_target_and_once_in_a_round_trip() -> None:
    sender = Swift(1, LINE, BASE, scaling=0.0, hops=2, hop=1e-6, beta=0.8, most_cut=0.5)
    window, target = sender.window.copy(), BASE + 2e-6
    assert sender.target(sender.window) == pytest.approx(target)
    late = np.array([12.5e-6])
    sender.step(0.0, 1e-6, NOT, late)
    assert sender.window == pytest.approx(window * (1 - 0.8 * (12.5e-6 - target) / 12.5e-6))
    cut = sender.window.copy()
    for _ in range(12):
        sender.step(0.0, 1e-6, NOT, late)
    assert sender.window == pytest.approx(cut)
    sender.step(0.0, 50e-6, NOT, np.array([40e-6]))
    assert sender.window == pytest.approx(cut * 0.5)  # never by more than half
    risen = sender.window.copy()
    sender.step(0.0, 1e-6, NOT, np.array([BASE]))
    acked = min(float(risen[0]) * MTU / BASE, LINE) * 1e-6 / MTU
    assert sender.window == pytest.approx(risen + acked / risen)


def test_both_send_by_the_slower_law_and_rise_only_below_the_target() -> None:
    both = Hybrid(1, LINE, BASE)
    both.step(0.0, 1e-6, NOW, np.array([BASE]))
    assert both.rate == pytest.approx(LINE / 2)
    late = np.array([BASE + 60e-6])
    for _ in range(3):
        both.step(0.0, 55e-6, NOT, late)
    assert both.dcqcn.rate == pytest.approx(LINE / 2)
    assert both.rate < LINE / 4  # Swift's window has shrunk
    both.step(0.0, 55e-6, NOT, np.array([BASE]))
    assert both.dcqcn.rate == pytest.approx(LINE * 3 / 4)
