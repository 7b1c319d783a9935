/* SPDX-License-Identifier: Apache-2.0
 *
 * The engines of data_parallel_size read one configuration file; each changes what must not be
 * shared. */
#include "engine/replica.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "ipc/attach.h"

/* A copy of a path with "-rank" at its end; an empty one stays empty. NULL without memory. */
static const char *replica_path(const char *path, int rank)
{
    size_t cap = strlen(path) + 16;
    char *own;

    if (path[0] == '\0')
        return path;
    own = mem_alloc(cap);
    if (own != NULL)
        (void)snprintf(own, cap, "%s-%d", path, rank);
    return own;
}

int replica_first_gpu(const struct settings *s)
{
    if (s->data_parallel_size == 1)
        return 0;
    return s->data_parallel_rank * s->tensor_parallel_size * s->pipeline_parallel_size;
}

int replica_take(struct settings *s)
{
    size_t cap = strlen(s->engine_socket) + 16;
    char *path;

    if (strchr(s->engine_socket, ',') != NULL) {
        log_error("engine: engine_socket is a list: give each engine its own with --engine-socket");
        return ERR_INVALID;
    }
    if (s->data_parallel_size == 1)
        return ERR_OK;
    if (s->data_parallel_rank < 0 || s->data_parallel_rank >= s->data_parallel_size) {
        log_error("engine: data_parallel_rank = %d must be 0 to %d, because data_parallel_size is "
                  "%d; start quire-engine@0 and so on in place of quire-engine",
                  s->data_parallel_rank, s->data_parallel_size - 1, s->data_parallel_size);
        return ERR_INVALID;
    }
    path = mem_alloc(cap);
    if (path != NULL)
        attach_path_of(path, cap, s->engine_socket, s->data_parallel_rank);
    s->engine_socket = path;
    s->kv_host_file = replica_path(s->kv_host_file, s->data_parallel_rank);
    s->kv_store_dir = replica_path(s->kv_store_dir, s->data_parallel_rank);
    if (path == NULL || s->kv_host_file == NULL || s->kv_store_dir == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}
