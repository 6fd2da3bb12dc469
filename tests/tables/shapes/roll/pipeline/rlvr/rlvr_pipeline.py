"""The shape of ROLL's pipeline of RLVR."""

from contextlib import nullcontext as Timer


class tracer:
    """Stand in for the tracer."""

    start_as_current_span = Timer


class RLVRPipeline:
    def run(self):
        for global_step in range(self.steps):
            with tracer.start_as_current_span("pipeline_step"):
                with Timer("step_stop_server"):
                    self.stop()
                with Timer("step_model_update"):
                    self.model_update(global_step)
                with Timer("step_generate"):
                    batch = self.get_batch(global_step)
                with Timer("cal_ref_log_probs"):
                    batch = self.log_probs(batch)
                with Timer("cal_old_log_probs_values"):
                    batch = self.log_probs(batch)
                self.train(batch)

    def val(self, global_step):
        return {}
