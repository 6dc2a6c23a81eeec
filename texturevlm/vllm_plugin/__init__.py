"""A plug-in for vLLM: Qwen3-VL that reads a budget of chosen tokens.

vLLM calls `register` by the entry point `vllm.general_plugins` in each of its processes. The architecture has a name of
its own, so that a server reads chosen tokens only where it is asked to. Nothing here but `options.py` and
`positions.py` can be imported without vLLM.
"""

ARCHITECTURE = "TextureQwen3VLForConditionalGeneration"
CLASS = "texturevlm.vllm_plugin.model:TextureQwen3VL"


def register() -> None:
    """Make the architecture known to vLLM; may be called several times."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, CLASS)  # a name, so that nothing touches CUDA before vLLM forks
