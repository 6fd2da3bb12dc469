"""Register a CPU platform with verl, so that its trainer and its FSDP engine run without a GPU.

`VERL_USE_EXTERNAL_MODULES=verl_cpu` makes `import verl` load this module, `VERL_PLATFORM=cpu` selects the
platform, and `VERL_ENGINE_DEVICE=cuda` selects the FSDP engine, which verl registers only for devices.
"""

import os
from contextlib import contextmanager
from functools import partial, partialmethod

import torch.multiprocessing
from torch.multiprocessing import reductions
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.utils import distributed

SHARINGS = 60  # tries, of a second each


class _Device:
    """`torch.cpu` with the other functions that verl calls on `torch.cuda`; memory is always 0."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        return lambda *_, **__: 0

    def mem_get_info(self):
        return 0, 0

    def get_device_name(self):
        return "CPU"


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """A platform that reports the machine's cores to Ray as GPUs."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device()

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


def _without_flash_attention(load, *args, **more):
    """Load a critic without the attention implementation that verl requests, which needs a GPU."""
    return load(*args, **{**more, "attn_implementation": "eager"})


def _share_patiently(storage, share):
    """Share a storage by a file, although torch gives its manager only a second to answer, on any machine."""
    for _ in range(SHARINGS - 1):
        try:
            return share(storage)
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
    return share(storage)


# verl requests a backend for the CPU and one for the device, which are the same here.
distributed.initialize_global_process_group_ray = partial(
    distributed.initialize_global_process_group_ray, backend="gloo"
)

# Weights go to the server as memory handles, on a CPU as files that both processes map. SGLang's patch of
# torch's handles is for devices only: mark it as applied, so that SGLang skips it.
torch.multiprocessing.set_sharing_strategy("file_system")
torch.UntypedStorage._share_filename_cpu_ = partialmethod(
    _share_patiently, torch.UntypedStorage._share_filename_cpu_
)
reductions._reduce_tensor_original = reductions.reduce_tensor


if "RANK" in os.environ:  # a training process
    import transformers

    torch.Tensor.pin_memory = lambda tensor, *_: (
        tensor
    )  # the reference policy's, which are offloaded to the CPU
    value_head = transformers.AutoModelForTokenClassification
    value_head.from_pretrained = partial(_without_flash_attention, value_head.from_pretrained)
