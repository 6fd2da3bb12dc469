"""The shape of ROLL's SGLang strategy."""


class SgLangStrategy:
    async def initialize(self, model_provider):
        self.is_model_in_gpu = True

    async def abort_requests(self, request_ids=None):
        return None

    async def generate_request(self, payload):
        return payload

    async def generate(self, batch, generation_config):
        return batch

    async def broadcast_parameter(self, names, dtypes, shapes, group_name, is_lora=False):
        return None

    async def update_parameter_in_bucket(self, serialized_named_tensors, is_lora=False):
        return None

    async def flush_cache(self):
        return None

    async def load_states(self, *args, **kwargs):
        return None

    async def offload_states(self, include=None, non_blocking=False):
        return None
