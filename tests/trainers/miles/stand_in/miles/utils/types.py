"""Stand in for Miles' samples."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass
class Sample:
    """One reply while it is generated."""

    group_index: int | None = None
    index: int | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: object = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)

    class Status(Enum):
        """The state of a sample."""

        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    status: Status = Status.PENDING
    generate_function_path: str | None = None
    reward_spec: object = None
    routing_key: str | None = None
    non_generation_time: float = 0.0

    def update(self, prompt_ids, output):
        """Add a reply."""
        self.tokens = prompt_ids + output["tokens"]
        self.response += output["text"]
        self.response_length += len(output["tokens"])
        self.loss_mask = (self.loss_mask or []) + [1] * len(output["tokens"])
        self.weight_versions.append(output["meta_info"]["weight_version"])
        self.status = Sample.Status.COMPLETED
