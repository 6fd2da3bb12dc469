"""The shape of NeMo-RL's actor of one SGLang server."""


class SGLangGenerationWorker:
    def init(self, dist_init_addr, port):
        self.port = port

    def shutdown(self):
        return True

    def update_weights_from_tensor(
        self, serialized_named_tensors, load_format=None, flush_cache=False, weight_version=None
    ):
        return {"success": True}

    def invalidate_kv_cache(self):
        return None

    def release_memory_occupation(self, tags=None):
        return None

    def resume_memory_occupation(self, tags=None):
        return None
