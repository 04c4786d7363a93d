import torch

from stoker.models.engines import openmp


def threads_of(model: torch.nn.Module) -> int:
    """Returns the number of threads that probe the model, if two would serve it."""

    def enter() -> int:
        openmp.enter_to_probe(model, lambda: torch.set_num_threads(2))
        return torch.get_num_threads()

    return openmp.on_passing_thread(enter)


def test_a_small_model_is_probed_on_one_thread():
    assert threads_of(torch.nn.Linear(8, 8)) == 1


def test_a_large_model_is_probed_on_all_threads():
    with torch.device("meta"):
        model = torch.nn.Linear(openmp.SMALL_BYTES, 1, bias=False)
    assert threads_of(model) == 2
