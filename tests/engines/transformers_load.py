# SPDX-License-Identifier: Apache-2.0
"""transformers' from_pretrained from a published name, by the lines of rdt-engines(7), with tiny models of several kinds."""
from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

from nodes import Node, main, required

os.environ["HF_HUB_OFFLINE"] = "1"
torch, transformers = required("torch"), required("transformers")
import rdtd  # noqa: E402
import rdtd.torch  # noqa: E402

SMALL: dict[str, Any] = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                         "num_attention_heads": 4, "num_key_value_heads": 2}
PAGE = Path(__file__).resolve().parents[2] / "client/python/rdt-engines.7.scd"


def lines_of_the_page() -> str:
    """The program below TRANSFORMERS that loads."""
    text = PAGE.read_text().split("\n# TRANSFORMERS\n")[1]
    return text.split("```\n")[1]


def made(kind: str, tied: bool) -> Any:
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **SMALL, tie_word_embeddings=tied)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def test_models() -> None:
    with Node() as node, rdtd.connect(node.socket) as trainer:
        os.environ["RDT_SOCKET"] = node.socket
        for kind, tied in ("llama", False), ("qwen2", True):
            model = made(kind, tied)
            folder = node.dir / kind
            model.config.architectures = [type(model).__name__]  # as in the config.json of a model that was saved
            model.config.save_pretrained(folder)
            tokens = torch.arange(12).reshape(1, 12)
            with torch.no_grad():
                expected = model(tokens).logits
            for way in "parts", "object":
                if way == "parts":
                    rdtd.torch.publish(model, "policy", connection=trainer)
                else:
                    trainer.publish("policy", model.state_dict())
                space: dict[str, Any] = {}
                exec(lines_of_the_page().replace('"folder"', repr(str(folder))), space)
                loaded = space.pop("model")
                assert loaded.dtype == torch.bfloat16 and not any(tensor.is_meta for tensor in loaded.state_dict().values())
                with torch.no_grad():
                    assert torch.equal(loaded(tokens).logits, expected), (kind, way)
                    for parameter in loaded.parameters():
                        parameter.fill_(5)
                del space, loaded, parameter
                value = trainer.get(trainer.name("policy"), as_="torch")
                assert all(torch.equal(value[key], tensor) for key, tensor in model.state_dict().items()), "was written"
                del value
            trainer.unpublish("policy")
            gc.collect()
        rdtd.default().close()


if __name__ == "__main__":
    main(globals())
