"""Run the notebooks of examples/ and keep what they print and draw: python tools/notebook.py

No kernel and no server: cells are plain Python, run one after the other in one namespace, and every
figure that is open after a cell is its picture. `run` is what the tests call as well.
"""

import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

from matplotlib import pyplot as plt

EXAMPLES = Path(__file__).parents[1] / "examples"
_DPI = 72


def run(path: Path) -> dict[str, Any]:
    """Run a notebook, and return it with its outputs. What a cell raises, this raises."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell |= {"execution_count": count, "outputs": _outputs("".join(cell["source"]), names)}
    return notebook


def _outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(source, "<cell>", "exec"), names)  # noqa: S102 (the cells are ours)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    for number in plt.get_fignums():
        data = {"image/png": _png(number), "text/plain": ["<Figure>"]}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    plt.close("all")
    return outputs


def _png(number: int) -> str:
    drawn = io.BytesIO()
    plt.figure(number).savefig(drawn, format="png", dpi=_DPI, metadata={"Software": None})
    return base64.b64encode(drawn.getvalue()).decode()


def as_markdown(path: Path) -> str:
    """A notebook as a page, with the outputs that are kept in it."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```py\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text'])}```")
            else:
                parts.append(f"![](data:image/png;base64,{output['data']['image/png']})")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        path.write_text(json.dumps(run(path), indent=1, ensure_ascii=False) + "\n")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
