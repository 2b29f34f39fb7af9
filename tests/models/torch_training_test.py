# SPDX-License-Identifier: Apache-2.0
"""Training on anyop modules follows training on torch's: a tiny transformer, and replaced models of transformers."""

from __future__ import annotations

import copy
import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop.torch  # noqa: E402

F = torch.nn.functional
V, D, H, T, STEPS = 29, 32, 4, 12, 50


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of torch wait for each other for longer than these small tensors take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class TorchSiluAndMul(torch.nn.Module):
    def forward(self, x):
        gate, value = x.chunk(2, -1)
        return F.silu(gate) * value


class TorchAttention(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class TorchLayers:
    """What anyop.torch.nn has and torch.nn has not, in torch's functions."""

    Embedding, Linear, RMSNorm = torch.nn.Embedding, torch.nn.Linear, torch.nn.RMSNorm
    SiluAndMul, Attention = TorchSiluAndMul, lambda causal: TorchAttention()


class Block(torch.nn.Module):
    """Attention with two groups of heads, then SwiGLU, each on normalised rows."""

    def __init__(self, nn):
        super().__init__()
        self.before = nn.RMSNorm(D, eps=1e-6)
        self.qkv = nn.Linear(D, 2 * D, bias=False)
        self.attend = nn.Attention(causal=True)
        self.projected = nn.Linear(D, D)
        self.between = nn.RMSNorm(D, eps=1e-6)
        self.inner = nn.Linear(D, 4 * D, bias=False)
        self.gate = nn.SiluAndMul()
        self.outer = nn.Linear(2 * D, D)

    def forward(self, x):
        B, length, _ = x.shape
        heads = self.qkv(self.before(x)).view(B, length, 2 * H, D // H).transpose(1, 2)
        q, k, v = heads.split([H, H // 2, H // 2], 1)
        x = x + self.projected(self.attend(q, k, v).transpose(1, 2).reshape(B, length, D))
        return x + self.outer(self.gate(self.inner(self.between(x))))


class Transformer(torch.nn.Module):
    def __init__(self, nn):
        super().__init__()
        self.tokens = nn.Embedding(V, D, padding_idx=0)
        self.blocks = torch.nn.ModuleList([Block(nn), Block(nn)])
        self.last = nn.RMSNorm(D, eps=1e-6)
        self.words = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.words(self.last(x))


def batches():
    """Counting sequences with steps 1 to 3, half of them with padding in front."""
    generator = torch.Generator().manual_seed(4)
    for _ in range(STEPS):
        start = torch.randint(1, V, (8, 1), generator=generator)
        step = torch.randint(1, 4, (8, 1), generator=generator)
        ids = (start + step * torch.arange(T + 1)) % (V - 1) + 1
        ids[:4, :3] = 0
        yield ids[:, :-1], ids[:, 1:]


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
}


def losses(model, optimizer, logits=lambda found: found, autocast=False):
    """The loss before each step."""
    found = []
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    for ids, targets in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(logits(model(ids)).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)


def assert_same_training(found, expected):
    assert expected[-5:].mean() < 0.7 * expected[0]  # it learns something
    assert (found - expected).abs().max() <= 1e-4


def twins():
    """The transformer on torch's layers and on anyop's, with the same weights."""
    torch.manual_seed(0)
    theirs = Transformer(TorchLayers)
    ours = Transformer(anyop.torch.nn)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_transformer_trains_as_torchs(optimizer):
    theirs, ours = twins()
    assert type(ours.blocks[0].outer) is anyop.torch.nn.Linear
    expected = losses(theirs, optimizer)
    assert_same_training(losses(ours, optimizer), expected)
    for (name, found), wanted in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (found - wanted).abs().max() <= 1e-3, name
    assert torch.equal(ours.tokens.weight[0], torch.zeros(D))  # padding is not trained


@pytest.mark.drawn(2, together="a compiled transformer")
def test_a_compiled_transformer_trains_as_torchs():
    theirs, ours = twins()
    expected = losses(theirs, "SGD")
    assert_same_training(losses(torch.compile(ours, fullgraph=True), "SGD"), expected)


def test_training_under_autocast_stays_near_torchs():
    """Weights and norms in float32, products in bfloat16."""
    theirs, ours = twins()
    expected, found = (losses(model, "SGD", autocast=True) for model in (theirs, ours))
    assert expected[-5:].mean() < 0.7 * expected[0]
    # bfloat16 keeps 8 bits; where they are lost differs, and training carries it on.
    assert (found[:5] - expected[:5]).abs().max() <= 5e-3
    assert (found[-5:].mean() - expected[-5:].mean()).abs() <= 0.05


def qwen3(**settings):
    transformers = pytest.importorskip("transformers", reason="the model is transformers'")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**{
        "vocab_size": V, "hidden_size": D, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": H, "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 1,
        "eos_token_id": None, "pad_token_id": 0, "max_position_embeddings": 64,
        "initializer_range": 0.2, **settings,
    })  # fmt: skip
    return transformers.Qwen3ForCausalLM(config)


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied weights"])
def test_replaced_qwen3_generates_the_same_tokens(tied):
    model = qwen3(tie_word_embeddings=tied).eval()
    prompt = torch.tensor([[3, 9, 4, 11], [5, 5, 2, 1]])
    options = {"max_new_tokens": 24, "do_sample": False, "output_logits": True}
    options |= {"return_dict_in_generate": True, "attention_mask": torch.ones_like(prompt)}
    with torch.no_grad():
        expected = model.generate(prompt, **options)
        with anyop.torch.replace(model, timed=False, verbose=False) as replaced:
            found = model.generate(prompt, **options)
            compiled = torch.compile(model, fullgraph=True)(prompt).logits
            eager = model(prompt).logits
    assert replaced.swapped["Qwen3RMSNorm"] == 9 and not replaced.left
    assert found.sequences.shape[1] == 28 and torch.equal(found.sequences, expected.sequences)
    assert len(found.sequences[:, 4:].unique()) > 4
    for ours, theirs in zip(found.logits, expected.logits, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_replaced_qwen3_trains_with_the_same_losses(optimizer):
    theirs = qwen3(initializer_range=0.1)
    ours = copy.deepcopy(theirs)
    anyop.torch.replace(ours, timed=False, verbose=False)
    expected = losses(theirs, optimizer, lambda found: found.logits)
    assert_same_training(losses(ours, optimizer, lambda found: found.logits), expected)


def byte_training():
    return pytest.importorskip("byte_training", reason="needs transformers")


def test_a_byte_level_model_follows_torchs_losses_over_300_steps():
    """With everything replaced; its products are joined where no gradient is recorded. Measured: 3e-6."""
    bytes_ = byte_training()
    theirs, ours, text = bytes_.llama(64, 64), bytes_.llama(64, 64), bytes_.pages()
    replaced = anyop.torch.replace(ours, fuse=True, timed=False, verbose=False)
    assert not replaced.left and replaced.swapped["LlamaForCausalLM"] == 1
    how = {"rows": 8, "length": 64, "steps": 300, "rate": 1e-3}
    expected, found = (bytes_.losses(model, text, **how) for model in (theirs, ours))
    assert expected[-20:].mean() < 0.75 * expected[:20].mean()
    assert (found - expected).abs().max() <= 1e-3
    tokens = text[None, -64:]
    with torch.no_grad():
        found, expected = (m.eval()(tokens, labels=tokens).loss for m in (ours, theirs))
    assert (found - expected).abs() <= 1e-3


def test_a_step_needs_less_memory_than_the_logits_take():
    """64 MiB of logits: torch has two or three of their size at once; anyop had 9 MiB in all."""
    bytes_ = byte_training()
    theirs, ours = (bytes_.llama(64, 512, V=8192, layers=1) for _ in range(2))
    anyop.torch.replace(ours, timed=False, verbose=False)
    logits = 4 * 512 * 8192 * 4
    try:
        assert bytes_.step_bytes(theirs, 4, 512) > 1.5 * logits
    except OSError:
        pytest.skip("this process may not set its peak of memory back")
    assert bytes_.step_bytes(ours, 4, 512) < logits
