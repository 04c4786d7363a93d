"""Returns the loaded adapter that a request names."""

from stoker.models.adapters.applying import Adapters, LoadedAdapter
from stoker.models.adapters.fitting import AdapterUnfitError
from stoker.models.adapters.lora import AdapterFormatError
from stoker.models.stages.base import InputError


def adapted(adapters: Adapters | None, name: str) -> LoadedAdapter | None:
    """Returns the adapter with this name, or None if the name is empty.

    Raises `InputError` if the model cannot have the adapter.
    """
    if not name:
        return None
    if adapters is None:
        raise _unfit("its engine does not support adapters.")
    try:
        return adapters.get(name)
    except (AdapterFormatError, AdapterUnfitError) as error:
        raise _unfit(str(error)) from error


def _unfit(why: str) -> InputError:
    return InputError(
        f"The adapter cannot be added to its base: {why}", field="model", of_item=False
    )
