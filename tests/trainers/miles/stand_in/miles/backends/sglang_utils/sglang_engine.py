"""Stand in for Miles' actor that speaks to one server."""


class SGLangEngine:
    """Speaks to one server."""

    def __init__(self, args, rank, worker_type="regular"):
        self.args, self.rank, self.worker_type = args, rank, worker_type

    def _make_request(self, endpoint, payload=None):
        return {"success": True, "asked": endpoint}

    def init(self, dist_init_addr, port, nccl_port, host=None):
        """Start the server."""
        self.server_port = port

    def shutdown(self):
        """Stop the server."""
        return self._make_request("shutdown")

    def update_weights_from_tensor(
        self,
        serialized_named_tensors,
        load_format=None,
        flush_cache=False,
        weight_version=None,
        selector="all",
    ):
        """Send weights of a process on the same GPUs."""
        return self._make_request("update_weights_from_tensor")

    def update_weights_from_distributed(
        self, names, dtypes, shapes, group_name, flush_cache=False, weight_version=None, selector="all"
    ):
        """Receive weights that the trainer broadcasts."""
        return self._make_request("update_weights_from_distributed")

    def update_weights_from_disk(self, model_path, load_format=None, weight_version=None):
        """Read weights of a folder."""
        return self._make_request("update_weights_from_disk")

    def pull_weights(self, target_version):
        """Fetch a published version."""
        return self._make_request("pull_weights")

    def begin_weight_update(self, selector="all"):
        """Open a session of updates."""
        return self._make_request("begin_weight_update")

    def end_weight_update(self):
        """Close the session."""
        return self._make_request("end_weight_update")

    def flush_cache(self):
        """Flush the prefix cache."""
        return self._make_request("flush_cache")

    def release_memory_occupation(self, tags=None):
        """Release memory."""
        return self._make_request("release_memory_occupation")

    def resume_memory_occupation(self, tags=None):
        """Take it back."""
        return self._make_request("resume_memory_occupation")

    def pause_generation(self, mode="retract"):
        """Pause."""
        return self._make_request("pause_generation")

    def continue_generation(self):
        """Go on."""
        return self._make_request("continue_generation")
