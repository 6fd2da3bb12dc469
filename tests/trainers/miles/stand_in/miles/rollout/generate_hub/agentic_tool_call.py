"""Stand in for Miles' request by an agent of the user's, behind a session server."""

from types import SimpleNamespace

from miles.rollout.base_types import GenerateFnOutput
from miles.utils.misc import load_function


class OpenAIEndpointTracer:
    """A session."""

    session_id, base_url = "session-1", "http://session/1"

    async def collect_samples(self, sample, *, max_seq_len):
        """Return the samples of the session."""
        return SimpleNamespace(samples=[sample])


async def generate(input):
    """Let the agent work, and collect what the session server saw."""
    tracer = OpenAIEndpointTracer()
    custom_agent_function = load_function(input.args.custom_agent_function_path)
    try:
        await custom_agent_function(base_url=tracer.base_url, prompt=input.sample.prompt)
    finally:
        result = await tracer.collect_samples(input.sample, max_seq_len=None)
    return GenerateFnOutput(samples=result.samples[0])
