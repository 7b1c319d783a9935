/* SPDX-License-Identifier: Apache-2.0
 *
 * Engine I of data_parallel_size has tensor_parallel_size GPUs: those from I * that number on, of
 * the ones in CUDA_VISIBLE_DEVICES or of all. So no unit needs to name GPUs. */
#include "engine/rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "ipc/attach.h"

/* A copy of a path with "-rank" at its end; an empty one stays empty. NULL without memory. */
static const char *rank_path(const char *path, int rank)
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

/* The n-th part of a list with commas: its length, and where it begins. 0: there is none. */
static size_t rank_part(const char *list, int n, const char **part)
{
    while (n-- > 0) {
        list = strchr(list, ',');
        if (list == NULL)
            return 0;
        list++;
    }
    *part = list;
    return strcspn(list, ",");
}

/* Show this engine's GPUs to CUDA. */
static int rank_show_gpus(const struct settings *s)
{
    const char *all = getenv("CUDA_VISIBLE_DEVICES");
    struct buf own = {0};
    int rc = ERR_OK;

    for (int i = 0; i < s->tensor_parallel_size && rc == ERR_OK; i++) {
        int n = s->data_parallel_rank * s->tensor_parallel_size + i;
        const char *part = "";
        size_t len = all == NULL ? 0 : rank_part(all, n, &part);

        buf_add_comma(&own, i > 0);
        if (all == NULL)
            buf_printf(&own, "%d", n);
        else if (len > 0)
            buf_add(&own, part, len);
        else
            rc = ERR_INVALID;
    }
    if (rc != ERR_OK)
        log_error("engine: CUDA_VISIBLE_DEVICES = %s has too few GPUs for engine %d with %d each",
                  all, s->data_parallel_rank, s->tensor_parallel_size);
    else if (own.failed || setenv("CUDA_VISIBLE_DEVICES", buf_text(&own), 1) != 0)
        rc = ERR_NO_MEMORY;
    buf_fini(&own);
    return rc;
}

int rank_take(struct settings *s)
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
    s->kv_host_file = rank_path(s->kv_host_file, s->data_parallel_rank);
    s->kv_store_dir = rank_path(s->kv_store_dir, s->data_parallel_rank);
    if (path == NULL || s->kv_host_file == NULL || s->kv_store_dir == NULL)
        return ERR_NO_MEMORY;
    if (strcmp(s->device, "cpu") == 0)
        return ERR_OK;
    return rank_show_gpus(s);
}
