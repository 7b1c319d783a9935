/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: each of several engines has a socket, files and GPUs that no other has, and a wrong number
 * is refused. Method: settings of every rank. */
#include "base/log.h"
#include "base/mem.h"
#include "engine/replica.h"
#include "tests/tap.h"

static struct settings settings_of(int size, int rank)
{
    return (struct settings){.data_parallel_size = size,
                             .data_parallel_rank = rank,
                             .tensor_parallel_size = 2,
                             .pipeline_parallel_size = 1,
                             .engine_socket = "/run/quire/engine.sock",
                             .kv_host_file = "/dev/shm/quire/pages",
                             .kv_store_dir = ""};
}

int main(void)
{
    struct settings s = settings_of(1, -1);

    log_set_level(0);
    is_int(replica_take(&s), ERR_OK, "one engine needs no number");
    is_text(s.engine_socket, "/run/quire/engine.sock", "and keeps its socket");
    is_text(s.kv_host_file, "/dev/shm/quire/pages", "and its file");
    is_int(replica_first_gpu(&s), 0, "and the first GPU");
    s = settings_of(1, 3);
    is_int(replica_take(&s), ERR_OK, "a number without others is ignored");
    is_int(replica_first_gpu(&s), 0, "also for the GPU");
    for (int rank = 0; rank < 3; rank++) {
        char want[64];

        s = settings_of(3, rank);
        s.kv_store_dir = rank == 2 ? "/var/lib/quire/prefix" : "";
        is_int(replica_take(&s), ERR_OK, "engine %d of three", rank);
        (void)snprintf(want, sizeof want, "/run/quire/%d/engine.sock", rank);
        is_text(s.engine_socket, want, "its socket is where the fronts look");
        (void)snprintf(want, sizeof want, "/dev/shm/quire/pages-%d", rank);
        is_text(s.kv_host_file, want, "its file");
        is_text(s.kv_store_dir, rank == 2 ? "/var/lib/quire/prefix-2" : "", "its folder, if any");
        is_int(replica_first_gpu(&s), 2 * rank, "its first GPU");
        s.pipeline_parallel_size = 3;
        is_int(replica_first_gpu(&s), 6 * rank, "behind all stages of the others");
        mem_free((char *)(uintptr_t)s.engine_socket), mem_free((char *)(uintptr_t)s.kv_host_file);
        if (rank == 2)
            mem_free((char *)(uintptr_t)s.kv_store_dir);
    }
    s = settings_of(3, 3);
    is_int(replica_take(&s), ERR_INVALID, "the fourth of three is refused");
    s = settings_of(3, -1);
    is_int(replica_take(&s), ERR_INVALID, "so is one of three without a number");
    s = settings_of(1, -1);
    s.engine_socket = "/a,/b";
    is_int(replica_take(&s), ERR_INVALID, "and a list of sockets");
    return tap_done();
}
