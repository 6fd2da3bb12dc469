"""Write requests with SGLang's own exporter: `sglang_writes.py FOLDER`."""

import asyncio
import sys
from types import SimpleNamespace

from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.observability.request_metrics_exporter import FileRequestMetricsExporter


async def main(folder):
    exporter = FileRequestMetricsExporter(SimpleNamespace(export_metrics_to_file_dir=folder), set(), set())
    for number in range(6):
        asked = GenerateReqInput(text='a "prompt"\n', sampling_params={"max_new_tokens": 8}, rid=f"r{number}")
        meta_info = {"id": asked.rid, "finish_reason": {"type": "length", "length": 8}, "prompt_tokens": 5}
        meta_info |= {
            "weight_version": "default",
            "num_retractions": 0,
            "completion_tokens": 8,
            "cached_tokens": 1,
        }
        meta_info |= {"request_received_ts": 1.7e9 + number, "request_finished_ts": 1.7e9 + number + 0.5}
        meta_info |= {"e2e_latency": 0.5, "queue_time": 0.1, "dp_rank": None}
        await exporter.write_record(asked, {"meta_info": meta_info})
    exporter.close()


asyncio.run(main(sys.argv[1]))
