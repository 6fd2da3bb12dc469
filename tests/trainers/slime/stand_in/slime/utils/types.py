"""Stand in for slime's samples."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass
class Sample:
    """One reply while it is generated."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
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
    metadata: dict = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    session_id: str | None = None

    def append_response_tokens(
        self,
        args=None,
        *,
        tokens=None,
        log_probs=None,
        trainable=True,
        meta_info=None,
        text=None,
        update_terminal_info=True,
    ):
        """Append tokens of the reply or of a tool."""
        self.tokens = self.tokens + list(tokens)
        self.response += text or ""
        self.response_length += len(tokens)
        self.loss_mask = (self.loss_mask or []) + [int(trainable)] * len(tokens)
        if meta_info:
            self.weight_versions.append(meta_info["weight_version"])
            reason = meta_info["finish_reason"]["type"]
            ends = {"stop": Sample.Status.COMPLETED, "length": Sample.Status.TRUNCATED}
            self.status = ends.get(reason, Sample.Status.ABORTED)
