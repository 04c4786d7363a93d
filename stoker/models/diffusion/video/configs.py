"""Reads the configuration of a video pipeline from its files, quickly and without its library.

An omitted setting has the default of its class, as in diffusers. The default sizes of pipelines are
the defaults of their calls. Tests compare both with the library.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

INDEX = "model_index.json"

Reading = Callable[[str], bytes]
"""Returns the content of a model file by its path. Raises OSError or KeyError if the file does not
exist.
"""

COMPONENTS: Mapping[str, Mapping[str, Any]] = {
    "WanTransformer3DModel": {"patch_size": (1, 2, 2), "rope_max_seq_len": 1024},
    "AutoencoderKLWan": {"scale_factor_temporal": 4, "scale_factor_spatial": 8},
    "LTXVideoTransformer3DModel": {"patch_size": 1, "patch_size_t": 1},
    "AutoencoderKLLTXVideo": {
        "patch_size": 4,
        "patch_size_t": 1,
        "spatio_temporal_scaling": (True, True, True, False),
        "spatial_compression_ratio": None,
        "temporal_compression_ratio": None,
    },
    "CogVideoXTransformer3DModel": {
        "patch_size": 2,
        "patch_size_t": None,
        "sample_width": 90,
        "sample_height": 60,
        "sample_frames": 49,
        "max_text_seq_length": 226,
        "use_learned_positional_embeddings": False,
    },
    "AutoencoderKLCogVideoX": {
        "block_out_channels": (128, 256, 256, 512),
        "temporal_compression_ratio": 4,
    },
}
"""Maps a component's class to the settings that decide what it can draw, with their defaults."""
_WAN = {"width": 832, "height": 480, "num_frames": 81, "max_sequence_length": 512}
_LTX = {
    "width": 704,
    "height": 512,
    "num_frames": 161,
    "frame_rate": 25,
    "max_sequence_length": 128,
}
CALLS: Mapping[str, Mapping[str, int]] = {
    "WanPipeline": _WAN,
    "WanImageToVideoPipeline": _WAN,
    "LTXPipeline": _LTX,
    "LTXImageToVideoPipeline": _LTX,
}
"""Maps a pipeline's class to the defaults of its call."""


class VideoPipeline:
    """Configuration in a pipeline's files. Raises KeyError, OSError and ValueError if it is invalid
    or incomplete.
    """

    def __init__(self, read: Reading) -> None:
        self._read = read
        self._index = self._object(INDEX)
        self.name = str(self._index["_class_name"])

    @property
    def call(self) -> Mapping[str, int]:
        """Defaults of its call."""
        return CALLS[self.name]

    def setting(self, name: str) -> Any:
        """Returns a setting of the pipeline itself, or None if it has none."""
        return self._index.get(name)

    def component(self, *names: str) -> Mapping[str, Any]:
        """Returns the settings of the first of these components that the pipeline has."""
        name = next(name for name in names if self._class_of(name))
        config = self._object(f"{name}/config.json")
        known = COMPONENTS[str(config.get("_class_name") or self._class_of(name))]
        return {setting: config.get(setting, default) for setting, default in known.items()}

    def _class_of(self, name: str) -> str | None:
        entry: Any = self._index.get(name)
        return cast("list[str | None]", entry)[1] if isinstance(entry, list) else None

    def _object(self, path: str) -> dict[str, Any]:
        content: Any = json.loads(self._read(path))
        if not isinstance(content, dict):
            raise ValueError(f"{path} does not contain an object")
        return cast("dict[str, Any]", content)
