#!/usr/bin/env python3
"""NCCL's all-reduce through PyTorch, the peer of bench_ranks: all GPUs of this machine, bfloat16, in
a CUDA graph of many sums, median of many graphs. A line per size."""
import os
import statistics
import sys

os.environ['NCCL_NVLS_ENABLE'] = '0'  # multicast stays off
TURNS = 21


def run(rank, n):
    import torch
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29511')
    torch.cuda.set_device(rank)
    dist.init_process_group('nccl', rank=rank, world_size=n)
    for kib in (8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384, 65536):
        n_sums = 8 if kib > 1024 else 64
        rows = torch.zeros(kib * 512, dtype=torch.bfloat16, device='cuda')
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                dist.all_reduce(rows)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(n_sums):
                dist.all_reduce(rows)
        times = []
        for _ in range(TURNS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            dist.barrier()
            torch.cuda.synchronize()
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / n_sums)
        us = statistics.median(times)
        if rank == 0:
            print('NCCL %6d KiB: %8.2f us, moved %.0f GB/s'
                  % (kib, us, 2 * (n - 1) / n * kib * 1.024 / us), flush=True)
    dist.destroy_process_group()


def main():
    try:
        import torch
    except ImportError:
        print('PyTorch is not installed: NCCL is not measured')
        return 0
    n = torch.cuda.device_count()
    if n < 2:
        print('one GPU: nothing to sum')
        return 0
    torch.multiprocessing.spawn(run, args=(n,), nprocs=n)
    return 0


if __name__ == '__main__':
    sys.exit(main())
