"""Mean times decide whether a step is quick."""

from stoker.replica.mean_time import FIRST_ITEMS, QUICK_S, MeanTime


def test_the_first_items_are_not_known() -> None:
    mean = MeanTime()
    for _ in range(FIRST_ITEMS - 1):
        mean.took(1.0)
    assert not mean.is_above(0.5)
    mean.took(1.0)
    assert mean.is_above(0.5)
    assert not mean.is_quick


def test_the_latest_items_count_most_and_a_batch_counts_by_item() -> None:
    mean = MeanTime()
    for _ in range(100):
        mean.took(1.0)
    for _ in range(100):
        mean.took(QUICK_S * 5, items=10)
    assert mean.is_quick
    with mean.measured(1):
        pass
    assert mean.is_quick
