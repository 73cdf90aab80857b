"""What spans cost on their way: the agent's reading and packing, bytes on the wire and on disk, the controller's work.

python benchmarks/span_cost.py [--json] [--spans 8000] [--parts 50]

The spans are those of a real step's shape (forward, collectives in it, transfers), written through the probe by this
process. Agent: processor time of reading and packing one worker's spans. Controller: of decoding as many workers' spans
as --parts says, and of writing them as Parquet.
"""

import os
import time
from pathlib import Path

from common import finish, parser, scratch

from holdfast.agent import probe
from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.stream.span_sender import SpanSender
from holdfast.controller.spans.window import decoded
from holdfast.diagnostics.files import span_files
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.wire.messages import Spans


def record(spans: int) -> None:
    """So many spans, as the trainer makes them: of 8, one forward with two collectives, its transfers, and so on."""
    for i in range(0, spans, 4):
        stage, micro_batch = i // 4 % 2, i // 8 % 8
        with probe.span("forward", stage, micro_batch, cpu=True):
            for seq in (i, i + 1):
                with probe.span("tp:all_reduce", group="tp", seq=seq):
                    pass
        with probe.span("send_forward", stage, micro_batch, num_bytes=65536):
            pass
        if i % 32 == 0:
            probe.step(i // 32)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--spans", type=int, default=6000, help="of one worker, at most what its ring holds")
    options.add_argument("--parts", type=int, default=50, help="workers whose spans the controller takes")
    given = options.parse_args()
    with scratch() as folder:
        os.environ[ENV_PATH] = str(folder / "probe")
        assert probe.attach()
        reader = ProbeReader(os.environ[ENV_PATH])
        sent: list[Spans] = []
        sender = SpanSender(lambda: [reader], sent.append, lambda count: None)
        sender.clock.answered(0, 1000, 20)
        record(given.spans)
        began = time.thread_time()
        sender.read()
        read_s = time.thread_time() - began
        sender.flush(0, 20)
        (worker,) = sent[0].workers
        parts = [(0, worker)] * given.parts
        began = time.thread_time()
        table = decoded(parts)
        decode_s = time.thread_time() - began
        began = time.process_time()
        size = span_files.write(table, JobShape("j", "j", ("n",), 8), Path(folder) / "x.parquet")
        write_s = time.process_time() - began
    count = len(table)
    result = {
        "agent_us_per_span": read_s / worker.count * 1e6, "wire_bytes_per_span": len(worker.data) / worker.count,
        "decode_us_per_span": decode_s / count * 1e6, "parquet_us_per_span": write_s / count * 1e6,
        "parquet_bytes_per_span": size / count, "spans": count, "lost": worker.lost,
    }  # fmt: skip
    finish(result, given.json, ("what", "figure"), [(name, value) for name, value in list(result.items())])


if __name__ == "__main__":
    main()
