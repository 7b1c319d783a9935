"""cuDNN's and FlashAttention's causal attention through torch, over contiguous keys and values:
the peers of bench_attn_chunk. Needs a GPU and torch; prints one line a shape."""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

SHAPES = [  # tokens, heads, kv heads, head size
    (2048, 32, 8, 128), (8192, 32, 8, 128), (16384, 32, 8, 128),
    (2048, 32, 32, 128), (8192, 32, 32, 128), (16384, 32, 32, 128),
    (8192, 32, 8, 64), (8192, 16, 4, 256),
]


def measure(backend, n, heads, kv_heads, dim):
    """Median microseconds over three sets of inputs in turn, the GPU busy for 0.3 s before."""
    sets = [[torch.randn(1, h, n, dim, device="cuda", dtype=torch.bfloat16)
             for h in (heads, kv_heads, kv_heads)] for _ in range(3)]
    times, total = [], 0.0
    with sdpa_kernel(backend):
        sdpa(*sets[0], is_causal=True, enable_gqa=heads != kv_heads)  # compiles
        torch.cuda.synchronize()
        while total < 5e5:
            q, k, v = sets[len(times) % 3]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            sdpa(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
            total += times[-1]
    late = sorted(times[len(times) * 3 // 5:])
    return late[len(late) // 2]


for shape in SHAPES:
    n, heads, kv_heads, dim = shape
    flops = 4 * dim * heads * n * (n + 1) / 2
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION),
                          ("flash", SDPBackend.FLASH_ATTENTION)):
        try:
            us = measure(backend, *shape)
            print(f"{name} {n} causal {heads}/{kv_heads} x {dim}: "
                  f"{us:9.1f} us {flops / us * 1e-6:6.1f} TFLOP/s", flush=True)
        except RuntimeError as error:
            print(f"{name} {n} causal {heads}/{kv_heads} x {dim}: {str(error)[:80]}", flush=True)
