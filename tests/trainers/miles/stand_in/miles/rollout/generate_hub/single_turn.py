"""Stand in for Miles' request of one turn."""

from miles.rollout.base_types import GenerateFnOutput
from miles.utils.http_utils import post


async def generate(input):
    """Ask for one reply."""
    sample, sampling_params = input.sample, input.sampling_params
    prompt_ids = [ord(letter) for letter in sample.prompt]
    payload = {"input_ids": prompt_ids, "sampling_params": sampling_params}
    output = await post("http://router/generate", payload, headers=None)
    sample.update(prompt_ids, output)
    return GenerateFnOutput(samples=sample)
