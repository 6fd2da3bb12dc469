"""The shape of ROLL's pipeline of agents."""

from contextlib import nullcontext as Timer


class tracer:
    """Stand in for the tracer."""

    start_as_current_span = Timer


class AgenticPipeline:
    def run(self):
        for global_step in range(self.steps):
            metrics = {}
            with tracer.start_as_current_span("pipeline_step", Timer("pipeline_step_total")):
                with Timer("time"), tracer.start_as_current_span("model_update"):
                    self.model_update(global_step)
                with Timer("rollout"):
                    batch = self.get_batch(global_step)
                with Timer("cal_ref_log_probs"):
                    batch = self.log_probs(batch)
                with Timer("cal_old_log_probs_values"):
                    batch = self.log_probs(batch)
                with Timer("compute_advantage"):
                    batch = self.advantages(batch)
                with Timer("train_timer"):
                    metrics["loss"] = self.train(batch)
            self.tracker.log(values=metrics, step=global_step)

    def val(self, global_step, trace_meta):
        return {}
