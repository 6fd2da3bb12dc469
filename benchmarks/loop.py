"""Hold what `loop --replicas` predicts against real SGLang servers, one and two, on the CPU: `loop.py [N]`.

The same requests are rolled out over one server and over two, in a loop that takes turns and in one that is
one step off, N times (1 unless told). Each run predicts the other. A custom logit processor makes each batch
take 20 ms more, so that the limit of running requests decides how fast a server is, and not the cores. Bound:
each mean prediction is within 20 % of the measured step. The exit code is 1 if one is not.
"""

import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from loops_served import Held, hold, train, two_servers

WITHIN = 0.2
#: Shape: steps, seconds of training, requests.
LOOPS = {"sync": (4, 1.0, 24), "off": (5, 4.0, 24)}


def main(times: int) -> int:
    """Print predicted and measured steps; return 1 if a mean ratio is off."""
    predictions = []
    with tempfile.TemporaryDirectory() as folder, two_servers(Path(folder)) as servers:
        for number in range(times):
            logs = Path(folder) / f"logs_{number}"
            for shape, (steps, sec, requests) in LOOPS.items():
                runs = [train(logs, servers[:count], shape, steps, sec, requests) for count in (1, 2)]
                for prediction in hold(*runs):
                    predictions.append(prediction)
                    print(_words(prediction), flush=True)
    off = 0
    for kind in dict.fromkeys((prediction.shape, prediction.recorded) for prediction in predictions):
        ratio = mean(
            prediction.ratio for prediction in predictions if (prediction.shape, prediction.recorded) == kind
        )
        print(f"{kind[0]}, from {kind[1]}: {ratio:.2f} x on average")
        off += abs(ratio - 1) > WITHIN
    return int(off > 0)


def _words(prediction: Held) -> str:
    seconds = f"predicted {prediction.predicted_sec:.2f}, measured {prediction.measured_sec:.2f}"
    change = f"{prediction.shape}, {prediction.recorded} to {prediction.servers} servers"
    return f"{change}: {prediction.was_sec:.2f} s a step, {seconds}: {prediction.ratio:.2f} x"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
