"""The shape of NeMo-RL's generation on SGLang: names, and statements that the tables look for."""


class SGLangGeneration:
    async def generate_one_sample(self, sampling_params, input_ids, index):
        url = f"http://{self.router_ip}:{self.router_port}/generate"
        payload = {"sampling_params": sampling_params, "input_ids": input_ids}
        output = await self._http_client.post(url, payload)
        return index, output["meta_info"]

    def prepare_for_generation(self, *args, **kwargs):
        return True

    def finish_generation(self, *args, **kwargs):
        return True

    def invalidate_kv_cache(self):
        return True
