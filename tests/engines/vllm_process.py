# SPDX-License-Identifier: Apache-2.0
"""An engine of vLLM in a process of its own, which a test drives over a pipe, may kill, and gives to the trainer half of
rdtd.vllm as its client."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, Optional


class Size(NamedTuple):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    middle: int
    words: int


SMALL = Size(2, 128, 4, 2, 128, 256)
SIZES = {"0.1": Size(8, 512, 8, 4, 2048, 16000), "0.4": Size(8, 1024, 16, 8, 4096, 32000),
         "2": Size(19, 2048, 16, 8, 5632, 32000)}  # by GB in bfloat16
PROMPTS = [[5, 6, 7, 8, 9], [100, 3, 250], [17] * 12]


def weights(seed: int, size: Size = SMALL) -> dict[str, Any]:
    """A checkpoint of Qwen2ForCausalLM, by the names and shapes of Hugging Face, in bfloat16."""
    import torch

    random = torch.Generator().manual_seed(seed)
    layers, hidden, heads, kv_heads, middle, words = size
    head = hidden // heads
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (words, hidden)}
    for i in range(layers):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        for name, rows in ("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (rows, hidden)
            shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, heads * head)
        shapes[layer + "mlp.gate_proj.weight"] = shapes[layer + "mlp.up_proj.weight"] = (middle, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, middle)
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (words, hidden)
    return {name: (torch.rand(shape, generator=random) - 0.5).bfloat16() for name, shape in shapes.items()}


def model_folder(parent: Path, seed: Optional[int] = None, size: Size = SMALL) -> str:
    """A folder with the configuration of the model, and its weights in a file if there is a seed."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": size.hidden,
        "intermediate_size": size.middle, "num_hidden_layers": size.layers, "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads, "vocab_size": size.words,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2}))
    if seed is not None:
        from safetensors.torch import save_file

        save_file(weights(seed, size), str(folder / "model.safetensors"), metadata={"format": "pt"})
    return str(folder)


class Engine:
    """vLLM's LLM with these options, in another process. Its calls have the errors of the process as RuntimeError. As the
    client of a trainer half it has the four methods of vLLM's VLLMWeightSyncClient."""

    def __init__(self, model: str, socket: str, **options: Any) -> None:
        environment = {**os.environ, "RDT_SOCKET": socket, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                       "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1",
                       "VLLM_LOGGING_LEVEL": "WARNING",
                       "TORCHDYNAMO_DISABLE": "1"}  # its compiler checks fail on a busy machine, and its programs then, too
        self._log = tempfile.TemporaryFile("w+")
        theirs, ours = os.pipe()
        answers, answer = os.pipe()
        self.process = subprocess.Popen([sys.executable, __file__, str(theirs), str(answer), json.dumps(
            {"model": model, "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32", "max_model_len": 64,
             "max_num_seqs": 4,
             "weight_transfer_config": {"backend": "rdtd"}, **options})], env=environment, pass_fds=(theirs, answer),
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True)
        os.close(theirs)
        os.close(answer)
        self._calls, self._answers = os.fdopen(ours, "w"), os.fdopen(answers)

    def begin(self, call: str, *arguments: Any) -> None:
        self._calls.write(json.dumps([call, arguments]) + "\n")
        self._calls.flush()

    def end(self) -> Any:
        line = self._answers.readline()
        result, error = json.loads(line) if line else (None, "EngineDeadError: its process has ended")
        if error is not None:
            if "EngineDeadError" in error:
                self._log.seek(0)
                error += "\n" + self._log.read()[-6000:]
            raise RuntimeError(error)
        return result

    def call(self, call: str, *arguments: Any) -> Any:
        self.begin(call, *arguments)
        return self.end()

    def ready(self) -> Engine:
        self.end()
        return self

    def tokens(self) -> list[list[int]]:
        return self.call("tokens")  # type: ignore[no-any-return]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.call("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self.call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.call("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: Optional[str] = None) -> None:
        self.call("finish_weight_update", weight_version)

    def kill(self, by: int = signal.SIGKILL) -> None:
        """Ends the process and those that it has started."""
        os.killpg(self.process.pid, by)
        self.process.wait()
        self._calls.close()
        self._answers.close()


def serve(calls: Any, answers: Any, options: dict[str, Any]) -> None:
    def answer(call: Any) -> None:
        try:
            said = [call(), None]
        except Exception as error:
            said = [None, f"{type(error).__name__}: {error}"]
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    def start() -> None:
        nonlocal llm
        from vllm import LLM
        llm = LLM(**options)

    def tokens() -> Any:
        from vllm import SamplingParams
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS],
                            SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False), use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in done]

    llm: Any = None
    answer(start)
    for line in calls:
        call, arguments = json.loads(line)
        answer(tokens if call == "tokens" else lambda: getattr(llm, call)(*arguments))


if __name__ == "__main__":
    serve(os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w"), json.loads(sys.argv[3]))
