"""Stand in for slime's actor that controls one server."""


class SGLangEngine:
    """An engine whose server always succeeds."""

    def __init__(
        self,
        args,
        rank: int,
        worker_type: str = "regular",
        base_gpu_id=None,
        sglang_overrides=None,
        num_gpus_per_engine=None,
    ):
        self.args, self.rank, self.worker_type = args, rank, worker_type

    def init(
        self,
        dist_init_addr,
        port,
        nccl_port,
        host=None,
        disaggregation_bootstrap_port=None,
        router_ip=None,
        router_port=None,
    ):
        """Start the server."""

    def _make_request(self, endpoint, payload=None):
        return {"success": True, "endpoint": endpoint}

    def update_weights_from_tensor(
        self, serialized_named_tensors, load_format=None, flush_cache=False, weight_version=None
    ):
        """Send weights."""
        return self._make_request("update_weights_from_tensor")

    def flush_cache(self):
        """Empty the cache."""

    def shutdown(self):
        """Stop the server."""

    def release_memory_occupation(self):
        """Release the memory."""
        self.flush_cache()
        return self._make_request("release_memory_occupation")

    def resume_memory_occupation(self, tags=None):
        """Allocate it again."""
        return self._make_request("resume_memory_occupation", {"tags": tags})

    def pull_weights(self, target_version):
        """Fetch weights."""
        return self._make_request("pull_weights")

    def update_weights_from_disk(self, model_path, load_format=None, weight_version=None):
        """Load weights."""
        return self._make_request("update_weights_from_disk")

    def update_weights_from_distributed(
        self, names, dtypes, shapes, group_name, flush_cache=False, weight_version=None, load_format=None
    ):
        """Receive weights."""
        return self._make_request("update_weights_from_distributed")

    def pause_generation(self):
        """Pause the server."""

    def continue_generation(self):
        """Resume it."""

    def post_process_weights(self, restore_weights_before_load=False, post_process_quantization=False):
        """Post-process the loaded weights."""
        return self._make_request("post_process_weights")
