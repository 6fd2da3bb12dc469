"""SGLang's own Llama, under the name by which SGLang looks for models in a package."""

from sglang.srt.models.llama import LlamaForCausalLM as EntryClass

__all__ = ["EntryClass"]
