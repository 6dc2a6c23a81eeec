"""What lmms-eval finds by the entry point `lmms_eval.models`: where the model `texturevlm` is (lmms_model.py)."""

from typing import Any

MODEL = "texturevlm"
CLASS = "texturevlm_lab.evaluate.lmms_model.TextureModel"


def manifest() -> Any:
    """The manifest of lmms-eval, which calls this and is installed then."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id=MODEL, chat_class_path=CLASS)
